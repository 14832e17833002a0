"""Gradient descent on hidden nodes and attention: one run, vmappable, with every number traced."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree, Real

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.joma import model
from dynsim.joma.model import Joint, Shape, initial
from dynsim.joma.observables import DEFAULT_RECORD, TRAINED, measure
from dynsim.precision import DType, Number, cast, on_cpu, precision, settle
from dynsim.training import keys
from dynsim.training.checkpoint import Checkpoint, checked_start
from dynsim.training.course import Legs, legs_of
from dynsim.training.loop import by_rule, train
from dynsim.training.optax_rule import AnyRule
from dynsim.training.recording import Record, Recording
from dynsim.training.rule import of_layer
from dynsim.training.run_checks import checked_times
from dynsim.trajectory import Times, Trajectory
from dynsim.yz.checks import checked_rule
from dynsim.yz.model import population
from dynsim.yz.sampling import sampler

ABSURD_LOSS = 1e6
"""A run counts as diverged while its batch loss exceeds this many nat, or is not finite."""


def simulate_joma(
    task: SequenceClasses,
    optimizer: AnyRule,
    key: PRNGKeyArray,
    *,
    shape: Shape = Shape(),  # noqa: B008  (immutable)
    scale: Real[Number, ""] = 0.01,
    temperature: Real[Number, ""] = 1.0,
    steps: int,
    length: int | float = math.inf,
    batch: int | float = math.inf,
    times: Times | None = None,
    record: Record = DEFAULT_RECORD,
    init: Joint | None = None,
    dtype: DType = "float32",
    checkpoint: Checkpoint | bool = False,
) -> Trajectory:
    """Train an MLP layer with a node a class, and the attention below it.

    Args:
        task: sequence classes.
        optimizer: any rule: eta_y is the rate of the MLP's weights, eta_z that of the attention
            logits; its numbers may be traced.
        key: a threefry key for starting weights, sequences and the rule's noise.
        shape: kinds of attention, activation and head.
        scale: standard deviation of a starting weight; may be traced.
        temperature: T of the attention, > 0; may be traced.
        steps: number of optimiser steps.
        length: sequence length, the query included; inf for P(l|n) in place of counts.
        batch: sequences per step; inf, with an infinite length, for the population loss.
        times: (S,) whole steps at which to record, in [0, steps], increasing.
        record: a name from `dynsim.joma.observables.TRAINED`, functions of a `Snapshot` by name,
            or a list of both.
        init: starting weights; random ones if None.
        dtype: "float32" or "float64".
        checkpoint: as in `dynsim.train`.

    Returns:
        A `Trajectory` with times in optimiser steps and the final `Joint` weights; `batch_loss`
        (S,) is that of the next batch. A run that blows up, as exp attention does in finite
        time, is `Status.DIVERGED` from the step at which it did; nothing raises.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    check_task(task, shape)
    checks.key("key", key)
    steps = checks.steps("steps", steps)
    optimizer = checked_rule(optimizer, steps, key, resumable=bool(checkpoint))
    check_sizes(length, batch)
    checks.scalar("scale", scale)
    checks.scalar("temperature", temperature)
    check_numbers(scale, temperature)
    check_init(init, task)
    recording = TRAINED.resolve(record)
    start = checked_start(checkpoint)
    times = checked_times(times, steps, recording, start)
    with precision(dtype, task, optimizer, key, scale, temperature, init):
        trajectory = _run(
            task.astype(dtype),
            optimizer.astype(dtype),
            key,
            cast(scale, dtype),
            cast(temperature, dtype),
            jax.tree.map(lambda leaf: cast(leaf, dtype), init),
            cast(times, np.int32),
            start,
            shape=shape.check(),
            steps=steps,
            length=length,
            batch=batch,
            record=recording,
            legs=legs_of(times, steps, start),
            scatter=on_cpu(),
            dtype=dtype,
        )
    return settle(trajectory)


def check_task(task: SequenceClasses, shape: Shape) -> None:
    """Raise `ValueError` for a task or a shape that is none."""
    checks.kind("task", task, SequenceClasses)
    checks.kind("shape", shape, Shape)


def check_init(init: Joint | None, task: SequenceClasses) -> None:
    """Raise `ValueError` unless starting weights, if given, have the shapes of `task`."""
    if init is None:
        return
    checks.kind("init", init, Joint)
    want = {
        "Y.V": (init.Y.V, (task.K, task.M)),
        "Y.r": (init.Y.r, (task.K, task.num_queries)),
        "Z": (init.Z, (task.num_queries, task.M)),
    }
    for name, (array, shape) in want.items():
        if np.shape(array) != shape:
            got = np.shape(array)
            raise ValueError(f"init.{name}: must have shape {shape} for this task, got {got}")


def check_sizes(length: float, batch: float) -> None:
    """Raise `ValueError` for a length or batch that cannot be."""
    checks.count_or_inf("length", length, 2)
    checks.count_or_inf("batch", batch, 1)
    if math.isinf(batch) and not math.isinf(length):
        raise ValueError(f"batch = inf: needs length = inf, got length = {length}")


def check_numbers(scale: Real[Number, "..."], temperature: Real[Number, "..."]) -> None:
    """Raise `ValueError` for a scale or a temperature that cannot be; each may have axes."""
    checks.real("scale", scale, 0)
    checks.real("temperature", temperature, 0, open_minimum=True)


def initial_joma(
    task: SequenceClasses,
    key: PRNGKeyArray,
    shape: Shape = Shape(),  # noqa: B008  (immutable)
    scale: Real[Number, ""] = 0.01,
    dtype: DType = "float32",
) -> Joint:
    """The weights from which a run with this `key` starts."""
    checks.kind("task", task, SequenceClasses)
    checks.key("key", key)
    checks.kind("shape", shape, Shape)
    checks.scalar("scale", scale)
    checks.real("scale", scale, 0)
    with precision(dtype, task, key, scale):
        start = initial(task, shape.check(), keys.split(key)[0], cast(scale, dtype), dtype)
    return settle(start)


@functools.partial(
    jax.jit,
    static_argnames=("shape", "steps", "length", "batch", "record", "legs", "scatter", "dtype"),
)
def _run(
    task: SequenceClasses,
    optimizer: AnyRule,
    key: PRNGKeyArray,
    scale: Array,
    temperature: Array,
    init: Joint | None,
    times: Int[Array, " S"],
    checkpoint: Checkpoint | None,
    *,
    shape: Shape,
    steps: int,
    length: int | float,
    batch: int | float,
    record: Recording,
    legs: Legs | None,
    scatter: bool,
    dtype: DType,
) -> Trajectory:
    init_key, data_key = keys.split(key)
    start: PyTree = initial(task, shape, init_key, scale, dtype) if init is None else init
    if math.isinf(batch):
        of_step = lambda k: population(task)  # noqa: E731
    else:
        step_key = keys.of_steps(data_key, steps)
        sample = sampler(task, None, steps, length, batch, dtype, scatter=scatter)
        of_step = lambda k: sample(k, step_key(k))  # noqa: E731

    def loss_and_grad(params: PyTree, k: Array) -> tuple[Array, PyTree]:
        of = lambda params: model.loss(params, task, of_step(k), shape, temperature)  # noqa: E731
        return jax.value_and_grad(of)(params)

    return train(
        start,
        optimizer.init(start),
        by_rule(loss_and_grad, optimizer, init_key, of_layer(start)),
        lambda params, seen: (record(measure(task, params, shape, temperature)), seen),
        times,
        steps=steps,
        legs=legs,
        limit=jnp.asarray(ABSURD_LOSS, dtype),
        dtype=dtype,
        relative=record.relative,
        checkpoint=checkpoint,
    )
