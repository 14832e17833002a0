"""What a sweep will take, said before it starts."""

import contextlib
import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sweeps import cli
from sweeps.commands import sweep
from sweeps.runner.work import Work

FILE = """
record = ["loss", "z_top_distinct"]
times = 5
[run]
problem = "yz"
steps = 1000
batch = 8
length = 8
eta_z = { kind = "cosine", peak = 0.1, steps = 1000 }
[axes]
seed = {range = 3}
eta_y = [0.5, 1]
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    (tmp_path / "some.toml").write_text(FILE)
    return ["sweep", str(tmp_path / "some.toml"), "--out", str(tmp_path / "out")]


def test_a_dry_run_says_what_it_takes_and_writes_nothing(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # A machine on which a step of a chunk takes 2 s, and what is around it 100 s.
    timed = lambda work: 100 + 2 * work.sweep.first.steps
    monkeypatch.setattr(sweep, "_timed", timed)
    assert cli.main([*command, "--dry-run", "--chunk", "2"]) == 0
    said = capsys.readouterr().out
    assert "6 runs in 3 chunks of 1x2" in said
    # A loss and two logits, in float32, at 0 and five other steps; a status and a first bad step.
    assert f"at most {6 * (4 * 6 + 4 * 2 * 6 + 1 + 4) / 1e3} kB" in said
    # Of 10 and 30 steps, from which a thousand follow: 2100 s a chunk.
    assert "about 1:45:00 (h:mm:ss)" in said
    assert not (tmp_path / "out").exists()


def test_what_is_stored_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = SimpleNamespace(num_runs=20, chunk=(2, 2))
    plan = SimpleNamespace(layout=layout)
    work = type("Planned", (), {"plan": plan})()
    found = SimpleNamespace(work=work, done=8, bytes=2_500_000)
    monkeypatch.setattr(sweep, "_seconds", lambda work: 100.0)
    _, stored, disk, took = sweep.text(found).splitlines()
    assert stored == "8 of 20 runs are already stored"
    assert disk == "disk space: at most 2.5 MB, before compression"
    assert took.startswith("time: about 0:05:00 (h:mm:ss)")
    monkeypatch.setattr(sweep, "_seconds", lambda work: 0.01)
    assert "about 0:00:01 " in sweep.text(found)


def test_a_chunk_is_timed_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first time compiles."""
    clock, computed = iter([3.0, 5.5]), []
    monkeypatch.setattr(sweep.time, "perf_counter", lambda: next(clock))
    work = SimpleNamespace(
        plan=SimpleNamespace(layout=SimpleNamespace(region=lambda number: f"chunk {number}")),
        sweep=SimpleNamespace(dtype="float32"),
        variables=lambda: "variables",
        compute=lambda *given: computed.append(given),
    )
    assert sweep._timed(work) == 2.5  # pyright: ignore[reportArgumentType]
    assert computed == [("chunk 0", "variables")] * 2


@pytest.mark.parametrize(
    ("answer", "goes"), [("y", True), (" YES ", True), ("", False), ("n", False), ("yess", False)]
)
def test_only_a_yes_starts_a_large_sweep(
    answer: str, goes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = io.StringIO(f"{answer}\n")
    answers.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", answers)
    work = SimpleNamespace(plan=SimpleNamespace(layout=SimpleNamespace(num_runs=10**9)))
    found = SimpleNamespace(work=work, done=0, bytes=1)
    with contextlib.nullcontext() if goes else pytest.raises(ValueError, match="not started"):
        sweep.confirm(found, yes=False)


def test_a_very_large_sweep_is_confirmed(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sweep, "MANY", 6)
    monkeypatch.setattr(Work, "compute", None)
    assert cli.main(command) == 2
    assert "6 runs, up to 4.62e-07 GB on disk: confirm with --yes" in capsys.readouterr().err
    answers = io.StringIO("n\n")
    answers.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", answers)
    assert cli.main(command) == 2
    assert "Continue? [y/N] dynsim: 6 runs, up to 4.62e-07 GB" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("runs", "stored", "bytes_on_disk", "asked"),
    [
        (10**8 - 1, 0, 10**11 - 1, False),
        (10**8, 0, 1, True),
        # What is there is not run again.
        (10**8, 1, 1, False),
        (1, 0, 10**11, True),
    ],
)
def test_a_person_is_asked_from_1e8_runs_or_1e11_bytes_on(
    runs: int, stored: int, bytes_on_disk: int, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    work = SimpleNamespace(plan=SimpleNamespace(layout=SimpleNamespace(num_runs=runs)))
    found = SimpleNamespace(work=work, done=stored, bytes=bytes_on_disk)
    sweep.confirm(found, yes=True)
    if not asked:
        sweep.confirm(found, yes=False)
        return
    with pytest.raises(ValueError, match=r"confirm with --yes"):
        sweep.confirm(found, yes=False)


@pytest.mark.parametrize(
    ("number", "text"), [(1, "0.001 kB"), (999_499, "999 kB"), (10**6 - 1, "1 MB"), (10**9, "1 GB")]
)
def test_sizes_have_a_unit(number: int, text: str) -> None:
    assert sweep._size(number) == text


@pytest.mark.parametrize(("done", "lines"), [(3, ["so far", "best"]), (2, ["so far"])])
@pytest.mark.parametrize("out", [None, "s3://bucket/run"])
def test_the_best_cell_of_a_complete_sweep_is_told(
    done: int,
    lines: list[str],
    out: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is given goes to the sweep; chunks of other processes may not be there."""
    asked: dict[str, Any] = {}
    monkeypatch.setattr(sweep, "load", lambda file, words: (file, words))
    monkeypatch.setattr(sweep, "plan", lambda *given: asked.update(planned=given))
    monkeypatch.setattr(sweep, "confirm", lambda found, yes: asked.update(yes=yes))
    monkeypatch.setattr(sweep.cluster, "use_all_cores", lambda: None)
    monkeypatch.setattr(sweep, "run_sweep", lambda *given, **more: asked.update(more, run=given))
    monkeypatch.setattr(sweep.Store, "open", lambda place, report: None)
    about = {"chunks_done": done, "chunks": 3}
    monkeypatch.setattr(sweep.reading, "describe", lambda store: about)
    monkeypatch.setattr(sweep.reading, "progress", lambda found: "so far")
    monkeypatch.setattr(sweep, "best_cell", lambda found: ["best"])
    given = {"chunk": 7, "tile": 2, "yes": True, "strict": True, "durable": True}
    command = sweep.SweepCommand(
        "some/mine.toml", out, set=("a=1",), process=1, processes=4, accept_code="x", **given
    )
    where = out or "runs/mine"
    assert sweep.run(command) == [where]
    assert capsys.readouterr().out.splitlines() == lines
    made = ("some/mine.toml", ("a=1",))
    assert asked["planned"] == (made, where, 7, 2)
    assert asked["run"] == (made, where)
    assert (asked["process"], asked["executor"], asked["accept_code"]) == ((1, 4), None, "x")
    assert {name: asked[name] for name in given} == given
