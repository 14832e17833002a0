"""`python -m dynsim` starts the command line anew."""

import importlib.metadata
import os
import runpy

import pytest


@pytest.mark.parametrize(("level", "kept"), [("1", None), ("2", "2"), (None, None)])
def test_the_level_of_the_log_that_a_user_set_is_kept(
    level: str | None, kept: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX itself sets 1; versions from 0.12 on need none."""
    for name in ("MPLBACKEND", "EQX_ON_ERROR", "TF_CPP_MIN_LOG_LEVEL"):
        monkeypatch.setenv(name, "x")
    monkeypatch.delenv("EQX_ON_ERROR")
    if level is None:
        monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    else:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)

    def execv(program: str, words: list[str]) -> None:
        raise SystemExit(os.environ.get("TF_CPP_MIN_LOG_LEVEL"))

    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.12.0")
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module("dynsim", run_name="__main__")
    assert stopped.value.code == kept
