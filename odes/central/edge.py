r"""The constraint that keeps a flow at the edge of stability: one flow step, then the constraint.

In coordinates of the weights divided by q, :math:`q^2 = P^{-1}`, descent is unstable where an
eigenvalue of :math:`M = q H q` exceeds 2. `advanced` moves the state along the flow for a short
time dt with the previous push of the oscillations, to a sharpness that may slightly exceed 2. Then
it replaces that push by one that leads to 2, with the size of the oscillations from the
complementarity problem. This is the catching-up scheme of Moreau (1977) with a push known in
advance. It is exact if the push is the same in each step. Off the edge the second half does
nothing.

The complementarity problem is, given symmetric A (k, k), and a positive semidefinite operator B on
symmetric matrices, to find X with

.. math::

    X \succeq 0, \qquad A + B[X] \succeq 0, \qquad \langle X, A + B[X] \rangle = 0 ,

which minimises the convex function :math:`\tfrac12 \langle X, B[X] \rangle + \langle A, X \rangle`
over :math:`X \succeq 0`. With k = 1 it is :math:`X = \max(0, -A/B)`. The solver is accelerated
projected gradient descent (Nesterov 1983; Beck and Teboulle 2009) with restarts where momentum
points uphill (O'Donoghue and Candes 2015, section 3.2). It projects by clipping eigenvalues at
zero, so an X that is zero in exact arithmetic is exactly zero.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from dynsim.precision import one_by_one
from dynsim.problem import eigenvalues
from dynsim.problem.sharpness import EDGE
from dynsim.training.rules import RMSProp
from odes.solver.inertia import corrected
from odes.solver.posed import Gradient, GroupedRule, InitialValueProblem

MAX_TURNS = 2000
"""Maximum number of iterations of the solver."""


class Complement(NamedTuple):
    """A solution X (k, k), the `slack` A + B[X], whether X satisfies the conditions (there is no
    such X if <A, X> < 0 for an X with B[X] = 0), and the number of iterations."""

    X: Float[Array, "k k"]
    slack: Float[Array, "k k"]
    solved: Bool[Array, ""]
    turns: Int[Array, ""]


def complement(
    A: Float[Array, "k k"],
    E: Float[Array, "k k n"],
    near: Float[Array, "k k"] | None = None,
) -> Complement:
    r"""Solve the complementarity problem with :math:`B_{ijkl} = \langle E_{ij}, E_{kl} \rangle`.

    Args:
        A: symmetric matrix, which need not be diagonal.
        E: a vector for each pair, with E[i, j] = E[j, i].
        near: positive semidefinite matrix at which the search for X starts; zero by default.

    Example:
        >>> solution = complement(jnp.diag(jnp.array([-1.0, 3.0])), jnp.ones((2, 2, 1)))
        >>> solution.X[0, 0]
        Array(1., dtype=float32)
    """
    # Tolerance of |X - P(X - A - B[X])| in units with B_iiii = 1, relative to the largest negative
    # eigenvalue of A in these units.
    tol = 1e-9 if A.dtype == jnp.float64 else 1e-4
    k = len(A)
    # X = T Y T with a diagonal T that makes B_iiii = 1: eigenvalues far from the edge, which may
    # change fast, then do not slow down the others.
    norms = jnp.sqrt(jnp.sum(jnp.square(jnp.diagonal(E)), axis=0))
    scale = jnp.where(norms > 0, norms, 1) ** -0.5
    both = jnp.outer(scale, scale)
    a, e = A * both, E * both[:, :, None]
    b = jnp.tensordot(e, e, ((2,), (2,)))
    # 1 / Lipschitz constant of the slope, the largest eigenvalue of B.
    step = 1 / jnp.maximum(jnp.linalg.eigvalsh(b.reshape(k * k, k * k))[-1], 1)
    size = jnp.maximum(-jnp.linalg.eigvalsh(a)[0], 0)

    # The slope of <Y, B[Y]> / 2 + <A, Y>.
    def slope(y: Array) -> Array:
        return a + jnp.tensordot(b, y)

    # Y solves the problem exactly if it is a fixed point of a projected step.
    def unsolved(y: Array) -> Array:
        return jnp.max(jnp.abs(y - _projected(y - slope(y)))) > tol * size

    def turn(state: tuple[Array, ...]) -> tuple[Array, ...]:
        y, ahead, inertia, turns, _ = state
        new = _projected(ahead - step * slope(ahead))
        # Nesterov's inertia i <- (1 + sqrt(1 + 4 i^2)) / 2, and back to 1 where it points uphill.
        uphill = jnp.sum((ahead - new) * (new - y)) > 0
        following = (1 + jnp.sqrt(1 + 4 * inertia**2)) / 2
        carried = jnp.where(uphill, 0, (inertia - 1) / following)
        inertia = jnp.where(uphill, 1, following)
        return new, new + carried * (new - y), inertia, turns + 1, unsolved(new)

    # Where A is positive semidefinite the answer is exactly zero, so the search starts there.
    start = jnp.zeros_like(a) if near is None else jnp.where(size > 0, near / both, 0)
    state = start, start, jnp.ones((), a.dtype), jnp.int32(0), unsolved(start)
    y, _, _, turns, failed = jax.lax.while_loop(
        lambda state: state[4] & (state[3] < MAX_TURNS), turn, state
    )
    return Complement(y * both, slope(y) / both, ~failed, turns)


def _projected(matrix: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """Return the closest positive semidefinite matrix."""
    # `eigh` of a matrix that is symmetric only up to rounding would depend on the backend.
    values, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
    return (vectors * jnp.maximum(values, 0)[None]) @ vectors.T


TOO_FAR = 0.1
"""Largest excess of an eigenvalue over the edge in one step for which the flow is valid."""
AT_EDGE = 1e-4
"""Distance from the edge within which an eigenvalue counts as being at it, close to rounding."""
RESIDUAL = 1e-5
"""Residual of eigenvectors, relative to the sum of eigenvalue and the size of the matrix."""
STEPS = 4
"""Number of Runge-Kutta steps per step, each with the rates at its middle."""


class Moved(NamedTuple):
    r"""The state of a flow at the edge: its `state`, weights and RMSProp's average where there is
    one; a `block` (N, b) of eigenvectors of M from which the next search starts; a `root` (N, k)
    with :math:`q^{-1} \Sigma q^{-1}` = root root^T; the `force`, the gradient of <H, Sigma> times
    q; and whether the last step left the constraint unsatisfied."""

    state: tuple[PyTree, ...]
    block: Float[Array, "N b"]
    root: Float[Array, "N k"]
    force: Float[Array, " N"]
    failed: Bool[Array, ""]


class Edge(NamedTuple):
    """A flow `posed` without oscillations, the `gradient` (task, weights) of the loss with coupled
    decay, and the number k of `followed` eigenvalues."""

    posed: InitialValueProblem
    gradient: Gradient[Any]
    driven: GroupedRule
    followed: int

    @property
    def searched(self) -> int:
        """Number of computed eigenvalues: one more than are constrained, if there is one."""
        return min(self.followed + 1, self.size)

    @property
    def size(self) -> int:
        """Number of weights."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.posed.state[0]))

    def start(self) -> Moved:
        """Return the flow at its start, where nothing oscillates."""
        weights = ravel_pytree(self.posed.state[0])[0]
        # The basis of a search has three times the columns of its block.
        rows = 0 if self.size < 3 * (self.searched + 1) else self.searched
        block = eigenvalues.random(0, self.size, rows, weights.dtype)
        root = jnp.zeros((self.size, self.followed), weights.dtype)
        force = jnp.zeros_like(weights)
        return Moved(self.posed.state, block, root, force, jnp.zeros((), bool))

    def slope(self, weights: Float[Array, " N"]) -> Float[Array, " N"]:
        """Return the gradient as a flat vector."""
        unravel = ravel_pytree(self.posed.state[0])[1]
        return ravel_pytree(self.gradient(self.posed.args[0], unravel(weights)))[0]

    def rates(self, t: Float[Array, ""]) -> Float[Array, " N"]:
        """Return the learning rate of each weight."""
        ones = jax.tree.map(jnp.ones_like, self.posed.state[0])
        return -ravel_pytree(self.driven.descend(ones, t))[0]

    def spectrum(
        self, moved: Moved, t: Float[Array, ""]
    ) -> tuple[Float[Array, " m"], Float[Array, "N m"], Float[Array, "N b"]]:
        """Return the largest eigenvalues of M at the rates of `t`, their eigenvectors, and the next
        block."""
        weights, q = self.scaled(moved.state, t)
        push = jax.linearize(self.slope, weights)[1]
        # M = q H q, which is symmetric and has the eigenvalues of P^-1 H.
        scaled = lambda v: q * push(q * v)  # noqa: E731
        m = self.searched
        if not moved.block.shape[1]:
            return *eigenvalues.top(scaled, m, moved.block), moved.block
        # A random direction beside the last eigenvectors, in case another one overtakes them.
        new = eigenvalues.random(1, self.size, 1, weights.dtype)
        block = jnp.concatenate([moved.block, new], axis=1)
        values, vectors, _ = eigenvalues.search(scaled, block, m, RESIDUAL)
        return values[:m], vectors[:, :m], vectors[:, :m]

    def scaled(
        self, state: tuple[PyTree, ...], t: Float[Array, ""]
    ) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        """Return the weights as a flat vector, and their q."""
        weights, rates = ravel_pytree(state[0])[0], self.rates(t)
        # q^2 = P^-1, eta or eta / (sqrt(v) + eps), with v in units of eps^2.
        if isinstance(self.driven.rule, RMSProp):
            rates = rates / (self.driven.rule.eps * (jnp.sqrt(ravel_pytree(state[1])[0]) + 1))
        return weights, jnp.sqrt(rates)

    def push(self, moved: Moved, t: Float[Array, ""]) -> tuple[PyTree, ...]:
        """Return the velocity of the state due to the oscillations."""
        _, q = self.scaled(moved.state, t)
        # p' = -P^-1 grad<H, Sigma> / 2, with the force q grad<H, Sigma>.
        rule, rates = self.driven.rule, [-q * moved.force / 2]
        if isinstance(rule, RMSProp):
            # v' = (1 - b2) diag(H Sigma H), in units of eps^2. At the edge H q root = 2 root / q.
            rise = 4 * (1 - jnp.asarray(rule.b2)) / jnp.asarray(rule.eps) ** 2
            energy = jnp.sum(jnp.square(moved.root), axis=1)
            rates += [rise * energy / jnp.where(q > 0, q**2, jnp.inf)]
        like = (ravel_pytree(part)[1] for part in moved.state)
        return tuple(back(rate) for back, rate in zip(like, rates, strict=True))

    def advanced(
        self,
        moved: Moved,
        t: Float[Array, ""],
        dt: Float[Array, ""],
        lost: Bool[Array, ""] | bool = False,
    ) -> tuple[Moved, Float[Array, " m"]]:
        """Return the flow a time `dt` after `t`, and its largest eigenvalues there before they were
        constrained to the edge. A `lost` flow is not constrained; a `dt` of zero does nothing."""
        # First the flow with the previous push, by a few Runge-Kutta steps.
        short = dt / STEPS
        late = t + dt - short / 2
        push = self.push(moved, late)

        def step(i: Array, state: tuple[PyTree, ...]) -> tuple[PyTree, ...]:
            at = t + (i + 0.5) * short
            along = lambda state: _plus(self.posed.field(at, state, self.posed.args), push)  # noqa: E731
            # The flow of gradient descent is that of second order in eta, of the push too.
            if isinstance(self.driven.rule, RMSProp):
                return runge_kutta(along, state, short)
            return runge_kutta(functools.partial(corrected, along), state, short)

        moved = moved._replace(state=jax.lax.fori_loop(0, STEPS, step, moved.state))
        # Then the constraint, where an eigenvalue exceeds the edge or the weights oscillate.
        values, vectors, block = self.spectrum(moved, late)
        oscillates = jnp.any(moved.root != 0)
        free = moved._replace(
            block=block,
            root=jnp.zeros_like(moved.root),
            force=jnp.zeros_like(moved.force),
            failed=jnp.any(values[self.followed :] > EDGE - AT_EDGE) | (values[0] > EDGE + TOO_FAR),
        )
        pushes = ((values[0] > EDGE) | oscillates) & ~jnp.asarray(lost) & (dt > 0)
        # In a batch both branches run: one without a solution would use up all solver iterations.
        within = jnp.where(pushes, values, jnp.minimum(values, EDGE))
        after = jax.lax.cond(
            pushes,
            lambda: self._constrain(moved, free, late, dt, push, within, vectors),
            lambda: free,
        )
        return after, values

    def _constrain(
        self,
        before: Moved,
        free: Moved,
        t: Float[Array, ""],
        dt: Float[Array, ""],
        push: tuple[PyTree, ...],
        values: Float[Array, " m"],
        vectors: Float[Array, "N m"],
    ) -> Moved:
        """Replace the push of the oscillations `before` by the push that brings the largest
        eigenvalues to the edge."""
        weights, q = self.scaled(free.state, t)
        # Sigma = q U X U^T q with the eigenvectors U of M. Within the step, a push by X moves the
        # eigenvalues from D by the linear map
        #     U^T M U = D - B[X] + B[X_before],  B_ijkl = <E_ij, E_kl>,
        # and they have to end at 2 where X > 0, and below 2 elsewhere: the complementarity problem
        # with A = 2 - D - B[X_before].
        u, k = vectors[:, : self.followed], self.followed
        # Eigenvalues far below the edge neither oscillate nor reach it within the step.
        active = jnp.maximum(jnp.sum(values[:k] > EDGE - TOO_FAR), 1)
        # Through the weights, E_ij = sqrt(dt / 2) q grad(u_i^T M u_j): third derivatives.
        third = q[None, None] * curvature_gradients(self.slope, weights, q[:, None] * u, active)
        half = jnp.sqrt(dt / 2)
        parts, old = [half * third], [half * before.force]
        if isinstance(rule := self.driven.rule, RMSProp):
            # And through v, whose growth lowers q: one entry of E for each weight.
            rise = 4 * dt * (1 - jnp.asarray(rule.b2)) / jnp.asarray(rule.eps)
            through = self.rates(t) * jnp.sqrt(ravel_pytree(free.state[1])[0])
            moving = jnp.where(through > 0, rise / jnp.where(through > 0, through, 1), 0)
            parts += [jnp.sqrt(moving)[None, None] * (u.T[:, None] * u.T[None])]
            old += [jnp.sqrt(moving) * jnp.sum(jnp.square(before.root), axis=1)]
        changes = jnp.concatenate(parts, axis=-1)
        overlap = u.T @ before.root
        # The solution of the last step is close to that of this one, in its eigenvectors.
        solution = one_by_one(complement)(
            jnp.diag(EDGE - values[:k]) - changes @ jnp.concatenate(old),
            changes,
            overlap @ overlap.T,
        )
        # root root^T = U X U^T.
        size, own = one_by_one(jnp.linalg.eigh)(solution.X)
        unsolved = one_by_one(jnp.linalg.eigvalsh)(solution.slack)[0] < -TOO_FAR / 100
        constrained = free._replace(
            root=u @ (own * jnp.sqrt(jnp.maximum(size, 0))[None]),
            force=jnp.tensordot(solution.X, third),
            failed=free.failed | unsolved,
        )
        # The new push in place of the previous one, over the whole step.
        change = jax.tree.map(lambda new, old: dt * (new - old), self.push(constrained, t), push)
        return constrained._replace(state=_plus(constrained.state, change))


def runge_kutta(field: Callable[[PyTree], PyTree], state: PyTree, dt: Float[Array, ""]) -> PyTree:
    """Return the state after `dt` by the classical fourth-order method."""

    def stage(i: Array, carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        # y + dt (k1 + 2 k2 + 2 k3 + k4) / 6, in a loop that compiles the field once. The factor of
        # the last stage has no meaning: nothing is evaluated there.
        at, total = carry
        slope = field(at)
        total = jax.tree.map(lambda y, k: y + k / jnp.array([6, 3, 3, 6.0])[i], total, slope)
        ahead = jax.tree.map(lambda y, k: y + dt * k / jnp.array([2, 2, 1, 1.0])[i], state, slope)
        return ahead, total

    zeros = jax.tree.map(jnp.zeros_like, state)
    total = jax.lax.fori_loop(0, 4, stage, (state, zeros))[1]
    return jax.tree.map(lambda y, slope: y + dt * slope, state, total)


def curvature_gradients(
    slope: Callable[[Array], Array],
    weights: Float[Array, " N"],
    along: Float[Array, "N k"],
    active: Int[Array, ""],
) -> Float[Array, "k k N"]:
    """Return the gradient of each entry of along^T H along at fixed `along`; zero for all but the
    first `active`."""
    k = along.shape[1]
    # Entries of the lower triangle row by row, so that those of the first `active` come first.
    first, second = (jnp.asarray(indices) for indices in np.tril_indices(k))

    def fill(i: Array, filled: Array) -> Array:
        # grad(v^T H w) = D^2 G[v, w], as the third derivatives of the loss are symmetric.
        v, w = along[:, first[i]], along[:, second[i]]
        twice = jax.jvp(lambda at: jax.jvp(slope, (at,), (v,))[1], (weights,), (w,))[1]
        return filled.at[first[i], second[i]].set(twice).at[second[i], first[i]].set(twice)

    empty = jnp.zeros((k, k, len(weights)), weights.dtype)
    return jax.lax.fori_loop(0, active * (active + 1) // 2, fill, empty)


def _plus(a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(jnp.add, a, b)
