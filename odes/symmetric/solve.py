"""Symmetric sequence classes: exact flows, at a cost without K and M.

Solves the population dynamics of Scan and Snap (section 3; batch -> infinity, eta -> 0) in the few
numbers of `odes.symmetric.reduction`, from zero weights: the same flows as those of
`odes.yz.population.solve`. What can be recorded is in `odes.symmetric.observables`; where the full
task is known as well, also what can be measured on its full weights.
"""

import math
from typing import NamedTuple

import jax
from jaxtyping import Array, Float, Real

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.precision import DType, Number, cast
from dynsim.training.recording import Record, Recording
from dynsim.training.rule import Rule, of_layer
from dynsim.trajectory import Times, Trajectory
from dynsim.yz import observables
from dynsim.yz.checks import theory_rule
from dynsim.yz.finite_length import Context, contextual
from dynsim.yz.observables import DEFAULT_RECORD
from odes.problem import flow_of_rule
from odes.solver.flows import checked_flow
from odes.solver.integrate import Derivatives, check_times, in_program
from odes.solver.tolerances import Tolerances, checked_tolerances
from odes.symmetric.observables import PLACED, TABLE, observe
from odes.symmetric.placement import Placed, placed
from odes.symmetric.saddle import Law, law_of
from odes.symmetric.state import State, SymmetricTask, zero_state
from odes.theory import Training, refusal


class Population(NamedTuple):
    """What the flow descends: the loss of a task's sequences, of finite length or not."""

    task: SymmetricTask
    context: Context


def solve(
    task: SymmetricTask | Placed | SequenceClasses,
    optimizer: Rule,
    times: Times,
    *,
    flow: str | None = None,
    length: Real[Number, ""] = math.inf,
    tails: bool = False,
    record: Record = DEFAULT_RECORD,
    dtype: DType = "float64",
    tolerances: Tolerances | None = None,
    derivatives: Derivatives = "reverse",
) -> Trajectory:
    """Integrate the population flow that belongs to `optimizer`, from zero weights.

    Args:
        task: from `symmetric_task`, `symmetric_profiles` or `merged`, at a cost without K and M;
            or from `placed`. Its numbers may be traced. Or concrete sequence classes, which are
            placed first.
        optimizer: as in `odes.yz.population.solve`.
        times: (S,) optimiser steps at which to record, increasing, >= 0; need not be whole.
        flow, length: as in `odes.yz.population.solve`.
        tails: with a finite length, average over sequences by a saddle point in place of the first
            order in 1/T, which late in training misses the rare sequences that make the loss.
        record: names from `OBSERVABLES`; for a task from `placed` as in `dynsim.train`, with
            an entry for each class and token, and those that the reduction has alone.
        dtype: "float64" or "float32".
        tolerances: of the solver; by default `DEFAULT_TOLERANCES[dtype]`.
        derivatives: which can be taken through the solve, "reverse" or "forward".

    Returns:
        A `Trajectory` with the final `State` as `params`, or the full weights of a task from
        `placed`; a solve that fails has another status than OK. The explicit solver is held by
        stability to steps of about 3/(1-mu) or 3/(1-b1), so with 0.9 momentum and Adam exhaust
        the default `max_steps` near t = 5e5.

    Raises:
        ValueError: naming the argument, its value and what is allowed, or the assumption of the
            reduction that fails, before compilation.
    """
    checks.kind("task", task, SymmetricTask, Placed, SequenceClasses)
    task = placed(task) if isinstance(task, SequenceClasses) else task
    optimizer = theory_rule(optimizer)
    reduced, full = _split(task, record)
    law = law_of(task.reduced if isinstance(task, Placed) else task, length, tails)
    chosen = checked_flow(optimizer, flow)
    check_times(times)
    return in_program(
        _solve,
        lambda: (
            task.astype(dtype),
            optimizer.astype(dtype),
            cast(times, dtype),
            contextual(length, dtype),
        ),
        (task, optimizer, times, length),
        dtype,
        flow=chosen,
        law=law,
        record=reduced,
        full=full,
        tolerances=checked_tolerances(tolerances, dtype),
        derivatives=derivatives,
    )


def inapplicable(training: Training) -> str | None:
    """Why the flow of sequence classes has no reduction, or None."""
    if getattr(training.problem, "start", "zero") != "zero":
        return "it starts from zero weights"
    return refusal(checked_flow, training.rule) or refusal(placed, training.problem)


def _split(task: SymmetricTask | Placed, record: Record) -> tuple[Recording, Recording]:
    """What is to be recorded of the reduced state, and on the full weights."""
    if isinstance(task, SymmetricTask):
        return TABLE.resolve(record), Recording(())
    every = PLACED.resolve(record).functions
    reduced = tuple(named for named in every if named[1] is TABLE.functions.get(named[0]))
    full = tuple(named for named in every if named not in reduced)
    return Recording(reduced), Recording(full)


def _solve(
    task: SymmetricTask | Placed,
    optimizer: Rule,
    times: Float[Array, " S"],
    context: Context,
    *,
    flow: str,
    law: Law,
    record: Recording,
    full: Recording,
    tolerances: Tolerances,
    derivatives: Derivatives,
) -> Trajectory:
    reduced = task.reduced if isinstance(task, Placed) else task

    def save(
        population: Population, state: State, t: Array
    ) -> tuple[dict[str, Array], State | None]:
        del t
        return observe(record, population.task, state), state if full.functions else None

    start = zero_state(reduced, times.dtype)
    solved, final = flow_of_rule(
        lambda population, state: law.gradient(state=state, **population._asdict()),
        Population(reduced, context),
        optimizer,
        of_layer(start),
        start,
        times,
        flow=flow,
        save=save,
        tolerances=tolerances,
        derivatives=derivatives,
    )
    saved, states = solved.saved
    if isinstance(task, Placed) and full.functions:
        # One time after the other: all weights at all times would take S M^2 numbers.
        saved |= jax.lax.map(
            lambda state: full(task.full, observables.measure(task.full, task.weights(state))),
            states,
        )
    if isinstance(task, Placed):
        final = task.weights(final)
    return solved.trajectory(law.name("symmetric", context is not None), final, saved)
