"""Gradient descent on in-context regression: one run, vmappable, with every number traced."""

import functools
import math
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree, Real

from dynsim import checks
from dynsim.linear_icl import model, observables
from dynsim.linear_icl.model import Heads, Model, initial, moments
from dynsim.linear_icl.observables import DEFAULT_RECORD, measure
from dynsim.linear_icl.sampling import draw
from dynsim.linear_icl.task import Regression
from dynsim.precision import DType, Number, cast, precision, settle
from dynsim.training import keys
from dynsim.training.checkpoint import Checkpoint, checked_start
from dynsim.training.constant.descent import Descent
from dynsim.training.course import Legs, legs_of
from dynsim.training.loop import by_gradient, train
from dynsim.training.recording import Record, Recording
from dynsim.training.run_checks import checked_times
from dynsim.trajectory import Times, Trajectory

Data = Literal["fresh", "fixed"]
ABSURD_LOSS = 1e3
"""A run counts as diverged while its batch loss exceeds this many times tr Lambda, the loss of an
output of zero. The loss of a single sequence has heavy tails, and an unstable run has no bound."""


def simulate_regression(
    task: Regression,
    optimizer: Descent,
    key: PRNGKeyArray,
    *,
    heads: Heads = Heads(),  # noqa: B008  (immutable)
    scale: Real[Number, ""] = 0.01,
    steps: int,
    batch: int | float = 256,
    data: Data = "fresh",
    times: Times | None = None,
    record: Record = DEFAULT_RECORD,
    init: Model | None = None,
    dtype: DType = "float32",
    checkpoint: Checkpoint | bool = False,
) -> Trajectory:
    r"""Train linear attention on in-context regression, on the mean of :math:`(y_q - \hat y_q)^2`.

    The flow of the paper is

    .. math::

        \tau \frac{dW}{dt} = -\frac12 \frac{\partial L}{\partial W},

    hence :math:`\tau = 1/(2\eta)` steps. Its code sums over tokens where the paper averages:
    weights are homogeneous, which rescales rate and starting weights alone.

    Args:
        task: from `regression`; its spectrum may be traced.
        optimizer: a `Descent`; its numbers may be traced.
        key: a threefry key for starting weights and data.
        heads: the model's shape.
        scale: standard deviation of a starting weight; may be traced.
        steps: number of optimiser steps.
        batch: sequences per step; inf for the population loss.
        data: "fresh" sequences at every step, or the same "fixed" ones, as in the official code.
        times: (S,) whole steps at which to record, in [0, steps], increasing.
        record: a name from `dynsim.linear_icl.observables.TRAINED`, functions of a `Snapshot` by
            name, or a list of both.
        init: starting weights; random ones if None.
        dtype: "float32" or "float64".
        checkpoint: as in `dynsim.simulate`.

    Returns:
        A `Trajectory` with times in optimiser steps and the final weights; `batch_loss` (S,) is
        that of the next batch. A run whose loss is absurd or not finite at the end is
        `Status.DIVERGED` from the step at which that began; nothing raises.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    check_arguments(task, optimizer)
    checks.key("key", key)
    steps = checks.steps("steps", steps)
    batch = checks.count_or_inf("batch", batch, 1)
    checks.choice("data", data, ("fresh", "fixed"))
    check_scale(scale)
    checks.kind("heads", heads, Heads)
    heads = heads.check()
    check_init(init, heads, task.D)
    recording = observables.TRAINED.resolve(record)
    start = checked_start(checkpoint)
    times = checked_times(times, steps, recording, start)
    with precision(dtype, task, optimizer, key, scale, init):
        trajectory = _run(
            task.astype(dtype),
            optimizer.astype(dtype),
            key,
            cast(scale, dtype),
            jax.tree.map(lambda leaf: cast(leaf, dtype), init),
            cast(times, np.int32),
            start,
            heads=heads,
            steps=steps,
            batch=batch,
            data=data,
            record=recording,
            legs=legs_of(times, steps, start),
            dtype=dtype,
        )
    return settle(trajectory)


def initial_regression(
    task: Regression,
    key: PRNGKeyArray,
    heads: Heads = Heads(),  # noqa: B008  (immutable)
    scale: Real[Number, ""] = 0.01,
    dtype: DType = "float32",
) -> Model:
    """The weights from which a run with this `key` starts."""
    checks.kind("task", task, Regression)
    checks.key("key", key)
    checks.kind("heads", heads, Heads)
    check_scale(scale)
    with precision(dtype, task, key, scale):
        start = initial(heads.check(), task.D, keys.split(key)[0], cast(scale, dtype), dtype)
    return settle(start)


def check_arguments(task: Regression, optimizer: Descent) -> None:
    """Raise `ValueError` for a task or an update rule that is none, or several."""
    checks.kind("task", task, Regression)
    checks.kind("optimizer", optimizer, Descent)
    checks.scalars("optimizer", optimizer)


def check_scale(scale: Real[Number, ""]) -> None:
    """Raise `ValueError` for a scale that cannot be."""
    checks.scalar("scale", scale)
    checks.real("scale", scale, 0)


def check_init(init: Model | None, heads: Heads | None, D: int) -> None:
    """Raise `ValueError` unless starting weights have the shapes of `heads`, or of any if None."""
    if init is None:
        return
    checks.kind("init", init, model.Merged, model.Separate, model.Network)
    heads = heads_of(init) if heads is None else heads
    want = jax.eval_shape(lambda: initial(heads, D, jax.random.key(0), 1.0))
    shapes = [jax.tree.map(np.shape, vars(each)) for each in (init, want)]
    if type(init) is not type(want) or shapes[0] != shapes[1]:
        raise ValueError(f"init: must be {type(want).__name__} of {shapes[1]}, got {shapes[0]}")


def heads_of(params: Model) -> Heads:
    """The shape of a model."""
    H = np.shape(params.v)[0]
    if isinstance(params, model.Separate):
        return Heads("separate", H, np.shape(params.k)[1])
    return Heads("merged" if isinstance(params, model.Merged) else "network", H)


@functools.partial(
    jax.jit, static_argnames=("heads", "steps", "batch", "data", "record", "legs", "dtype")
)
def _run(
    task: Regression,
    optimizer: Descent,
    key: PRNGKeyArray,
    scale: Array,
    init: Model | None,
    times: Int[Array, " S"],
    checkpoint: Checkpoint | None,
    *,
    heads: Heads,
    steps: int,
    batch: int | float,
    data: Data,
    record: Recording,
    legs: Legs | None,
    dtype: DType,
) -> Trajectory:
    init_key, data_key = keys.split(key)
    start: PyTree = initial(heads, task.D, init_key, scale, dtype) if init is None else init
    rule = optimizer.transformation()
    if math.isinf(batch):
        of_step = lambda params, k: model.loss(params.matrix(), task)  # noqa: E731
    elif data == "fixed":
        fixed = moments(draw(task, data_key, int(batch), dtype))
        of_step = lambda params, k: fixed.loss(params.matrix())  # noqa: E731
    else:

        def of_step(params: PyTree, k: Array) -> Array:
            drawn = draw(task, jax.random.fold_in(data_key, k), int(batch), dtype)
            return model.batch_loss(params, drawn)

    def loss_and_grad(params: PyTree, k: Array) -> tuple[Array, PyTree]:
        return jax.value_and_grad(lambda params: of_step(params, k))(params)

    return train(
        start,
        rule.init(start),
        by_gradient(loss_and_grad, rule),
        lambda params, seen: (record(measure(task, params)), seen),
        times,
        steps=steps,
        legs=legs,
        limit=ABSURD_LOSS * jnp.asarray(task.trace),
        dtype=dtype,
        relative=record.relative,
        checkpoint=checkpoint,
    )
