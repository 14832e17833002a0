"""A rule of a user's own with its flow, against exponentials of matrices and a plain loop."""

from typing import Annotated, Any

import annotated_types as at
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.linalg import expm

import dynsim
import odes
import sweeps
from odes.solver.flows import checked_flow
from tests.odes.test_problem import KEY, PRECISE, Line

ETA, BETA, DECAY = 0.3, 0.8, 0.2
TIMES = np.array([0.0, 1.0, 7.0, 30.0])


class Averaged(dynsim.Rule):
    """Descends along an average of the gradient."""

    beta: Annotated[float, at.Ge(0), at.Le(1)] = BETA

    def direction(self) -> optax.GradientTransformation:
        return optax.ema(self.beta, debias=False)

    def averages(self, params: Any) -> Any:
        return jax.tree.map(jnp.zeros_like, params)

    def flow(self, gradient: Any, averages: Any, t: Any) -> tuple[Any, Any]:
        del t
        rate = 1 - self.beta
        return averages, jax.tree.map(lambda g, m: rate * (g - m), gradient, averages)


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.more
def test_its_flow_is_what_it_says(decoupled: bool) -> None:
    rule = Averaged(ETA, decay=DECAY, decoupled=decoupled)
    found = odes.flow(Line(), rule, TIMES, key=KEY, record="loss", tolerances=PRECISE)
    rate = 1 - BETA
    # Of (p, m), where p^2 / 2 is the loss and p is 1 at the start.
    inside, outside = (0, DECAY) if decoupled else (DECAY, 0)
    slopes = np.array([[-ETA * outside, -ETA], [rate * (1 + inside), -rate]])
    p = np.array([expm(slopes * t)[0, 0] for t in TIMES])
    # Ten times the tolerance of the solver.
    np.testing.assert_allclose(found["loss"], p**2 / 2, rtol=1e-8, atol=1e-10)
    assert found.source == "own"


def test_it_trains_and_its_numbers_are_axes() -> None:
    betas = [0.0, 0.5, BETA]
    run = sweeps.Experiment(Line(), Averaged(ETA), steps=5, batch=float("inf"))
    found = sweeps.run(sweeps.Sweep(run, {"beta": betas}, record="loss"))
    for beta, loss in zip(betas, found.loss.values, strict=True):
        p, m = 1.0, 0.0
        for _ in range(5):
            m = beta * m + (1 - beta) * p
            p -= ETA * m
        # A few units in the last place of float32, of the weight.
        np.testing.assert_allclose(loss, p**2 / 2, rtol=1e-5, atol=1e-7)


class Signed(dynsim.Rule):
    """Descends at a constant speed."""

    def direction(self) -> optax.GradientTransformation:
        return optax.stateless(lambda gradient, params: jax.tree.map(jnp.sign, gradient))

    def flow(self, gradient: Any, averages: Any, t: Any) -> tuple[Any, Any]:
        del averages, t
        return jax.tree.map(jnp.sign, gradient), None


def test_a_rule_without_averages_has_a_flow() -> None:
    found = odes.flow(Line(), Signed(0.1), [0, 1, 7], key=KEY, record="loss", tolerances=PRECISE)
    np.testing.assert_allclose(found["loss"], np.array([1, 0.9, 0.3]) ** 2 / 2, rtol=1e-8)


def test_only_its_own_flow_describes_it() -> None:
    assert checked_flow(Averaged(ETA)) == "own"
    with pytest.raises(ValueError, match="'plain': does not describe optimizer = averaged; must"):
        checked_flow(Averaged(ETA), "plain")
    with pytest.raises(ValueError, match="'own': does not describe optimizer = sgd; must"):
        checked_flow(dynsim.sgd(ETA), "own")
    with pytest.raises(ValueError, match="no flow describes it"):
        checked_flow(Averaged(ETA, clip=1.0))


@pytest.mark.more
def test_the_theory_flow_of_sweeps_solves_it() -> None:
    run = sweeps.Experiment(Line(), Averaged(ETA), steps=7, batch=float("inf"))
    sweep = sweeps.Sweep(run, {"beta": [0.5, BETA]}, "flow", "loss", times=(7,))
    found = sweeps.run(sweep).loss.values.ravel()
    for beta, loss in zip([0.5, BETA], found, strict=True):
        slopes = np.array([[0, -ETA], [1 - beta, beta - 1]])
        # A hundred times the tolerance of the solver.
        np.testing.assert_allclose(loss, expm(7 * slopes)[0, 0] ** 2 / 2, rtol=1e-6)


@pytest.mark.parametrize("beta", [-0.1, 1.1])
def test_its_numbers_are_checked_by_their_annotations(beta: float) -> None:
    with pytest.raises(ValueError, match=rf"^beta = {beta}: must be finite and in \[0, 1\]$"):
        Averaged(ETA, beta=beta)
    assert Averaged(ETA, beta=1.0).beta == 1.0
