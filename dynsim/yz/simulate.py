"""Gradient descent on the attention layer: one run, as one `lax.scan`, vmappable.

Sampling, forward pass, gradient, update, recording and the check for divergence all happen
inside the scan (`dynsim.training.loop`), so `jax.vmap` over keys, learning rates or starting
weights turns it into a batch of whole training runs with a single compilation.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.precision import DType, cast, on_cpu, precision, settle
from dynsim.training import keys
from dynsim.training.checkpoint import Checkpoint
from dynsim.training.course import Legs
from dynsim.training.loop import DIVERGED_LOSS, by_rule, train
from dynsim.training.optax_rule import AnyRule
from dynsim.training.recording import Record, Recording
from dynsim.training.rule import of_layer
from dynsim.trajectory import Times, Trajectory
from dynsim.yz import finite_length, observables, sampling, support
from dynsim.yz import model as yz
from dynsim.yz.batches import Batches
from dynsim.yz.checks import check_weights, checked_arguments
from dynsim.yz.observables import DEFAULT_RECORD
from dynsim.yz.outputs import each, loss_and_grad, merged

Sampler = Callable[[Int[Array, ""], PRNGKeyArray], yz.Examples]


def simulate(
    task: SequenceClasses,
    optimizer: AnyRule,
    key: PRNGKeyArray | None = None,
    *,
    steps: int,
    length: int | float = 128,
    batch: int | float = 128,
    init: yz.YZ | yz.Init = "zero",
    times: Times | None = None,
    record: Record = DEFAULT_RECORD,
    data: yz.Examples | Batches | None = None,
    dtype: DType = "float32",
    checkpoint: Checkpoint | bool = False,
) -> Trajectory:
    r"""Train the Y/Z attention layer and record observables along the way.

    Args:
        task: the sequence classes.
        optimizer: any rule, with a rate for all weights or one each for the groups "Y" and "Z";
            its numbers may be traced.
        key: a threefry key for starting weights, data and the rule's noise; may be None where none
            of them is random.
            The data depend on the key alone: runs with one key and different learning rates
            see the same batches.
        steps: number of optimiser steps, >= 1.
        length: sequence length T >= 2, the query included; `math.inf` replaces sampled counts
            by P(l|n) (Lemma 2).
        batch: number of sequences per step; `math.inf` trains on the population loss, for finite
            `length` to first order in 1/T (`dynsim.yz.finite_length`).
        init: "zero", "uniform" (on :math:`\pm 1/\sqrt M`) or the starting weights themselves.
        times: (S,) whole steps at which to record, increasing, in [0, steps]; step 0 is the
            start. By default `log_times(steps)`.
        record: a name from `dynsim.yz.observables.TRAINED`, functions of (task, snapshot) by
            name, or a list of both. "relative_loss" is the mean batch loss of the last 20 steps
            (of all if there are fewer), each before its update, over that of the first; NaN but
            at the end.
        data: recorded batches to train on instead of sampling, with a leading axis of `steps`
            (see `dynsim.yz.sampling.examples_from_tokens`); or what `sampling.draw_batches` drew,
            so that runs with one key need not draw the same again.
        dtype: "float32" or "float64".
        checkpoint: True for a run that can go on: `Trajectory.checkpoint` is where it ended. That
            one, for a run of the same arguments but for more `steps` and for `times` after it, goes
            on from there, and ends where a single run would have.

    Returns:
        A `Trajectory`. Besides `record` it holds `batch_loss` (S,): the loss on the batch of
        the *next* step, before its update (after the last step: on one more batch, or on the
        last one of recorded data). Nothing raises when a run diverges: it gets
        `Status.DIVERGED` if at its end weights or loss are not finite, or the batch loss exceeds
        `DIVERGED_LOSS` log M, and `first_bad_step` is the first step of that last stretch, by
        the loss of each step and the weights of the last. l2 normalisation bounds the gradient,
        so that huge rates mostly lead to an absurd loss, and some runs recover from it.

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
        table=observables.TRAINED,
        drawn="init = 'uniform'" if init == "uniform" else None,
        checkpoint=checkpoint,
    )
    if isinstance(init, yz.YZ):
        check_weights(init, task)
    else:
        checks.choice("init", init, ("zero", "uniform"))
    with precision(dtype, task, optimizer, key, init, data):
        trajectory = _run(
            task.astype(dtype),
            given.rule.astype(dtype),
            given.key,
            jax.tree.map(jnp.asarray, init) if isinstance(init, yz.YZ) else None,
            jax.tree.map(jnp.asarray, data),
            cast(given.times, np.int32),
            given.checkpoint,
            steps=given.steps,
            legs=given.legs,
            scatter=on_cpu(),
            length=given.length,
            batch=given.batch,
            init_kind=init if isinstance(init, str) else "zero",
            record=given.record,
            dtype=dtype,
        )
    return settle(trajectory)


def initial_weights(
    task: SequenceClasses, init: yz.Init, key: PRNGKeyArray, dtype: DType = "float32"
) -> yz.YZ:
    """The weights from which `simulate(task, ..., key, init=init)` starts, so that a theory
    can start from the same ones."""
    checks.choice("init", init, ("zero", "uniform"))
    if init == "uniform":
        return yz.init_uniform(task, keys.split(key)[0], dtype)
    return yz.init_zero(task, dtype)


@functools.partial(
    jax.jit,
    static_argnames=("steps", "legs", "scatter", "length", "batch", "init_kind", "record", "dtype"),
)
def _run(
    task: SequenceClasses,
    optimizer: AnyRule,
    key: PRNGKeyArray,
    init: yz.YZ | None,
    data: yz.Examples | Batches | None,
    times: Int[Array, " S"],
    checkpoint: Checkpoint | None,
    *,
    steps: int,
    legs: Legs | None,
    scatter: bool,
    length: int | float,
    batch: int | float,
    init_kind: yz.Init,
    record: Recording,
    dtype: DType,
) -> Trajectory:
    params: PyTree
    if init is not None:
        params = jax.tree.map(lambda x: x.astype(dtype), init)
    else:
        params = initial_weights(task, init_kind, key, dtype)
    outputs = each(task)
    init_key, data_key = keys.split(key)
    if data is None and math.isinf(batch):
        context = finite_length.contextual(length, dtype)

        def gradient(params: yz.YZ, k: Int[Array, ""]) -> tuple[Array, yz.YZ]:
            del k
            return finite_length.loss_and_grad(params, task, context)

    else:
        if init is None and init_kind == "zero" and optimizer.is_elementwise:
            outputs = merged(task, dtype)
        batch_key = keys.of_steps(data_key, steps)
        few = outputs.count is not None and not support.pays(task.support.shape[1], task.M)
        recorded = isinstance(data, yz.Examples)
        if not (few or recorded or math.isinf(length) or params.residual) and scatter:
            draw = sampling.support_sampler(task, int(batch), int(length), dtype)

            def gradient(params: yz.YZ, k: Int[Array, ""]) -> tuple[Array, yz.YZ]:
                examples = data.at(k, dtype) if isinstance(data, Batches) else draw(batch_key(k))
                return support.loss_and_grad(params, task, examples, outputs)

        else:
            sample = sampler(task, data, steps, length, batch, dtype, scatter=scatter)

            def gradient(params: yz.YZ, k: Int[Array, ""]) -> tuple[Array, yz.YZ]:
                examples = sample(k, batch_key(k))
                if outputs.count is not None:
                    return loss_and_grad(params, task, examples, outputs)
                return yz.loss_and_grad(params, task, examples, scatter=scatter)

    def observe(params: yz.YZ, seen: PyTree) -> tuple[dict[str, Array], PyTree]:
        return record(task, observables.measure(task, whole(params))), seen

    def whole(params: yz.YZ) -> yz.YZ:
        return yz.YZ(outputs.spread(params.Y), params.Z, params.residual)

    params = yz.YZ(outputs.merge(params.Y), params.Z, params.residual)
    found = train(
        params,
        optimizer.init(params),
        by_rule(gradient, optimizer, init_key, of_layer(params)),
        observe,
        times,
        steps=steps,
        legs=legs,
        limit=DIVERGED_LOSS * math.log(task.M),
        dtype=dtype,
        relative=record.relative,
        checkpoint=checkpoint,
    )
    return dataclasses.replace(found, params=whole(found.params))


def sampler(
    task: SequenceClasses,
    data: yz.Examples | Batches | None,
    steps: int,
    length: int | float,
    batch: int | float,
    dtype: DType,
    *,
    scatter: bool,
) -> Sampler:
    """The batch of a step, with counts over the whole vocabulary, as a function of the step and its
    key; `scatter` as in `sampling.counts_sampler`."""
    if isinstance(data, Batches):
        return lambda k, _: data.at(k, dtype).dense(task)
    if data is not None:
        weight = yz.weights(data, dtype)
        cast = yz.Examples(data.classes, data.counts.astype(dtype), weight)
        return lambda k, _: jax.tree.map(lambda x: x[jnp.minimum(k, steps - 1)], cast)
    size = int(batch)
    if math.isinf(length):
        return lambda _, key: sampling.sample_classes_only(task, key, size, dtype)
    draw = sampling.counts_sampler(task, size, int(length), dtype, scatter=scatter)
    return lambda _, key: draw(key)
