"""The class of theories, and the training that they describe."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

import equinox as eqx
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree, Real

from dynsim import checks, schedules
from dynsim.precision import DType, Number
from dynsim.problem.memory import bytes_of
from dynsim.problem.observables import flow_table
from dynsim.problem.train import started
from dynsim.training.checkpoint import Checkpoint
from dynsim.training.recording import Record, Table
from dynsim.training.rule import UpdateRule
from dynsim.trajectory import Times, Trajectory
from odes.solver.tolerances import DEFAULT_TOLERANCES, Tolerances

Task = TypeVar("Task", bound=Any)
Rates = TypeVar("Rates", bound=Any)


class Training(eqx.Module):
    """A training run, as a theory sees it. It is a pytree, so that one object may stand for many
    runs, whose numbers have a leading axis.

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

    def rate(self, t: Real[Number, ""]) -> PyTree:
        """Return the flow's learning rate at time `t` in steps, by group if the rule has groups."""
        return self.rule.flow_rate(t)


Inapplicable = Callable[[Training], str | None]
"""Function that returns why a theory does not describe a training, or None if it does."""


def describes_all(training: Training) -> None:
    """Return None: the theory describes every training."""
    del training


def reason_unless_traced(inapplicable: Inapplicable, training: Training) -> str | None:
    """Return `inapplicable(training)`, or None if that depends on traced numbers."""
    try:
        return inapplicable(training)
    except checks.UNTRACEABLE:
        # Nothing is missed: a sweep checks the numbers of each run before it traces them.
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
        at_once: number of runs that a sweep solves together on a CPU. Of 1, each fills the memory
            or the processor; such a flow of all weights can record the sharpness.
        memory: (training, number of times, names to record) -> bytes of a solve; those of a few
            copies of the weights if None.
        trains: whether it is training, in the precision of the run; theories are solved in float64.
        paths: number of random paths that a comparison draws, for a theory whose paths cost little;
            None for as many as there are seeds.
        resumes: whether its runs can save a checkpoint and resume from it.
        batched: whether `run` computes many runs at once, from a rule with numbers (P,).

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
    at_once: int = 64
    memory: Callable[[Training, int, tuple[Any, ...]], int] | None = None
    resumes: bool = False
    paths: int | None = None

    trains: ClassVar[bool] = False
    batched: ClassVar[bool] = False
    records: ClassVar[int | None] = None
    """Number of times at which a comparison records it, if each takes long; None for all."""
    reduce: ClassVar[Callable[[Any, tuple[Any, ...]], Any] | None] = None
    """(problem, names to record) -> the problem that `run` takes, made once on the host; None if it
    takes the problem itself."""

    @property
    def seeded(self) -> bool:
        """Whether a run depends on its starting weights or on random numbers."""
        return not {"init", "key"}.isdisjoint(self.needs)

    def reads(self, problem: Task) -> bool:
        """Return whether `solve` needs nothing but a training of the problem."""
        return {*self.needs} <= {"init", "key", "batch", "steps", *problem.__dataclass_fields__}

    def observables(self, problem: Task) -> Table:
        """Return what it can record for a problem."""
        predicts_all = self.predicts is None
        # The sharpness needs all weights, and as much memory as a few copies of them.
        table = flow_table(problem, whole=self.at_once == 1 and predicts_all)
        if self.predicts is not None:
            # Names that the problem does not have come from the solver, and no function is called.
            names = {name: table.functions.get(name, abs) for name in self.predicts(problem)}
            table = dataclasses.replace(table, functions=names)
        refused = {n: why for n, why in table.refused.items() if n not in table.functions}
        return dataclasses.replace(table, refused={**refused, **self.refused})

    def bytes_per_run(
        self, training: Training, times: int, record: tuple[Any, ...], dtype: DType
    ) -> int:
        """Estimate the memory of a solve that records at a number of `times`: that of its state,
        and of the rates of all steps."""
        problem, batch, steps = training.problem, training.batch, training.steps
        # `run` tabulates each schedule that is not constant at every step.
        of_rates = training.rule.schedules.values()
        tabulated = sum(not schedule.needs_no_table for schedule in of_rates)
        rates = np.dtype(dtype).itemsize * tabulated * len(dataclasses.fields(schedules.Table))
        rates *= steps or 0
        if self.memory is not None:
            return rates + self.memory(training, times, record)
        return rates + bytes_of(problem, batch, steps, dtype, trains=self.drawn)

    def draws(self, training: Training) -> bool:
        """Return whether `run` also takes the result of `draw`."""
        del training
        return False

    def draw(self, training: Training, key: PRNGKeyArray) -> PyTree:
        """Draw data that all runs with one key share, whatever their numbers."""
        raise NotImplementedError

    def run(
        self,
        training: Training,
        key: PRNGKeyArray,
        times: Times,
        *,
        record: Record,
        dtype: DType = "float64",
        rtol: float | None = None,
        checkpoint: Checkpoint | bool = False,
        drawn: PyTree = None,
    ) -> Trajectory:
        """Compute a training, with what `needs` names of it; vmappable.

        Args:
            training: the problem, the rule, and batch and steps.
            key: random key of the run, as in `dynsim.train`.
            times, record, dtype: as in the solver.
            rtol: relative tolerance of an adaptive solver, by default its own.
            checkpoint: as in `dynsim.train`, if it `resumes`.
            drawn: the result of `draw`, if it `draws`.
        """
        del checkpoint, drawn
        problem, rule = training.problem, training.rule
        of_run = {"key": key, "batch": training.batch, "steps": training.steps}
        options: dict[str, Any] = {"record": record, "dtype": dtype}
        for name in self.needs:
            if name == "init":
                start = started(problem, key, None, dtype)
                options[name] = start.combine(start.params)
            else:
                options[name] = of_run[name] if name in of_run else getattr(problem, name)
        if self.adaptive:
            default = self.tolerances or DEFAULT_TOLERANCES[dtype]
            rtol = default.rtol if rtol is None else rtol
            # Keep the ratio of absolute to relative tolerance.
            atol = rtol * (default.atol / default.rtol)
            options["tolerances"] = default._replace(rtol=rtol, atol=atol)
        return self.solve(problem, rule, times, **options)

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


AnyTheory = Theory[Any, Any]
"""A theory of the training of any problem."""
FINITE = "-finite-t"
"""Suffix of the names of finite-T theories."""


def named(name: str, finite: bool) -> str:
    """Return the name of a theory at infinite or, if `finite`, at finite T."""
    return name + FINITE if finite else name


def of_finite_length(
    theory: Theory[Task, Rates], solve: Callable[..., Trajectory]
) -> Theory[Task, Rates]:
    """Return the finite-T version of a theory, with its solver."""

    def inapplicable(training: Training) -> str | None:
        problem = training.problem
        if math.isinf(problem.length):
            return "length = inf: must be finite for finite-T theories; use their T = inf versions"
        return error_message(problem.check_population) or theory.inapplicable(training)

    return dataclasses.replace(
        theory,
        name=named(theory.name, finite=True),
        title=f"{theory.title}, finite T",
        assumes=theory.assumes.replace("T, batch -> infinity", "1/T^2 -> 0, batch -> infinity"),
        solve=solve,
        inapplicable=inapplicable,
    )


def error_message(check: Callable[..., object], *args: Any) -> str | None:
    """Return the message of the `ValueError` that `check(*args)` raises, or None."""
    try:
        check(*args)
    except ValueError as error:
        return str(error)
    return None
