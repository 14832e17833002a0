"""Derivatives of theories with respect to the rate and the starting weights.

Descent on (w - x)^2 / 2 with mean 0 and variance C of x has the mean r^k w0 and the variance
eta^2 C / B (1 - r^(2 k)) / (1 - r^2), where r = 1 - eta.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, PRNGKeyArray

import dynsim
import odes

BATCH, EXAMPLES, RATE = 8, 32, 0.1
TIMES = [0, 3, 5, 8]


class Mean(dynsim.Problem):
    """x is 1 or -1, equally often in every draw. The second weight has no gradient."""

    def init(self, key: PRNGKeyArray) -> Array:
        return jnp.array([2.0, 1.0])

    def draw(self, key: PRNGKeyArray, batch: int) -> Array:
        return jax.random.permutation(key, jnp.where(jnp.arange(batch) % 2, 1.0, -1.0))

    def loss(self, w: Array, x: Array) -> Array:
        return jnp.mean((w[0] - x) ** 2) / 2 + 0 * w[1]

    def population_loss(self, w: Array) -> Array:
        return (w[0] ** 2 + 1) / 2

    def observables(self) -> Any:
        return {"w": lambda problem, w: w[0]}


def predicted(rate: Any, start: Any, k: int) -> tuple[Array, Array]:
    """Mean and standard deviation after k steps. The variance of the examples is unbiased."""
    r, C = 1 - rate, EXAMPLES / (EXAMPLES - 1)
    return start * r**k, rate * jnp.sqrt(C / BATCH * (1 - r ** (2 * k)) / (1 - r**2))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("derive", [jax.jacrev, jax.jacfwd])
@pytest.mark.more
def test_linear_noise(derive: Callable[..., Any]) -> None:
    """The covariance is computed at two of the times; the mean is followed to all of them."""

    def solved(rate: Any, start: Any) -> tuple[Array, Array]:
        found = odes.linear_noise(
            Mean(),
            dynsim.sgd(rate),
            TIMES,
            batch=BATCH,
            key=jax.random.key(0),
            init=jnp.stack([start, 1.0]),
            starts=1,
            examples=EXAMPLES,
            passes=2,
            record="w",
        )
        return found["w"][2], found.std["w"][3]

    got = derive(solved, (0, 1))(RATE, 2.0)
    (mean, _), (_, std) = (jax.jacrev(predicted, (0, 1))(RATE, 2.0, TIMES[i]) for i in (2, 3))
    np.testing.assert_allclose(np.ravel(got), np.ravel([mean, std]), rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("derive", [jax.grad, jax.jacfwd])
@pytest.mark.more
def test_a_path_of_the_stochastic_equation(derive: Callable[..., Any]) -> None:
    def last(rate: Any) -> Array:
        options: dict[str, Any] = {"batch": BATCH, "key": jax.random.key(0), "record": "w"}
        return odes.sde(Mean(), dynsim.sgd(rate), TIMES, **options)["w"][-1]

    step = 1e-5
    want = (last(RATE + step) - last(RATE - step)) / (2 * step)
    assert derive(last)(RATE) == pytest.approx(float(want), rel=1e-7)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("derive", [jax.grad, jax.jacfwd])
def test_the_central_flow_has_none(derive: Callable[..., Any]) -> None:
    def last(rate: Any) -> Array:
        return odes.central_flow(Mean(), dynsim.sgd(rate), [2], init=jnp.ones(2))["loss"][-1]

    with pytest.raises(ValueError, match="central_flow: has no derivatives"):
        derive(last)(RATE)
