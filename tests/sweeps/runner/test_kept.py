"""Programs that need not be traced again, found by all that they were made from."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray as xr

import sweeps
from sweeps import Sweep, experiment
from sweeps.output import programs
from sweeps.runner import kept, tiles

RUN = experiment(task="syn-small", steps=5, batch=4)
SWEEP = Sweep(RUN, {"eta_z": [0.1, 0.2], "seed": {"range": 2}}, record=("loss",))


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tiles.Job]:
    """The jobs that are traced, where programs are kept in a folder of their own."""
    jobs, trace = [], tiles.trace

    def counted(job: tiles.Job) -> tuple[jax.stages.Traced | None, jax.stages.Traced]:
        jobs.append(job)
        return trace(job)

    monkeypatch.setattr(programs, "TRACED", [tmp_path])
    monkeypatch.setattr(tiles, "trace", counted)
    monkeypatch.setattr(tiles, "PROGRAMS", {})
    return jobs


def again(sweep: Sweep = SWEEP) -> xr.Dataset:
    """What a sweep records in a process that has compiled nothing."""
    tiles.PROGRAMS.clear()
    return sweeps.run(sweep).load()


def test_a_kept_program_is_not_traced_and_computes_the_same(traced: list[tiles.Job]) -> None:
    first = again()
    number = len(traced)
    assert number
    xr.testing.assert_identical(again(), first)
    assert len(traced) == number
    # Values of traced numbers are arguments of the program, but belong to the sweep.
    other = dataclasses.replace(SWEEP, axes={"eta_z": [0.1, 0.3], "seed": {"range": 2}})
    assert np.array_equal(again(other)["loss"][0], first["loss"][0])
    assert len(traced) > number


def test_what_decides_a_program_is_compared(
    traced: list[tiles.Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    again()
    number = len(traced)
    longer = dataclasses.replace(SWEEP, run=dataclasses.replace(RUN, steps=6))
    again(longer)
    assert len(traced) > number, "other settings"
    number = len(traced)
    monkeypatch.setattr(kept, "_code", lambda: ["a file that was edited"])
    again()
    assert len(traced) > number, "other code"
    number = len(traced)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    again()
    assert len(traced) > number, "other options of the compiler"


def test_an_edited_file_is_other_code(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    file = tmp_path / "inside" / "module.py"
    file.write_text("x = 1")
    before = list(kept._sources(str(tmp_path)))
    file.write_text("x = 10")
    assert len(before) == 1
    assert list(kept._sources(str(tmp_path))) != before


def test_a_damaged_file_is_traced_again(traced: list[tiles.Job], tmp_path: Path) -> None:
    first = again()
    number = len(traced)
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:100])
    xr.testing.assert_identical(again(), first)
    assert len(traced) == 2 * number


def test_those_used_longest_ago_go_first(
    traced: list[tiles.Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "MOST", 1)
    again()
    (first,) = tmp_path.iterdir()
    again(dataclasses.replace(SWEEP, run=dataclasses.replace(RUN, steps=6)))
    (second,) = tmp_path.iterdir()
    assert first != second


def test_only_the_command_line_keeps_them(
    traced: list[tiles.Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "TRACED", [])
    again()
    assert not list(tmp_path.iterdir())
