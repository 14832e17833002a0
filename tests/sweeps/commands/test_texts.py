"""What commands print, line by line, from results that are made up by hand."""

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dynsim import Status
from sweeps.commands import reading, strain, sweep
from sweeps.commands.explain import Explanation
from sweeps.commands.outlook import Outlook
from sweeps.systems.experiment import experiment

RISE = "rise ends, about (t0')"
EDGE = strain.Reached(0.5, 1.25, math.nan)
STAYS = (
    "The flow stays below the edge of stability: the preconditioned sharpness is at most 1.25, the "
    "edge is 2."
)


@pytest.mark.parametrize("reasons", [(), ("first", "second")])
@pytest.mark.parametrize("edge", [None, EDGE])
@pytest.mark.parametrize("known", [True, False])
def test_an_explanation_has_its_numbers_in_lines(
    reasons: tuple[str, ...], edge: strain.Reached | None, known: bool
) -> None:
    stages = {"rise_end": 10.12345, "peak": 15.0, "peak_gamma": 0.25, "snap": 40.5}
    final = {
        "loss": 0.1234567,
        "accuracy": 0.75,
        "entropy": 1.5,
        "effective_tokens": 4.4817,
        "z_top_distinct": 3.25,
        "z_top_common": -1.125,
        "speed": 0.0625,
    }
    run = experiment(steps=50, eta_y=2.0, eta_z=0.5)
    state = ("snapped", stages) if known else (None, None)
    made = Explanation("flow", "OK", state[1], state[0], final, reasons, edge)
    first, *lines = made.text(run).splitlines()
    assert first.startswith("yz: syn-small: K = 2, M = 34, ")
    assert first.endswith(", 50 steps")
    closed = [
        f"{'gamma peaks at t (exact)':<28}{'15':>12}",
        f"{'  where gamma is':<28}{'0.25':>12}",
        f"{RISE:<28}{'10.12':>12}",
        f"{'decay begins, about (t0)':<28}{'40.5':>12}",
        f"{'regime':<28}snapped",
        "",
    ]
    numbers = ("0.12346", "0.75", "1.5", "4.4817", "3.25", "-1.125", "0.0625")
    labels = (
        "loss (nat)",
        "accuracy",
        "entropy on distinct tokens",
        "  effective number of tokens",
        "logit, top distinct token",
        "logit, top common token",
        "speed coefficient",
    )
    assert lines == [
        "",
        *(closed if known else []),
        "at step 50, by the flow, OK:",
        *(f"  {label:<28}{number:>12}" for label, number in zip(labels, numbers, strict=True)),
        *(["", STAYS] if edge else []),
        "",
        *(["strained assumptions:", "  - first", "  - second"] if reasons else []),
        *([] if reasons else ["no assumption is strained"]),
    ]


def outlook(**given: Any) -> Outlook:
    usual = Outlook(
        steps=50.0,
        theory="flow of the weights",
        status="OK",
        applicable={"plain": "plain flow", "central": "central flow"},
        refused={},
        start=3.0,
        end=0.1234567,
        half=12.5,
        ninety=math.nan,
        changes=(),
        strained=(),
        edge=None,
        noise=None,
    )
    return dataclasses.replace(usual, **given)


@pytest.mark.parametrize(
    ("given", "added", "at"),
    [
        ({}, [], 0),
        (
            {"refused": {"adam": "describes Adam"}},
            ["", "theories that do not apply:", f"  {'adam':<20}describes Adam"],
            5,
        ),
        (
            {"changes": (20.0, 35.5)},
            ["", "the learning-rate schedule has kinks or jumps at step 20, 35.5"],
            5,
        ),
        ({"edge": EDGE}, ["", STAYS], 11),
        (
            {"noise": strain.Noise("loss", 9, 2.0, 1.5, 0.5, 1.6, 0.25)},
            [
                "",
                "Linear noise: at step 9 loss is 1.5 with a standard deviation of 0.5 across "
                "seeds, 25 % of the fall. Noise moves the mean by 0.25.",
            ],
            11,
        ),
    ],
)
def test_an_outlook_has_its_numbers_in_lines(
    given: dict[str, Any], added: list[str], at: int
) -> None:
    run = experiment("linear_icl", steps=50)
    first, *lines = outlook(**given).text(run).splitlines()
    assert first.startswith(f"{run.about}, ")
    assert first.endswith(", 50 steps")
    usual = [
        "",
        "theories that apply:",
        f"  {'plain':<20}plain flow",
        f"  {'central':<20}central flow",
        "",
        "by the flow of the weights, OK:",
        f"  {'loss at the start':<28}{'3':>12}",
        f"  {'loss at step 50':<28}{'0.12346':>12}",
        f"  {'half of the decrease by step':<28}{'12.5':>12}",
        f"  {'90 % of the decrease by step':<28}{'-':>12}",
        "",
        "no assumption is strained",
    ]
    place = {0: 0, 5: 4, 11: 10}[at]
    assert lines == [*usual[:place], *added, *usual[place:]]
    told = outlook(**given, strained=("first", "second")).text(run).splitlines()
    assert told[-4:] == ["", "strained assumptions:", "  - first", "  - second"]


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
    "engine": "simulation",
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
        "engine simulation",
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
        config={"engine": "plain", "axes": {}, "run": {}},
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
