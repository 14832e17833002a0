"""`dynsim explain` against the closed forms and the run that it predicts."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import dynsim
from sweeps import cli
from sweeps.commands.explain import Explain, explain


def test_the_prediction_is_what_descent_does() -> None:
    found = explain(Explain(eta_y=2.0, eta_z=0.5, momentum=0.8, steps=40))
    run = dynsim.simulate(
        dynsim.syn_small(),
        dynsim.momentum(2.0, 0.5, 0.8),
        steps=40,
        length=math.inf,
        batch=math.inf,
        dtype="float64",
    )
    for name in ("loss", "entropy", "z_top_distinct", "z_top_common", "speed"):
        assert found.final[name] == pytest.approx(float(np.mean(run[name][-1])), rel=1e-9), name
    assert found.final["effective_tokens"] == pytest.approx(math.exp(found.final["entropy"]))
    # K ln(M) / eta_Y at the effective rate 2 / (1 - 0.8).
    assert found.stages["rise_end"] == pytest.approx(2 * math.log(34) / 10)


@pytest.mark.full  # a flow for each regime
def test_regimes_follow_the_closed_forms_times() -> None:
    # t0' = 70.5 and t0 = 205 at eta_Y = 0.1.
    regimes = [explain(Explain(eta_y=0.1, steps=steps)).regime for steps in (70, 71, 205, 206)]
    assert regimes == ["scanning at the end", *["in transition at the end"] * 2, "snapped"]


def test_strained_assumptions_are_named_where_they_are_strained(tmp_path: Path) -> None:
    strained = " ".join(explain(Explain(eta_y=1.0, eta_z=2.0, momentum=0.9, steps=5)).strained)
    for word in ("weak overlap", "eta -> 0", "Assumption 1c", "no inertia", "T -> infinity"):
        assert word in strained
    # Nearly disjoint classes, small steps, long sequences, a decoder ten times faster.
    probs = np.zeros((2, 7))
    probs[:, 0], probs[0, 1:4], probs[1, 4:] = 0.1, 0.3, 0.3
    np.savez(tmp_path / "task.npz", probs=probs, query=[0, 1])
    gentle = Explain(task=str(tmp_path / "task.npz"), eta_y=0.1, eta_z=0.01, steps=5, length=1000)
    assert explain(gentle).strained == ()


def test_a_task_without_symmetry_is_predicted_by_its_flow(tmp_path: Path) -> None:
    path = tmp_path / "task.npz"
    np.savez(path, probs=[[0.6, 0.4, 0], [0.5, 0, 0.5]], query=[0, 1])
    assert explain(Explain(task=str(path), steps=5)).theory == "population flow"


def test_json_is_strict_and_bad_input_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "--optimizer", "adam", "--steps", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["regime"] is None
    assert found["final"]["accuracy"] == 1
    assert cli.main(["explain", "--steps", "0"]) == 2
    assert "steps = 0: must be an integer >= 1" in capsys.readouterr().err
