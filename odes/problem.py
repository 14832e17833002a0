"""Flows of any problem down its population loss, for rules with schedules and weight decay.

The flows of `odes.solver.flows` use the rate of step k from k to k + 1: see
`dynsim.schedules.Table`. Coupled decay is part of the gradient; decoupled decay adds
-eta(t) lambda p to p'.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

import dynsim
from dynsim import Problem, Trajectory, checks
from dynsim.precision import DType
from dynsim.problem import sharpness
from dynsim.problem.build import built
from dynsim.problem.checks import Parts, check_groups, population_of
from dynsim.problem.observables import flow_table, measured, usual
from dynsim.problem.sharpness import preconditioned
from dynsim.problem.train import problem_in, started
from dynsim.training.recording import PARAMS, PRECONDITIONED, Record, Recording
from dynsim.training.rule import Rule, UpdateRule
from dynsim.trajectory import Static, Times
from odes.run import run
from odes.solver.flows import checked_flow, flow_of_rule
from odes.solver.posed import Gradient
from odes.solver.tolerances import Tolerances, checked_tolerances


class Reduction(NamedTuple):
    """Variables that replace groups of weights, when descent from the usual start keeps the weights
    of each group equal.

    Attributes:
        start: (problem, weights, dtype) -> the values at the start, a pytree. `weights` are the
            starting weights with `from_weights`, else None.
        gradient: (problem, variables) -> the derivative of the loss with respect to a single weight
            of each group.
        snapshot: (problem, variables) -> the arguments of the problem's observables.
        from_weights: whether `start` reads the starting weights, so that a run needs a key.

    Raises:
        ValueError: from the solve, for an observable that cannot be computed from the variables.

    Example:
        >>> theory = odes.theories(dynsim.Retrieval(length=32, d=16))["plain"]
        >>> run = theory.solve(dynsim.Retrieval(length=32, d=16), dynsim.sgd(1.0), [0, 50])
    """

    start: Callable[[Any, Any, DType], PyTree]
    gradient: Callable[[Any, PyTree], PyTree]
    snapshot: Callable[[Any, PyTree], tuple[Any, ...]]
    from_weights: bool = False


def flow(
    problem: Problem,
    rule: UpdateRule,
    times: Times,
    *,
    key: PRNGKeyArray | None = None,
    init: PyTree = None,
    kind: str | None = None,
    record: Record | None = None,
    dtype: DType = "float64",
    tolerances: Tolerances | None = None,
    reduction: Reduction | None = None,
) -> Trajectory:
    """Integrate the flow of a rule down `problem.population_loss`.

    Args:
        problem: a problem with a `population_loss`.
        rule: any rule that has a flow, with any schedules, rates by group, and coupled or decoupled
            decay, but without clipping and noise.
        times: (S,) optimiser steps at which to record, increasing, >= 0; need not be whole.
        key: random key of the starting weights, as in `dynsim.train`.
        init: starting weights, instead of random ones.
        kind: kind of flow, one of those in `odes.solver.flows`. The default is "plain" for SGD and
            sign descent, "matched" for these with either kind of momentum, "matched-rmsprop" for
            RMSprop and "matched-adam" for Adam.
        record: as in `dynsim.train`, without batch quantities; by default the problem's `RECORD`.
        dtype: "float64" or "float32".
        tolerances: tolerances of the solver.
        reduction: variables to integrate instead of all weights.

    Returns:
        A `Trajectory` as from `dynsim.train`, whose `source` is the kind of flow. With a reduction,
        `params` are its variables.

    Raises:
        ValueError: with the reason, if no flow describes the rule; for invalid arguments, with the
            argument, its value and the allowed values.

    Example:
        >>> rule = dynsim.sgd(dynsim.schedules.cosine(0.1, 1000), momentum=0.9, decay=1e-3)
        >>> theory = odes.flow(DeepLinear(), rule, [0, 100, 1000], key=jax.random.key(0))
    """
    problem, rule = built(problem, rule, dtype)
    if reduction is None and not problem.has("population_loss"):
        raise ValueError(f"{type(problem).__name__} needs population_loss for a flow")
    problem.check_population()
    chosen = checked_flow(rule, kind)
    recording = recorded_of_flow(problem, record, whole=reduction is None)
    if PRECONDITIONED in recording.provided and rule.is_adaptive:
        raise ValueError(f"record = {PRECONDITIONED!r}: for {rule.name}, only training records it")
    if reduction is not None:
        # "loss" falls back to `population_loss`, which takes all weights.
        if {"loss"} & dict(recording.functions).keys() - problem.observables().keys():
            raise ValueError(
                f"record = 'loss': {type(problem).__name__}.observables lacks it, and a reduction "
                "has no weights for `population_loss`"
            )
        if PARAMS in recording.provided:
            raise ValueError(f"record = {PARAMS!r}: this theory does not solve for all weights")
    return run(
        _solve,
        *(problem, rule, times, key, init, dtype),
        random=reduction is None or reduction.from_weights,
        kind=chosen,
        record=recording,
        tolerances=checked_tolerances(tolerances, dtype),
        reduction=reduction,
    )


def recorded_of_flow(problem: Problem, record: Record | None, whole: bool = False) -> Recording:
    """Return a flow's recording, by default the problem's `RECORD`; the sharpness needs `whole`
    weights. Other names raise `ValueError`."""
    table = flow_table(problem, whole)
    return table.resolve(usual(problem, table.functions) if record is None else record)


def _solve(
    problem: Problem,
    rule: Rule,
    key: PRNGKeyArray | None,
    init: PyTree,
    times: Float[Array, " S"],
    *,
    kind: str,
    record: Recording,
    tolerances: Tolerances,
    reduction: Reduction | None,
) -> Trajectory:
    dtype: Any = times.dtype.name
    # Starting weights are drawn in 32 bits, so this comes before the problem is converted.
    no_start = key is None and init is None
    parts: Any = None if no_start else started(problem, key, init, dtype)
    problem = problem_in(problem, dtype)
    # diffrax differentiates with respect to arrays only if they pass through its `args`.
    numbers, rest = eqx.partition(problem, eqx.is_array)
    if reduction is None:
        groups, start = check_groups(problem, rule, parts), parts.params
        gradient = gradient_of(parts, rest)
    else:
        groups, weights = None, parts.combine(parts.params) if reduction.from_weights else None
        functions = map(checks.of_user, reduction[:3])
        reduction = Reduction(*functions, from_weights=reduction.from_weights)
        start = reduction.start(problem, weights, dtype)
        gradient = lambda numbers, state: reduction.gradient(eqx.combine(numbers, rest), state)  # noqa: E731

    def save(numbers: Problem, params: PyTree, t: Array) -> dict[str, Array]:
        problem = eqx.combine(numbers, rest)
        if reduction is not None:
            return measured(problem, record, None, reduction.snapshot(problem, params))
        slope = population_of(problem, parts)
        # The edge of stability is that of the step in progress, so its rate counts.
        scaled = lambda hessian: preconditioned(  # noqa: E731
            hessian, rule, rule.rate(jnp.floor(t)), None, params, groups
        )
        begin = sharpness.starting_vectors(params, sharpness.eigenvalue_counts(record.provided))
        values, _ = sharpness.record_sharpness(record.provided, slope, scaled, params, begin)
        return {**measured(problem, record, parts.combine(params)), **values}

    solved, last = flow_of_rule(
        *(gradient, numbers, rule, groups, start, times),
        flow=kind,
        save=save,
        tolerances=tolerances,
        in_steps=PRECONDITIONED in record.provided,
    )
    if reduction is not None:
        return solved.trajectory(kind, last)
    params, fixed = parts.split(last)
    return dataclasses.replace(solved.trajectory(kind, params), fixed=Static.of(fixed))


def gradient_of(parts: Parts, rest: Problem) -> Gradient[PyTree]:
    """Return the population loss's gradient as a function of the problem's arrays and the trained
    weights; `rest` is the problem without its arrays."""

    def gradient(numbers: Problem, params: PyTree) -> PyTree:
        return population_of(eqx.combine(numbers, rest), parts)(params)[1]

    return gradient


def descent(problem: Problem, rule: UpdateRule, times: Times, **options: Any) -> Trajectory:
    """Descend `problem.population_loss` step by step in float64. Flows are the small-step limit.

    Args:
        problem, rule, times: as in `flow`; times are whole steps, and the run ends at the last one.
        **options: `key`, `init`, `record` and other options of `dynsim.train`.

    Raises:
        ValueError: as in `dynsim.train`.

    Example:
        >>> run = odes.descent(DeepLinear(), dynsim.sgd(0.1), [0, 5, 10], key=jax.random.key(0))
    """
    steps = int(list(times)[-1])
    options = {"dtype": "float64", "batch": float("inf")} | options
    return dynsim.train(problem, rule, steps=steps, times=times, **options)
