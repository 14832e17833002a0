"""Two-stage noisy SGD on prompts: one run, vmappable, with every rate traced.

A stage lasts 1/(4 lambda) in eta-time, so that its number of steps follows from the rates: the loop
goes from record to record, and one compilation serves a whole grid of rates.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Real

from dynsim import checks
from dynsim.precision import AnyArray, DType, Number, cast, on_cpu, precision, settle
from dynsim.training.loop import train
from dynsim.training.recording import Record, Recording
from dynsim.training.run_checks import check_step_times
from dynsim.trajectory import Times, Trajectory
from dynsim.two_stage import minibatch
from dynsim.two_stage import observables as prompt_observables
from dynsim.two_stage.model import PQ
from dynsim.two_stage.noisy_sgd import NoisySGD
from dynsim.two_stage.observables import DEFAULT_RECORD, Split
from dynsim.two_stage.task import PromptDraws, Prompts, draw_prompts, make_prompts

NUM_TIMES = 128
"""About how many times are recorded unless asked otherwise."""
UNASKED = 8
"""Steps that an accelerator makes without asking its host whether to record."""


class Data(NamedTuple):
    """What the training prompts and the fresh prompts of a run are made of."""

    pool: PromptDraws
    test: PromptDraws


def draw_data(
    task: Prompts,
    key: PRNGKeyArray,
    *,
    pool: int = 4096,
    num_test: int = 2048,
    dtype: DType = "float32",
) -> Data:
    """What `simulate_prompts` draws of the prompts of a run with this `key`, which runs whose tasks
    and schedules differ in numbers alone may share.

    Args:
        task, key, pool, num_test, dtype: as of `simulate_prompts`.
    """
    with precision(dtype, key):
        _, pool_key, test_key, _ = _keys(key)
        return Data(
            draw_prompts(task, pool_key, pool, dtype), draw_prompts(task, test_key, num_test, dtype)
        )


def simulate_prompts(
    task: Prompts,
    optimizer: NoisySGD,
    key: PRNGKeyArray,
    *,
    batch: int = 128,
    pool: int = 4096,
    num_test: int = 2048,
    times: Times | None = None,
    record: Record = DEFAULT_RECORD,
    init: PQ | None = None,
    bias: bool = False,
    dtype: DType = "float32",
    data: Data | None = None,
) -> Trajectory:
    """Train normalised-ReLU attention on prompts in two stages.

    Args:
        task: the prompts; its numbers may be traced.
        optimizer: the schedule; its numbers may be traced.
        key: a threefry key for starting weights, prompts and noise. Runs with one key and
            different numbers see the same draws.
        batch: prompts per step, drawn with replacement from the pool.
        pool: number N of training prompts, drawn once.
        num_test: number of fresh prompts on which losses and accuracies are measured.
        times: (S,) whole steps at which to record, in [0, total steps], increasing. By default
            `optimizer.times(128)`.
        record: a name from `dynsim.two_stage.observables.TRAINED`, functions of a `PromptSnapshot`
            by name, or a list of both.
        init: starting weights, the noise part of which they are; random ones if None.
        bias: train a scalar added to N_V as well, without decay and without noise.
        dtype: "float32" or "float64".
        data: what `draw_data` returned for the same key and sizes, which saves drawing it again.

    Returns:
        A `Trajectory` with times in optimiser steps and the final `Split` weights. It also
        holds `eta_time` (S,), the sum of the learning rates so far. Weights that stop being
        finite make the run `Status.DIVERGED` from that step on; nothing raises.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    checks.kind("task", task, Prompts)
    checks.kind("optimizer", optimizer, NoisySGD)
    checks.scalars("optimizer", optimizer)
    checks.key("key", key)
    batch, pool = checks.integer("batch", batch, 1), checks.integer("pool", pool, 1)
    num_test = checks.integer("num_test", num_test, 2)
    if times is None:
        times = optimizer.times(NUM_TIMES)
    if not checks.is_traced(optimizer):
        check_step_times(times, int(np.max(optimizer.total_steps)))
    if init is not None:
        for name in ("W", "V"):
            if np.shape(getattr(init, name)) != (task.d, task.d):
                got = np.shape(getattr(init, name))
                raise ValueError(f"init.{name}: must have shape ({task.d}, {task.d}), got {got}")
    if data is not None:
        for name, num in (("pool", pool), ("test", num_test)):
            got, want = getattr(data, name).P.shape, (num, task.length, task.d)
            if got != want:
                raise ValueError(f"data.{name}: must be of shape {want}, got {got}")
    with precision(dtype, task, optimizer, key, init, data):
        trajectory = _run(
            task.astype(dtype),
            optimizer.astype(dtype),
            key,
            None if init is None else PQ(cast(init.W, dtype), cast(init.V, dtype)),
            cast(times, np.int32),
            data,
            batch=batch,
            pool=pool,
            num_test=num_test,
            record=prompt_observables.TRAINED.resolve(record),
            bias=bias,
            dtype=dtype,
            cpu=on_cpu(),
        )
    return settle(trajectory)


@functools.partial(
    jax.jit,
    static_argnames=("batch", "pool", "num_test", "record", "bias", "dtype", "cpu"),
)
def _run(
    task: Prompts,
    optimizer: NoisySGD,
    key: PRNGKeyArray,
    init: PQ | None,
    times: Int[Array, " S"],
    data: Data | None,
    *,
    batch: int,
    pool: int,
    num_test: int,
    record: Recording,
    bias: bool,
    dtype: DType,
    cpu: bool,
) -> Trajectory:
    init_key, _, _, step_key = _keys(key)
    if data is None:
        data = draw_data(task, key, pool=pool, num_test=num_test, dtype=dtype)
    training = make_prompts(task, data.pool)
    chosen_from = minibatch.laid(training) if cpu else training
    test = make_prompts(task, data.test)
    noise = _gaussian(init_key, task.d, optimizer.init, dtype) if init is None else init
    signal = jax.tree.map(jnp.zeros_like, noise)
    weights = Split(PQ(signal.W, signal.V, jnp.zeros((), dtype) if bias else None), noise)

    def step(weights: Split, memory: tuple[()], k: Array) -> tuple[Split, tuple[()], None]:
        batch_key, noise_key = jax.random.split(jax.random.fold_in(step_key, k))
        chosen = jax.random.randint(batch_key, (batch,), 0, pool)
        grads = minibatch.gradient(weights.total, task, chosen_from, chosen)
        xi = _gaussian(noise_key, task.d, optimizer.noise, dtype)
        return update(weights, grads, xi, optimizer.rate(k), optimizer.decay), memory, None

    trajectory = train(
        weights,
        (),
        step,
        lambda weights, seen: (record(prompt_observables.measure(weights, test)), seen),
        times,
        steps=None,
        unasked=1 if cpu else UNASKED,
        limit=None,
        dtype=dtype,
    )
    eta_time = optimizer.flow_time(trajectory.times)
    observables = {**trajectory.observables, "eta_time": eta_time}
    return dataclasses.replace(trajectory, observables=observables)


def update(
    weights: Split, grads: PQ, xi: PQ, eta: Real[Number, ""], decay: Real[Number, ""]
) -> Split:
    """One step: gradients move the signal, gradient noise `xi` the noise, both decay."""
    eta, decay = jnp.asarray(eta), jnp.asarray(decay)
    keep = 1 - eta * decay

    def move(old: Float[AnyArray, "d d"], by: Float[AnyArray, "d d"]) -> Float[Array, "d d"]:
        return keep * old - eta * by

    beta = weights.signal.beta
    signal = PQ(
        move(weights.signal.W, grads.W),
        move(weights.signal.V, grads.V),
        None if beta is None or grads.beta is None else beta - eta * grads.beta,
    )
    return Split(signal, PQ(move(weights.noise.W, xi.W), move(weights.noise.V, xi.V)))


def _keys(key: PRNGKeyArray) -> tuple[PRNGKeyArray, ...]:
    """Keys of the starting weights, of the pool, of the test prompts and of the steps."""
    return tuple(jax.random.split(key, 4))


def _gaussian(key: PRNGKeyArray, d: int, deviation: Real[Number, ""], dtype: DType) -> PQ:
    W, V = jax.random.normal(key, (2, d, d), dtype) * deviation
    return PQ(W, V)
