"""Processes that do not find each other say so, in time and in a line."""

import atexit
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import jax
import pytest

from sweeps.runner.cluster import Hosts


def test_processes_that_do_not_find_each_other_are_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over, left = threading.Event(), []
    # As JAX, which waits and then aborts the process.
    monkeypatch.setattr(jax.distributed, "initialize", lambda *_, **__: over.wait())
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    monkeypatch.setattr(atexit, "register", left.append)
    hosts = Hosts(coordinator="host0:1234", processes=2, process=1, patience=1)
    message = "did not find each other at host0:1234 within patience = 1 s"
    try:
        with pytest.raises(ValueError, match=re.escape(message)):
            hosts.connect()
    finally:
        over.set()
    assert len(left) == 1
    with pytest.raises(ValueError, match="patience = 0: must be an integer >= 1"):
        Hosts(coordinator="host0:1234", processes=2, process=1, patience=0).connect()


def test_processes_find_each_other_before_jax_is_used(tmp_path: Path) -> None:
    """Which it would refuse afterwards; in a process of its own, as this one has used it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "s.toml").write_text(
        "axes.eta_y = [1]\nrun = {problem = 'yz', steps = 1, batch = 1}\n"
    )
    words = ["sweep", "s.toml", "--out", "s", "--coordinator", f"127.0.0.1:{port}"]
    command = [sys.executable, "-m", "dynsim", *words, "--processes", "1", "--process", "0"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    found = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert "1 of 1 runs done" in found.stdout
