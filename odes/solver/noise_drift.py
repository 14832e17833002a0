r"""How far noise moves the mean of the results of stochastic descent: the noise-induced drift.

With noise :math:`s\, \xi` in the gradients, :math:`\xi_k` independent from step to step and of mean
zero, an observable O of the weights after some steps has the mean

.. math::

    \mathbb E\, O = O \Big|_{s=0}
    + s^2\, \mathbb E \left[ \frac12 \frac{\partial^2 O}{\partial s^2} \right] + O(s^3)

in which only pairs of one and the same :math:`\xi_k` survive the average: the curvature of the
gradient has moved what noise has spread. The derivative is carried along with descent, by forward
mode through every step, for a few draws of the noise, over which the average is taken. It is smooth
in all numbers but the draws, and of the first order in 1/B, where `odes.solver.linear_noise` is its
root.

The variance has such a term too. With Gaussian noise the first and the second derivative are
uncorrelated, and

.. math::

    \operatorname{Var} O = s^2 \operatorname{Var} \frac{\partial O}{\partial s}
    + s^4 \Bigl[ \operatorname{Var} \Bigl( \frac12 \frac{\partial^2 O}{\partial s^2} \Bigr)
    + \frac13 \operatorname{Cov} \Bigl( \frac{\partial O}{\partial s},
    \frac{\partial^3 O}{\partial s^3} \Bigr) \Bigr] .

The first term of the bracket rules where O responds little to noise at first order, as a loss does
next to its minimum along most directions. It needs the noise of each step to be that of the weights
which the noise of earlier steps has moved. The second term is left out.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from odes.solver.linear_noise import Descent, State, seen_at


class Drift(NamedTuple):
    """The effect of noise on P numbers at S times.

    Attributes:
        values: (S, P) the numbers without noise.
        drift: (S, P) shift of their mean by noise.
        error: (S, P) standard error of the drift by the draws; NaN with one.
        covariance: (S, P, P) contribution in addition to linear noise; 0 if not requested.
    """

    values: Float[Array, "S P"]
    drift: Float[Array, "S P"]
    error: Float[Array, "S P"]
    covariance: Float[Array, "S P P"]


class Draws(NamedTuple):
    """Descent, and derivatives of the first and second order by s for each of R draws."""

    mean: State
    first: State
    second: State


def drift(
    descent: Descent,
    sample: Callable[[PyTree, PRNGKeyArray], PyTree],
    params: PyTree,
    times: Sequence[int],
    key: PRNGKeyArray,
    draws: int,
    covariance: bool = False,
) -> Drift:
    """Carry `draws` of the noise through descent.

    Args:
        descent: its rule, `derive` and `observe`.
        sample: noise of the gradient at some weights, from a key; its covariance is C.
        params: starting weights.
        times: whole steps that increase, at which numbers are observed.
        covariance: whether to add that of the second derivatives, which needs two draws or more.
    """
    start = descent.start(params)
    none = jax.tree.map(lambda leaf: jnp.zeros((draws, *leaf.shape), leaf.dtype), start)

    def step(k: Int[Array, ""], now: Draws) -> Draws:
        def one(first: State, second: State, key: PRNGKeyArray) -> tuple[State, State]:
            still = None if covariance else sample(now.mean.params, key)

            def path(s: Float[Array, ""]) -> State:
                state = _along(now.mean, first, second, s)
                gradient = descent.derive(state.params, k)[0]
                noise = sample(state.params, key) if still is None else still
                moved = jax.tree.map(lambda g, xi: g + s * xi, gradient, noise)
                # What averages of squares already have of the variance, the noise brings as well.
                variance = descent.scattered(state.params, k)
                left = jax.tree.map(lambda v: (1 - s**2) * v, variance)
                return descent.update(state, moved, k, left)

            # As in `linear_noise`, of 0/0 where a gradient has been zero all along.
            return jax.tree.map(lambda x: jnp.where(jnp.isnan(x), 0, x), _derivatives(path))

        keys = jax.random.split(jax.random.fold_in(key, k), draws)
        first, second = jax.vmap(one)(now.first, now.second, keys)
        return Draws(descent.step(now.mean, k), first, second)

    def look(now: Draws, k: Int[Array, ""]) -> Drift:
        def one(first: State, second: State) -> Float[Array, " P"]:
            return _derivatives(
                lambda s: descent.observe(_along(now.mean, first, second, s).params, k)[0]
            )[1]

        found = jax.vmap(one)(now.first, now.second) / 2
        error = jnp.std(found, axis=0, ddof=1) / jnp.sqrt(jnp.asarray(draws, found.dtype))
        mean = jnp.mean(found, axis=0, keepdims=True)
        of_draws = jnp.zeros(2 * found.shape[1:], found.dtype)
        if covariance:
            of_draws = (found - mean).T @ (found - mean) / (draws - 1)
        return Drift(descent.observe(now.mean.params, k)[0], mean[0], error, of_draws)

    return seen_at(times, Draws(start, none, none), step, look)


def _along(mean: State, first: State, second: State, s: Float[Array, ""]) -> State:
    return jax.tree.map(lambda x, d, dd: x + s * d + s**2 / 2 * dd, mean, first, second)


def _derivatives(path: Callable[[Float[Array, ""]], PyTree]) -> tuple[PyTree, PyTree]:
    """First and second derivative of `path` at 0."""
    one = jnp.ones(())

    def slope(s: Float[Array, ""]) -> PyTree:
        return jax.jvp(path, (s,), (one,))[1]

    return jax.jvp(slope, (0 * one,), (one,))
