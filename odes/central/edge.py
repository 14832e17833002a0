r"""What holds a flow at the edge of stability: one step of the flow, then the constraint.

In coordinates of the weights divided by q, :math:`q^2 = P^{-1}`, descent is unstable where an
eigenvalue of :math:`M = q H q` exceeds 2. `advanced` moves the state along the flow without
oscillations for a short time dt, to a sharpness that may be beyond 2 by a little, and then back to
2 by the oscillations' push, for which they have to be as large as the complementarity problem says.
This is the catching-up scheme of Moreau (1977), of first order in dt at the edge. Off the edge the
second half does nothing at all.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from dynsim.precision import one_by_one
from dynsim.problem import sharpness
from dynsim.training.rules import RMSProp
from dynsim.training.stability import EDGE
from odes.solver import complementarity
from odes.solver.posed import Driven, Gradient, Posed

TOO_FAR = 0.1
"""How far an eigenvalue may get beyond the edge in one step before the flow counts as invalid."""
WANTED = 1e-6
"""Residual of iterated eigenvectors, relative to the edge."""


class Moved(NamedTuple):
    """The state of a flow at the edge.

    Attributes:
        state: of the flow: weights, and RMSProp's average of squared gradients where there is one.
        block: (N, b) eigenvectors of M from which the next search starts.
        root: (N, k) with :math:`\\Sigma` = root root^T.
        failed: whether the last step left the constraint unsatisfied.
    """

    state: tuple[PyTree, ...]
    block: Float[Array, "N b"]
    root: Float[Array, "N k"]
    failed: Bool[Array, ""]


class Edge(NamedTuple):
    """A flow, and what its edge is made of.

    Attributes:
        posed: the flow without oscillations.
        gradient: of the loss with coupled decay, from (task, weights).
        driven: the rule and its groups.
        followed: how many eigenvalues the flow can hold at the edge, k.
    """

    posed: Posed
    gradient: Gradient[Any]
    driven: Driven
    followed: int

    @property
    def searched(self) -> int:
        """How many eigenvalues are looked at: one more than are followed, if there is one."""
        return min(self.followed + 1, self.size)

    @property
    def size(self) -> int:
        """Number of weights."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.posed.state[0]))

    def start(self) -> Moved:
        """The flow at its start, where nothing oscillates."""
        weights = ravel_pytree(self.posed.state[0])[0]
        rows = 0 if self.size <= sharpness.DENSE else self.searched
        block = jax.random.normal(jax.random.key(0), (self.size, rows), weights.dtype)
        root = jnp.zeros((self.size, self.followed), weights.dtype)
        return Moved(self.posed.state, block, root, jnp.zeros((), bool))

    def slope(self, weights: Float[Array, " N"]) -> Float[Array, " N"]:
        """The gradient of all weights in one row."""
        unravel = ravel_pytree(self.posed.state[0])[1]
        return ravel_pytree(self.gradient(self.posed.args[0], unravel(weights)))[0]

    def rates(self, t: Float[Array, ""]) -> Float[Array, " N"]:
        """The learning rate of each weight."""
        ones = jax.tree.map(jnp.ones_like, self.posed.state[0])
        # At the start of a warm-up, half a step early, the rate of a flow is negative.
        return jnp.maximum(-ravel_pytree(self.driven.descend(ones, t))[0], 0)

    def spectrum(
        self, moved: Moved, t: Float[Array, ""]
    ) -> tuple[Float[Array, " m"], Float[Array, "N m"], Float[Array, "N b"]]:
        """The largest eigenvalues of M at the rates of `t`, their eigenvectors, and the next
        block."""
        weights, q = self.scaled(moved.state, t)
        push = jax.linearize(self.slope, weights)[1]
        scaled = lambda v: q * push(q * v)  # noqa: E731
        values, vectors = sharpness.top(scaled, self.searched, moved.block, tolerance=WANTED)
        return values, vectors, vectors if moved.block.shape[1] else moved.block

    def scaled(
        self, state: tuple[PyTree, ...], t: Float[Array, ""]
    ) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        """Weights in one row, and their q."""
        weights, rates = ravel_pytree(state[0])[0], self.rates(t)
        if isinstance(self.driven.rule, RMSProp):
            rates = rates / (self.driven.rule.eps * (jnp.sqrt(ravel_pytree(state[1])[0]) + 1))
        return weights, jnp.sqrt(rates)

    def advanced(
        self,
        moved: Moved,
        t: Float[Array, ""],
        dt: Float[Array, ""],
        lost: Bool[Array, ""] | bool = False,
    ) -> Moved:
        """The flow after a time `dt`, with the rates of time `t`; nothing holds one that is `lost`
        at the edge."""
        field = functools.partial(self.posed.field, t, args=self.posed.args)
        moved = moved._replace(state=runge_kutta(field, moved.state, dt))
        values, vectors, block = self.spectrum(moved, t)
        moved = moved._replace(
            block=block,
            root=jnp.zeros_like(moved.root),
            failed=jnp.any(values[self.followed :] > EDGE) | (values[0] > EDGE + TOO_FAR),
        )
        # In a batch both branches run: one without a solution would take all turns of the solver.
        values = jnp.where(lost, jnp.minimum(values, EDGE), values)
        return jax.lax.cond(
            values[0] > EDGE,
            lambda: self._pushed(moved, t, dt, values, vectors),
            lambda: moved,
        )

    def _pushed(
        self,
        moved: Moved,
        t: Float[Array, ""],
        dt: Float[Array, ""],
        values: Float[Array, " m"],
        vectors: Float[Array, "N m"],
    ) -> Moved:
        weights, q = self.scaled(moved.state, t)
        u, k = vectors[:, : self.followed], self.followed
        third = q[None, None] * bent(self.slope, weights, q[:, None] * u)
        parts = [jnp.sqrt(dt / 2) * third]
        rule, rise = self.driven.rule, jnp.zeros(())
        pairs = u.T[:, None] * u.T[None]
        if isinstance(rule, RMSProp):
            # How the average that divides rises with the oscillations, in units of eps^2.
            rise = 4 * dt * (1 - jnp.asarray(rule.b2)) / jnp.asarray(rule.eps) ** 2
            # How that moves the edge.
            through = self.rates(t) * jnp.sqrt(ravel_pytree(moved.state[1])[0])
            moving = jnp.where(through > 0, rise * rule.eps / jnp.where(through > 0, through, 1), 0)
            parts += [jnp.sqrt(moving)[None, None] * pairs]
        found = one_by_one(complementarity.solve)(
            jnp.diag(EDGE - values[:k]), jnp.concatenate(parts, axis=-1)
        )
        size, own = one_by_one(jnp.linalg.eigh)(found.X)
        state = [_plus(moved.state[0], -q * jnp.tensordot(found.X, third) * (dt / 2))]
        if len(state) < len(moved.state):
            energy = jnp.tensordot(found.X, pairs) / jnp.where(q > 0, q**2, jnp.inf)
            state += [_plus(moved.state[1], rise * energy)]
        unsolved = one_by_one(jnp.linalg.eigvalsh)(found.slack)[0] < -TOO_FAR / 100
        return moved._replace(
            state=tuple(state),
            root=q[:, None] * (u @ (own * jnp.sqrt(jnp.maximum(size, 0))[None])),
            failed=moved.failed | unsolved,
        )


def runge_kutta(field: Callable[[PyTree], PyTree], state: PyTree, dt: Float[Array, ""]) -> PyTree:
    """The state after `dt` by the classical method of fourth order."""

    def after(time: Array, slope: PyTree) -> PyTree:
        return jax.tree.map(lambda y, k: y + time * k, state, slope)

    first = field(state)
    second = field(after(dt / 2, first))
    third = field(after(dt / 2, second))
    fourth = field(after(dt, third))
    slopes = first, second, third, fourth
    return after(dt, jax.tree.map(lambda a, b, c, d: (a + 2 * (b + c) + d) / 6, *slopes))


def bent(
    slope: Callable[[Array], Array], weights: Float[Array, " N"], along: Float[Array, "N k"]
) -> Float[Array, "k k N"]:
    """The gradient of each entry of along^T H along at fixed `along`."""
    k = along.shape[1]
    first, second = jnp.triu_indices(k)

    def of_pair(v: Array, w: Array) -> Array:
        return jax.jvp(lambda at: jax.jvp(slope, (at,), (v,))[1], (weights,), (w,))[1]

    found = jax.vmap(of_pair)(along.T[first], along.T[second])
    place = jnp.zeros((k, k), int).at[first, second].set(jnp.arange(len(first)))
    return found[jnp.maximum(place, place.T)]


def _plus(tree: PyTree, row: Float[Array, " N"]) -> PyTree:
    whole, back = ravel_pytree(tree)
    return back(whole + row)
