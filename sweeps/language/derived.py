"""Facts that are derived from dynsim's own code and kept in the user's cache folder.

Deriving the settings and options of all commands imports JAX and every command, which takes
seconds. Help and the errors of a mistyped option must not wait for that.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sweeps import cache

PACKAGES = ("dynsim", "odes", "sweeps", "papers")
MOST_FILES = 4
"""Maximum number of files of each name, for users who switch between versions of dynsim."""


def derived(name: str, derive: Callable[[], Any]) -> Any:
    """Return the JSON value of `derive()`, which must depend on dynsim's code alone. It is read
    from the cache folder if it has been derived from the same code before."""
    folder = cache.folder()
    if folder is None:
        return json.loads(json.dumps(derive()))
    file = folder / f"{name}-{_code()}.json"
    # A damaged file counts as missing.
    with contextlib.suppress(OSError, ValueError):
        return json.loads(cache.read(file))
    text = json.dumps(derive())
    # A disk without room is not an error: the next process derives it again.
    with contextlib.suppress(OSError):
        cache.write(file, text.encode())
        files = sorted(folder.glob(f"{name}-*.json"), key=lambda file: file.stat().st_mtime)
        for old in files[:-MOST_FILES]:
            old.unlink(missing_ok=True)
    return json.loads(text)


@functools.cache
def _code() -> str:
    # Names, sizes and times of the files stand for their contents, which take longer to read.
    # Classes of Equinox are bases of dynsim's.
    root = Path(__file__).parents[2]
    files = [file for package in PACKAGES for file in sorted(sources(root / package))]
    about = files, sys.version, importlib.metadata.version("equinox")
    return hashlib.sha256(repr(about).encode()).hexdigest()[:16]


def sources(folder: str | Path) -> Iterator[tuple[str, int, int]]:
    """Yield path, size and modification time of each source file below a folder."""
    for entry in os.scandir(folder):
        if entry.is_dir():
            yield from sources(entry.path)
        elif entry.name.endswith(".py"):
            status = entry.stat()
            yield entry.path, status.st_size, status.st_mtime_ns
