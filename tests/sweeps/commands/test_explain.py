"""'dynsim explain' of the attention layer, against closed forms and the run that it predicts."""

import dataclasses
import math

import jax
import numpy as np
import pytest

import dynsim
import sweeps
from odes import symmetric
from sweeps.commands.explain import explain
from sweeps.commands.views.live import symmetric_noise
from sweeps.runner.spec import Sweep
from sweeps.systems import layer, reduction
from sweeps.systems.experiment import experiment
from sweeps.systems.layer import starting_overlap
from tests.systems.layers import simulate


@pytest.mark.more
def test_the_prediction_is_what_descent_does():
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
def test_the_reduced_form_without_a_table_is_that_of_the_table(task):
    full, found = task.build(), reduction.reduce_synthetic(task)
    want = symmetric.merged(symmetric.symmetric_task(full))
    assert found is not None
    assert (found.K, found.M, found.num_queries) == (full.K, full.M, full.num_queries)
    # Rows of a table are normalised in another order.
    for name in ("p", "rho", "p_copies", "rho_copies"):
        np.testing.assert_allclose(getattr(found, name), getattr(want, name), rtol=1e-12)
    f = np.asarray(full.probs) / np.linalg.norm(full.probs, axis=1, keepdims=True)
    assert starting_overlap(found)[0] == pytest.approx((f @ f.T)[0, 1], rel=1e-6, abs=1e-12)
    assert starting_overlap(found)[1] == full.support.shape[1]


def test_no_number_of_classes_is_too_large_for_theory(tmp_path):
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
        ("simulation", "372.5 GiB"),
        ("plain", "372.5 GiB"),
        ("symmetric-descent-finite-t", "finite T"),
    ):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(sweep, theory=theory).check()
    # All attention would be as large as the table.
    with pytest.raises(ValueError, match="record: attention"):
        sweeps.run(dataclasses.replace(sweep, theory="symmetric", record=("attention",)))


@pytest.mark.more
def test_steps_too_large_for_the_flow_of_adam_are_said():
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
    assert row.worst == 60
    assert f"{descent:.3g} where the theory has {row.prediction:.3g}" in row.strained


def test_classes_that_are_not_equally_likely_are_named():
    """Where the closed form has t / K, each class has t times its prior: K ln(M) / eta_Y becomes
    ln(M) / (prior eta_Y)."""
    table = {"probs": [[0.6, 0.4, 0], [0.5, 0, 0.5]], "query": [0, 1]}
    rule = dynsim.sgd(eta_y=0.1, eta_z=0.01)
    for prior, named in (([0.5, 0.5], False), ([0.8, 0.2], True)):
        task = dynsim.sequence_classes(**table, prior=prior)
        found = sweeps.explain(task=task, rule=rule, steps=5)
        rise = np.mean([math.log(3) / (p * 0.1) for p in prior])
        assert found["rise ends about step (t0')"].prediction == pytest.approx(rise)
        assert any("factor of up to 4" in each for each in found.strained) == named


M = 15
"""Tokens of two classes of ten, of which five are common."""


def strained(overlap=0.2, length=math.inf, **rule):
    task = dynsim.Overlapping(2, overlap).build()
    rates = dynsim.sgd(**{"eta_y": 0.1, "eta_z": 0.01, "momentum": 0.5} | rule)
    stages = layer.stages_of(task, rates)
    return {row.strained for row in layer.broken_assumptions(length, task, rates, stages)}


LIMIT = 0.1 * math.log(M)
"""Of a kick, the logit by which a step moves the class of one half of all examples."""


@pytest.mark.parametrize(
    ("within", "beyond", "words"),
    [
        ({"overlap": 0.299}, {"overlap": 0.301}, "is 0.30, above 0.3"),
        # The effective rate is twice the rate, and the prior a half.
        ({"eta_y": 0.999 * LIMIT}, {"eta_y": 1.001 * LIMIT}, f"above 0.1 ln M = {LIMIT:.2g}"),
        ({"eta_z": 0.05}, {"eta_z": 0.0501}, "eta_Y / eta_Z = 2, below 2"),
        ({"length": 101}, {"length": 100}, "T = 100 tokens sample 10 possible ones"),
    ],
)
def test_a_run_is_strained_beyond_each_bound(within, beyond, words):
    # Momentum is named whatever the sizes are.
    (inertia,) = strained(**within)
    assert "eta / (1 - mu)" in inertia
    (sentence,) = strained(**beyond) - {inertia}
    assert words in sentence


STAGES = {"rise_end": 10.0, "peak": 15.0, "snap": 40.0}


@pytest.mark.parametrize(
    ("steps", "apart", "words"),
    [
        (10, 1.0, "scanning"),
        (11, 1.0, "in transition"),
        (39, 1.0, "in transition"),
        (40, 0.05, "snapped"),
        (40, -0.05, "snapped"),
        (40, 0.049, "decoder learned, attention unmoved"),
    ],
)
def test_a_run_ends_in_one_of_four_regimes(steps, apart, words):
    """A class that never snaps stays in transition."""
    final = {"z_top_distinct": apart, "z_top_common": 0.0}
    assert layer.regime(steps, STAGES, final).startswith(words)
    assert layer.regime(99, STAGES | {"snap": math.nan}, final) == "in transition at the end"


@pytest.mark.parametrize(("K", "overlap"), [(2, 0.2), (5, 0.4), (3, 0.0)])
def test_noise_of_symmetric_classes_is_that_of_the_matrices(K, overlap):
    """An example of a class has the gradient f u^T; all of them written out."""
    task = dynsim.Overlapping(K, overlap).build()
    f = np.asarray(task.probs) / np.linalg.norm(task.probs, axis=1, keepdims=True)
    u = np.eye(task.M)[np.asarray(task.next_token)] - 1 / task.M
    each = f[:, :, None] * u[:, None]
    mean = each.mean(0)
    want = ((each - mean) ** 2).sum((1, 2)).mean() / (mean**2).sum() / 7
    found = symmetric_noise(symmetric.merged(symmetric.symmetric_task(task)), 7)
    # Probabilities of a table are float32.
    assert found == pytest.approx(want**0.5, rel=1e-5)
