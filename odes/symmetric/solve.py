"""Symmetric sequence classes: exact flows and descent, at a cost independent of K and M.

`solve` integrates the population dynamics of Scan and Snap (section 3; batch -> infinity, eta -> 0)
in the variables of `odes.symmetric.reduction`, from zero weights. The flows are those of
`odes.yz.population.solve`. If the full task is given, observables of the full weights can be
recorded too. `descend` makes the steps of `dynsim.train` in the same variables: exactly for an
infinite batch, and within the approximations of `odes.symmetric.finite_length` for a finite one.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, Real

from dynsim import checks
from dynsim.classes.task import Task
from dynsim.precision import DType, Number, cast
from dynsim.training.loop import DIVERGED_LOSS, by_rule, train
from dynsim.training.recording import Record, Recording
from dynsim.training.rule import Rule, of_layer
from dynsim.training.rules import check_known
from dynsim.training.steps import Segments, checked_times, segments_of
from dynsim.trajectory import Times, Trajectory
from dynsim.yz import observables
from dynsim.yz.finite_length import Context, contextual
from dynsim.yz.layer import Layer, as_layer
from dynsim.yz.observables import DEFAULT_RECORD
from odes.problem import flow_of_rule
from odes.run import check_times, dtype_of, in_program
from odes.solver.flows import checked_flow
from odes.solver.integrate import Derivatives
from odes.solver.tolerances import Tolerances, checked_tolerances
from odes.symmetric import finite_length
from odes.symmetric.finite_length import LossLaw, law_of
from odes.symmetric.reduction import DESCENDED, FULL_TABLE, TABLE, TaskPair, observe, with_full_task
from odes.symmetric.state import State, SymmetricTask, columns, zero_state
from odes.theory import Training, error_message


def solve(
    task: SymmetricTask | TaskPair | Layer | Task,
    optimizer: Rule,
    times: Times,
    *,
    flow: str | None = None,
    length: Real[Number, ""] | None = math.inf,
    tails: bool = False,
    init: PyTree = None,
    record: Record = DEFAULT_RECORD,
    dtype: DType = "float64",
    tolerances: Tolerances | None = None,
    derivatives: Derivatives = "reverse",
) -> Trajectory:
    """Integrate the population flow that belongs to `optimizer`, from zero weights.

    Args:
        task: from `symmetric_task`, `symmetric_profiles` or `merged`, at a cost independent of K
            and M; or from `with_full_task`. Its numbers may be traced. A layer, sequence classes,
            or a description of them, which are concrete, are passed to `with_full_task` first.
        optimizer: as in `odes.yz.population.solve`.
        times: (S,) optimiser steps at which to record, increasing, >= 0; need not be whole.
        flow, length: as in `odes.yz.population.solve`; the length may be traced.
        tails: for a finite length, average over sequences with a saddle-point approximation instead
            of expanding to first order in 1/T. The expansion misses the rare sequences that
            dominate the loss late in training.
        init: must be None, because the reduction starts from zero weights.
        record: names from `OBSERVABLES`; for a task from `with_full_task` those of `dynsim.train`,
            with an entry for each class and token, and the reduction's own.
        dtype: "float64" or "float32".
        tolerances: tolerances of the solver; by default `DEFAULT_TOLERANCES[dtype]`.
        derivatives: kind of derivatives that the solve supports, "reverse" or "forward".

    Returns:
        A `Trajectory` with the final `State` as `params`, or with the full weights for a task from
        `with_full_task`. Its status is not OK if the solve failed. Stability limits the explicit
        solver to steps of about 3/(1-mu) or 3/(1-b1), so momentum or Adam with 0.9 exhausts the
        default `max_steps` near t = 5e5.

    Raises:
        ValueError: before compilation, naming the invalid argument, its value and the allowed
            values, or the assumption of the reduction that fails.
    """
    if init is not None:
        raise ValueError("init: the symmetric reduction starts from zero weights; leave it out")
    checks.kind("task", task, SymmetricTask, TaskPair, Layer, Task)
    if isinstance(task, Layer | Task):
        layer = as_layer(task)
        task, length = with_full_task(layer.classes), layer.length if length is None else length
    T: Any = getattr(task, "length", 128) if length is None else length
    optimizer = theory_rule(optimizer)
    if isinstance(task, SymmetricTask):
        reduced, full = TABLE.resolve(record), Recording(())
    else:
        # What the reduction has itself is recorded there, the rest from the full weights.
        functions = FULL_TABLE.resolve(record).functions
        reduced = Recording(tuple(f for f in functions if f[1] is TABLE.functions.get(f[0])))
        full = Recording(tuple(f for f in functions if f not in reduced.functions))
    law = law_of(task.reduced if isinstance(task, TaskPair) else task, T, tails)
    check_times(times)
    return in_program(
        _solve,
        lambda: (
            task.astype(dtype),
            optimizer.astype(dtype).tabulated(times),
            cast(times, dtype),
            contextual(T, dtype),
        ),
        (task, optimizer, times, T),
        dtype,
        flow=checked_flow(optimizer, flow),
        law=law,
        record=reduced,
        full=full,
        tolerances=checked_tolerances(tolerances, dtype),
        derivatives=derivatives,
    )


def theory_rule(rule: Rule) -> Rule:
    """Return the rule with rates for Y and Z. Raises `ValueError` if `rule` is not a rule or has
    rates for other groups."""
    check_known(rule)
    return rule.of_groups("Y", "Z")


def inapplicable(training: Training) -> str | None:
    """Return why the flow of sequence classes has no reduction, or None."""
    if getattr(training.problem, "start", "zero") != "zero":
        return "it starts from zero weights"
    return error_message(checked_flow, training.rule) or error_message(
        with_full_task, training.problem.classes
    )


def _solve(
    task: SymmetricTask | TaskPair,
    optimizer: Rule,
    times: Float[Array, " S"],
    context: Context,
    *,
    flow: str,
    law: LossLaw,
    record: Recording,
    full: Recording,
    tolerances: Tolerances,
    derivatives: Derivatives,
) -> Trajectory:
    reduced = task.reduced if isinstance(task, TaskPair) else task

    def save(
        population: tuple[SymmetricTask, Context], state: State, t: Array
    ) -> tuple[dict[str, Array], State | None]:
        del t
        return observe(record, population[0], state), state if full.functions else None

    start = zero_state(reduced, times.dtype)
    solved, final = flow_of_rule(
        lambda population, state: law.gradient(population[0], state, population[1]),
        (reduced, context),
        optimizer,
        of_layer(start),
        start,
        times,
        flow=flow,
        save=save,
        tolerances=tolerances,
        derivatives=derivatives,
    )
    # The solve saves states, and the weights follow from them one time after another: those of all
    # times would take up S M^2 numbers.
    saved, states = solved.saved
    if isinstance(task, TaskPair) and full.functions:
        saved |= jax.lax.map(
            lambda state: full(task.full, observables.measure(task.full, task.weights(state))),
            states,
        )
    if isinstance(task, TaskPair):
        final = task.weights(final)
    return solved.trajectory(law.name("symmetric", context is not None), final, saved)


def descend(
    task: SymmetricTask,
    optimizer: Rule,
    *,
    steps: int,
    length: Real[Number, ""] = math.inf,
    tails: bool = False,
    batch: Real[Number, ""] = math.inf,
    key: PRNGKeyArray | None = None,
    classes: int = 2,
    times: Times | None = None,
    record: Record = DEFAULT_RECORD,
    dtype: DType = "float64",
) -> Trajectory:
    """Descend the population loss step by step from zero weights, with or without batch noise.

    Args:
        task, length, tails, dtype: as in `solve`.
        record: as in `solve`, or "relative_loss" as in `dynsim.train`.
        optimizer: any rule without clipping and noise. If its numbers have shape (B,), B runs are
            solved at once. This equals `jax.vmap` and is several times faster on a CPU.
        steps: number of optimiser steps, >= 1.
        batch: number B of sequences per step; if finite, each step has the noise of such a batch
            (`odes.symmetric.finite_length`). The tokens of a `merged` task share their noise, so
            that it cannot break ties between them; use a task that is not merged.
        key: random key of that noise, the seed of the run.
        classes: with noise, the number of classes to simulate, at most K. Recorded quantities are
            means over these; the cost grows with their number.
        times: (S,) whole steps at which to record, increasing, in [0, steps]; by default
            `log_times(steps)`.

    Returns:
        A `Trajectory` with the final `State` as `params` and a status as in `dynsim.train`. With
        noise, every entry of the state has a last axis of size `classes`. If the optimiser's
        numbers have shape (B,), everything has a leading axis (B,).

    Raises:
        ValueError: before compilation, naming the argument, its value and the allowed values.
    """
    checks.kind("task", task, SymmetricTask)
    optimizer = theory_rule(optimizer)
    if not optimizer.is_elementwise:
        raise ValueError(
            f"optimizer = {optimizer!r}: must act weight by weight, without clipping and noise, as "
            "the reduction requires"
        )
    steps = checks.steps("steps", steps)
    law = law_of(task, length, tails)
    recording = DESCENDED.resolve(record)
    times = checked_times(times, steps, recording)
    segments = segments_of(times, steps)
    many = np.broadcast_shapes(*(np.shape(number) for number in jax.tree.leaves(optimizer)))
    if len(many) > 1:
        raise ValueError(f"optimizer: its numbers have shape {many}: must be scalars or (B,)")
    noisy = checks.is_traced(batch) or not math.isinf(batch)
    if noisy:
        checks.real("batch", batch, 1)
        if key is None:
            raise ValueError(f"key = None: batch = {batch} is drawn at random; pass a key")
        checks.integer("classes", classes, 1)
        if not checks.is_traced(task.K) and classes > int(task.K):
            raise ValueError(f"classes = {classes}: must be at most K = {int(task.K)}")
        if tails:
            raise ValueError("tails = True: noise is of first order in 1/T; use batch = inf")
    return in_program(
        _descend,
        lambda: (
            task.astype(dtype),
            optimizer.astype(dtype),
            contextual(length, dtype),
            finite_length.Batches(key, cast(batch, dtype)) if noisy and key is not None else None,
            cast(times, np.int32),
        ),
        (task, optimizer, length, batch),
        dtype,
        many=many,
        steps=steps,
        segments=segments,
        record=recording,
        law=law,
        classes=classes,
    )


def _descend(
    task: SymmetricTask,
    optimizer: Rule,
    context: Context,
    batches: finite_length.Batches | None,
    times: Int[Array, " S"],
    *,
    many: tuple[int, ...],
    steps: int,
    segments: Segments | None,
    record: Recording,
    law: LossLaw,
    classes: int,
) -> Trajectory:
    # Axes of every array, from front to back: kinds of tokens, simulated classes, runs. With runs
    # as the last axis each operation is one long loop on a CPU; `jax.vmap` would move it to the
    # front. Without noise all classes are alike, one represents them, and their axis is left out.
    (runs,) = many or (1,)
    dtype = dtype_of(jax.tree.leaves(optimizer)[0])
    optimizer = jax.tree.map(lambda number: jnp.broadcast_to(number, (runs,)), optimizer)
    over_runs = functools.partial(jax.vmap, in_axes=-1, out_axes=-1)
    of_classes = () if batches is None else (classes,)
    start = jax.tree.map(
        lambda leaf: jnp.zeros((*leaf.shape, *of_classes, runs), leaf.dtype),
        zero_state(task, dtype),
    )
    # Numbers of the task get an axis of size 1, which broadcasts over the runs.
    wide = columns(task, 1)

    # G of the reduced numbers x, per full parameter: each of the n_x equal entries of Y or Z moves
    # by the same G. With noise it is (1 + zeta_n) (G + H (0, epsilon)) in each class n.
    def loss_and_grad(state: State, k: Array) -> tuple[Array, State]:
        if batches is not None:
            noise = finite_length.draw_noise(task, batches, context, classes, k[0])
            return finite_length.noisy_loss_and_gradient(task, state, context, noise)
        return law.loss(wide, state, context), law.gradient(wide, state, context)

    # (x, m) <- U(x, m, G(x)), the step of `dynsim.train` with the rule as it is: an elementwise
    # rule does to one number what it does to all entries that it represents.
    def step(state: State, memory: PyTree, k: Array) -> tuple[PyTree, ...]:
        # Schedules take the numbers of one run.
        rates = jax.vmap(lambda rule: rule.rate(k))(optimizer)
        rule = dataclasses.replace(optimizer, eta=rates)
        rule_step = by_rule(loss_and_grad, rule, groups=of_layer(state))
        return rule_step(state, memory, jnp.broadcast_to(k, runs))

    # Observables of one run; with noise, the mean of those of its classes.
    def seen(state: State) -> dict[str, Array]:
        if batches is None:
            return observe(record, task, state)
        by_class = jax.vmap(functools.partial(observe, record, task), -1, -1)(state)
        return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=-1), by_class)

    # Numbers (runs,) broadcast against vectors (kinds, runs), which a user may have forbidden.
    with jax.numpy_rank_promotion("allow"):
        trajectory = train(
            start,
            over_runs(lambda optimizer, state: optimizer.init(state))(optimizer, start),
            step,
            lambda state, memory, k, before: (over_runs(seen)(state), before),
            times,
            steps=steps,
            segments=segments,
            limit=DIVERGED_LOSS * jnp.log(task.M),
            dtype=dtype,
            relative=record.relative,
            batch=(runs,),
        )
    # Users get runs as the first axis, as from `jax.vmap`.
    rows, state = jax.tree.map(
        lambda leaf: jnp.moveaxis(leaf, -1, 0), (trajectory.observables, trajectory.params)
    )
    of_runs = Trajectory(
        jnp.broadcast_to(trajectory.times, (runs, *times.shape)),
        rows,
        state,
        trajectory.status,
        trajectory.first_bad_step,
        "symmetric-noise"
        if batches is not None
        else law.name("symmetric-descent", context is not None),
    )
    return of_runs if many else jax.tree.map(lambda leaf: leaf[0], of_runs)
