"""Central flows against descent, of a tanh network with 50 weights that learns 24 points."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import dynsim
import odes

KEY = jax.random.key(0)
NUMBERS = np.random.default_rng(0)
POINTS = NUMBERS.normal(size=(24, 3))
VALUES = np.sin(2 * POINTS[:, 0]) + POINTS[:, 1] * POINTS[:, 2]


class Network(dynsim.Problem):
    def init(self, key):
        first, last = jax.random.split(key)
        outer = jax.random.normal(last, (10,)) / jnp.sqrt(10.0)
        return {"W": jax.random.normal(first, (10, 3)), "b": jnp.zeros(10), "v": outer}

    def population_loss(self, params):
        hidden = jnp.tanh(POINTS @ params["W"].T + params["b"][None])
        return jnp.mean((hidden @ params["v"] - VALUES) ** 2) / 2


WEIGHTS = {"weights": lambda _, params: ravel_pytree(params)[0]}


def three(rule: dynsim.Rule, times: Any, kind: Any = None) -> tuple[dynsim.Trajectory, ...]:
    """The central flow, the flow without oscillations, and every step of descent."""
    options = {"key": KEY, "record": ["loss", WEIGHTS]}
    own = ["averaged_loss", "preconditioned_sharpness", "oscillation"]
    record = ["loss", WEIGHTS, *own]
    central = odes.central_flow(Network(), rule, times, key=KEY, record=record)
    steps = np.arange(times[-1] + 50)
    return (
        central,
        odes.flow(Network(), rule, times, kind=kind, **options),
        odes.descent(Network(), rule, steps, **options),
    )


@pytest.mark.full("odes/central/test_central.py::test_off_the_edge_it_is_the_flow")
def test_descent_that_never_reaches_the_edge_has_the_flow_as_its_theory() -> None:
    central, flow, descent = three(dynsim.sgd(0.2), np.array([100, 1000]), "corrected")
    assert central["preconditioned_sharpness"].max() < 1.9
    # The error of Runge-Kutta at eta H (1 + eta H/2) of up to 4 a step, in fourths.
    np.testing.assert_allclose(central["weights"], flow["weights"], atol=1e-6)
    error = np.abs(central["weights"][-1] - descent["weights"][1000]).max()
    # Descent's own error of second order in eta, which the central flow keeps.
    assert 1e-3 < error < 0.02


@pytest.mark.full("odes/central/test_central.py::test_a_valley_is_the_closed_form")
def test_gradient_descent_at_the_edge_of_stability() -> None:
    eta, times = 0.4, np.arange(1000, 3001, 100)
    central, flow, descent = three(dynsim.sgd(eta), times)
    assert central.status == dynsim.Status.OK
    np.testing.assert_allclose(central["preconditioned_sharpness"], 2, rtol=1e-3)
    _, whole = ravel_pytree(central.params)
    with jax.enable_x64(True):
        hessian = jax.jit(jax.hessian(lambda w: Network().population_loss(whole(w))))
        middles = [np.mean(descent["weights"][t - 4 : t + 5], axis=0) for t in times]
        found = [np.linalg.eigvalsh(hessian(jnp.asarray(w)))[-1] for w in middles]
    # Descent goes about the edge by a few percent.
    np.testing.assert_allclose(np.mean(found), 2 / eta, rtol=0.02)
    # What is left is descent's error of first order before the edge, and its first burst there.
    away, without = (np.linalg.norm(each["weights"] - middles, axis=1) for each in (central, flow))
    assert np.all(away < 0.65 * without)
    # Bursts of a hundred steps, one of which more or less is a tenth.
    measured = np.mean(descent["loss"][950:3050])
    assert abs(np.mean(central["averaged_loss"]) / measured - 1) < 0.1
    assert np.mean(flow["loss"]) < 0.6 * measured


@pytest.mark.full("odes/central/test_central.py::test_rmsprop_at_the_edge_is_what_scipy_integrates")
def test_rmsprop_at_the_edge_of_stability() -> None:
    times = np.array([1000, 1200])
    rule = dynsim.rmsprop(0.01, b2=0.99, eps=0.01)
    central, flow, descent = three(rule, times, kind="rmsprop")
    assert central.status == dynsim.Status.OK
    np.testing.assert_allclose(central["preconditioned_sharpness"], 2, rtol=1e-2)
    measured = np.mean(descent["loss"][900:])
    np.testing.assert_allclose(central["averaged_loss"].mean(), measured, rtol=0.3)
    assert flow["loss"].mean() < measured / 2
