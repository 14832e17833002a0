"""The loop that all simulations of the attention layer share: one run as one `lax.scan`.

Gradient, update, recording and the check for divergence all happen inside the scan, so
`jax.vmap` over keys, rates or starting weights turns it into a batch of whole training runs.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from dynsim.precision import DType
from dynsim.training import relative_loss
from dynsim.training.recording import RELATIVE_LOSS
from dynsim.trajectory import Status, Trajectory

LossAndGrad = Callable[[Any, Int[Array, ""], PRNGKeyArray], tuple[Float[Array, ""], Any]]


def descend(
    params: PyTree,
    loss_and_grad: LossAndGrad,
    observe: Callable[[Any], dict[str, Array]],
    transformation: optax.GradientTransformation,
    key: PRNGKeyArray,
    times: Int[Array, " S"],
    *,
    steps: int,
    diverged_above: float,
    relative: bool,
    dtype: DType,
) -> Trajectory:
    """Train `params` for `steps` steps; call it inside the traced function.

    Args:
        loss_and_grad: (params, step, key of the step) -> the batch loss and its gradient.
        observe: what to record of the parameters.
        transformation: the optax rule, made of traced numbers.
        key: of the data; step k gets `fold_in(key, k)`.
        times: (S,) whole steps at which to record.
        diverged_above: batch loss above which a run counts as diverged.
        relative: whether to record `RELATIVE_LOSS` too.

    Returns:
        What `dynsim.simulate` documents, with `params` as they came out.
    """
    num_times = times.shape[0]

    def record(params: PyTree, batch_loss: Array) -> dict[str, Array]:
        return {**observe(params), "batch_loss": batch_loss}

    def step(carry, turn):  # type: ignore[no-untyped-def]
        params, state, slot, rows, first_bad, sums = carry
        k, batch_key = turn
        batch_loss, grads = loss_and_grad(params, k, batch_key)

        # `due` does not depend on batched values, so under vmap this stays a branch and the
        # observables cost nothing on the steps in between.
        at = jnp.minimum(slot, num_times - 1)
        due = times[at] == k
        row = jax.lax.cond(
            due & (slot < num_times),
            record,
            lambda *_: jax.tree.map(lambda column: column[at], rows),
            params,
            batch_loss,
        )
        rows = jax.tree.map(lambda column, value: column.at[at].set(value), rows, row)

        valid = batch_loss <= diverged_above
        first_bad = jnp.where(valid, -1, jnp.where(first_bad < 0, k, first_bad))
        if relative:
            sums = relative_loss.add(sums, batch_loss, k, steps)
        # The scan makes one turn more than there are updates, to record the last state.
        updates, state = transformation.update(grads, state, params)
        updates = jax.tree.map(lambda u: jnp.where(k < steps, u, jnp.zeros_like(u)), updates)
        params = optax.apply_updates(params, updates)
        return (params, state, slot + due, rows, first_bad, sums), None

    shapes = jax.eval_shape(record, params, jnp.zeros((), dtype))
    rows = jax.tree.map(lambda s: jnp.zeros((num_times, *s.shape), s.dtype), shapes)
    sums = relative_loss.start((), dtype) if relative else None
    carry = (params, transformation.init(params), jnp.int32(0), rows, jnp.int32(-1), sums)
    turns = jnp.arange(steps + 1, dtype=jnp.int32)
    keys = jax.vmap(functools.partial(jax.random.fold_in, key))(turns)
    (params, _, _, rows, first_bad, sums), _ = jax.lax.scan(step, carry, (turns, keys))
    if relative:
        rows[RELATIVE_LOSS] = relative_loss.recorded(sums, times, steps)
    # Weights that are not finite reach the loss as soon as a batch attends to them. Looking
    # through all of them at every step would cost almost as much as the update.
    first_bad = jnp.where((first_bad < 0) & ~_all_finite(params), steps, first_bad)
    status = jnp.where(first_bad < 0, Status.OK, Status.DIVERGED).astype(jnp.int32)
    return Trajectory(times.astype(dtype), rows, params, status, first_bad, "simulation")


def _all_finite(params: PyTree) -> Array:
    return jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(params)]).all()
