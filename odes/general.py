"""Theories for any problem: flows of the update rule, and closed-form formulas."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from dynsim import Problem, Rule, Trajectory, checks
from dynsim.precision import DType
from dynsim.problem.build import built
from dynsim.problem.observables import usual
from dynsim.problem.train import problem_in, started
from dynsim.training.recording import Record, Table
from dynsim.training.rules import SGD, why_not_known
from dynsim.trajectory import Times
from odes.problem import Reduction, flow, recorded_of_flow
from odes.run import run
from odes.solver.flows import FLOWS, checked_flow
from odes.solver.integrate import judge
from odes.solver.posed import Flow, why_not_described
from odes.solver.tolerances import Tolerances, checked_tolerances
from odes.theory import (
    AnyTheory,
    Inapplicable,
    Theory,
    Training,
    describes_all,
    error_message,
    reason_unless_traced,
)

Formula: TypeAlias = Callable[[Any, PyTree, Array], Mapping[str, Array]]
"""(problem, starting weights, integral of the learning rate) -> observables by name."""


def flows(
    reduction: Reduction | None = None,
    tolerances: Tolerances | None = None,
    inapplicable: Inapplicable = describes_all,
) -> tuple[AnyTheory, ...]:
    """Return the flow theories of the weights, or of the variables of a `reduction`.
    `inapplicable` returns reasons, besides the rule, why they do not describe a training."""

    def why_not(training: Training, kind: str) -> str | None:
        return error_message(checked_flow, training.rule, kind) or inapplicable(training)

    # Flows of other rules may have the same name, for which one theory is enough: `flow` picks the
    # one of the rule.
    by_name: dict[str, Flow] = {}
    for of_rule in FLOWS:
        by_name.setdefault(of_rule.name, of_rule)
    return tuple(
        Theory(
            name,
            first.title,
            f"batch -> infinity, {first.assumes}",
            functools.partial(flow, kind=name, reduction=reduction),
            functools.partial(why_not, kind=name),
            variant=first.variant,
            needs=("key",) if reduction is None or reduction.from_weights else (),
            tolerances=tolerances,
        )
        for name, first in by_name.items()
    )


WHOLE: AnyTheory = Theory(
    "flow",
    "flow of all weights",
    "batch -> infinity, eta -> 0",
    flow,
    lambda training: (
        error_message(training.problem.check_population)
        or error_message(checked_flow, training.rule)
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
    tolerances: Tolerances | None = None,
    predicts: Callable[[Any], tuple[str, ...]] | None = None,
    **about: Any,
) -> AnyTheory:
    """Make a theory from your own solver, which is compiled and whose arguments are checked.

    Args:
        name, title, assumes, inapplicable, needs, adaptive, predicts: as in `Theory`.
        solver: `solver(training, start, times, record=..., tolerances=...)` returns the
            trajectory, in traced arrays of one precision. The `Training` has the batch and the
            steps if they are in `needs`. `start` are the starting weights, or None if "key" is not
            in `needs`. `record` is a `Recording` of the problem's observables, or the requested
            names for a theory that `predicts` names of its own, see `rows`. `tolerances` is passed
            only to an `adaptive` theory.
        tolerances: tolerances of its solver, if not the defaults.
        **about: `variant`, `refused` and `memory`, as in `Theory`.

    Raises:
        ValueError: from the theory's `solve`, with the reason, if it does not describe a training.

    Example:
        >>> def still(training, start, times, *, record, tolerances=None):
        ...     loss = jnp.full(len(times), training.problem.population_loss(start))
        ...     zero = jnp.zeros((), int)
        ...     return dynsim.Trajectory(times, {"loss": loss}, start, zero, zero - 1)
        ...
        >>> describes_all = lambda training: None
        >>> theory = odes.computed("still", "nothing moves", "eta = 0", still, describes_all)
    """
    default_tolerances, solver = tolerances, checks.of_user(solver)

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
        if why := reason_unless_traced(inapplicable, Training(problem, rule, batch, steps)):
            raise ValueError(why)
        if tolerances is not None and not adaptive:
            raise ValueError(f"tolerances: theory {name!r} has no adaptive solver; leave them out")
        # A static option that the solver does not use would compile it again.
        options: dict[str, Any] = {
            option: value
            for option, value in (("batch", batch), ("steps", steps))
            if option in needs
        }
        if adaptive:
            options["tolerances"] = checked_tolerances(tolerances or default_tolerances, dtype)
        if predicts is None:
            options["record"] = recorded_of_flow(problem, record)
        else:
            if record is None:
                names = predicts(problem)
                # None of the problem's usual names, if the theory predicts only its own.
                record = usual(problem, names) or names
            options["record"] = record if isinstance(record, str) else tuple(record)
        options |= {"random": "key" in needs, "solver": solver}
        return run(of_training, problem, rule, times, key, init, dtype, **options)

    about |= {"needs": needs, "adaptive": adaptive, "tolerances": default_tolerances}
    return Theory(name, title, assumes, solve, inapplicable, predicts=predicts, **about)


def of_training(
    problem: Problem,
    rule: Rule,
    key: PRNGKeyArray | None,
    init: PyTree,
    times: Float[Array, " S"],
    *,
    solver: Callable[..., Trajectory],
    batch: int | float = math.inf,
    steps: int | None = None,
    **options: Any,
) -> Trajectory:
    """Return `solver(training, start, times, **options)`, for use in `run`. `start` are the
    starting weights, None for a run that is not random."""
    dtype: Any = times.dtype.name
    start = None
    if key is not None or init is not None:
        parts = started(problem, key, init, dtype)
        start = parts.combine(parts.params)
    training = Training(problem_in(problem, dtype), rule, batch, steps)
    return solver(training, start, times, **options)


def closed_form(
    name: str,
    title: str,
    assumes: str,
    formula: Formula,
    *,
    inapplicable: Inapplicable = describes_all,
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

    refused, formula = dict(refused or {}), checks.of_user(formula)

    def solver(
        training: Training, start: PyTree, times: Float[Array, " S"], *, record: Record
    ) -> Trajectory:
        rule = training.rule
        assert isinstance(rule, SGD)
        # Velocities of momentum sum to 1 / (1 - mu) times the gradient.
        time = rule.eta_time(times) / (1 - jnp.asarray(rule.mu))
        values = jax.vmap(lambda t: dict(formula(training.problem, start, t)))(time)
        leaves = [x.reshape(len(times), -1) for x in jax.tree.leaves(values)]
        valid = jnp.isfinite(jnp.concatenate(leaves, axis=1)).all(axis=1)
        return Trajectory(times, rows(values, record, refused), None, *judge(times, valid), name)

    def at_one(problem: Problem) -> Mapping[str, Array]:
        # The key is made here, because importing must not touch a device.
        start = problem.init(jax.random.key(0)) if needs else None
        return formula(problem, start, jnp.ones(()))

    return computed(
        *(name, title, assumes, solver),
        lambda training: no_sgd(training.rule) or inapplicable(training),
        needs=needs,
        adaptive=False,
        variant=variant,
        refused=refused,
        predicts=predicted(names, at_one),
    )


def no_sgd(rule: Rule, momentum: Literal["any", "none"] = "any") -> str | None:
    """Return why a theory of SGD with one rate for all weights does not describe a rule, or None.
    Momentum counts as a larger rate with "any", and is not described with "none"."""
    if reason := why_not_known(rule):
        return reason
    # The name of the only group is empty.
    if set(rule.schedules) != {""}:
        return "eta: has a rate for each group; this theory needs one rate for all weights"
    return why_not_described(rule, "this theory", momentum=momentum)


def predicted(
    names: tuple[str, ...], evaluate: Callable[[Any], Mapping[str, Array]]
) -> Callable[[Any], tuple[str, ...]]:
    """Return `Theory.predicts` of the observables in `names`, or else of those that
    `evaluate(problem)` returns."""
    # The shapes have the names, and cost no arithmetic.
    return lambda problem: names or tuple(jax.eval_shape(lambda: dict(evaluate(problem))))


def rows(
    values: Mapping[str, Array], record: Record, refused: Mapping[str, str]
) -> dict[str, Array]:
    """Return those of the `values` of a theory with observables of its own that are requested by
    name; `ValueError` for an unknown name, with the reason if it is `refused`."""
    known = {name: lambda row, name=name: row[name] for name in values}
    return Table(known, refused=refused).resolve(record)(values)
