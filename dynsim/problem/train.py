"""`dynsim.train`: one run of any problem with any rule; `jax.vmap` makes a batch of runs."""

from __future__ import annotations

import dataclasses
import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, Real

from dynsim import checks, numeric
from dynsim.compiling import call_compiled
from dynsim.precision import DType, Number, as_jax_arrays, cast, on_cpu, precision, to_host
from dynsim.problem import sharpness
from dynsim.problem.base import Problem, call_user
from dynsim.problem.build import ProblemT, built, narrowed, split
from dynsim.problem.checks import (
    Parts,
    check_draw,
    check_groups,
    check_loss,
    check_parts,
    check_repeats,
    check_single,
    checked_init,
    has_population,
    population_of,
)
from dynsim.problem.observables import measured, resolve_record
from dynsim.problem.sharpness import check_threshold, preconditioned
from dynsim.training import loop
from dynsim.training.checkpoint import Checkpoint, checked_start
from dynsim.training.keys import initial_state
from dynsim.training.recording import ETA_TIME, NORMS, PRECONDITIONED, Record, Recording
from dynsim.training.rule import Rule, UpdateRule
from dynsim.training.steps import (
    STEPS_PER_CHECK,
    Segments,
    check_schedules,
    checked_times,
    segments_of,
)
from dynsim.trajectory import Static, Times, Trajectory

DIVERGENCE_GROWTH = 1e3
"""Loss, as a multiple of the reference, above which a run diverged, unless `limit` is given."""
FIRST = 16
"""Number of batches over which the initial loss is averaged; a single one may have a tiny loss."""


def train(
    problem: Problem,
    rule: UpdateRule,
    key: PRNGKeyArray | None = None,
    *,
    steps: int | None,
    batch: int | float = 32,
    times: Times | None = None,
    record: Record | None = None,
    init: PyTree = None,
    data: PyTree = None,
    shared: PyTree = None,
    dtype: DType = "float32",
    limit: Real[Number, ""] | None = None,
    checkpoint: Checkpoint | bool = False,
) -> Trajectory:
    """Train a problem with an update rule, from the weights of `problem.init`.

    Args:
        problem: your own, or a built-in one.
        rule: an update rule from `dynsim.sgd`, `adamw`, `from_optax` and so on, or a
            `dynsim.Annealed`; its numbers may be traced.
        key: random key for the starting weights, the batches, and the rule's noise. Each step has
            its own key, so runs with the same key see the same batches at any learning rate.
        steps: number of optimiser steps, >= 1. None runs up to the last of `times`, which may then
            be traced, so that runs of different lengths share a program. Such a run cannot be
            resumed or differentiated in reverse mode.
        batch: examples per step; `math.inf` descends `problem.population_loss`.
        times: (S,) whole steps at which to record, increasing, in [0, steps]; by default
            `log_times(steps)`.
        record: names of observables, functions of (problem, weights) by name, or a list of both.
            Every problem has "batch_loss", which is always recorded at finite batch;
            "relative_loss"; "gradient_norm" and "update_norm" of the next step, over all weights;
            "sharpness", the largest eigenvalue of the Hessian of the population loss, or of the
            next batch's loss if there is none; "sharpness_2" and so on, the following eigenvalues;
            "preconditioned_sharpness", in units in which the rule's steps begin to oscillate at 2;
            and "eta_time", the sum of the learning rates so far. "loss" is `population_loss`,
            recorded by default if there is one. "params" keeps the weights: each of their arrays
            as "params.<its path>", such as "params.Y" or "params.layers.0.weight".
        init: starting weights to use instead of `problem.init`.
        data: batches to use instead of `problem.draw`: a pytree of arrays with a leading axis of
            length `steps`, or `steps` + 1, where the last batch is for measuring the final loss.
            `drawn` makes the batches of a key, which several runs can share.
        shared: arrays already drawn with this key, to avoid drawing them again.
        dtype: "float32" or "float64" of weights, loss and data.
        limit: batch loss above which a run counts as diverged; by default a thousand times a
            reference: the loss of the starting weights, averaged over the first batches. If even
            the starting weights of `problem.init`, or weights that only the rule's noise moves in
            all steps, have a loss above this limit, that loss is the reference. Where the reference
            is 0, only infinities and NaN count.
        checkpoint: True for a run that can be resumed: `Trajectory.checkpoint` then holds its final
            state. Pass it, with more `steps` and later `times`, to resume exactly.

    Returns:
        A `Trajectory` with times in optimiser steps. `params` holds the arrays of the final
        weights; `model` also has the functions of an Equinox module, so that you can call it. A run
        that ends with non-finite weights, or with a loss above `limit`, does not raise; it has
        `Status.DIVERGED`.

    Raises:
        ValueError: naming the argument, or the class and the method. It is raised before
            compilation.

    Example:
        >>> rule = dynsim.adamw(dynsim.schedules.warmup_cosine(1e-2, 10, 20), decay=1e-3, clip=1.0)
        >>> key, record = jax.random.key(0), "gradient_norm"
        >>> run = dynsim.train(DeepLinear(), rule, key, steps=20, record=record)
        >>> run["gradient_norm"].shape == run.times.shape
        True
    """
    # Check: whatever a user may write is read before anything is compiled.
    problem, rule = built(problem, rule, dtype)
    check_single("rule", rule)
    init = checked_init(problem, init, dtype)
    data = numeric.tree("data", data, dtype, finite=not problem.allows_nonfinite())
    steps = None if steps is None else checks.steps("steps", steps)
    batch = checks.count_or_inf("batch", batch, 1)
    finite = data is not None or not math.isinf(batch)
    check_parts(problem, finite, data is not None)
    if key is not None:
        checks.key("key", key)
    elif init is None or (finite and data is None) or rule.noise is not None:
        raise ValueError("key = None: starting weights, batches or noise are random and need one")
    if steps is None:
        if times is None or data is not None or checkpoint:
            raise ValueError(
                "steps = None: needs times, and cannot be combined with data or checkpoint"
            )
    else:
        check_schedules(rule, steps, resumable=bool(checkpoint))
        for path, leaf in jax.tree.leaves_with_path(data):
            if np.ndim(leaf) == 0 or np.shape(leaf)[0] not in (steps, steps + 1):
                name = "data" + jax.tree_util.keystr(path)
                raise ValueError(
                    f"{name}: must have a leading axis of length steps = {steps}, "
                    f"got shape {np.shape(leaf)}"
                )
    if limit is not None:
        checks.real("limit", limit, open_minimum=True)
    recording = resolve_record(problem, record)
    if ETA_TIME in recording.provided and set(rule.schedules) != {""}:
        raise ValueError(f"record = {ETA_TIME!r}: needs a rule with one rate for all weights")
    if PRECONDITIONED in recording.provided:
        check_threshold(rule)
    start = checked_start(checkpoint)
    times = checked_times(times, steps, recording, start)
    # Convert: numbers and arrays are arguments of the program, everything else selects it.
    numbers, rest = split(problem)
    with precision(dtype, problem, rule, key, init, data, shared):
        # Rounding grows in training on batches: its program must not depend on how long it runs.
        trajectory = (functools.partial(call_compiled, _run) if math.isinf(batch) else _run)(
            as_jax_arrays(numbers),
            rest,
            rule.astype(dtype),
            key,
            narrowed(data, dtype),
            *as_jax_arrays((init, shared)),
            cast(times, np.int32),
            None if limit is None else cast(limit, dtype),
            start,
            steps=steps,
            batch=batch,
            record=recording,
            use_population=has_population(problem),
            segments=None if steps is None else segments_of(times, steps, start),
            cpu=on_cpu(),
            dtype=dtype,
        )
    # float64 leaves as NumPy arrays, if the caller's JAX would round it.
    return to_host(trajectory)


def drawn(problem: Problem, key: PRNGKeyArray, steps: int, batch: int) -> PyTree:
    """Draw the steps + 1 batches of a run with this key, to pass to `train` as `data`."""
    key_data = loop.split_key(key)[1]
    check_draw(problem, key_data, batch)
    with jax.enable_x64(False):
        batches = problem_in(problem, "float32").batches(key_data, steps, batch)
        return jax.lax.map(batches, jnp.arange(steps + 1, dtype=jnp.int32))


def started(problem: Problem, key: PRNGKeyArray | None, init: PyTree, dtype: DType) -> Parts:
    """Return the starting weights in `dtype`; training and theory draw the same, in 32 bits."""
    if init is None:
        assert key is not None
        with jax.enable_x64(False):
            narrow, key_init = problem_in(problem, "float32"), loop.split_key(key)[0]
            check_repeats(narrow, "init", key_init)
            init = call_user(narrow, "init", key_init)
    return Parts.of(init, dtype, problem)


def problem_in(problem: ProblemT, dtype: DType) -> ProblemT:
    """Return the problem with its numbers in `dtype`."""
    numbers, rest = split(problem)
    return eqx.combine(narrowed(numbers, dtype), rest)


@eqx.filter_jit
def _run(
    numbers: Problem,
    rest: Problem,
    rule: Rule,
    key: PRNGKeyArray | None,
    data: PyTree,
    init: PyTree,
    shared: PyTree,
    times: Int[Array, " S"],
    limit: Array | None,
    checkpoint: Checkpoint | None,
    *,
    steps: int | None,
    batch: int | float,
    record: Recording,
    use_population: bool,
    segments: Segments | None,
    cpu: bool,
    dtype: DType,
) -> Trajectory:
    # Code that is faster on a CPU calls `on_cpu` while it is traced; `cpu` keeps programs apart.
    original = eqx.combine(numbers, rest)
    is_random = key is not None
    # Without a key nothing is random, and this one is not used.
    key = jax.random.key(0) if key is None else key
    key_init, key_data = loop.split_key(key)

    # Examples and starting weights are drawn in 32 bits in both precisions. `narrow` draws them;
    # `problem` has its numbers in the precision of the run.
    with jax.enable_x64(False):
        narrow = problem_in(original, "float32")
        narrow, shared = narrow.prepare(key, shared)
    problem, _ = problem_in(original, dtype).prepare(key, narrowed(shared, dtype))
    parts = started(original, key, init, dtype)
    groups = check_groups(problem, rule, parts)
    finite = data is not None or not math.isinf(batch)
    norms = tuple(name for name in NORMS if name in record.provided)
    counts = sharpness.eigenvalue_counts(record.provided)
    params, expand = parts.params, lambda params: params
    # Norms and the Hessian include all weights, so the compact form cannot be used.
    if finite and init is None and not norms and not counts:
        params, expand = problem.compact(params, rule)

    if finite and data is None:
        # By tracing alone, so that a wrong `draw` is an error before anything is compiled.
        check_draw(problem, key_data, int(batch))
        with jax.enable_x64(False):
            batches = call_user(narrow, "batches", key_data, steps, int(batch))
        if not callable(batches):
            raise ValueError(
                f"{type(problem).__name__}.batches: must return a function of the step, returned "
                f"{batches!r}"
            )

    def batch_of_step(k: Array) -> PyTree:
        if data is not None:
            # Without a batch for the final loss, the last one serves again.
            return jax.tree.map(lambda leaf: leaf[jnp.minimum(k, len(leaf) - 1)], data)
        with jax.enable_x64(False):
            drawn = batches(k)
        return narrowed(drawn, dtype)

    def batch_loss(params: PyTree, data: PyTree) -> Array:
        loss = call_user(problem, "loss", parts.combine(params), data)
        return check_loss(problem, "loss", loss, dtype)

    def gradient(params: PyTree, k: Array) -> tuple[Array, PyTree]:
        if not finite:
            return population(params)
        if problem.has("loss_and_gradient"):
            weights = parts.combine(params)
            return call_user(problem, "loss_and_gradient", weights, batch_of_step(k))
        return jax.value_and_grad(batch_loss)(params, batch_of_step(k))

    population = population_of(problem, parts)
    step = loop.by_rule(gradient, rule, key_init, groups, norms, problem.normal_noise)

    def observe(
        params: PyTree, memory: PyTree, k: Array, seen: tuple[PyTree, PyTree]
    ) -> tuple[dict[str, Array], tuple[PyTree, PyTree]]:
        model, (seen, vectors) = parts.combine(expand(params)), seen
        snapshot, seen = problem.snapshot_after(model, seen)
        values = measured(problem, record, model, snapshot)
        # The Hessian of the population loss, or of the next batch.
        slope = population if use_population else lambda params: gradient(params, k)

        def scaled(hessian: sharpness.Map) -> sharpness.Map:
            # The preconditioner of an adaptive rule is the one of the next update.
            after = step(params, memory, k)[1] if rule.is_adaptive else memory
            return preconditioned(hessian, rule, rule.rate(k), after, params, groups)

        eigenvalues, vectors = sharpness.record_sharpness(
            record.provided, slope, scaled, params, vectors, k
        )
        return {**values, **eigenvalues}, (seen, vectors)

    # Without a limit of the user or the problem, a run diverges at a multiple of a reference loss.
    highest = call_user(problem, "divergence_limit") if limit is None else limit
    if highest is None:
        # A single batch may have a tiny loss; the population has one loss.
        first = jnp.arange(FIRST if finite else 1)
        references = [params]
        if init is not None:
            # The same weights; `init` may lack integers and functions next to them.
            usual = jax.tree.leaves(started(original, key, None, dtype).params)
            references.append(jax.tree.unflatten(jax.tree.structure(params), usual))
        if rule.noise is not None:
            # The weights after a random walk of all steps by the rule's noise alone.
            end = times[-1] if steps is None else steps
            zero, k = jax.tree.map(jnp.zeros_like, params), jnp.asarray(end // 2, jnp.int32)
            noise = problem.normal_noise(loop.noise_key(key_init), k, zero)
            move, _ = rule.update(zero, rule.init(params), params, k, noise, groups)
            references.append(
                jax.tree.map(lambda p, m: p + jnp.sqrt(end).astype(p.dtype) * m, params, move)
            )
        losses = [jax.lax.map(lambda k, p=p: gradient(p, k)[0], first) for p in references]
        highest = highest_loss(*(jnp.abs(values).mean() for values in losses))

    trajectory = loop.train(
        params,
        initial_state(rule, params, groups, key_init if is_random else None),
        step,
        observe,
        times,
        steps=steps,
        segments=segments,
        steps_per_check=1 if cpu else STEPS_PER_CHECK,
        limit=jnp.asarray(highest, dtype),
        dtype=dtype,
        relative=record.relative,
        also=norms,
        seen=(
            problem.snapshot_after(parts.combine(parts.params), None)[1],
            sharpness.starting_vectors(params, counts),
        ),
        checkpoint=checkpoint,
    )
    observables = trajectory.observables
    if ETA_TIME in record.provided:
        table = rule.tabulated(trajectory.times if steps is None else steps)
        observables = {**observables, ETA_TIME: table.eta_time(trajectory.times)}
    # Functions among the weights are static, because programs return arrays alone.
    params, fixed = parts.split(expand(trajectory.params))
    return dataclasses.replace(
        trajectory, observables=observables, params=params, fixed=Static.of(fixed)
    )


def highest_loss(first: Float[Array, ""], *others: Float[Array, ""]) -> Float[Array, ""]:
    """Return the loss above which a run diverged: a multiple of the `first` loss, unless one of the
    `others` is higher than that; then the same multiple of this one. No finite loss is higher if
    all are 0."""
    usual = DIVERGENCE_GROWTH * first
    finite = (jnp.where(loss < jnp.inf, loss, 0) for loss in others)
    largest = jnp.max(jnp.stack([first, *finite]))
    highest = jnp.where(largest > usual, DIVERGENCE_GROWTH * largest, usual)
    return jnp.where(largest == 0, jnp.finfo(first.dtype).max, highest)
