"""Theories for any problem: flows of the update rule, and closed-form formulas."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from dynsim import Problem, Rule, Trajectory
from dynsim.precision import DType
from dynsim.problem.base import built
from dynsim.problem.checks import Parts, usual
from dynsim.training.recording import Record, Recording, Table
from dynsim.training.rules import SGD, why_not_known
from dynsim.trajectory import Times
from odes.problem import (
    Reduction,
    flow,
    from_start,
    recorded_of_flow,
    solved,
)
from odes.solver.flows import FLOWS, checked_flow
from odes.solver.integrate import judge
from odes.solver.posed import Flow, why_not_described
from odes.solver.tolerances import Tolerances, checked_tolerances
from odes.theory import AnyTheory, Inapplicable, Theory, Training, always, reason, refusal

Formula: TypeAlias = Callable[[Any, PyTree, Array], Mapping[str, Array]]
"""(problem, starting weights, integral of the learning rate) -> observables by name."""


def flows(
    reduction: Reduction | None = None,
    tolerances: Tolerances | None = None,
    inapplicable: Inapplicable = always,
) -> tuple[AnyTheory, ...]:
    """Return the flow theories of the weights, or of the variables of a `reduction`.
    `inapplicable` returns reasons, besides the rule, why they do not describe a training."""

    def refused(training: Training, kind: Any) -> str | None:
        return refusal(checked_flow, training.rule, kind) or inapplicable(training)

    found: dict[str, Flow] = {}
    for each in FLOWS:
        found.setdefault(each.name, each)
    return tuple(
        Theory(
            each.name,
            each.title,
            f"batch -> infinity, {each.assumes}",
            functools.partial(flow, kind=each.name, reduction=reduction),
            functools.partial(refused, kind=each.name),
            variant=each.variant,
            needs=("key",) if reduction is None or reduction.from_weights else (),
            tolerances=tolerances,
        )
        for each in found.values()
    )


WHOLE: AnyTheory = Theory(
    "flow",
    "flow of all weights",
    "batch -> infinity, eta -> 0",
    flow,
    lambda training: (
        refusal(training.problem.check_population) or refusal(checked_flow, training.rule)
    ),
    variant=True,
    needs=("key",),
    at_once=1,
)
"""The flow of all weights. Unlike reduced flows, it can record the sharpness."""


def at(theory: AnyTheory, limit: str, **settings: Any) -> AnyTheory:
    """Return the theory for the problem with these `settings`, and with the text `limit` added to
    its assumptions."""

    def solve(problem: Problem, *args: Any, **options: Any) -> Trajectory:
        return theory.solve(dataclasses.replace(problem, **settings), *args, **options)

    return dataclasses.replace(theory, solve=solve, assumes=f"{limit}, {theory.assumes}")


def computed(
    name: str,
    title: str,
    assumes: str,
    solver: Callable[..., Trajectory],
    inapplicable: Inapplicable,
    *,
    needs: tuple[str, ...] = ("key",),
    adaptive: bool = True,
    recorded: Callable[[Problem, Record | None], Any] = recorded_of_flow,
    tolerances: Tolerances | None = None,
    **about: Any,
) -> AnyTheory:
    """Make a theory from your own solver, which is compiled and whose arguments are checked.

    Args:
        name, title, assumes, inapplicable, needs, adaptive: as in `Theory`.
        solver: `solver(training, start, times, record=..., tolerances=...)` returns the
            trajectory, in traced arrays of one precision. The `Training` has the batch and the
            steps if they are in `needs`. `start` are the starting weights, or None if "key" is not
            in `needs`. `record` is the result of `recorded`. `tolerances` is passed only to an
            `adaptive` theory.
        recorded: function of (problem, requested record) whose hashable result the solver gets.
        tolerances: tolerances of its solver, if not the defaults.
        **about: `variant`, `refused` and `predicts`, as in `Theory`.

    Raises:
        ValueError: from the theory's `solve`, with the reason, if it does not describe a training.

    Example:
        >>> def still(training, start, times, *, record, tolerances=None):
        ...     loss = jnp.full(len(times), training.problem.population_loss(start))
        ...     zero = jnp.zeros((), int)
        ...     return dynsim.Trajectory(times, {"loss": loss}, start, zero, zero - 1)
        ...
        >>> always = lambda training: None
        >>> theory = odes.computed("still", "nothing moves", "eta = 0", still, always)
    """
    usual_tolerances = tolerances

    def solve(
        problem: Problem,
        rule: Rule,
        times: Times,
        *,
        key: PRNGKeyArray | None = None,
        init: PyTree = None,
        batch: int | float = math.inf,
        steps: int | None = None,
        record: Record | None = None,
        dtype: DType = "float64",
        tolerances: Tolerances | None = None,
    ) -> Trajectory:
        problem, rule = built(problem, rule, dtype)
        if why := reason(inapplicable, Training(problem, rule, batch, steps)):
            raise ValueError(why)
        told = {name: each for name, each in (("batch", batch), ("steps", steps)) if name in needs}
        options = {"solver": solver, "record": recorded(problem, record), **told}
        if tolerances is not None and not adaptive:
            raise ValueError(f"tolerances: theory {name!r} has no adaptive solver; leave them out")
        if adaptive:
            options["tolerances"] = checked_tolerances(tolerances or usual_tolerances, dtype)
        options |= {"of_problem": _from_weights, "from_weights": "key" in needs}
        return solved(from_start, problem, rule, times, key, init, dtype, **options)

    about |= {"needs": needs, "adaptive": adaptive, "tolerances": usual_tolerances}
    return Theory(name, title, assumes, solve, inapplicable, **about)


def _from_weights(
    problem: Problem,
    parts: Parts | None,
    rule: Rule,
    times: Float[Array, " S"],
    *,
    solver: Callable[..., Trajectory],
    batch: int | float = math.inf,
    steps: int | None = None,
    **options: Any,
) -> Trajectory:
    start = None if parts is None else parts.whole(parts.params)
    return solver(Training(problem, rule, batch, steps), start, times, **options)


def closed_form(
    name: str,
    title: str,
    assumes: str,
    formula: Formula,
    *,
    inapplicable: Inapplicable = always,
    needs: tuple[str, ...] = (),
    names: tuple[str, ...] = (),
    refused: Mapping[str, str] | None = None,
    variant: bool = False,
) -> AnyTheory:
    r"""Make a theory from a closed-form formula in the integral of the learning rate.

    It describes SGD with any schedule, and momentum through the rate :math:`\eta / (1 - \mu)`.

    Args:
        name, title, assumes, refused, variant: as in `Theory`.
        formula: function of the problem, the starting weights and the number :math:`\int \eta\, dt`
            that returns observables by name. Starting weights are None unless it `needs` them.
        inapplicable: function that returns why it does not describe a `Training`, or None.
        needs: `("key",)` for a formula that depends on the starting weights.
        names: names of the observables; required if the formula cannot be evaluated for problems
            that it does not describe.

    Raises:
        ValueError: from the theory's `solve`, with the reason, if it does not describe a training.

    Example:
        >>> def decay(problem, init, time):
        ...     return {"loss": jnp.exp(-2 * time) * problem.population_loss(init)}
        ...
        >>> odes.closed_form("decay", "exponential decay", "quadratic loss", decay, needs=("key",))
    """

    def refuse(training: Training) -> str | None:
        return no_sgd(training.rule) or inapplicable(training)

    def at_one(problem: Problem) -> Mapping[str, Array]:
        # Make keys here, because importing must not touch a device.
        start = problem.init(jax.random.key(0)) if needs else None
        return formula(problem, start, jnp.ones(()))

    return computed(
        name,
        title,
        assumes,
        functools.partial(_evaluated, formula=formula, name=name),
        refuse,
        needs=needs,
        adaptive=False,
        variant=variant,
        **own_names(names, at_one, refused),
    )


def no_sgd(rule: Any, momentum: Literal["any", "none"] = "any") -> str | None:
    """Return why a theory of SGD with one rate for all weights does not describe a rule, or None.
    Momentum counts as a larger rate with "any", and is not described with "none"."""
    if reason := why_not_known(rule):
        return reason
    if set(rule.schedules) != {""}:
        return "eta: has a rate for each group; this theory needs one rate for all weights"
    return why_not_described(rule, "this theory", momentum=momentum)


def own_names(
    names: tuple[str, ...],
    evaluated: Callable[[Any], Mapping[str, Array]],
    refused: Mapping[str, str] | None,
) -> dict[str, Any]:
    """Return keyword arguments of `computed` for a theory that predicts the observables in `names`,
    or else those that `evaluated(problem)` returns. By default it records those in the problem's
    `RECORD`, or all if there are none; its solver turns them into a `Recording` with `resolved`."""
    out = tuple((refused or {}).items())

    def predicts(problem: Any) -> tuple[str, ...]:
        return names or tuple(jax.eval_shape(lambda: dict(evaluated(problem))))

    def recorded(problem: Problem, record: Record | None) -> Any:
        known = predicts(problem)
        found = (usual(problem, known) or known) if record is None else record
        return found if isinstance(found, str) else tuple(found), out

    return {"recorded": recorded, "refused": dict(out), "predicts": predicts}


def resolved(found: Iterable[str], asked: tuple[Any, tuple[tuple[str, str], ...]]) -> Recording:
    """Return the recording of the observables `found`, as requested through `own_names`."""
    record, refused = asked
    return Table({n: lambda row, n=n: row[n] for n in found}, refused=dict(refused)).resolve(record)


def _evaluated(
    training: Training,
    start: PyTree,
    times: Float[Array, " S"],
    *,
    formula: Formula,
    record: Any,
    name: str,
) -> Trajectory:
    rule = training.rule
    assert isinstance(rule, SGD)
    time = rule.eta_time(times) / (1 - jnp.asarray(rule.mu))
    found = jax.vmap(lambda each: dict(formula(training.problem, start, each)))(time)
    rows = resolved(found, record)(found)
    leaves = [x.reshape(len(times), -1) for x in jax.tree.leaves(found)]
    valid = jnp.isfinite(jnp.concatenate(leaves, axis=1)).all(axis=1)
    return Trajectory(times, rows, None, *judge(times, valid), name)
