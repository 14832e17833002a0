"""Gradient descent on retrieval: one run, vmappable, with every number traced."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from dynsim import checks
from dynsim.precision import DType, cast, precision, settle
from dynsim.sparse_attention import model
from dynsim.sparse_attention.model import DEFAULT_RECORD, TRAINED, measure
from dynsim.sparse_attention.task import Retrieval, draw
from dynsim.training import keys
from dynsim.training.checkpoint import Checkpoint, checked_start
from dynsim.training.constant.descent import Descent
from dynsim.training.course import Legs, legs_of
from dynsim.training.loop import by_gradient, train
from dynsim.training.recording import Record, Recording
from dynsim.training.run_checks import checked_times
from dynsim.trajectory import Times, Trajectory

ABSURD_LOSS = 1e3
"""A run counts as diverged while its batch loss exceeds this many times 1/2, the loss at W = 0."""


def simulate_retrieval(
    task: Retrieval,
    optimizer: Descent,
    key: PRNGKeyArray | None = None,
    *,
    steps: int,
    batch: int | float = 32,
    times: Times | None = None,
    record: Record = DEFAULT_RECORD,
    dtype: DType = "float32",
    checkpoint: Checkpoint | bool = False,
) -> Trajectory:
    """Train scores and read-out from zero.

    Args:
        task: from `retrieval`; p may be traced.
        optimizer: a `Descent`; its numbers may be traced.
        key: a threefry key for the sequences, which an infinite batch does not need.
        steps: number of optimiser steps.
        batch: fresh sequences per step; inf for the population loss.
        times: (S,) whole steps at which to record, in [0, steps], increasing.
        record: a name from `dynsim.sparse_attention.model.TRAINED`, functions of a `Snapshot` by
            name, or a list of both.
        dtype: "float32" or "float64".
        checkpoint: as in `dynsim.simulate`.

    Returns:
        A `Trajectory` with times in optimiser steps and the final `Scored` weights; `batch_loss`
        (S,) is that of the next batch. A run whose loss is absurd or not finite at the end is
        `Status.DIVERGED` from the step at which that began; nothing raises.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    check_arguments(task, optimizer)
    if key is not None:
        checks.key("key", key)
    steps = checks.steps("steps", steps)
    batch = checks.count_or_inf("batch", batch, 1)
    if key is None and not math.isinf(batch):
        raise ValueError(f"key = None: batch = {batch} draws sequences and needs one")
    recording = TRAINED.resolve(record)
    start = checked_start(checkpoint)
    times = checked_times(times, steps, recording, start)
    with precision(dtype, task, optimizer, key):
        trajectory = _run(
            task.astype(dtype),
            optimizer.astype(dtype),
            key,
            cast(times, np.int32),
            start,
            steps=steps,
            batch=batch,
            record=recording,
            legs=legs_of(times, steps, start),
            dtype=dtype,
        )
    return settle(trajectory)


def check_arguments(task: Retrieval, optimizer: Descent) -> None:
    """Raise `ValueError` for a task or an update rule that is none, or several."""
    checks.kind("task", task, Retrieval)
    checks.kind("optimizer", optimizer, Descent)
    checks.scalars("task", task)
    checks.scalars("optimizer", optimizer)


@functools.partial(jax.jit, static_argnames=("steps", "batch", "record", "legs", "dtype"))
def _run(
    task: Retrieval,
    optimizer: Descent,
    key: PRNGKeyArray | None,
    times: Int[Array, " S"],
    checkpoint: Checkpoint | None,
    *,
    steps: int,
    batch: int | float,
    record: Recording,
    legs: Legs | None,
    dtype: DType,
) -> Trajectory:
    target, rule = task.target(dtype), optimizer.transformation()
    start: PyTree = model.zero(task, dtype)

    def of_step(params: PyTree, k: Array) -> tuple[Array, PyTree]:
        if key is None or math.isinf(batch):
            return jax.value_and_grad(model.loss)(params, target, task)
        drawn = draw(task, jax.random.fold_in(keys.split(key)[1], k), int(batch), dtype)
        return model.sampled(params, target, drawn, task)

    return train(
        start,
        rule.init(start),
        by_gradient(of_step, rule),
        lambda params, seen: (record(measure(params, target, task)), seen),
        times,
        steps=steps,
        legs=legs,
        limit=jnp.asarray(ABSURD_LOSS / 2, dtype),
        dtype=dtype,
        relative=record.relative,
        checkpoint=checkpoint,
    )
