"""Processes that do not find each other say so, in time and in a line."""

import atexit
import re
import threading

import jax
import pytest

from sweeps.runner.cluster.hosts import Hosts


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
