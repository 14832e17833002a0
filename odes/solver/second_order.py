r"""The next order of `odes.solver.linear_noise`: how noise shifts means, and adds to variances.

With noise :math:`s\, \xi`

.. math::

    \mathbb E\, O = O \Big|_{s=0}
    + s^2\, \mathbb E \left[ \frac12 \frac{\partial^2 O}{\partial s^2} \right] + O(s^3) , \qquad
    \operatorname{Var} O = s^2 \operatorname{Var} \frac{\partial O}{\partial s}
    + s^4 \operatorname{Var} \Bigl( \frac12 \frac{\partial^2 O}{\partial s^2} \Bigr) + \dots

The derivatives are propagated along with descent, in forward mode through every step, and averaged
over a few draws of the noise. For the variance, the noise of each step is evaluated at weights that
the noise of earlier steps has moved; a term in the third derivative is neglected.
`docs/theory/finite-size.md` has both orders.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from odes.solver import linear_noise
from odes.solver.integrate import seen_at
from odes.solver.linear_noise import Descent, Sampling, State


class Drift(NamedTuple):
    """Second-order effect of noise on P numbers at S times: their `values` without noise, the
    `drift` of their mean, the correction to the `covariance` of linear noise (0 if not requested),
    and the `errors` of both from the draws (NaN with one)."""

    values: Float[Array, "S P"]
    drift: Float[Array, "S P"]
    covariance: Float[Array, "S P P"]
    errors: Sampling


class Draws(NamedTuple):
    """Descent, and its first and second derivatives with respect to s for each of R draws."""

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
    """Propagate `draws` of the noise through descent from `params`, and observe at `times`,
    increasing whole steps. `sample(params, key)` draws gradient noise of covariance C. `covariance`
    adds the covariance of the second derivatives, which needs at least two draws."""
    start = descent.start(params)
    none = jax.tree.map(lambda leaf: jnp.zeros((draws, *leaf.shape), leaf.dtype), start)

    # The state of a run with the noise s xi is x(s) = x + s x' + s^2/2 x'' + ... A step maps
    # it to U(x(s), G(x(s)) + s xi), whose derivatives at s = 0 are the next x' and x''.
    def step(k: Int[Array, ""], now: Draws) -> Draws:
        def one(first: State, second: State, key: PRNGKeyArray) -> tuple[State, State]:
            # The mean needs only noise of the right covariance on the path without noise. For the
            # variance, the noise itself depends on s through the weights.
            still = None if covariance else sample(now.mean.params, key)

            def path(s: Float[Array, ""]) -> State:
                state = _along(now.mean, first, second, s)
                gradient = descent.derive(state.params, k)[0]
                noise = sample(state.params, key) if still is None else still
                moved = jax.tree.map(lambda g, xi: g + s * xi, gradient, noise)
                # The noise itself adds s^2 times the variance to the averages of squares.
                variance = descent.scattered(state.params, k)
                left = jax.tree.map(lambda v: (1 - s**2) * v, variance)
                return descent.update(state, moved, k, left)

            # As in `Descent.back`: 0/0 if a gradient was zero in every step.
            return jax.tree.map(lambda x: jnp.where(jnp.isnan(x), 0, x), _derivatives(path))

        keys = jax.random.split(jax.random.fold_in(key, k), draws)
        first, second = jax.vmap(one)(now.first, now.second, keys)
        return Draws(descent.step(now.mean, k), first, second)

    def look(now: Draws, k: Int[Array, ""]) -> Drift:
        def curvature(first: State, second: State) -> Float[Array, " P"]:
            return _derivatives(
                lambda s: descent.observe(_along(now.mean, first, second, s).params, k)[0]
            )[1]

        # E (1/2 d^2 O / ds^2), and its covariance between draws.
        halves = jax.vmap(curvature)(now.first, now.second) / 2
        mean = jnp.mean(halves, axis=0, keepdims=True)
        of_draws = jnp.zeros(2 * halves.shape[1:], halves.dtype)
        if covariance:
            of_draws = (halves - mean).T @ (halves - mean) / (draws - 1)
        errors = linear_noise.sampling(halves, draws - 1)[1]
        return Drift(descent.observe(now.mean.params, k)[0], mean[0], of_draws, errors)

    return seen_at(times, Draws(start, none, none), step, look)[0]


def _along(mean: State, first: State, second: State, s: Float[Array, ""]) -> State:
    return jax.tree.map(lambda x, d, dd: x + s * d + s**2 / 2 * dd, mean, first, second)


def _derivatives(path: Callable[[Float[Array, ""]], PyTree]) -> tuple[PyTree, PyTree]:
    """Return the first and second derivative of `path` at 0."""
    # Forward over forward: `path` has one argument and many results.
    one = jnp.ones(())

    def slope(s: Float[Array, ""]) -> PyTree:
        return jax.jvp(path, (s,), (one,))[1]

    return jax.jvp(slope, (0 * one,), (one,))
