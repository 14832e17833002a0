"""Theories that problems have in common: flows of their rules, and formulas in closed form."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from dynsim import Problem, Rule, Trajectory, checks
from dynsim.precision import DType
from dynsim.problem.checks import Parts, usual
from dynsim.training.recording import Record, Recording, Table
from dynsim.training.rules import SGD, unread
from dynsim.trajectory import Times
from odes.problem import Reduction, check_arguments, compiled, flow, recorded_of_flow
from odes.solver.flows import DESCRIBED, checked_flow
from odes.solver.integrate import judge
from odes.solver.posed import Flow
from odes.solver.rescaled import undescribed
from odes.solver.tolerances import Tolerances, checked_tolerances
from odes.theory import Theory

Formula: TypeAlias = Callable[[Any, PyTree, Array], Mapping[str, Array]]
"""(problem, starting weights, integral of the learning rate) -> observables by name."""
TITLES: dict[Flow, tuple[str, bool]] = {
    "plain": ("flow of the weights", False),
    "matched": ("matched momentum flow", False),
    "corrected": ("flow corrected in eta", False),
    "matched-adam": ("matched Adam flow", False),
    "corrected-adam": ("Adam flow corrected in eta", True),
    "matched-rmsprop": ("matched RMSProp flow", False),
    "rescaled": ("flow at the rate eta / (1 - mu)", True),
    "heavy-ball": ("heavy-ball flow", True),
    "adam": ("Adam flow", True),
    "rmsprop": ("RMSProp flow", True),
}
"""Title of each flow of a built-in rule, and whether it is a variant of another one that is more
exact."""


def flows(
    reduction: Reduction | None = None,
    tolerances: Tolerances | None = None,
    inapplicable: Callable[[Any, Rule], str | None] = lambda problem, rule: None,
) -> tuple[Theory[Any, Any], ...]:
    """The theories that are flows of the weights, or of the variables of a `reduction`, in the
    steps of the rule; where they do not apply for more reasons than the rule, `inapplicable` says
    so."""

    def refused(problem: Any, rule: Any, kind: Any) -> str | None:
        try:
            checked_flow(rule, kind)
        except ValueError as error:
            return str(error)
        return inapplicable(problem, rule)

    return tuple(
        Theory(
            name,
            title,
            f"batch -> infinity, {DESCRIBED[name].assumes}",
            functools.partial(flow, kind=name, reduction=reduction),
            functools.partial(refused, kind=name),
            variant=variant,
            needs=() if reduction else ("key",),
            tolerances=tolerances,
        )
        for name, (title, variant) in TITLES.items()
    )


def at(theory: Theory[Any, Any], limit: str, **settings: Any) -> Theory[Any, Any]:
    """A theory of a problem with other settings than it has, a limit that it `assumes` too."""

    def solve(problem: Problem, *args: Any, **options: Any) -> Trajectory:
        return theory.solve(dataclasses.replace(problem, **settings), *args, **options)

    return dataclasses.replace(theory, solve=solve, assumes=f"{limit}, {theory.assumes}")


def without_inertia(
    name: str,
    title: str,
    assumes: str,
    reduction: Reduction,
    inapplicable: Callable[[Any, Rule], str | None] = lambda problem, rule: None,
) -> Theory[Any, Any]:
    """A theory of SGD that reads momentum as the rate eta / (1 - mu): variables that move by minus
    the `gradient` of the reduction times the learning rate."""

    def solve(problem: Problem, rule: Rule, times: Times, **options: Any) -> Trajectory:
        if reason := inapplicable(problem, rule):
            raise ValueError(reason)
        kind = "rescaled" if rule.has_inertia else "plain"
        found = flow(problem, rule, times, kind=kind, reduction=reduction, **options)
        return dataclasses.replace(found, source=name)

    def refused(problem: Any, rule: Any) -> str | None:
        return no_sgd(rule) or inapplicable(problem, rule)

    return Theory(name, title, assumes, solve, refused)


def computed(
    name: str,
    title: str,
    assumes: str,
    solver: Callable[..., Trajectory],
    inapplicable: Callable[[Any, Rule], str | None],
    *,
    needs: tuple[str, ...] = ("key",),
    adaptive: bool = True,
    recorded: Callable[[Problem, Record | None], Any] = recorded_of_flow,
) -> Theory[Any, Any]:
    """A theory with a solver of its own, which is compiled and has its arguments checked as flows
    have.

    Args:
        name, title, assumes, inapplicable, needs, adaptive: as of `Theory`.
        solver: `solver(problem, start, rule, times, record=..., tolerances=...)` returns the
            trajectory, in traced arrays of one precision. `start` are the starting weights, None
            unless it `needs` them; `record` is what `recorded` returns, and tolerances are left
            out unless it is `adaptive`.
        recorded: from (problem, what was asked for), hashable.
    """

    def solve(
        problem: Problem,
        rule: Rule,
        times: Times,
        *,
        key: PRNGKeyArray | None = None,
        init: PyTree = None,
        record: Record | None = None,
        dtype: DType = "float64",
        tolerances: Tolerances | None = None,
    ) -> Trajectory:
        checks.kind("problem", problem, Problem)
        if reason := inapplicable(problem, rule):
            raise ValueError(reason)
        check_arguments(problem, rule, times, key, init, starts=bool(needs))
        options: dict[str, Any] = {"solver": solver, "record": recorded(problem, record)}
        if tolerances is not None and not adaptive:
            raise ValueError(f"tolerances: theory {name!r} is solved without any")
        if adaptive:
            options["tolerances"] = checked_tolerances(tolerances, dtype)
        given = {"key": key, "init": init} if needs else {"key": None, "init": None}
        return compiled(_from_weights, problem, rule, times, dtype=dtype, **given, **options)

    return Theory(name, title, assumes, solve, inapplicable, needs=needs, adaptive=adaptive)


def _from_weights(
    problem: Problem,
    parts: Parts | None,
    rule: Rule,
    times: Float[Array, " S"],
    *,
    solver: Callable[..., Trajectory],
    **options: Any,
) -> Trajectory:
    start = None if parts is None else parts.whole(parts.params)
    return solver(problem, start, rule, times, **options)


def closed_form(
    name: str,
    title: str,
    assumes: str,
    formula: Formula,
    *,
    inapplicable: Callable[[Any, Rule], str | None] = lambda problem, rule: None,
    needs: tuple[str, ...] = (),
    names: tuple[str, ...] = (),
    refused: Mapping[str, str] | None = None,
    variant: bool = False,
) -> Theory[Any, Any]:
    r"""A theory that is a formula in the integral of the learning rate.

    It describes SGD with any schedule, and momentum by the rate :math:`\eta / (1 - \mu)`.

    Args:
        name, title, assumes, refused, variant: as of `Theory`.
        formula: from the problem, the starting weights and :math:`\int \eta\, dt`, a number, to
            observables by name. Starting weights are None unless it `needs` them.
        inapplicable: why it does not describe (problem, rule), or None.
        needs: `("key",)` for starting weights.
        names: of the observables; needed where the formula cannot be evaluated for a problem that
            it does not describe.

    Example:
        >>> def decay(problem, init, time):
        ...     return {"loss": jnp.exp(-2 * time) * problem.population_loss(init)}
        ...
        >>> odes.closed_form("decay", "exponential decay", "quadratic loss", decay, needs=("key",))
    """

    def refuse(problem: Any, rule: Any) -> str | None:
        return no_sgd(rule) or inapplicable(problem, rule)

    def recorded(problem: Problem, record: Record | None) -> Any:
        found = usual(problem, predicts(problem)) if record is None else record
        return found if isinstance(found, str) else tuple(found)

    def predicts(problem: Problem) -> tuple[str, ...]:
        if names:
            return names

        def at_one() -> Mapping[str, Array]:
            # A key is made here, because no device may be used before somebody computes.
            start = problem.init(jax.random.key(0)) if needs else None
            return dict(formula(problem, start, jnp.ones(())))

        return tuple(jax.eval_shape(at_one))

    found = computed(
        name,
        title,
        assumes,
        functools.partial(
            _evaluated, formula=formula, refused=tuple((refused or {}).items()), name=name
        ),
        refuse,
        needs=needs,
        adaptive=False,
        recorded=recorded,
    )
    return dataclasses.replace(found, variant=variant, refused=refused or {}, predicts=predicts)


def no_sgd(rule: Any) -> str | None:
    """Why a theory of SGD, which reads momentum as a rate, does not describe a rule."""
    if reason := unread(rule):
        return reason
    if set(rule.schedules) != {""}:
        return "eta: has rates by group; this theory describes one for all weights"
    return undescribed(rule, "this theory")


def _evaluated(
    problem: Problem,
    start: PyTree,
    rule: Rule,
    times: Float[Array, " S"],
    *,
    formula: Formula,
    record: Any,
    refused: tuple[tuple[str, str], ...],
    name: str,
) -> Trajectory:
    assert isinstance(rule, SGD)
    time = rule.eta_time(times) / (1 - jnp.asarray(rule.mu))
    found = jax.vmap(lambda each: dict(formula(problem, start, each)))(time)
    table = Table({n: lambda row, n=n: row[n] for n in found}, refused=dict(refused))
    recording: Recording = table.resolve(record)
    rows = recording(found)
    leaves = [x.reshape(len(times), -1) for x in jax.tree.leaves(found)]
    valid = jnp.isfinite(jnp.concatenate(leaves, axis=1)).all(axis=1)
    return Trajectory(times, rows, None, *judge(times, valid), name)
