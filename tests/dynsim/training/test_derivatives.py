"""Derivatives of training with respect to its numbers, where gradients are zero: against central
differences of the rules of `dynsim.training.rules`, written out in NumPy."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, PRNGKeyArray

import dynsim

CURVATURES = np.array([1.0, 0.5, 0.0])
"""The last weight has a gradient of zero at every rate."""
STEPS, RATE = 4, 0.05


class Quadratic(dynsim.Problem):
    """Half the sum of curvature times square."""

    start: tuple[float, ...] = (1.0, 2.0, 3.0)

    def init(self, key: PRNGKeyArray) -> Array:
        return jnp.array(self.start)

    def population_loss(self, w: Array) -> Array:
        return w @ (jnp.asarray(CURVATURES, w.dtype) * w) / 2


def descended(kind: str, rate: float, clip: float = math.inf) -> float:
    """The loss after the steps."""
    w, m, v = np.array([1.0, 2.0, 3.0]), 0.0, 0.0
    for k in range(1, STEPS + 1):
        g = CURVATURES * w
        g = g * min(1.0, clip / np.linalg.norm(g))
        m, v = 0.9 * m + 0.1 * g, (0.999 if kind == "adam" else 0.9) * v
        v = v + (0.001 if kind == "adam" else 0.1) * g**2
        mean, squares = m / (1 - 0.9**k), v / (1 - 0.999**k)
        w = (
            w
            - rate
            * {
                "sgd": g,
                "adam": mean / (np.sqrt(squares) + 1e-8),
                "rmsprop": g / (np.sqrt(v) + 1e-8),
            }[kind]
        )
    return float(CURVATURES @ w**2 / 2)


def trained(rule: dynsim.Rule, record: Any = "loss", **options: Any) -> Array:
    options = {"steps": STEPS, "batch": math.inf, "dtype": "float64"} | options
    run = dynsim.train(Quadratic(), rule, jax.random.key(0), record=record, **options)
    return run["loss"][-1]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("derive", [jax.grad, jax.jacfwd])
@pytest.mark.parametrize(
    ("kind", "options"), [("adam", {}), ("rmsprop", {}), ("adam", {"clip": 0.3})]
)
@pytest.mark.more
def test_a_weight_without_gradient_adds_nothing(
    kind: str, options: dict, derive: Callable[..., Any]
) -> None:
    make = {"adam": dynsim.adam, "rmsprop": dynsim.rmsprop}[kind]
    found = derive(lambda rate: trained(make(rate, **options)))(RATE)
    ends = [descended(kind, RATE + h, **options) for h in (1e-6, -1e-6)]
    assert found == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-7)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "make", [dynsim.adam, dynsim.rmsprop, lambda rate: dynsim.sgd(rate, clip=0.3), dynsim.sign]
)
@pytest.mark.more
def test_nothing_moves_at_a_minimum(make: Callable[..., dynsim.Rule]) -> None:
    """All gradients are zero, and so are their norms."""
    record = ["loss", "gradient_norm", "update_norm"]
    still = {"init": jnp.zeros(3), "record": record}
    assert jax.grad(lambda rate: trained(make(rate), **still))(RATE) == 0
    start = {"record": record, "times": [STEPS]}
    slope = jax.grad(lambda w: trained(make(RATE), init=w, **start))(jnp.zeros(3))
    assert np.array_equal(slope, np.zeros(3))


@pytest.mark.usefixtures("x64")
def test_recorded_sharpness_leaves_derivatives_alone() -> None:
    """In the first step of the warm-up the rate is zero, as the third weight's gradient always."""
    schedule = lambda rate: dynsim.schedules.Constant(rate, warmup=2)

    def slope(**options: Any) -> Array:
        return jax.jacfwd(lambda rate: trained(dynsim.rmsprop(schedule(rate)), **options))(RATE)

    plain, recorded = slope(), slope(record=["loss", "preconditioned_sharpness"])
    assert recorded == pytest.approx(float(plain), rel=1e-12)
    assert np.isfinite(plain)
