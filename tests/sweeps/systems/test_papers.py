"""Retrieval and JoMA in sweeps: one program for their numbers, equal to single runs."""

import re

import jax
import numpy as np
import pytest

import dynsim
import sweeps
from sweeps.runner.program import jobs
from sweeps.runner.spec import Sweep
from sweeps.systems.experiment import experiment

INFINITE = float("inf")


@pytest.mark.full(
    "sweeps/systems/test_cells.py::test_a_cell_has_the_task_and_the_rule_of_its_values"
)
def test_sparse_attention_runs_are_the_single_ones() -> None:
    run = experiment("sparse_attention", length=8, d=4, steps=30, batch=4)
    before = len(jobs.PROGRAMS)
    axes = {"eta": [0.5, 1.0], "p": [0.0, 0.5], "seed": [2]}
    found = sweeps.run(Sweep(run, axes, "simulation", ("loss", "attention"))).load()
    assert len(jobs.PROGRAMS) == before + 1
    key = jax.random.fold_in(jax.random.key(0), 2)
    alone = dynsim.train(
        dynsim.Retrieval(8, 4, p=0.5), dynsim.sgd(1.0), key, steps=30, batch=4, times=[30]
    )
    # float32, the same operations in another order over 30 steps.
    cell = found.sel(eta=1.0, p=0.5, seed=2)
    assert cell.loss.item() == pytest.approx(float(alone["loss"][0]), rel=1e-4)


@pytest.mark.full(
    "sweeps/systems/test_cells.py::test_a_cell_has_the_task_and_the_rule_of_its_values"
)
def test_joma_runs_are_the_single_ones() -> None:
    run = experiment("joma", steps=20, length=16, batch=4, activation="tanh")
    before = len(jobs.PROGRAMS)
    axes = {"temperature": [0.5, 1.0], "scale": [0.1, 0.3], "seed": [1]}
    found = sweeps.run(Sweep(run, axes, "simulation", ("loss", "entropy"))).load()
    assert len(jobs.PROGRAMS) == before + 1
    problem = dynsim.JoMA(dynsim.SynMedium(1), 16, activation="tanh", scale=0.3, temperature=0.5)
    key = jax.random.fold_in(jax.random.key(0), 1)
    alone = dynsim.train(problem, dynsim.sgd(0.1), key, steps=20, batch=4, times=[20])
    cell = found.sel(temperature=0.5, scale=0.3, seed=1)
    assert cell.loss.item() == pytest.approx(float(alone["loss"][0]), rel=1e-4)


def test_joma_has_a_task_of_its_own() -> None:
    run = experiment("joma", task="joma-classes", batch=4)
    Sweep(run, {"length": [8, 32]}, record=("entropy",)).check()
    task = run.built[0].classes
    assert (task.K, task.num_queries) == (20, 1)
    # Bumps over the classes: token 4 is most frequent in class 8, and the columns add up to 1.
    assert int(np.argmax(np.asarray(task.probs)[:, 4])) in (7, 8, 9)
    np.testing.assert_allclose(np.asarray(task.probs).sum(1), 1)


@pytest.mark.parametrize(
    ("run", "axes", "theory", "message"),
    [
        ({"problem": "sparse_attention", "length": 8}, {"B": [9]}, "plain", "B = 9: must be less"),
        ({"problem": "sparse_attention"}, {"b1": [0.5]}, "plain", "sgd does not have it"),
        ({"problem": "joma"}, {"length": [8]}, "simulation", "batch = inf: needs length = inf"),
        ({"problem": "joma"}, {"eta_y": [1.0]}, "erf", "Theorem 2 needs exp attention"),
        (
            {"problem": "joma", "task": "syn-small"},
            {"eta_y": [1.0]},
            "joma",
            "queries = 2",
        ),
        (
            {"problem": "joma", "task": "joma-classes", "num_queries": 2},
            {"eta_y": [1.0]},
            "plain",
            "num_queries = 2: joma-classes does not have it",
        ),
    ],
)
def test_bad_sweeps_are_refused(run: dict, axes: dict, theory: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Sweep(run, axes, theory, ("loss",)).check()
