r"""Stochastic differential equations with small noise, in the sense of Ito, by Strang splitting.

A step of length h is half a step of the drift, by the Runge-Kutta method of three stages at 0, 1/3
and 1/2, of third order for linear drifts and of second for others; the noise of the whole step,
by Euler-Maruyama, from the state that this leads to; and half a step of the drift. With noise of
size :math:`\varepsilon` means err by :math:`O(h^2 + \varepsilon^2 h)`, as only the noise of the
noise is of first order (in the sense of Milstein and Tretyakov, SIAM J. Sci. Comput. 18, 1067,
1997). Drift and noise of training are of the size of the learning rate :math:`\eta` in a step, so
steps of h = 1 have a relative error of :math:`O(\eta^2)`. That of Euler-Maruyama is
:math:`O(\eta)`, as large as the difference between descent and its flow. The solvers of diffrax
that reach this are in the sense of Stratonovich, or take the noise as additive.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

Drift = Callable[[Float[Array, ""], PyTree], PyTree]
"""(t, y) -> derivative of y."""
Diffusion = Callable[[Float[Array, ""], PyTree, Float[Array, " E"]], PyTree]
"""(t, y, dW) -> what the increment dW of a Brownian path adds to y, linear in it."""

STAGES = 3
"""Evaluations of the drift in half a step."""


def integrate_ito(
    drift: Drift,
    diffusion: Diffusion,
    initial: PyTree,
    grid: Float[Array, " N"],
    marks: Int[Array, " S"],
    key: PRNGKeyArray,
    *,
    noises: int,
    save: Callable[[Float[Array, ""], PyTree], PyTree],
) -> tuple[PyTree, PyTree]:
    """Integrate dy = drift(t, y) dt + diffusion(t, y, dW) from `initial` at the first time.

    Args:
        drift, diffusion: the equation.
        grid: (N,) times between which steps are taken; drift and diffusion may jump there.
        marks: (S,) indices into `grid` at which `save(t, y)` is evaluated, increasing.
        key: of the Brownian path.
        noises: number E of independent noises.

    Returns:
        What was saved, with a leading axis, and the state at the last mark.
    """

    def flow(t: Array, h: Array, y: PyTree) -> PyTree:
        def stage(i: Array, carry: tuple[PyTree, Array]) -> tuple[PyTree, Array]:
            reached, ahead = carry
            slope, ahead = drift(t + ahead, reached), h / (STAGES - i)
            return jax.tree.map(lambda y, f: y + ahead * f, y, slope), ahead

        return jax.lax.fori_loop(0, STAGES, stage, (y, jnp.zeros_like(h)))[0]

    def step(k: Array, y: PyTree) -> PyTree:
        t, h = grid[k], grid[k + 1] - grid[k]
        normal = jax.random.normal(jax.random.fold_in(key, k), (noises,), grid.dtype)
        middle = flow(t, h / 2, y)
        kick = diffusion(t + h / 2, middle, jnp.sqrt(h) * normal)
        return flow(t + h / 2, h / 2, jax.tree.map(jnp.add, middle, kick))

    def stretch(carry: tuple[PyTree, Array], until: Array) -> tuple[tuple[PyTree, Array], PyTree]:
        y = jax.lax.fori_loop(carry[1], until, step, carry[0])
        return (y, until), save(grid[until], y)

    (last, _), saved = jax.lax.scan(stretch, (initial, jnp.zeros((), marks.dtype)), marks)
    return saved, last
