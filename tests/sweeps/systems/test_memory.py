"""Estimates of the memory of a run, counted by hand. Theories are solved in float64."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import dynsim
from sweeps.runner.spec import Sweep
from sweeps.systems.experiment import experiment


class Line(dynsim.Problem):
    """Five weights, of which an example is three numbers."""

    def init(self, key):
        return jnp.zeros(5)

    def draw(self, key, batch):
        return jax.random.normal(key, (batch, 3))

    def loss(self, params, data):
        return jnp.mean(data @ params[:3]) + jnp.sum(params**2)

    def observables(self):
        return {"first": lambda self, params: params[0]}


def estimated(run: Any, engine: str, record: tuple[str, ...], times: Any = (0, 5, 10)) -> int:
    """Bytes of a run of the sweep."""
    sweep = Sweep(run, {"seed": [0]}, engine, record, times)
    problem = sweep.problem({})
    return sweep.rules.bytes_per_run(problem.task, problem.settings)


def test_training_holds_eight_copies_of_weights_and_batch() -> None:
    run = experiment(Line(), eta=0.1, steps=10, batch=7)
    assert estimated(run, "simulation", ("loss",)) == 4 * 8 * (5 + 7 * 3) + 2**14


def test_linear_noise_holds_a_derivative_of_each_observable_states_and_examples() -> None:
    run = experiment(Line(), eta=0.1, steps=10, batch=7)
    # Two observables, and two times three states of ten steps; 512 examples.
    found = estimated(run, "linear-noise", ("loss", "first"))
    assert found == (2 + 6) * (8 * 8 * 5 + 2**14) + 8 * (8 * 8 * (5 + 512 * 3) + 2**14)


# Six classes of three queries over ten tokens, of which each class has one of its own and two more.
TASK = {"task": "syn", "num_queries": 3, "classes_per_query": 2, "num_distinct": 2, "num_common": 1}
LAYER = experiment("yz", **TASK, steps=10, batch=8, length=16)
K, Q = 6, 3
M = LAYER.built[0].M


@pytest.mark.parametrize(
    ("engine", "arrays"), [("lemma3", 24), ("eq10", 12), ("theorem4", 3), ("fixed_attention", 1)]
)
def test_theories_of_classes_hold_arrays_of_classes_by_tokens(engine: str, arrays: int) -> None:
    # Three times of two observables of each class.
    assert estimated(LAYER, engine, ("loss", "speed")) == 8 * (arrays * K * M + 3 * 2 * K)


def test_the_reduction_holds_four_numbers_a_token_and_full_weights_where_they_are_asked() -> None:
    found = 8 * 8 * 4 * 3 + 8 * 3 * K
    assert estimated(LAYER, "symmetric", ("loss",)) == found
    assert estimated(LAYER, "symmetric", ("z",)) == found + 8 * 8 * (M + Q) * M


def test_the_spread_holds_a_derivative_of_every_class_and_states() -> None:
    found = estimated(LAYER, "spread", ("loss", "entropy"))
    assert found == 8 * 8 * (2 * K + 2 * 3) * (M + Q) * M
