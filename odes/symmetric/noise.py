r"""The noise of batches on the reduced numbers, with its nonlinear consequences [ours].

`odes.symmetric.spread` is linear in the noise, which ends where a step is unstable: there noise
grows until the attention saturates. Here the noise is drawn, and descent goes on from it.

A batch of B sequences, of which B / K belong to a class, differs from the population in two ways.
The frequency of token i in the class is :math:`p_i (1 + \epsilon_i)` with

.. math:: \operatorname{Var} \epsilon_i = K / (B L p_i),

one over the expected number of such tokens. Attention weighs tokens by :math:`p_i e^{z_i}`, so that
to first order these act as a displacement of the logits z: what they add to the gradient is the
Hessian times :math:`(0, \epsilon)`. And the class itself occurs :math:`1 + \zeta_n` times as often
as expected, where :math:`\operatorname{Var} \zeta_n = (K - 1)/B`.

Each class has its own noise, and reduced numbers of its own. What is left out: that the rows of Y
of common tokens are the same for all classes, as are those of Z for the classes of a query. So the
mean over the classes scatters as it should, the difference between two of them too little.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from dynsim.precision import AnyArray
from dynsim.yz.finite_length import Context
from odes.symmetric import finite_length, reduction
from odes.symmetric.state import Attention, State, SymmetricTask


class Batches(NamedTuple):
    """The batches of a run.

    Attributes:
        key: step k draws with fold_in(key, k).
        size: B, sequences per batch.
    """

    key: PRNGKeyArray
    size: Float[Array, ""]


class Draw(NamedTuple):
    """What one batch adds, for N classes: zeta, and epsilon of distinct and of common tokens."""

    count: Float[Array, "*N"]
    distinct: Float[Array, "D *N"]
    common: Float[Array, "C *N"]


def draw(
    task: SymmetricTask, batches: Batches, context: Context, classes: int, k: Int[Array, ""]
) -> Draw:
    """The noise of step k in so many of the K classes."""
    of_class, of_distinct, of_common = jax.random.split(jax.random.fold_in(batches.key, k), 3)
    dtype = batches.size.dtype
    one = jax.random.normal(of_class, (classes + 1,), dtype)
    # The zetas of all K classes sum to zero; the last number stands for those not followed.
    total = jnp.sum(one[:-1]) + jnp.sqrt(task.K - classes) * one[-1]
    count = jnp.sqrt(task.K / batches.size) * (one[:-1] - total / task.K)

    def shift(key: PRNGKeyArray, p: Array, copies: AnyArray | None) -> Float[Array, "D N"]:
        noise = jnp.zeros((*jnp.shape(p), classes), dtype)
        if context is None:
            return noise
        expected = p * batches.size * context / task.K * (1 if copies is None else copies)
        return jax.random.normal(key, noise.shape, dtype) / jnp.sqrt(expected)[:, None]

    return Draw(
        count,
        shift(of_distinct, jnp.asarray(task.p), task.p_copies),
        shift(of_common, jnp.asarray(task.rho), task.rho_copies),
    )


def loss_and_gradient(
    task: SymmetricTask, states: State, context: Context, drawn: Draw
) -> tuple[Float[Array, ""], State]:
    """Population loss, averaged over N classes, and the gradient (..., N) that a batch gives them.

    Args:
        states: of the N classes, with that axis last.
    """

    def of_class(state: State, noise: Draw) -> tuple[Array, State]:
        gradient = finite_length.gradient(task, state, context)
        if context is not None:
            shift = Attention(noise.distinct, noise.common)
            still = jax.tree.map(jnp.zeros_like, state.Y)
            added = jax.jvp(
                lambda at: reduction.gradient(task, at), (state,), (State(still, shift),)
            )[1]
            gradient = jax.tree.map(jnp.add, gradient, added)
        scaled = jax.tree.map(lambda leaf: (1 + noise.count) * leaf, gradient)
        return finite_length.loss(task, state, context), scaled

    losses, gradients = jax.vmap(of_class, in_axes=-1, out_axes=-1)(states, drawn)
    return jnp.mean(losses), gradients
