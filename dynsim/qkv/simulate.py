"""Gradient descent on the ordinary parameters U, W_Q, W_K, W_V: one run, vmappable.

The same problem, batches, statuses and observables as `dynsim.train`, for the layer of
`dynsim.qkv.model`.
"""

import dataclasses
import functools
import math
from collections.abc import Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Real

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.precision import DType, Number, cast, on_cpu, precision, settle
from dynsim.qkv import model as qkv
from dynsim.qkv import observables as qkv_observables
from dynsim.qkv.init import WEIGHTS, EmbeddedSpec, check_weights, draw
from dynsim.qkv.model import Embedded
from dynsim.training import keys
from dynsim.training.checkpoint import Checkpoint
from dynsim.training.course import Legs
from dynsim.training.loop import DIVERGED_LOSS, by_rule, train
from dynsim.training.optax_rule import AnyRule
from dynsim.training.recording import Record, Recording
from dynsim.training.rule import of_layer
from dynsim.trajectory import Times, Trajectory
from dynsim.yz import finite_length, sampling
from dynsim.yz import model as yz
from dynsim.yz.checks import checked_arguments
from dynsim.yz.observables import DEFAULT_RECORD
from dynsim.yz.sampling import Sampler, sampler


class Trained(NamedTuple):
    """The weights that are trained, by the learning rate that they have.

    Attributes:
        Y: those of the decoder, U, W_V and D.
        Z: those of the attention, W_Q and W_K.
    """

    Y: dict[str, Array]
    Z: dict[str, Array]


def simulate_embedded(
    task: SequenceClasses,
    optimizer: AnyRule,
    key: PRNGKeyArray | None = None,
    *,
    init: EmbeddedSpec | Embedded,
    steps: int,
    frozen: Collection[str] = ("U",),
    slope: Real[Number, ""] | None = None,
    length: int | float = 128,
    batch: int | float = 128,
    times: Times | None = None,
    record: Record = DEFAULT_RECORD,
    data: yz.Examples | None = None,
    dtype: DType = "float32",
    checkpoint: Checkpoint | bool = False,
) -> Trajectory:
    r"""Train the attention layer in ordinary parameters and record observables along the way.

    Args:
        task: the sequence classes.
        optimizer: any rule; `eta_y` is the rate of W_V, of D and of U, `eta_z` that of W_Q and W_K.
            Its numbers may be traced.
        key: a threefry key for starting weights and data, as in `simulate`, whose batches of
            that key these are; may be None where nothing is random.
        init: an `EmbeddedSpec`, whose weights are drawn from the key, or the weights themselves.
        steps: number of optimiser steps, >= 1.
        frozen: names of weights that stay as they are, of "U", "W_Q", "W_K", "W_V" and "D".
        slope: >= 0, of a positional prior -slope (distance from the query) on the attention
            logits (ALiBi); may be traced. None for no positions. Needs sampled sequences; the
            observables, which are those of :math:`T \to \infty`, leave it out.
        length, batch, times, record, data, dtype, checkpoint: as in `simulate`.

    Returns:
        A `Trajectory` as from `simulate`, with the `Embedded` weights in `params`.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    given = checked_arguments(
        task,
        optimizer,
        key,
        steps=steps,
        length=length,
        batch=batch,
        times=times,
        record=record,
        data=data,
        table=qkv_observables.TRAINED,
        drawn="an EmbeddedSpec" if isinstance(init, EmbeddedSpec) else None,
        checkpoint=checkpoint,
    )
    if slope is not None:
        checks.real("slope", slope, 0)
        if data is not None or math.isinf(given.length) or math.isinf(given.batch):
            raise ValueError(
                f"slope = {slope}: positions need sequences sampled here, of finite length "
                f"(length = {given.length}, batch = {given.batch}); recorded data can hold "
                "`dynsim.qkv.model.positional_counts`"
            )
    for name in frozen:
        checks.choice("frozen", name, WEIGHTS)
    if {"U", "W_Q", "W_K", "W_V"} <= set(frozen):
        raise ValueError(f"frozen = {tuple(frozen)}: leaves nothing but a decoder to train")
    if isinstance(init, EmbeddedSpec):
        init.check(task)
    elif isinstance(init, Embedded):
        check_weights(init, task)
    else:
        raise ValueError(f"init = {init!r}: must be an EmbeddedSpec or Embedded weights")
    with precision(dtype, task, optimizer, key, init, slope, data):
        trajectory = _run(
            task.astype(dtype),
            given.rule.astype(dtype),
            given.key,
            jax.tree.map(jnp.asarray, init),
            None if slope is None else jnp.asarray(slope, dtype),
            jax.tree.map(jnp.asarray, data),
            cast(given.times, np.int32),
            given.checkpoint,
            steps=given.steps,
            legs=given.legs,
            scatter=on_cpu(),
            frozen=tuple(sorted(set(frozen))),
            length=given.length,
            batch=given.batch,
            record=given.record,
            dtype=dtype,
        )
    return settle(trajectory)


def initial_embedded(
    task: SequenceClasses, init: EmbeddedSpec, key: PRNGKeyArray, dtype: DType = "float32"
) -> Embedded:
    """The weights from which `simulate_embedded(task, ..., key, init=init)` starts, so that a
    theory can start from the same ones.

    Raises:
        ValueError: naming the field of `init` that cannot be.
    """
    with precision(dtype, task, init, key):
        weights = draw(task, init, keys.split(key)[0], dtype)
    return settle(weights)


@functools.partial(
    jax.jit,
    static_argnames=("steps", "legs", "scatter", "frozen", "length", "batch", "record", "dtype"),
)
def _run(
    task: SequenceClasses,
    optimizer: AnyRule,
    key: PRNGKeyArray,
    init: EmbeddedSpec | Embedded,
    slope: Float[Array, ""] | None,
    data: yz.Examples | None,
    times: Int[Array, " S"],
    checkpoint: Checkpoint | None,
    *,
    steps: int,
    legs: Legs | None,
    scatter: bool,
    frozen: tuple[str, ...],
    length: int | float,
    batch: int | float,
    record: Recording,
    dtype: DType,
) -> Trajectory:
    init_key, data_key = keys.split(key)
    if isinstance(init, EmbeddedSpec):
        start = draw(task, init, init_key, dtype)
    else:
        start = jax.tree.map(lambda x: x.astype(dtype), init)
    if data is None and math.isinf(batch):
        context = finite_length.contextual(length, dtype)

        def loss(trained: Trained, k: Int[Array, ""]) -> Float[Array, ""]:
            del k
            params = _merge(start, trained)
            losses = finite_length.by_counts(params, task, qkv.forward)
            return finite_length.mean_loss(losses, task, context)

    else:
        batch_key = keys.of_steps(data_key, steps)
        if slope is None:
            sample = sampler(task, data, steps, length, batch, dtype, scatter=scatter)
        else:
            sample = _with_positions(task, slope, int(batch), int(length))

        def loss(trained: Trained, k: Int[Array, ""]) -> Float[Array, ""]:
            examples: Any = sample(k, batch_key(k))
            return qkv.loss(_merge(start, trained), task, examples)

    trained = _trained(start, frozen)
    trajectory = train(
        trained,
        optimizer.init(trained),
        by_rule(jax.value_and_grad(loss), optimizer, init_key, of_layer(trained)),
        lambda trained, seen: (
            record(task, qkv_observables.measure(task, _merge(start, trained))),
            seen,
        ),
        times,
        steps=steps,
        legs=legs,
        limit=DIVERGED_LOSS * math.log(task.M),
        dtype=dtype,
        relative=record.relative,
        checkpoint=checkpoint,
    )
    return dataclasses.replace(trajectory, params=_merge(start, trajectory.params))


def _trained(params: Embedded, frozen: Collection[str]) -> Trained:
    def chosen(names: tuple[str, ...]) -> dict[str, Array]:
        leaves = {name: getattr(params, name) for name in names if name not in frozen}
        return {name: leaf for name, leaf in leaves.items() if leaf is not None}

    return Trained(chosen(("U", "W_V", "D")), chosen(("W_Q", "W_K")))


def _merge(params: Embedded, trained: Trained) -> Embedded:
    """`params` with the `trained` weights in place of its own."""
    return dataclasses.replace(params, **trained.Y, **trained.Z)


def _with_positions(
    task: SequenceClasses, slope: Float[Array, ""], batch: int, length: int
) -> Sampler:
    """Batches of the same sequences, their counts weighed by the positional prior."""

    def sample(k: Int[Array, ""], key: PRNGKeyArray) -> yz.Examples:
        del k
        classes, tokens = sampling.sample_tokens(task, key, batch, length)
        counts = qkv.positional_counts(tokens, slope, task.M)
        return yz.Examples(classes, counts, jnp.full(batch, 1 / batch, counts.dtype))

    return sample
