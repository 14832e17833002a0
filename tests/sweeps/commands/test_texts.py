"""What commands print, line by line, from results that are made up by hand."""

import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dynsim import Status
from sweeps.commands import reading, sweep
from sweeps.commands.explain import Explanation
from sweeps.systems.base import Row


@pytest.mark.parametrize(
    ("row", "cells"),
    [
        (Row("regime", "snapped"), ["snapped"]),
        (Row("loss", math.nan), ["-"]),
        (Row("loss", math.inf, 1.0), ["-"]),
        # Five digits of what is exact, or has no error; else down to the second one of the error.
        (Row("loss", 0.1234567, 0.0), ["0.12346", "0"]),
        (Row("loss", 0.1234567), ["0.12346", "-"]),
        (Row("loss", 0.1234567, 0.00213), ["0.1235", "0.0021"]),
        (Row("loss", 12.34567, 3.0), ["12.3", "3"]),
        (Row("loss", 12.34567, 300.0), ["1e+01", "3e+02"]),
        (Row("loss", 0.0, 0.5), ["0", "0.5"]),
        (
            Row("loss", 3.0, 0.0, "eta -> 0 (all flows): at step 5 it is strained", 5.0),
            ["3", "0", "eta -> 0", "5"],
        ),
        (
            Row("loss", 3.0, 0.0, "my flow: it ends", 1234.56),
            ["3", "0", "my flow", "1234.6"],
        ),
    ],
)
def test_a_row_is_a_line_of_the_table(row: Row, cells: list[str]) -> None:
    found = Explanation("a run", "flow", "OK", (row,)).text().splitlines()
    assert found[:4] == ["a run", "", "theory: flow (OK)", ""]
    heading, line, blank, *rest = found[4:]
    columns = ["quantity", "prediction", "error", "strained", "at step"]
    assert re.split("  +", heading) == columns
    assert [each for each in re.split("  +", line) if each] == [row.quantity, *cells]
    # Numbers stand below the ends of their headings.
    end = heading.index("prediction") + len("prediction")
    assert line[:end].split()[-1] == cells[0]
    assert blank == ""
    strained = ["strained assumptions:", f"  - {row.strained}"]
    assert rest == (strained if row.strained else ["no assumption is strained"])


def test_an_explanation_has_its_theories_and_what_was_compared_in_lines() -> None:
    made = Explanation(
        "a run",
        "plain flow",
        "OK",
        (Row("loss", 3.0, 0.0),),
        {"plain": "plain flow", "central": "central flow"},
        {"adam": "describes Adam"},
        "128 runs",
    )
    assert made.text().splitlines()[:11] == [
        "a run",
        "",
        "theories that apply:",
        f"  {'plain':<20}plain flow",
        f"  {'central':<20}central flow",
        "",
        "theories that do not apply:",
        f"  {'adam':<20}describes Adam",
        "",
        "theory: plain flow (OK)",
        "linear noise: compared with 128 runs",
    ]


@pytest.mark.parametrize(
    ("done", "seconds", "took"), [(0, 10.0, "0:00:30"), (4, 10.0, "0:00:20"), (0, 0.01, "0:00:01")]
)
def test_a_plan_counts_what_is_left(
    done: int, seconds: float, took: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve runs in chunks of four, each of so many seconds."""
    layout = SimpleNamespace(num_runs=12, chunk=(2, 2), runs_in=lambda stored: stored)

    class Planned(SimpleNamespace):
        def __str__(self) -> str:
            return "the plan"

    monkeypatch.setattr(sweep, "_seconds", lambda work: seconds)
    work: Any = SimpleNamespace(plan=Planned(layout=layout))
    store: Any = SimpleNamespace(layout=layout, done=lambda: done) if done else None
    found = sweep.Plan(work, store, 1_234_567)
    assert found.done == done
    assert sweep.text(found).splitlines() == [
        "the plan",
        *[f"{done} of 12 runs are already stored"] * bool(done),
        "disk space: at most 1.23 MB, before compression",
        f"time: about {took} (h:mm:ss) on this machine, estimated from one chunk; compilation is "
        "not included",
    ]


ABOUT: dict[str, Any] = {
    "title": "some rates",
    "theory": "simulation",
    "axes": {"eta_y": [0.1, 1e-7], "n": list(range(8)), "seed": list(range(9))},
    "run": {
        "kind": "yz",
        "steps": 8,
        "task": {"kind": "syn", "M": None},
        "rule": {"kind": "sgd"},
        "given": {"a": 1, "b": {"c": "x"}},
    },
    "parts": {},
    "recorded": ["loss", "status"],
    "runs_done": 6,
    "runs": 12,
    "chunks_done": 3,
    "chunks": 6,
    "status": {"OK": 5, "DIVERGED": 1},
    "made": [],
    "decided": [],
    "seconds": 12.3456,
    "environment": {"jax": "1", "numpy": "2"},
    "config_hash": "0123456789abcdef",
}


def told(about: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> list[str]:
    monkeypatch.setattr(reading.Store, "open", lambda path, report: None)
    monkeypatch.setattr(reading, "describe", lambda store: about)
    reading.info(reading.Info("runs/a"))
    return capsys.readouterr().out.splitlines()


def test_a_stored_sweep_is_told_in_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = [
        "runs/a: some rates",
        "theory simulation",
        f"  {'eta_y':<16} 0.1, 1e-07",
        f"  {'n':<16} 0, 1, 2, 3, 4, 5, 6, 7",
        f"  {'seed':<16} 0, 1, 2, ... 8 (9 values)",
        f"  {'steps':<16} 8",
        f"  {'task':<16} syn (M None)",
        f"  {'rule':<16} sgd",
        f"  {'given':<16} (a 1, b (c x))",
        "recorded: loss, status",
        "6 of 12 runs done (3 of 6 chunks): 5 OK, 1 DIVERGED",
        "made with jax 1, numpy 2",
        "config hash 0123456789ab",
    ]
    about = {**ABOUT, reading.PARTS: {}}
    assert told(about, monkeypatch, capsys) == usual
    made = [
        {"chunks": [(0, 1), (4, 4)], "environment": {"jax": "1", "numpy": "2"}},
        {"chunks": [(2, 3)], "environment": {"jax": "9", "numpy": "2"}},
    ]
    names = {"program": "b" * 40, "same_as": "a" * 40}
    numbers = {"decided": "numbers", "runs": 3, "difference": 2.34e-7}
    decided = [{**names, **numbers}, {**names, "decided": "name"}]
    (first, *lines) = told(
        {**about, "title": "", "made": made, "decided": decided, "status": {}},
        monkeypatch,
        capsys,
    )
    assert first == "runs/a: a sweep"
    pair = f"program {'a' * reading.SHORT} -> {'b' * reading.SHORT}"
    assert lines[9] == "6 of 12 runs done (3 of 6 chunks): nothing yet"
    assert lines[10] == "wall time 12.3 s, summed over chunks"
    assert lines[12].startswith("chunks 2 to 3: ")
    assert lines[13:15] == [
        f"{pair}: compared numerically: 3 stored runs, recomputed, agree to within 2e-07 of the "
        "largest value",
        f"{pair}: accepted by name",
    ]
    assert len(lines) == 16


def test_a_store_is_described_by_its_records(tmp_path: Path) -> None:
    """Five chunks of two runs, of which three are there, made in two environments."""
    records = {
        0: SimpleNamespace(status={0: 2}, environment="a", seconds=1.5, program="p"),
        1: SimpleNamespace(status={0: 1, 1: 1}, environment="a", seconds=2.0, program="q"),
        4: SimpleNamespace(status={1: 2}, environment="b", seconds=4.0, program="p"),
    }
    layout = SimpleNamespace(
        shape=(5, 2), chunk=(1, 2), num_runs=10, runs_in=lambda done: 2 * done.sum()
    )
    environment = lambda digest: {"jax": digest}
    store: Any = SimpleNamespace(
        attributes={"title": "some", "environment": {"jax": "a"}},
        config={"theory": "plain", "axes": {}, "run": {}},
        dims=("eta", "seed"),
        done=lambda: np.isin(np.arange(5), [*records]),
        chunks=SimpleNamespace(all=lambda: records, environment=environment),
        layout=layout,
        names=("loss",),
        name="s",
        fingerprint="hash",
        programs=SimpleNamespace(all=list),
    )
    found = reading.describe(store)
    assert found["dimensions"] == {"eta": 5, "seed": 2}
    assert found["chunk"] == {"eta": 1, "seed": 2}
    assert (found["chunks_done"], found["chunks"]) == (3, 5)
    assert (found["runs_done"], found["runs"]) == (6, 10)
    assert found["status"] == {"OK": 3, "DIVERGED": 3}
    assert list(found["status"]) == [each.name for each in (Status.OK, Status.DIVERGED)]
    assert (found["seconds"], found["programs"]) == (7.5, ["p", "q"])
    assert found["made"] == [
        {"chunks": [(0, 1)], "environment": {"jax": "a"}},
        {"chunks": [(4, 4)], "environment": {"jax": "b"}},
    ]
