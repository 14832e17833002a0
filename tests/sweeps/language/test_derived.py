"""What is derived from the code is kept until the code changes."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweeps.commands.table import COMMANDS, described
from sweeps.language import derived as module
from sweeps.language.derived import derived
from sweeps.systems import kinds

HELP = """
import sys
from sweeps.cli import main
try:
    main(sys.argv[1:])
finally:
    used = "jax" in sys.modules
    if used:
        # Other processes can no longer be found once a device is used.
        from jax._src import xla_bridge
        assert not xla_bridge.backends_are_initialized()
    print(used)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "dynsim"


@pytest.fixture
def counted() -> Callable[[], Any]:
    """Returns how often it has been called."""
    calls: list[None] = []

    def call() -> Any:
        calls.append(None)
        return {"calls": len(calls), "both": (1.5, float("inf"))}

    return call


def test_a_value_is_derived_once_for_the_same_code(
    home: Path, counted: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {"calls": 1, "both": [1.5, float("inf")]}
    assert derived("some", counted) == first
    assert derived("some", counted) == first
    assert derived("other", counted)["calls"] == 2
    for i in range(9):
        monkeypatch.setattr(module, "_code", lambda i=i: f"changed-{i}")
        assert derived("some", counted)["calls"] == 3 + i
    assert len([*home.glob("some-*")]) == module.MOST


def test_a_damaged_file_or_a_folder_that_cannot_be_written_costs_time_alone(
    home: Path, counted: Callable[[], Any]
) -> None:
    derived("some", counted)
    (file,) = home.glob("some-*")
    file.write_text(file.read_text()[:-1])
    assert derived("some", counted)["calls"] == 2
    assert derived("some", counted)["calls"] == 2
    file.unlink()
    home.rmdir()
    home.write_text("no folder")
    assert [derived("some", counted)["calls"] for _ in range(2)] == [3, 4]


def test_a_change_of_any_file_of_the_packages_is_another_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in module.PACKAGES:
        (tmp_path / package / "inner").mkdir(parents=True)
    file = tmp_path / "odes" / "inner" / "theory.py"
    file.write_text("x = 1")
    monkeypatch.setattr(module, "__file__", str(tmp_path / "sweeps" / "language" / "derived.py"))
    seen = []
    for change in (
        lambda: None,
        lambda: file.write_text("x = 10"),
        lambda: os.utime(file, ns=(0, 0)),
        lambda: file.rename(file.with_name("other.py")),
        lambda: (tmp_path / "dynsim" / "more.py").touch(),
    ):
        change()
        seen.append(module._code.__wrapped__())
    assert len({*seen}) == len(seen)
    (tmp_path / "dynsim" / "notes.txt").touch()
    assert module._code.__wrapped__() == seen[-1]


@pytest.mark.more
def test_help_imports_jax_only_where_nothing_is_kept(home: Path) -> None:
    run = [sys.executable, "-c", HELP, "compare", "--help"]
    first, then = (subprocess.run(run, check=True, capture_output=True, text=True) for _ in "12")
    (text, was), (again, now) = (each.stdout.rsplit("\n", 2)[:2] for each in (first, then))
    assert (was, now) == ("True", "False")
    assert text == again
    assert "--seeds" in text


def test_every_command_and_class_is_described() -> None:
    for name in COMMANDS:
        kind, usual, _ = described(name)
        assert kind.about
        assert (usual is None) == ("run" not in kind.fields)
    assert {kind.word: kind.location for kind in kinds.language().kinds} == kinds.CLASSES
