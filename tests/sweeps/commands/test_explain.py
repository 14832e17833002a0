"""`dynsim explain` against the closed forms and the run that it predicts."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import dynsim
import sweeps
from odes import symmetric
from sweeps import cli
from sweeps.commands.explain import explain
from sweeps.runner.spec import Sweep
from sweeps.systems import layer, yz
from sweeps.systems.experiment import experiment
from sweeps.systems.layer import starting_overlap
from tests.sweeps.ending import ended
from tests.systems.layers import simulate


@pytest.mark.more
def test_the_prediction_is_what_descent_does() -> None:
    found = explain(eta_y=2.0, eta_z=0.5, momentum=0.8, steps=40)
    run = simulate(
        dynsim.SynSmall().build(),
        dynsim.sgd(2.0, 0.5, momentum=0.8),
        steps=40,
        length=math.inf,
        batch=math.inf,
        dtype="float64",
    )
    for name in ("loss", "entropy", "z_top_distinct", "z_top_common", "speed"):
        row = found[f"{name} at the end"]
        assert row.prediction == pytest.approx(float(np.mean(run[name][-1])), rel=1e-9), name
        assert row.error == 0
    tokens = found["effective_tokens at the end"].prediction
    assert tokens == pytest.approx(math.exp(found["entropy at the end"].prediction))
    # K ln(M) / eta_Y at the effective rate 2 / (1 - 0.8).
    assert found["rise ends about step (t0')"].prediction == pytest.approx(2 * math.log(34) / 10)
    with pytest.raises(KeyError, match="'half' is not in the table; it has: loss at the start"):
        found["half"]


@pytest.mark.usefixtures("quick_theory")
def test_regimes_follow_the_closed_forms_times(monkeypatch: pytest.MonkeyPatch) -> None:
    # The flow, which has one program for all numbers of steps.
    monkeypatch.setattr(layer, "DESCENT_STEPS", 0)
    # t0' = 70.5 and t0 = 205 at eta_Y = 0.1.
    regimes = [explain(eta_y=0.1, steps=steps)["regime"].prediction for steps in (70, 71, 205, 206)]
    assert regimes == ["scanning at the end", *["in transition at the end"] * 2, "snapped"]


def test_descent_is_followed_for_1e5_steps_and_a_flow_at_64_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    solve = lambda task, rule, times, **more: asked.append((*times, *more["record"]))
    descend = lambda task, rule, **more: asked.append((more["steps"], *more["times"]))
    monkeypatch.setattr(layer.symmetric, "solve", solve)
    monkeypatch.setattr(layer.symmetric, "descend", descend)
    monkeypatch.setattr(layer.population, "solve", solve)
    rule = dynsim.sgd(0.1, 0.1, momentum=0.5)
    ours = lambda task, steps: layer.predict(experiment(task=task, rule=rule, steps=steps))
    found = [ours(dynsim.SynSmall().build(), steps) for steps in (100_000, 100_001)]
    titles = [(each.theory, each.exact) for each in found]
    assert titles == [
        ("symmetric reduction, step by step", True),
        ("symmetric reduction, flow", False),
    ]
    uneven = dynsim.sequence_classes([[0.6, 0.4, 0], [0.5, 0, 0.5]], query=[0, 1])
    assert ours(uneven, 1000).theory == "population flow"
    assert asked == [
        (100_000, *dynsim.log_times(100_000, 64)),
        (*dynsim.log_times(100_001, 64), *layer.RECORD),
        (*dynsim.log_times(1000, 64), *layer.RECORD),
    ]


@pytest.mark.more
def test_strained_assumptions_are_named_where_they_are_strained(tmp_path: Path) -> None:
    strained = " ".join(explain(eta_y=1.0, eta_z=2.0, momentum=0.9, steps=5).strained)
    for word in ("weak overlap", "eta -> 0", "Assumption 1c", "no inertia", "those of finite T"):
        assert word in strained
    # Nearly disjoint classes, small steps, long sequences, a decoder ten times faster.
    probs = np.zeros((2, 7))
    probs[:, 0], probs[0, 1:4], probs[1, 4:] = 0.1, 0.3, 0.3
    np.savez(tmp_path / "task.npz", probs=probs, query=[0, 1])
    gentle = {"eta_y": 0.1, "eta_z": 0.01, "steps": 5, "length": 1000}
    assert explain(task=str(tmp_path / "task.npz"), **gentle).strained == ()


@pytest.mark.usefixtures("quick_theory")
def test_a_task_without_symmetry_is_predicted_by_its_flow(tmp_path: Path) -> None:
    path = tmp_path / "task.npz"
    np.savez(path, probs=[[0.6, 0.4, 0], [0.5, 0, 0.5]], query=[0, 1])
    assert explain(task=str(path), steps=5).theory == "population flow"


def test_json_is_strict_and_bad_input_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "--rule", "adam", "--steps", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["quantity"]: row for row in found["rows"]}
    assert "regime" not in rows
    assert rows["accuracy at the end"]["prediction"] == 1
    # What is not known is null.
    assert rows["accuracy at the end"]["worst"] is None
    assert ended(["explain", "--steps", "0"]) == 2
    assert "steps = 0: must be an integer from 1 to" in capsys.readouterr().err


@pytest.mark.parametrize(
    "task",
    [
        dynsim.SynSmall(),
        dynsim.SynMedium(2, "paper"),
        dynsim.Syn(2, classes_per_query=3, num_common=2, num_distinct=3),
        dynsim.Syn(2, num_common=0, num_distinct=4, M=40),
        dynsim.Overlapping(3, 0.2),
        dynsim.Overlapping(3, 0.0),
    ],
    ids=repr,
)
def test_the_reduced_form_without_a_table_is_that_of_the_table(task: dynsim.Task) -> None:
    full, found = task.build(), yz.reduced(task)
    want = symmetric.merged(symmetric.symmetric_task(full))
    assert found is not None
    assert (found.K, found.M, found.num_queries) == (full.K, full.M, full.num_queries)
    # Rows of a table are normalised in another order.
    for name in ("p", "rho", "p_copies", "rho_copies"):
        np.testing.assert_allclose(getattr(found, name), getattr(want, name), rtol=1e-12)
    f = np.asarray(full.probs) / np.linalg.norm(full.probs, axis=1, keepdims=True)
    assert starting_overlap(found)[0] == pytest.approx((f @ f.T)[0, 1], rel=1e-6, abs=1e-12)
    assert starting_overlap(found)[1] == full.support.shape[1]


@pytest.mark.more
def test_no_number_of_classes_is_too_large_for_theory(tmp_path: Path) -> None:
    found = explain(task="overlapping", K=10**5, eta_y=1e5, steps=40)
    # Classes are visited K times less often: t0' = K ln(M) / eta_Y.
    assert found["rise ends about step (t0')"].prediction == pytest.approx(math.log(500005))
    assert found["regime"].prediction.startswith("decoder learned, attention unmoved")
    axes = {"K": [10**5, 2 * 10**5], "eta_y": [1e5, 2e5]}
    runs = experiment(task="overlapping", steps=40)
    sweep = Sweep(runs, axes, "symmetric-descent", ("loss",))
    stored = sweeps.run(sweep, tmp_path / "run")
    loss = found["loss at the end"].prediction
    # At twice the classes and twice the rate everything is the same but for ln(M).
    logs = math.log(1_000_005) / math.log(500_005)
    assert float(stored.loss[0, 0]) == pytest.approx(float(stored.loss[1, 1]), rel=logs - 1)
    assert float(stored.loss[0, 0]) == pytest.approx(loss, rel=1e-4)  # float32
    for theory, message in (
        ("simulation", "would take 372.5 GiB"),
        ("plain", "would take 372.5 GiB"),
        ("symmetric-descent-finite-t", "theories of finite T need the table"),
    ):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(sweep, theory=theory).check()
    # All attention would be as large as the table.
    with pytest.raises(ValueError, match="record: attention need all weights, which are too many"):
        sweeps.run(dataclasses.replace(sweep, theory="symmetric", record=("attention",)))


def test_what_cannot_move_is_refused() -> None:
    for settings in ({"eta_y": 0.0}, {"eta": "ratio", "ratio": 0.0}):
        with pytest.raises(ValueError, match=f"{[*settings][-1]} = 0: nothing moves"):
            explain(**settings)
    with pytest.raises(ValueError, match="start = 'uniform': the prediction starts from zero"):
        explain(start="uniform")


@pytest.mark.more
def test_steps_too_large_for_the_flow_of_adam_are_said() -> None:
    """Classes that are not alike have a flow alone; descent without noise ends elsewhere."""
    probs = [[0.5, 0.3, 0.2, 0, 0], [0.4, 0, 0, 0.4, 0.2]]
    task, rule = dynsim.sequence_classes(probs, query=[0, 1]), dynsim.adam(0.5, 0.5)
    found = sweeps.explain(task=task, rule=rule, steps=60)
    whole = dynsim.Layer(task, length=math.inf)
    asked = {"steps": 60, "batch": math.inf, "times": [60], "record": "loss"}
    descent = dynsim.train(whole, rule, jax.random.key(0), dtype="float64", **asked)["loss"][0]
    row = found["loss at the end"]
    assert row.prediction < 0.5 * descent
    assert row.error == pytest.approx(descent - row.prediction, rel=1e-6)
    assert (row.strained, row.worst) == (
        "eta -> 0 (population flow): at step 60 descent at these rates has a loss of "
        f"{descent:.3g} where the theory has {row.prediction:.3g}",
        60,
    )


def test_classes_that_are_not_equally_likely_are_named() -> None:
    """Where the closed form has t / K, each class has t times its prior: K ln(M) / eta_Y becomes
    ln(M) / (prior eta_Y)."""
    table = {"probs": [[0.6, 0.4, 0], [0.5, 0, 0.5]], "query": [0, 1]}
    rule = dynsim.sgd(eta_y=0.1, eta_z=0.01)
    for prior, named in (([0.5, 0.5], False), ([0.8, 0.2], True)):
        task = dynsim.sequence_classes(**table, prior=prior)
        found = sweeps.explain(task=task, rule=rule, steps=5)
        rise = np.mean([math.log(3) / (p * 0.1) for p in prior])
        assert found["rise ends about step (t0')"].prediction == pytest.approx(rise)
        words = "priors differ by a factor of up to 4; each class has its own times"
        assert any(words in each for each in found.strained) == named
