r"""The semidefinite complementarity problem of central flows, for a few eigenvalues.

Given symmetric A (k, k), and a positive semidefinite operator B on symmetric matrices, find X with

.. math::

    X \succeq 0, \qquad A + B[X] \succeq 0, \qquad \langle X, A + B[X] \rangle = 0 ,

which is to minimise the convex function :math:`\tfrac12 \langle X, B[X] \rangle + \langle A, X
\rangle` over :math:`X \succeq 0`. With k = 1 it is :math:`X = \max(0, -A/B)`.

The solver is accelerated projected gradient descent (Nesterov 1983; Beck and Teboulle 2009) with
restarts where momentum points uphill (O'Donoghue and Candes 2015, section 3.2). It projects by
clipping eigenvalues at zero, so an X that is zero in exact arithmetic is exactly zero.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

MAX_TURNS = 2000
"""Turns after which the solver gives up."""


class Complement(NamedTuple):
    """A solution.

    Attributes:
        X: (k, k) symmetric, positive semidefinite.
        slack: (k, k) the other matrix, A + B[X].
        solved: whether X satisfies the conditions to `tol`. False where no X does, for instance
            where B[X] = 0 for an X with <A, X> < 0.
        turns: how many turns it took.
    """

    X: Float[Array, "k k"]
    slack: Float[Array, "k k"]
    solved: Bool[Array, ""]
    turns: Int[Array, ""]


def solve(
    A: Float[Array, "k k"],
    E: Float[Array, "k k n"],
    near: Float[Array, "k k"] | None = None,
    tol: float | None = None,
) -> Complement:
    r"""Solve the problem with :math:`B_{ijkl} = \langle E_{ij}, E_{kl} \rangle`.

    Args:
        A: symmetric; exactly diagonal or not.
        E: a vector for each pair, with E[i, j] = E[j, i].
        near: positive semidefinite matrix at which the search for X starts; zero by default.
        tol: tolerance of the residual :math:`|X - \Pi(X - A - B[X])|` in units in which B_iiii = 1,
            relative to the largest negative eigenvalue of A in these units; by default 1e-9 in
            float64, and 1e-4 in float32.

    Example:
        >>> found = solve(jnp.diag(jnp.array([-1.0, 3.0])), jnp.ones((2, 2, 1)))
        >>> found.X[0, 0]
        Array(1., dtype=float32)
    """
    tol = (1e-9 if A.dtype == jnp.float64 else 1e-4) if tol is None else tol
    k = len(A)
    # X = T Y T with a diagonal T that makes B_iiii = 1: eigenvalues far from the edge, which may
    # change fast, then do not slow down the others.
    norms = jnp.sqrt(jnp.sum(jnp.square(jnp.diagonal(E)), axis=0))
    scale = jnp.where(norms > 0, norms, 1) ** -0.5
    both = jnp.outer(scale, scale)
    a, e = A * both, E * both[:, :, None]
    b = jnp.tensordot(e, e, ((2,), (2,)))
    step = 1 / jnp.maximum(jnp.linalg.eigvalsh(b.reshape(k * k, k * k))[-1], 1)
    size = jnp.maximum(-jnp.linalg.eigvalsh(a)[0], 0)

    def slope(y: Array) -> Array:
        return a + jnp.tensordot(b, y)

    def unsolved(y: Array) -> Array:
        return jnp.max(jnp.abs(y - _projected(y - slope(y)))) > tol * size

    def turn(state: tuple[Array, ...]) -> tuple[Array, ...]:
        y, ahead, inertia, turns, _ = state
        new = _projected(ahead - step * slope(ahead))
        uphill = jnp.sum((ahead - new) * (new - y)) > 0
        following = (1 + jnp.sqrt(1 + 4 * inertia**2)) / 2
        carried = jnp.where(uphill, 0, (inertia - 1) / following)
        inertia = jnp.where(uphill, 1, following)
        return new, new + carried * (new - y), inertia, turns + 1, unsolved(new)

    # Where A is positive semidefinite, zero is the answer, and nothing near it is.
    start = jnp.zeros_like(a) if near is None else jnp.where(size > 0, near / both, 0)
    state = start, start, jnp.ones((), a.dtype), jnp.int32(0), unsolved(start)
    y, _, _, turns, failed = jax.lax.while_loop(
        lambda state: state[4] & (state[3] < MAX_TURNS), turn, state
    )
    return Complement(y * both, slope(y) / both, ~failed, turns)


def _projected(matrix: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """The closest positive semidefinite matrix."""
    values, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
    return (vectors * jnp.maximum(values, 0)[None]) @ vectors.T
