"""Processes of their own that do not outlive a test."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]


@contextlib.contextmanager
def started(folder: Path, *words: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Python with these words, in a folder whose modules it finds; hanging ends in five minutes."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])} | variables
    with subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        watchdog = threading.Timer(300, process.kill)
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            process.kill()
