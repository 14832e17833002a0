"""The class of theories, and the training that they describe."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import equinox as eqx

from dynsim import checks
from dynsim.training.rule import UpdateRule
from dynsim.trajectory import Trajectory
from odes.solver.tolerances import Tolerances

Task = TypeVar("Task", bound=Any)
Rates = TypeVar("Rates", bound=Any)


class Training(eqx.Module):
    """A training run, as a theory sees it.

    Attributes:
        problem: the problem that is trained.
        rule: the update rule.
        batch: examples per step; inf for the population loss, or if unknown.
        steps: optimiser steps of the run; None if unknown.

    Example:
        >>> training = odes.Training(DeepLinear(), dynsim.sgd(0.1), batch=32, steps=100)
        >>> float(training.rate(0.0))
        0.1
    """

    problem: Any
    rule: Any
    batch: int | float = eqx.field(default=math.inf, static=True)
    steps: int | None = eqx.field(default=None, static=True)

    def rate(self, t: Any) -> Any:
        """Return the flow's learning rate at time `t` in steps, by group if the rule has groups."""
        return self.rule.flow_rate(t)


Inapplicable = Callable[[Training], str | None]
"""Function that returns why a theory does not describe a training, or None if it does."""


def always(training: Training) -> None:
    """Return None: the theory describes every training."""
    del training


def reason(inapplicable: Inapplicable, training: Training) -> str | None:
    """Return `inapplicable(training)`, or None if that depends on traced numbers. A sweep checks
    the numbers of each run before it compiles."""
    try:
        return inapplicable(training)
    except checks.UNTRACEABLE:
        return None


@dataclasses.dataclass(frozen=True)
class Theory(Generic[Task, Rates]):
    """A theory of the training of some problem.

    Attributes:
        name: its name, and the `source` of its trajectories.
        title: title for legends and tables.
        assumes: its assumptions, as text.
        solve: the solver, called with (problem, rule, times), the keywords `record` and `dtype`,
            and its own options.
        inapplicable: function that returns why it does not describe a `Training`, or None if it
            does.
        variant: whether it modifies or isolates a part of another theory. Variants are compared
            only on request.
        needs: keywords that `solve` requires, such as "init", "key", "batch", "steps" or a field of
            the problem.
        tolerances: tolerances of its solver, if not the defaults.
        refused: observables that it cannot predict, by name, with the reason.
        predicts: function of the problem that returns the names of the observables that it
            predicts; all observables of the problem if None.
        adaptive: whether its solver is adaptive and has tolerances.
        drawn: whether a run is a random path, so that seeds differ.
        single: whether a sweep solves its runs one at a time, because each fills the memory or the
            processor. Such a flow of all weights can record the sharpness.
        held: (batch, steps, number of observables) -> the memory of a solve, as a multiple of a
            run's without its batch, and the number of additional examples; one run's if None.

    Raises:
        ValueError: from `check` and `solve`, with the reason, if it does not describe a training.

    Example:
        >>> theory = odes.theories(DeepLinear())["modes"]
        >>> theory.why_not(DeepLinear(), dynsim.sgd(0.1)) is None
        True
    """

    name: str
    title: str
    assumes: str
    solve: Callable[..., Trajectory]
    inapplicable: Inapplicable
    variant: bool = False
    needs: tuple[str, ...] = ()
    tolerances: Tolerances | None = None
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    predicts: Callable[[Task], tuple[str, ...]] | None = None
    adaptive: bool = True
    drawn: bool = False
    single: bool = False
    held: Callable[[int | float, int | None, int], tuple[int, int]] | None = None

    def why_not(
        self, problem: Task, rule: Rates, batch: int | float = math.inf, steps: int | None = None
    ) -> str | None:
        """Return why the theory does not describe the training of a problem, or None if it does."""
        checks.kind("rule", rule, UpdateRule)
        return self.inapplicable(Training(problem, rule.build(), batch, steps))

    def check(
        self, problem: Task, rule: Rates, batch: int | float = math.inf, steps: int | None = None
    ) -> None:
        """Raise `ValueError`, naming the assumption that fails, if the theory does not describe the
        training of a problem."""
        if reason := self.why_not(problem, rule, batch, steps):
            raise ValueError(f"theory {self.name!r} does not apply: {reason}")


FINITE = "-finite-t"
"""Suffix of the names of finite-T theories."""


def named(name: str, finite: bool) -> str:
    """Return the name of a theory or engine for infinite or `finite` T."""
    return name + FINITE if finite else name


def of_finite_length(theory: Theory[Task, Rates]) -> Theory[Task, Rates]:
    """Return the finite-T version of a theory."""

    def inapplicable(training: Training) -> str | None:
        problem = training.problem
        if math.isinf(problem.length):
            return "length = inf: must be finite for finite-T theories; use their T = inf versions"
        return refusal(problem.check_population) or theory.inapplicable(training)

    return dataclasses.replace(
        theory,
        name=named(theory.name, finite=True),
        title=f"{theory.title}, finite T",
        assumes=theory.assumes.replace("T, batch -> infinity", "1/T^2 -> 0, batch -> infinity"),
        inapplicable=inapplicable,
    )


def refusal(check: Callable[..., object], *args: Any) -> str | None:
    """Return the message of the `ValueError` that `check(*args)` raises, or None."""
    try:
        check(*args)
    except ValueError as error:
        return str(error)
    return None
