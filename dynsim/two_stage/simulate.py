"""Two-stage noisy SGD on prompts: one run, vmappable, with every rate traced.

A stage lasts 1/(4 lambda) in eta-time, so that its number of steps follows from the rates: the loop
goes from record to record, and one compilation serves a whole grid of rates.
"""

import dataclasses
import functools

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
from dynsim.two_stage import model as relu_prompt
from dynsim.two_stage import observables as prompt_observables
from dynsim.two_stage.model import PQ
from dynsim.two_stage.noisy_sgd import NoisySGD
from dynsim.two_stage.observables import DEFAULT_RECORD, Split
from dynsim.two_stage.task import PromptBatch, Prompts, sample_prompts

NUM_TIMES = 128
"""About how many times are recorded unless asked otherwise."""
UNASKED = 8
"""Steps that an accelerator makes without asking its host whether to record."""


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

    Returns:
        A `Trajectory` with times in optimiser steps and the final `Split` weights. It also
        holds `eta_time` (S,), the sum of the learning rates so far. Weights that stop being
        finite make the run `Status.DIVERGED` from that step on; nothing raises.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
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
    with precision(dtype, task, optimizer, key, init):
        trajectory = _run(
            task.astype(dtype),
            optimizer.astype(dtype),
            key,
            None if init is None else PQ(cast(init.W, dtype), cast(init.V, dtype)),
            cast(times, np.int32),
            batch=batch,
            pool=pool,
            num_test=num_test,
            record=prompt_observables.TRAINED.resolve(record),
            bias=bias,
            dtype=dtype,
            unasked=1 if on_cpu() else UNASKED,
        )
    return settle(trajectory)


@functools.partial(
    jax.jit,
    static_argnames=("batch", "pool", "num_test", "record", "bias", "dtype", "unasked"),
)
def _run(
    task: Prompts,
    optimizer: NoisySGD,
    key: PRNGKeyArray,
    init: PQ | None,
    times: Int[Array, " S"],
    *,
    batch: int,
    pool: int,
    num_test: int,
    record: Recording,
    bias: bool,
    dtype: DType,
    unasked: int,
) -> Trajectory:
    init_key, pool_key, test_key, step_key = jax.random.split(key, 4)
    shapes = (task.length, task.d), (task.length, task.d), (task.length,)
    # A CPU gathers long rows faster than blocks, and the gather is most of a step.
    rows = [leaf.reshape(pool, -1) for leaf in sample_prompts(task, pool_key, pool, dtype)]
    test = sample_prompts(task, test_key, num_test, dtype)
    noise = _gaussian(init_key, task.d, optimizer.init, dtype) if init is None else init
    signal = jax.tree.map(jnp.zeros_like, noise)
    weights = Split(PQ(signal.W, signal.V, jnp.zeros((), dtype) if bias else None), noise)

    def step(weights: Split, memory: tuple[()], k: Array) -> tuple[Split, tuple[()], None]:
        batch_key, noise_key = jax.random.split(jax.random.fold_in(step_key, k))
        chosen = jax.random.randint(batch_key, (batch,), 0, pool)
        gathered = zip(rows, shapes, strict=True)
        examples = PromptBatch(*(leaf[chosen].reshape(batch, *shape) for leaf, shape in gathered))
        grads = jax.grad(relu_prompt.data_loss)(weights.total, task, examples)
        xi = _gaussian(noise_key, task.d, optimizer.noise, dtype)
        return update(weights, grads, xi, optimizer.rate(k), optimizer.decay), memory, None

    trajectory = train(
        weights,
        (),
        step,
        lambda weights, seen: (record(prompt_observables.measure(weights, test)), seen),
        times,
        steps=None,
        unasked=unasked,
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


def _gaussian(key: PRNGKeyArray, d: int, deviation: Real[Number, ""], dtype: DType) -> PQ:
    W, V = jax.random.normal(key, (2, d, d), dtype) * deviation
    return PQ(W, V)
