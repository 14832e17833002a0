"""What a theory is to those who ask for one, and how those of a system are found by name.

Each system has a `Ladder` in its module `ladder`: its own theories, and those that other packages
register as entry points of the group `dynsim.theories`. Such a point is named "<system>.<theory>"
and its value is a `Theory` of that name, for instance in a pyproject.toml

    [project.entry-points."dynsim.theories"]
    "yz.mine" = "their_package.theory:MINE"

Entry points are looked up once, when a theory is not built in or when all of them are wanted.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

import equinox as eqx

from dynsim import Problem, checks, plugins
from dynsim.training.rule import Rule
from dynsim.training.rules import unread
from dynsim.trajectory import Trajectory
from odes.solver.tolerances import Tolerances

GROUP = "dynsim.theories"
"""Group of the entry points."""
OBEYED = (
    "init",
    "draw",
    "draw_shared",
    "holding",
    "batches",
    "loss",
    "loss_and_gradient",
    "population_loss",
    "population_loss_and_gradient",
    "normal",
    "compact",
    "groups",
    "stays",
)
"""Methods of a problem that decide how it trains."""
Task = TypeVar("Task", bound=Any)
Rates = TypeVar("Rates", bound=Any)


class Training(eqx.Module):
    """The training that a theory is to describe.

    Attributes:
        problem: what is trained.
        rule: the update rule.
        batch: examples per step; inf for the population loss, or where nothing else is known.
        steps: optimiser steps of the run; None where they are not known.
    """

    problem: Any
    rule: Any
    batch: int | float = eqx.field(default=math.inf, static=True)
    steps: int | None = eqx.field(default=None, static=True)

    def rate(self, t: Any) -> Any:
        """Learning rate of a flow at time `t`, in steps; by group where the rule has groups."""
        return self.rule.flow_rate(t)


Inapplicable = Callable[[Training], str | None]
"""Why a theory does not describe a training, or None if it does."""


def always(training: Training) -> None:
    """No reason against any training."""
    del training


@dataclasses.dataclass(frozen=True)
class Theory(Generic[Task, Rates]):
    """One rung of a ladder.

    Attributes:
        name: by which it is asked for, and the `source` of its trajectories.
        title: for legends and tables.
        assumes: what it takes for granted, in words.
        solve: the solver, from (problem, rule, times) with the keywords `record` and `dtype`,
            and whatever else is its own.
        inapplicable: returns why it does not describe a `Training`, or None if it does.
        variant: whether it varies or isolates a part of another rung, and so is looked at on
            demand rather than by default.
        zero_start: whether it holds from zero weights alone and takes no `init`.
        needs: keywords without which `solve` cannot do, such as "init", "key", "batch", "steps" or
            a field of the problem.
        tolerances: of its solver, where they are not the usual ones.
        refused: names of observables that it cannot predict, with the reason.
        predicts: the names of the observables that it predicts, from the problem; all of the
            problem's if None.
        adaptive: whether a solver with tolerances integrates it.
    """

    name: str
    title: str
    assumes: str
    solve: Callable[..., Trajectory]
    inapplicable: Inapplicable
    variant: bool = False
    zero_start: bool = False
    needs: tuple[str, ...] = ()
    tolerances: Tolerances | None = None
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    predicts: Callable[[Task], tuple[str, ...]] | None = None
    adaptive: bool = True

    def why_not(
        self, problem: Task, rule: Rates, batch: int | float = math.inf, steps: int | None = None
    ) -> str | None:
        """Why it does not describe the training of a problem, or None if it does."""
        return self.inapplicable(Training(problem, rule, batch, steps))


class Ladder(Generic[Task, Rates]):
    """The theories of one system, most exact first."""

    def __init__(self, system: str, built_in: Iterable[Theory[Task, Rates]]) -> None:
        """`system`: what names of entry points begin with."""
        self.system = system
        self.built_in = {theory.name: theory for theory in built_in}

    def registered(self) -> dict[str, Theory[Task, Rates]]:
        """The theories of other packages by name. One that cannot be loaded or is no `Theory` harms
        no others: it is left out, and a warning names the entry point and whose it is."""
        found = {}
        for entry in plugins.entry_points(GROUP):
            system, _, name = entry.partition(".")
            if system != self.system and name:
                continue
            try:
                found[name] = self._loaded(entry)
            except ValueError as error:
                warnings.warn(f"{error}; it is left out", stacklevel=2)
        return found

    def _loaded(self, entry: str) -> Theory[Task, Rates]:
        point, (system, _, name) = plugins.described(GROUP, entry), entry.partition(".")
        if not system or not name:
            raise ValueError(f"{point}: must be named <system>.<theory>")
        theory = plugins.load(GROUP, entry)
        if not isinstance(theory, Theory) or theory.name != name:
            raise ValueError(f"{point}: must be a Theory called {name!r}, is {theory!r}")
        if name in self.built_in:
            raise ValueError(f"{point}: {self.system} has a theory so called")
        return theory

    def theories(self) -> dict[str, Theory[Task, Rates]]:
        """All theories by name, those of other packages last; warns as `registered`."""
        return self.built_in | self.registered()

    def theory(
        self,
        asked: str | Theory[Task, Rates],
        task: Task,
        optimizer: Rates,
        zero_start: bool = True,
        batch: int | float = math.inf,
        steps: int | None = None,
    ) -> Theory[Task, Rates]:
        """The theory called `asked`, or a theory of one's own, if it applies.

        Args:
            asked: a name, or a `Theory`.
            task, optimizer, batch, steps: the training that it is to describe.
            zero_start: whether the run starts from zero weights.

        Raises:
            ValueError: if there is none of that name, or one's own has the name of a built-in
                one; if it does not describe the task, the optimiser or the start, saying which
                assumption fails; and for a registered one that cannot be loaded.
        """
        if isinstance(asked, Theory):
            found = asked
            if self.built_in.get(found.name, found) is not found:
                raise ValueError(f"theory {found.name!r}: there is one so called; rename yours")
        elif asked in self.built_in:
            found = self.built_in[asked]
        else:
            entry = f"{self.system}.{asked}"
            if entry in plugins.entry_points(GROUP):
                found = self._loaded(entry)
            else:
                known = self.theories()
                found = known[checks.choice("theory", asked, tuple(known))]
        checks.kind("rule", optimizer, Rule)
        problem = self._unknown(found, task, optimizer)
        problem = problem or found.why_not(task, optimizer, batch, steps)
        if found.zero_start and not zero_start:
            problem = "it starts from zero weights"
        if problem:
            raise ValueError(f"theory {found.name!r} does not apply: {problem}")
        return found

    def applicable(
        self,
        task: Task,
        optimizer: Rates,
        variants: bool = False,
        zero_start: bool = True,
        finite: bool = False,
        batch: int | float = math.inf,
        steps: int | None = None,
    ) -> tuple[str, ...]:
        """Names of the theories that describe a training, most exact first; `variants` adds those
        that are looked at on demand, `zero_start` is as in `theory`, and `finite` adds those of
        finite T, which need the `length` of the sequences."""
        checks.kind("rule", optimizer, Rule)
        return tuple(
            name
            for name, rung in self.theories().items()
            if (variants or not rung.variant)
            and (zero_start or not rung.zero_start)
            and (finite or "length" not in rung.needs)
            and self._unknown(rung, task, optimizer) is None
            and rung.why_not(task, optimizer, batch, steps) is None
        )

    def _unknown(self, theory: Theory[Task, Rates], task: Task, rule: Rates) -> str | None:
        """Why a theory of the ladder's own knows neither the rule nor the task, or None."""
        if self.built_in.get(theory.name) is not theory:
            return None
        return unread(rule) or departs(task)


def departs(task: object) -> str | None:
    """Why theories that a problem inherits do not describe it, or None: it overrides what training
    obeys and they do not read."""
    cls: Any = type(task)
    if not isinstance(task, Problem):
        return None
    named = (each for each in cls.__mro__ if {"NAME", "theories"} & vars(each).keys())
    owner: Any = next(named)
    own = [name for name in OBEYED if getattr(cls, name) is not getattr(owner, name)]
    if not own:
        return None
    return f"{cls.__name__} overrides {own[0]!r} of {owner.__name__}, whose theories do not read it"


FINITE = "-finite-t"
"""How the names of theories of finite T end."""


def named(name: str, finite: bool) -> str:
    """The name of a theory or engine, of T infinite or `finite`."""
    return name + FINITE if finite else name


def of_finite_length(theory: Theory[Task, Rates]) -> Theory[Task, Rates]:
    """The rung beside `theory` for sequences of finite length T, whose `solve` takes a `length`."""
    return dataclasses.replace(
        theory,
        name=named(theory.name, finite=True),
        title=f"{theory.title}, finite T",
        assumes=theory.assumes.replace("T, batch -> infinity", "1/T^2 -> 0, batch -> infinity"),
        needs=(*theory.needs, "length"),
    )


def refusal(check: Callable[..., object], *args: Any) -> str | None:
    """Why `check(*args)` raises `ValueError`, or None if it does not."""
    try:
        check(*args)
    except ValueError as error:
        return str(error)
    return None
