"""Retrieval and JoMA in the sweep engine: one program for their numbers, equal to single runs."""

import jax
import numpy as np
import pytest

import dynsim
import sweeps
from sweeps.commands.parsing import line
from sweeps.runner import tiles
from sweeps.runner.spec import Sweep
from sweeps.systems.joma import JoMA
from sweeps.systems.sparse_attention import SparseAttention

INFINITE = float("inf")


@pytest.mark.full(
    "sweeps/systems/test_cells.py::test_a_cell_has_the_task_and_the_rule_of_its_values"
)
def test_sparse_attention_runs_are_the_single_ones() -> None:
    run = SparseAttention(length=8, d=4, steps=30, batch=4)
    before = len(tiles.PROGRAMS)
    axes = {"eta": [0.5, 1.0], "p": [0.0, 0.5], "seed": [2]}
    found = sweeps.run(Sweep(axes, run, "simulation", ("loss", "attention"))).load()
    assert len(tiles.PROGRAMS) == before + 1
    key = jax.random.fold_in(jax.random.key(0), 2)
    alone = dynsim.train(
        dynsim.retrieval(8, 4, p=0.5), dynsim.sgd(1.0), key, steps=30, batch=4, times=[30]
    )
    # float32, the same operations in another order over 30 steps.
    cell = found.sel(eta=1.0, p=0.5, seed=2)
    assert cell.loss.item() == pytest.approx(float(alone["loss"][0]), rel=1e-4)


@pytest.mark.full(
    "sweeps/systems/test_cells.py::test_a_cell_has_the_task_and_the_rule_of_its_values"
)
def test_joma_runs_are_the_single_ones() -> None:
    run = JoMA(steps=20, length=16, batch=4, activation="tanh")
    before = len(tiles.PROGRAMS)
    axes = {"temperature": [0.5, 1.0], "scale": [0.1, 0.3], "seed": [1]}
    found = sweeps.run(Sweep(axes, run, "simulation", ("loss", "entropy"))).load()
    assert len(tiles.PROGRAMS) == before + 1
    problem = dynsim.JoMA(dynsim.syn_medium(1), 16, activation="tanh", scale=0.3, temperature=0.5)
    key = jax.random.fold_in(jax.random.key(0), 1)
    alone = dynsim.train(problem, dynsim.sgd(0.1), key, steps=20, batch=4, times=[20])
    cell = found.sel(temperature=0.5, scale=0.3, seed=1)
    assert cell.loss.item() == pytest.approx(float(alone["loss"][0]), rel=1e-4)


def test_joma_has_a_task_of_its_own() -> None:
    assert line.find(["compare", "--task", "joma"])[0] == "compare joma"
    sweep = Sweep({"length": [8, 32]}, JoMA(task="joma", batch=4), "simulation", ("entropy",))
    sweep.check()
    task = sweep.run.make_task().classes
    assert (task.K, task.num_queries) == (20, 1)
    # Bumps over the classes: token 4 is most frequent in class 8, and the columns add up to 1.
    assert int(np.argmax(np.asarray(task.probs)[:, 4])) in (7, 8, 9)
    np.testing.assert_allclose(np.asarray(task.probs).sum(1), 1)


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        (
            Sweep({"B": [9]}, SparseAttention(length=8), "plain", ("loss",)),
            "B = 9: must be less than",
        ),
        (Sweep({"b1": [0.5]}, SparseAttention(), "plain", ("loss",)), "optimizer 'sgd' does not"),
        (
            Sweep({"length": [8]}, JoMA(), "simulation", ("loss",)),
            "batch = inf: needs length = inf",
        ),
        (Sweep({"eta_y": [1.0]}, JoMA(), "erf", ("loss",)), "Theorem 2 has exp attention"),
        (Sweep({"eta_y": [1.0]}, JoMA(task="syn-small"), "joma", ("loss",)), "queries = 2"),
        (
            Sweep({"eta_y": [1.0]}, JoMA(task="joma", num_queries=2), "plain", ("loss",)),
            "num_queries = 2: task 'joma' does not read it",
        ),
    ],
)
def test_bad_sweeps_are_refused(sweep: Sweep, message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011  (message checked below)
        sweep.check()
    assert message in str(error.value)
