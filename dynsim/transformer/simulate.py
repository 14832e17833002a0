"""Training a transformer on text: one run, vmappable over keys and learning rates.

Recorded times are the outer `lax.scan`, the steps between two of them an inner loop; starting
weights, windows of text, updates, records and the check for divergence are all inside.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int, PRNGKeyArray

from dynsim import checks
from dynsim.classes.corpus import sample_windows
from dynsim.precision import DType, precision, settle
from dynsim.training.descent import Descent
from dynsim.training.recording import Record, Recording
from dynsim.training.run_checks import check_step_times
from dynsim.trajectory import Status, Trajectory, log_times
from dynsim.transformer import model as transformer
from dynsim.transformer import observables as text_observables
from dynsim.transformer.model import Transformer, TransformerSpec
from dynsim.transformer.observables import DEFAULT_RECORD, TextSnapshot
from dynsim.transformer.task import Text
from dynsim.yz.simulate import DIVERGED_LOSS


def simulate_text(
    task: Text,
    sizes: TransformerSpec,
    optimizer: Descent,
    key: PRNGKeyArray,
    *,
    steps: int,
    batch: int = 20,
    num_held_out: int = 64,
    times: Int[Array, " S"] | None = None,
    record: Record = DEFAULT_RECORD,
    init: Transformer | None = None,
    dtype: DType = "float32",
) -> Trajectory:
    """Train a decoder-only transformer on random windows of a text.

    Args:
        task: training text, held-out text and prompts.
        sizes: the transformer; `sizes.length` is the number T of tokens of a window.
        optimizer: the rule, one learning rate for all weights; its numbers may be traced.
        key: a threefry key for starting weights and windows. Runs with one key and different
            learning rates start alike and see the same windows.
        steps: number of optimiser steps, >= 1.
        batch: windows of T + 1 tokens per step, drawn uniformly from all of the training text.
        num_held_out: windows of T + 1 tokens, evenly spaced over the held-out text and the same
            for all runs, on which is measured.
        times: (S,) whole steps at which to record, increasing, in [0, steps]; step 0 is the
            start. By default `log_times(steps)`.
        record: a name from `dynsim.transformer.observables.TRAINED`, functions of a
            `TextSnapshot` by name, or a list of both.
        init: starting weights; drawn from the key if None.
        dtype: "float32" or "float64".

    Returns:
        A `Trajectory` with times in optimiser steps and the final `Transformer`. Besides `record`
        it holds `batch_loss` (S,): nats per token on the batch of the *next* step, before its
        update. Nothing raises when a run diverges: it gets `Status.DIVERGED` if at its end
        weights or batch loss are not finite, or the batch loss exceeds `DIVERGED_LOSS` log M;
        `first_bad_step` is the first step of that last stretch, by the loss of each step. Some
        runs recover from an absurd loss, none from one that is not finite.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    steps = checks.integer("steps", steps, 1)
    batch = checks.integer("batch", batch, 1)
    num_held_out = checks.integer("num_held_out", num_held_out, 1)
    times = log_times(steps) if times is None else times
    check_step_times(times, steps)
    _check_sizes(task, sizes)
    if init is not None:
        _check_init(init, sizes)
    with precision(dtype, task, optimizer, key, init):
        trajectory = _run(
            jax.tree.map(jnp.asarray, task),
            optimizer.astype(dtype),
            key,
            jax.tree.map(lambda x: jnp.asarray(x, dtype), init),
            jnp.asarray(times, jnp.int32),
            sizes=sizes,
            steps=steps,
            batch=batch,
            num_held_out=num_held_out,
            record=text_observables.TRAINED.resolve(record),
            dtype=dtype,
        )
    return settle(trajectory)


def spaced_windows(tokens: Int[Array, " E"], length: int, number: int) -> Int[Array, "N T1"]:
    """`number` windows of `length` + 1 tokens, evenly spaced over the text."""
    starts = np.linspace(0, len(tokens) - length - 1, number).astype(int)
    return tokens[jnp.asarray(starts[:, None] + np.arange(length + 1)[None])]


def split_key(key: PRNGKeyArray) -> tuple[PRNGKeyArray, PRNGKeyArray]:
    """Keys of the starting weights and of the windows; step k draws with fold_in(second, k)."""
    init_key, data_key = jax.random.split(key)
    return init_key, data_key


@functools.partial(
    jax.jit, static_argnames=("sizes", "steps", "batch", "num_held_out", "record", "dtype")
)
def _run(
    task: Text,
    optimizer: Descent,
    key: PRNGKeyArray,
    init: Transformer | None,
    times: Int[Array, " S"],
    *,
    sizes: TransformerSpec,
    steps: int,
    batch: int,
    num_held_out: int,
    record: Recording,
    dtype: DType,
) -> Trajectory:
    init_key, data_key = split_key(key)
    model = Transformer(sizes, init_key, dtype) if init is None else init
    held_out = spaced_windows(task.held_out, sizes.length, num_held_out)
    transformation = optimizer.transformation()
    worst = DIVERGED_LOSS * math.log(sizes.vocabulary)

    def windows(k: Array) -> Int[Array, "B T1"]:
        return sample_windows(task.train, jax.random.fold_in(data_key, k), batch, sizes.length)

    def judge(batch_loss: Array, k: Array, first_bad: Array) -> Array:
        # A comparison with NaN is false.
        return jnp.where(batch_loss <= worst, -1, jnp.where(first_bad < 0, k, first_bad))

    def step(k: Array, carry):  # type: ignore[no-untyped-def]
        model, state, first_bad = carry
        batch_loss, grads = jax.value_and_grad(transformer.loss)(model, windows(k))
        updates, state = transformation.update(grads, state, model)
        return optax.apply_updates(model, updates), state, judge(batch_loss, k, first_bad)

    def advance(carry, until):  # type: ignore[no-untyped-def]
        trained, before, now = carry
        trained = jax.lax.fori_loop(now, until, step, trained)
        snapshot = measure(trained[0], held_out, task.prompts, before)
        values = record(snapshot)
        values["batch_loss"] = transformer.loss(trained[0], windows(until))
        return (trained, snapshot.maps, until), values

    at_start = jax.vmap(model.attention)(held_out[:, :-1])
    carry = ((model, transformation.init(model), jnp.int32(-1)), at_start, jnp.int32(0))
    (trained, _, now), values = jax.lax.scan(advance, carry, times)
    model, _, first_bad = jax.lax.fori_loop(now, jnp.int32(steps), step, trained)
    first_bad = judge(transformer.loss(model, windows(jnp.int32(steps))), steps, first_bad)
    # Weights of tokens that the last batch lacks do not reach its loss.
    finite = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(model)]).all()
    first_bad = jnp.where((first_bad < 0) & ~finite, steps, first_bad)
    status = jnp.where(first_bad < 0, Status.OK, Status.DIVERGED).astype(jnp.int32)
    return Trajectory(times.astype(dtype), values, model, status, first_bad, "simulation")


def measure(
    model: Transformer,
    held_out: Int[Array, "N T1"],
    prompts: Int[Array, "P T2"],
    before: Array,
) -> TextSnapshot:
    """Snapshot of the model on held-out windows and prompts; `before` holds the maps (N, L, H, T,
    T) of the record before."""
    logits, maps = jax.vmap(model.forward)(held_out[:, :-1])
    losses = transformer.token_losses(logits, held_out[:, 1:])
    return TextSnapshot(model, losses, maps, before, jax.vmap(model.attention)(prompts))


def _check_sizes(task: Text, sizes: TransformerSpec) -> None:
    if sizes.vocabulary != task.vocabulary:
        raise ValueError(
            f"sizes.vocabulary = {sizes.vocabulary}: must be the text's, {task.vocabulary}"
        )
    for name in ("train", "held_out"):
        if len(getattr(task, name)) <= sizes.length:
            raise ValueError(
                f"{name}: has {len(getattr(task, name))} tokens, must have more than "
                f"length = {sizes.length}"
            )
    if task.prompts.shape[1] > sizes.length:
        raise ValueError(
            f"prompts: have {task.prompts.shape[1]} tokens, must have at most "
            f"length = {sizes.length}"
        )


def _check_init(init: Transformer, sizes: TransformerSpec) -> None:
    want = jax.eval_shape(lambda: Transformer(sizes, jax.random.key(0)))
    shapes = [jax.tree.map(lambda leaf: tuple(leaf.shape), tree) for tree in (init, want)]
    if jax.tree.structure(init) != jax.tree.structure(want) or shapes[0] != shapes[1]:
        raise ValueError(f"init: must have the shapes of {sizes}")
