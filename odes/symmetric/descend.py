"""Descent of symmetric sequence classes step by step, at a cost without K and M.

Makes the same steps as `dynsim.train` with an infinite batch, on the few numbers of
`odes.symmetric.reduction`, from zero weights. It and `odes.symmetric.solve` differ in eta -> 0.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Real

from dynsim import checks
from dynsim.precision import DType, Number, cast, precision, settle
from dynsim.training.course import Legs, legs_of
from dynsim.training.loop import DIVERGED_LOSS, by_rule, train
from dynsim.training.recording import Record, Recording
from dynsim.training.rule import Rule, of_layer
from dynsim.training.run_checks import checked_times
from dynsim.trajectory import Times, Trajectory
from dynsim.yz.checks import theory_rule
from dynsim.yz.finite_length import Context, contextual
from dynsim.yz.observables import DEFAULT_RECORD
from odes.symmetric.law import Law, law_of
from odes.symmetric.observables import DESCENDED, observe
from odes.symmetric.state import State, SymmetricTask, zero_state


def descend(
    task: SymmetricTask,
    optimizer: Rule,
    *,
    steps: int,
    length: Real[Number, ""] = math.inf,
    tails: bool = False,
    times: Times | None = None,
    record: Record = DEFAULT_RECORD,
    dtype: DType = "float64",
) -> Trajectory:
    """Descend the population loss (infinite batch) step by step, from zero weights.

    Args:
        task, length, tails, dtype: as in `solve`.
        record: as in `solve`, or "relative_loss" as in `dynsim.train`.
        optimizer: any rule without clipping and noise; or with numbers of shape (B,), which
            descends B times at once. That is the same as `jax.vmap` and several times faster on a
            CPU.
        steps: number of optimiser steps, >= 1.
        times: (S,) whole steps at which to record, increasing, in [0, steps]; by default
            `log_times(steps)`.

    Returns:
        A `Trajectory` with the final `State` as `params`, and a status as in `dynsim.train`;
        with a leading axis (B,) everywhere if the optimiser has it.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    checks.kind("task", task, SymmetricTask)
    optimizer = theory_rule(optimizer)
    if not optimizer.is_elementwise:
        raise ValueError(
            f"optimizer = {optimizer!r}: clipping and noise do not treat weight by weight, which "
            "the reduction needs"
        )
    steps = checks.steps("steps", steps)
    law = law_of(task, length, tails)
    recording = DESCENDED.resolve(record)
    times = checked_times(times, steps, recording)
    legs = legs_of(times, steps)
    batch = np.broadcast_shapes(*(np.shape(number) for number in jax.tree.leaves(optimizer)))
    if len(batch) > 1:
        raise ValueError(f"optimizer: its numbers have shape {batch}: must be numbers or (B,)")
    with precision(dtype, task, optimizer, length):
        many = jax.tree.map(
            lambda number: jnp.broadcast_to(number, batch or (1,)), optimizer.astype(dtype)
        )
        trajectory = _descend(
            task.astype(dtype),
            many,
            contextual(length, dtype),
            cast(times, np.int32),
            steps=steps,
            legs=legs,
            record=recording,
            law=law,
            dtype=dtype,
        )
        if not batch:
            trajectory = jax.tree.map(lambda leaf: leaf[0], trajectory)
    return settle(trajectory)


@functools.partial(jax.jit, static_argnames=("steps", "legs", "record", "law", "dtype"))
def _descend(
    task: SymmetricTask,
    optimizer: Rule,
    context: Context,
    times: Int[Array, " S"],
    *,
    steps: int,
    legs: Legs | None,
    record: Recording,
    law: Law,
    dtype: DType,
) -> Trajectory:
    # The batch is the last axis of everything, so that each operation is one long loop on a CPU;
    # batching the scan from outside would move it to the front.
    (batch,) = np.shape(optimizer.momentum)
    last = functools.partial(jax.vmap, in_axes=-1, out_axes=-1)
    start = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf[..., None], (*leaf.shape, batch)),
        zero_state(task, dtype),
    )

    def update(optimizer, state, memory, k):  # type: ignore[no-untyped-def]
        def loss_and_grad(state: State, k: Array) -> tuple[Array, State]:
            return law.loss(task, state, context), law.gradient(task, state, context)

        return by_rule(loss_and_grad, optimizer, groups=of_layer(state))(state, memory, k)

    trajectory = train(
        start,
        last(lambda optimizer, state: optimizer.init(state))(optimizer, start),
        lambda *now: jax.vmap(update, (-1, -1, -1, None), -1)(optimizer, *now),
        lambda state, memory, k, seen: (
            last(functools.partial(observe, record, task))(state),
            seen,
        ),
        times,
        steps=steps,
        legs=legs,
        limit=DIVERGED_LOSS * jnp.log(task.M),
        dtype=dtype,
        relative=record.relative,
        batch=(batch,),
    )
    rows, state = jax.tree.map(
        lambda leaf: jnp.moveaxis(leaf, -1, 0), (trajectory.observables, trajectory.params)
    )
    return Trajectory(
        jnp.broadcast_to(trajectory.times, (batch, *times.shape)),
        rows,
        state,
        trajectory.status,
        trajectory.first_bad_step,
        law.name("symmetric-descent", context is not None),
    )
