"""Flows of any problem down its population loss, for rules with schedules and weight decay.

A flow of `odes.solver.flows` reads the rate of step k from k to k + 1, as eta(t - 1/2): see
`dynsim.schedules`. A jump of the rate, or of its slope, is told to the solver. Coupled
decay is part of the gradient; decoupled decay adds -eta(t) lambda p to p'.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

import dynsim
from dynsim import Problem, Trajectory
from dynsim.precision import DType, Result, cast, placed
from dynsim.problem import sharpness
from dynsim.problem.base import built, split
from dynsim.problem.checks import (
    Parts,
    check_groups,
    check_init,
    check_single,
    flow_table,
    measured,
    population_of,
    usual,
)
from dynsim.problem.sharpness import preconditioned
from dynsim.problem.train import problem_in, started
from dynsim.training.recording import PARAMS, PRECONDITIONED, Record, Recording
from dynsim.training.rule import Rule, UpdateRule
from dynsim.trajectory import Static, Times
from odes.solver.flows import checked_flow, flow_of_rule
from odes.solver.integrate import check_times, in_program
from odes.solver.posed import Gradient
from odes.solver.tolerances import Tolerances, checked_tolerances


class Reduction(NamedTuple):
    """Variables, fewer than the weights, each of which stands for weights that descent from the
    usual start keeps equal.

    Attributes:
        start: (problem, weights, dtype) -> the values at the start, a pytree. `weights` are the
            starting weights with `from_weights`, else None.
        gradient: (problem, variables) -> the derivative of the loss with respect to a single weight
            of each kind.
        snapshot: (problem, variables) -> the arguments of the problem's observables.
        from_weights: whether `start` reads the starting weights, so that a run needs a key.

    Raises:
        ValueError: when it is solved, for an observable that cannot be computed from its variables.

    Example:
        >>> theory = odes.theories(dynsim.retrieval(length=32, d=16))["plain"]
        >>> found = theory.solve(dynsim.retrieval(length=32, d=16), dynsim.sgd(1.0), [0, 50])
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
            decay; without clipping and noise.
        times: (S,) optimiser steps at which to record, increasing, >= 0; need not be whole.
        key: random key of the starting weights, as in `dynsim.train`.
        init: starting weights that replace these.
        kind: by default "plain" for SGD and sign descent, "matched" for these with momentum of
            either kind, "matched-rmsprop" and "matched-adam"; `odes.solver.flows` has all of them.
        record: as in `dynsim.train`, except quantities of a batch; by default the `RECORD` of the
            problem.
        dtype: "float64" or "float32".
        tolerances: tolerances of the solver.
        reduction: variables to integrate in place of all weights.

    Returns:
        A `Trajectory`, as `dynsim.train` returns it, whose `source` is the kind of flow. With a
        reduction, `params` are its variables.

    Raises:
        ValueError: with the reason, for a rule that no flow describes; and naming the argument, its
            value and what is allowed.

    Example:
        >>> rule = dynsim.sgd(dynsim.schedules.cosine(0.1, 1000), momentum=0.9, decay=1e-3)
        >>> theory = odes.flow(DeepLinear(), rule, [0, 100, 1000], key=jax.random.key(0))
    """
    problem, rule = built(problem, rule)
    if reduction is None and not problem.has("population_loss"):
        raise ValueError(f"{type(problem).__name__} needs population_loss for a flow")
    problem.check_population()
    chosen = checked_flow(rule, kind)
    starts = reduction is None or reduction.from_weights
    check_arguments(problem, rule, times, key, init, starts=starts)
    recording = recorded_of_flow(problem, record, whole=reduction is None)
    if PRECONDITIONED in recording.provided and rule.is_adaptive:
        raise ValueError(f"record = {PRECONDITIONED!r}: for {rule.name}, only training records it")
    lacking = {"loss"} & dict(recording.functions).keys() - problem.observables().keys()
    if reduction is not None and lacking:
        raise ValueError(
            f"record = 'loss': {type(problem).__name__}.observables lacks it, and a reduction has "
            "no weights for `population_loss`"
        )
    if reduction is not None and PARAMS in recording.provided:
        raise ValueError(f"record = {PARAMS!r}: this theory does not solve for all weights")
    return in_own_program(
        from_start,
        *(problem, rule, times, key if starts else None, init if starts else None, dtype),
        of_problem=_solve,
        kind=chosen,
        record=recording,
        tolerances=checked_tolerances(tolerances, dtype),
        reduction=reduction,
    )


def recorded_of_flow(problem: Problem, record: Record | None, whole: bool = False) -> Recording:
    """What a flow records of a problem, by default its `RECORD`, and with `whole` weights the
    sharpness; `ValueError` for other names."""
    table = flow_table(problem, whole)
    return table.resolve(usual(problem, table.functions) if record is None else record)


def in_own_program(
    solve: Callable[..., Result],
    problem: Problem,
    rule: Rule,
    times: Times,
    key: PRNGKeyArray | None,
    init: PyTree,
    dtype: DType,
    *numbers: PyTree,
    **options: Any,
) -> Result:
    """What `solve(problem, rule, key, init, times, *numbers, **options)` returns, in a program of
    its own whose arrays are in `dtype`; of the problem, what `split` finds is traced."""
    traced, static = split(problem)
    return in_program(
        solve,
        lambda: (
            eqx.combine(placed(traced), static),
            rule.astype(dtype),
            key,
            placed(init),
            cast(times, dtype),
            *jax.tree.map(lambda number: cast(number, dtype), numbers),
        ),
        (problem, rule, times, key, init, numbers),
        dtype,
        **options,
    )


def check_arguments(
    problem: Problem,
    rule: Rule,
    times: Times,
    key: PRNGKeyArray | None,
    init: PyTree,
    *,
    starts: bool,
) -> None:
    """Raise `ValueError` for numbers that have axes, for starting weights or times that cannot be,
    and for no starting weights where a theory `starts` from them."""
    check_single("rule", rule)
    check_init(problem, init)
    if starts and key is None and init is None:
        raise ValueError("key = None: starting weights are random; pass a key, or `init`")
    check_times(times)


def from_start(
    given: Problem,
    rule: Rule,
    key: PRNGKeyArray | None,
    init: PyTree,
    times: Float[Array, " S"],
    *,
    of_problem: Callable[..., Trajectory],
    **options: Any,
) -> Trajectory:
    """What `of_problem(problem, start, rule, times, **options)` returns, for `in_own_program`;
    `start` are the `Parts` of the starting weights, None without `key` and `init`."""
    dtype: Any = times.dtype.name
    start = None if key is None and init is None else started(given, key, init, dtype)
    return of_problem(problem_in(given, dtype), start, rule, times, **options)


def _solve(
    problem: Problem,
    parts: Any,
    rule: Rule,
    times: Float[Array, " S"],
    *,
    kind: str,
    record: Recording,
    tolerances: Tolerances,
    reduction: Reduction | None,
) -> Trajectory:
    numbers, rest = eqx.partition(problem, eqx.is_array)
    if reduction is None:
        groups, start = check_groups(problem, rule, parts), parts.params
        gradient = gradient_of(parts, rest)
    else:
        dtype: Any = times.dtype.name
        groups, weights = None, parts.whole(parts.params) if reduction.from_weights else None
        start = reduction.start(problem, weights, dtype)
        gradient = lambda numbers, state: reduction.gradient(eqx.combine(numbers, rest), state)  # noqa: E731

    def save(numbers: Problem, params: PyTree, t: Array) -> dict[str, Array]:
        problem = eqx.combine(numbers, rest)
        if reduction is not None:
            return measured(problem, record, None, reduction.snapshot(problem, params))
        slope = population_of(problem, parts)
        scaled = lambda hessian: preconditioned(  # noqa: E731
            hessian, rule, rule.flow_rate(t), None, params, groups
        )
        begin = sharpness.start(params, sharpness.asked(record.provided))
        values, _ = sharpness.recorded(record.provided, slope, scaled, params, begin)
        return {**measured(problem, record, parts.whole(params)), **values}

    options: Any = {"flow": kind, "save": save, "tolerances": tolerances}
    solved, last = flow_of_rule(gradient, numbers, rule, groups, start, times, **options)
    if reduction is not None:
        return solved.trajectory(kind, last)
    params, fixed = parts.apart(last)
    return dataclasses.replace(solved.trajectory(kind, params), fixed=Static.of(fixed))


def gradient_of(parts: Parts, rest: Problem) -> Gradient[PyTree]:
    """The gradient of the population loss, from the arrays of a problem and the trained weights;
    `rest` is what of the problem is no array."""

    def gradient(numbers: Problem, params: PyTree) -> PyTree:
        return population_of(eqx.combine(numbers, rest), parts)(params)[1]

    return gradient


def descent(problem: Problem, rule: Any, times: Times, **options: Any) -> Trajectory:
    """Descent on `problem.population_loss`, step by step in float64: flows are its limit of small
    steps.

    Args:
        problem, rule, times: as in `flow`; times are whole steps, and the last one is the end.
        **options: `key`, `init`, `record` and others of `dynsim.train`.

    Raises:
        ValueError: as `dynsim.train`.

    Example:
        >>> run = odes.descent(DeepLinear(), dynsim.sgd(0.1), [0, 5, 10], key=jax.random.key(0))
    """
    steps = int(list(times)[-1])
    options = {"dtype": "float64", "batch": float("inf")} | options
    return dynsim.train(problem, rule, steps=steps, times=times, **options)
