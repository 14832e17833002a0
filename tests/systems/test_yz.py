"""Each rung of the ladder computes what its equations say."""

import jax
import pytest

import dynsim
from tests.systems.yz import Layer

pytestmark = pytest.mark.usefixtures("x64")

TASK = dynsim.syn_medium(1)
PLAIN = Layer(TASK, dynsim.sgd(1.3, 0.7), (0.0, 10.0, 25.0))
MOMENTUM = Layer(TASK, dynsim.momentum(0.3, 0.2, 0.8), (0.0, 10.0, 25.0))


@pytest.mark.parametrize("theory", ["plain", "symmetric", "lemma3", "fixed_attention"])
def test_flows(theory: str) -> None:
    PLAIN.check(theory)


@pytest.mark.parametrize("theory", ["eq10", "eq10-paper", "eq10-finite-m", "eq10-remark-1"])
def test_eq10(theory: str) -> None:
    PLAIN.check(theory)


@pytest.mark.parametrize("theory", ["matched", "heavy-ball", "rescaled", "symmetric"])
def test_flows_of_momentum(theory: str) -> None:
    MOMENTUM.check(theory)


def test_a_random_start() -> None:
    task = dynsim.syn_medium(1, "paper")
    start = dynsim.initial_weights(task, "uniform", jax.random.key(0), "float64")
    Layer(task, dynsim.sgd(0.8, 1.5), (0.0, 40.0), start).check("plain")
