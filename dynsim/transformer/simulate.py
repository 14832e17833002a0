"""Training a transformer on text: one run, vmappable over keys and learning rates.

Starting weights, windows of text, updates, records and the check for divergence are all inside the
compiled function.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from dynsim import checks
from dynsim.classes.corpus import sample_windows
from dynsim.precision import DType, cast, precision, settle
from dynsim.problem.checks import check_single
from dynsim.training import keys
from dynsim.training.checkpoint import Checkpoint, checked_start
from dynsim.training.loop import DIVERGED_LOSS, by_rule, train
from dynsim.training.optax_rule import AnyRule, OptaxRule
from dynsim.training.recording import Record, Recording
from dynsim.training.rule import Rule
from dynsim.training.run_checks import check_rule, checked_times
from dynsim.trajectory import Times, Trajectory
from dynsim.transformer import model as transformer
from dynsim.transformer import observables as text_observables
from dynsim.transformer.model import Transformer, TransformerSpec
from dynsim.transformer.observables import DEFAULT_RECORD, TextSnapshot
from dynsim.transformer.task import Text


def simulate_text(
    task: Text,
    sizes: TransformerSpec,
    optimizer: AnyRule,
    key: PRNGKeyArray,
    *,
    steps: int,
    batch: int = 20,
    num_held_out: int = 64,
    times: Times | None = None,
    record: Record = DEFAULT_RECORD,
    init: Transformer | None = None,
    dtype: DType = "float32",
    checkpoint: Checkpoint | bool = False,
) -> Trajectory:
    r"""Train a decoder-only transformer on random windows of a text.

    Args:
        task: training text, held-out text and prompts.
        sizes: the transformer; `sizes.length` is the number T of tokens of a window.
        optimizer: the rule, such as `dynsim.sgd(0.5)`; its numbers may be traced.
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
        checkpoint: as in `dynsim.train`.

    Returns:
        A `Trajectory` with times in optimiser steps and the final `Transformer`. Besides `record`
        it holds `batch_loss` (S,): nat per token on the batch of the *next* step, before its
        update. Nothing raises when a run diverges: it gets `Status.DIVERGED` if at its end
        weights or batch loss are not finite, or the batch loss exceeds `DIVERGED_LOSS` log M;
        `first_bad_step` is the first step of that last stretch, by the loss of each step. Some
        runs recover from an absurd loss, none from one that is not finite.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    checks.kind("task", task, Text)
    checks.kind("optimizer", optimizer, Rule, OptaxRule)
    check_single("optimizer", optimizer)
    checks.key("key", key)
    steps = checks.steps("steps", steps)
    batch = checks.integer("batch", batch, 1)
    num_held_out = checks.integer("num_held_out", num_held_out, 1)
    recording = text_observables.TRAINED.resolve(record)
    start = checked_start(checkpoint)
    times = checked_times(times, steps, recording, start)
    check_rule(optimizer, steps, bool(checkpoint))
    _check_sizes(task, sizes)
    if init is not None:
        _check_init(init, sizes)
    with precision(dtype, task, optimizer, key, init):
        trajectory = _run(
            jax.tree.map(jnp.asarray, task),
            optimizer.astype(dtype),
            key,
            jax.tree.map(lambda x: cast(x, dtype), init),
            cast(times, np.int32),
            start,
            sizes=sizes,
            steps=steps,
            batch=batch,
            num_held_out=num_held_out,
            record=recording,
            dtype=dtype,
        )
    return settle(trajectory)


def spaced_windows(tokens: Int[Array, " E"], length: int, number: int) -> Int[Array, "N T1"]:
    """`number` windows of `length` + 1 tokens, evenly spaced over the text."""
    starts = np.linspace(0, len(tokens) - length - 1, number).astype(int)
    return tokens[jnp.asarray(starts[:, None] + np.arange(length + 1)[None])]


@functools.partial(
    jax.jit, static_argnames=("sizes", "steps", "batch", "num_held_out", "record", "dtype")
)
def _run(
    task: Text,
    optimizer: AnyRule,
    key: PRNGKeyArray,
    init: Transformer | None,
    times: Int[Array, " S"],
    checkpoint: Checkpoint | None,
    *,
    sizes: TransformerSpec,
    steps: int,
    batch: int,
    num_held_out: int,
    record: Recording,
    dtype: DType,
) -> Trajectory:
    init_key, data_key = keys.split(key)
    model: PyTree = Transformer(sizes, init_key, dtype) if init is None else init
    train_tokens, prompts = jnp.asarray(task.train), jnp.asarray(task.prompts)
    held_out = spaced_windows(jnp.asarray(task.held_out), sizes.length, num_held_out)

    def loss_and_grad(model: Transformer, k: Array) -> tuple[Array, Transformer]:
        batch_key = jax.random.fold_in(data_key, k)
        windows = sample_windows(train_tokens, batch_key, batch, sizes.length)
        return jax.value_and_grad(transformer.loss)(model, windows)

    def observe(model: Transformer, before: Array) -> tuple[dict[str, Array], Array]:
        snapshot = measure(model, held_out, prompts, before)
        return record(snapshot), snapshot.maps

    trajectory = train(
        model,
        optimizer.init(model),
        by_rule(loss_and_grad, optimizer, init_key),
        observe,
        jnp.append(times, jnp.int32(steps)),
        steps=None,
        limit=DIVERGED_LOSS * math.log(sizes.vocabulary),
        dtype=dtype,
        relative=record.relative,
        seen=jax.vmap(model.attention)(held_out[:, :-1]),
        checkpoint=checkpoint,
    )
    # The last row is that of the end, which `times` may leave out.
    rows = {name: row[:-1] for name, row in trajectory.observables.items()}
    end = trajectory.checkpoint and dataclasses.replace(trajectory.checkpoint, step=steps)
    return dataclasses.replace(
        trajectory, times=trajectory.times[:-1], observables=rows, checkpoint=end
    )


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
    if shapes[0] != shapes[1]:
        raise ValueError(f"init: must have the shapes of {sizes}")
