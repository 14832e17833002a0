"""Compiled programs that are kept: found again by another process, and never somebody else's."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from sweeps import cli
from sweeps.output import programs

COUNT = """
import jax
from sweeps.output import programs
programs.QUICKEST = 0.0
programs.keep()
found = []
jax.monitoring.register_event_listener(lambda name, **_: found.append(name))
assert jax.jit(lambda x: 2 * x)(3) == 6
print(found.count("/jax/compilation_cache/cache_hits"))
"""
OPTIONS = ("enable_compilation_cache", "compilation_cache_dir", "compilation_cache_max_size")
SLOW = "persistent_cache_min_compile_time_secs"


ROOT = Path(__file__).parents[3]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of the user's, and JAX as it is by default."""
    before = {name: jax.config.values[f"jax_{name}"] for name in (*OPTIONS, SLOW)}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", programs.SILENT)
    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "true")
    jax.config.update("jax_enable_compilation_cache", True)
    yield tmp_path
    for name, value in before.items():
        jax.config.update(f"jax_{name}", value)


def hits() -> int:
    """How many programs another process finds."""
    run = [sys.executable, "-c", COUNT]
    return int(subprocess.run(run, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the cache folder is another one")
def test_another_process_finds_them(home: Path) -> None:
    assert hits() == 0
    kept = sorted(home.glob("dynsim/*/*-cache"))
    assert kept
    assert hits() == len(kept)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the cache folder is another one")
@pytest.mark.full("test_another_process_finds_them")
def test_another_process_finds_them_and_no_leftovers(home: Path) -> None:
    assert hits() == 0
    kept = sorted(home.glob("dynsim/*/*-cache"))
    assert kept
    assert hits() == len(kept)
    # A process that is killed while it writes leaves half a program, and no time of its use.
    for program in kept:
        program.write_bytes(b"half")
        program.with_name(program.name.removesuffix("cache") + "atime").unlink()
    assert hits() == 0
    assert hits() == len(kept)


def test_each_kind_of_processor_and_version_has_its_own(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = programs.keep()
    assert own
    assert home in own.parents
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setattr(programs, "_instructions", lambda: ["avx512f"])
    other = programs.keep()
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setattr(programs.importlib.metadata, "version", lambda name: "0.99")
    assert len({own, other, programs.keep()}) == 3


def test_the_user_decides(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jax.config.update("jax_compilation_cache_dir", str(home / "mine"))
    assert programs.keep() == home / "mine"
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_enable_compilation_cache", False)
    assert programs.keep() is None
    jax.config.update("jax_enable_compilation_cache", True)
    monkeypatch.setattr(programs, "LOUD", (99, 0))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "1")
    assert programs.keep() is None
    assert not os.listdir(home)


def test_a_home_that_cannot_be_written_keeps_none(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "file"))
    assert programs.keep() is None
    assert jax.config.values["jax_compilation_cache_dir"] is None


def test_info_without_a_sweep_is_about_the_environment(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["info", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["jax"] == jax.__version__
    assert home in Path(about["compiled programs"]).parents
    if (ROOT / ".git").exists():
        ask = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
        commit = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip()
        assert about["commit"].removesuffix("-dirty") == commit
