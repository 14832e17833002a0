"""Descent of symmetric sequence classes step by step, at a cost without K and M.

Makes the same steps as `dynsim.train` with an infinite batch, on the few numbers of
`odes.symmetric.reduction`, from zero weights; with a finite one, the same up to what
`odes.symmetric.noise` leaves out. It and `odes.symmetric.solve` differ in eta -> 0.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, Real

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
from odes.symmetric import noise
from odes.symmetric.observables import DESCENDED, observe
from odes.symmetric.saddle import Law, law_of
from odes.symmetric.state import State, SymmetricTask, zero_state


def descend(
    task: SymmetricTask,
    optimizer: Rule,
    *,
    steps: int,
    length: Real[Number, ""] = math.inf,
    tails: bool = False,
    batch: Real[Number, ""] = math.inf,
    key: PRNGKeyArray | None = None,
    classes: int = 2,
    times: Times | None = None,
    record: Record = DEFAULT_RECORD,
    dtype: DType = "float64",
) -> Trajectory:
    """Descend the population loss step by step, from zero weights, with the noise of batches or
    without.

    Args:
        task, length, tails, dtype: as in `solve`.
        record: as in `solve`, or "relative_loss" as in `dynsim.train`.
        optimizer: any rule without clipping and noise; or with numbers of shape (B,), which
            descends B times at once. That is the same as `jax.vmap` and several times faster on a
            CPU.
        steps: number of optimiser steps, >= 1.
        batch: number B of sequences per step; if finite, each step has the noise of such a batch
            (`odes.symmetric.noise`). Tokens of a `merged` task have theirs together, so that it
            cannot break a tie between them: use one that is not merged.
        key: of that noise; a run of another key is one of another seed.
        classes: with noise, how many of the K classes are followed, at most K. What is recorded is
            the mean over these; the cost grows with their number.
        times: (S,) whole steps at which to record, increasing, in [0, steps]; by default
            `log_times(steps)`.

    Returns:
        A `Trajectory` with the final `State` as `params` (of which every entry has a last axis of
        `classes` with noise), and a status as in `dynsim.train`;
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
    many = np.broadcast_shapes(*(np.shape(number) for number in jax.tree.leaves(optimizer)))
    if len(many) > 1:
        raise ValueError(f"optimizer: its numbers have shape {many}: must be numbers or (B,)")
    finite = _check_noise(task, batch, key, classes)
    if finite and tails:
        raise ValueError("tails = True: noise is of first order in 1/T; use batch = inf")
    with precision(dtype, task, optimizer, length, batch):
        rules = jax.tree.map(
            lambda number: jnp.broadcast_to(number, many or (1,)), optimizer.astype(dtype)
        )
        trajectory = _descend(
            task.astype(dtype),
            rules,
            contextual(length, dtype),
            noise.Batches(key, cast(batch, dtype)) if finite and key is not None else None,
            cast(times, np.int32),
            steps=steps,
            legs=legs,
            record=recording,
            law=law,
            dtype=dtype,
            classes=classes,
        )
        if not many:
            trajectory = jax.tree.map(lambda leaf: leaf[0], trajectory)
    return settle(trajectory)


def _check_noise(
    task: SymmetricTask, batch: Real[Number, ""], key: PRNGKeyArray | None, classes: int
) -> bool:
    """Whether there is noise; raises `ValueError` for what cannot be."""
    if not checks.is_traced(batch) and math.isinf(batch):
        return False
    checks.real("batch", batch, 1)
    if key is None:
        raise ValueError(f"key = None: batch = {batch} is drawn, which needs a key")
    checks.integer("classes", classes, 1)
    if not checks.is_traced(task.K) and classes > int(task.K):
        raise ValueError(f"classes = {classes}: must be at most K = {int(task.K)}")
    return True


@functools.partial(jax.jit, static_argnames=("steps", "legs", "record", "law", "dtype", "classes"))
def _descend(
    task: SymmetricTask,
    optimizer: Rule,
    context: Context,
    batches: noise.Batches | None,
    times: Int[Array, " S"],
    *,
    steps: int,
    legs: Legs | None,
    record: Recording,
    law: Law,
    dtype: DType,
    classes: int,
) -> Trajectory:
    # The batch is the last axis of everything, so that each operation is one long loop on a CPU;
    # batching the scan from outside would move it to the front.
    (batch,) = np.shape(jax.tree.leaves(optimizer)[0])
    last = functools.partial(jax.vmap, in_axes=-1, out_axes=-1)
    # Without noise all classes are alike, and one stands for them.
    each = () if batches is None else (classes,)
    start = jax.tree.map(
        lambda leaf: jnp.zeros((*leaf.shape, *each, batch), leaf.dtype), zero_state(task, dtype)
    )

    def update(optimizer, state, memory, k):  # type: ignore[no-untyped-def]
        def loss_and_grad(state: State, k: Array) -> tuple[Array, State]:
            if batches is not None:
                drawn = noise.draw(task, batches, context, classes, k)
                return noise.loss_and_gradient(task, state, context, drawn)
            return law.loss(task, state, context), law.gradient(task, state, context)

        return by_rule(loss_and_grad, optimizer, groups=of_layer(state))(state, memory, k)

    def seen(state: State) -> dict[str, Array]:
        if batches is None:
            return observe(record, task, state)
        found = jax.vmap(functools.partial(observe, record, task), -1, -1)(state)
        return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=-1), found)

    trajectory = train(
        start,
        last(lambda optimizer, state: optimizer.init(state))(optimizer, start),
        lambda *now: jax.vmap(update, (-1, -1, -1, None), -1)(optimizer, *now),
        lambda state, memory, k, before: (last(seen)(state), before),
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
        "symmetric-noise"
        if batches is not None
        else law.name("symmetric-descent", context is not None),
    )
