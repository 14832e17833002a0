"""Runs of any `dynsim.Problem` by any rule, however they are described.

The numbers of a problem and of its rule have names, by which they can be axes: fields of the
problem; `eta`, the peak of the rate, and `eta.warmup` and other numbers of its schedule; `eta.NAME`
of a group of weights; and what else the rule reads. All of them are traced.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Float

from dynsim.problem.checks import check_parts
from dynsim.training.run_checks import check_rule
from sweeps.systems.base import Run, Times, steps_of
from sweeps.systems.problems import parts
from sweeps.systems.problems.parts import Taken, Template, hints_of, taken


class Fixed(NamedTuple):
    """What runs of one program share besides their arrays.

    Attributes:
        problem, rule: without their numbers.
        steps: of a run; None where they follow from the numbers of the rule.
        batch: examples per step.
        spread: then, (rule, number) -> so many steps at which to record, the last one at the end.
    """

    problem: Template
    rule: Template
    steps: int | None
    batch: int | float
    spread: Callable[[Any, int], Any] | None = None


class ProblemRun(Run[Fixed]):
    """One training of a problem, however it is described.

    Attributes:
        problem: what is trained.
        rule: by which rule; its numbers may be arrays that broadcast.
        steps, batch: as of `dynsim.train`.
    """

    problem: Any
    rule: Any
    steps: int
    batch: int | float

    def check(self) -> None:
        """Raise `ValueError` as `dynsim.train` does, and as problem and rule do of numbers."""
        super().check()
        check_parts(self.bare, not math.isinf(self.batch), False)
        self.make_optimizer()

    def check_whole(self) -> None:
        """Raise `ValueError` for a schedule that ends after the run, which nothing resumes."""
        check_rule(self.make_optimizer(), self.steps, False)

    @property
    def bare(self) -> Any:
        """The problem as far as compiled programs know it: its arrays may be others."""
        return self.make_task()

    def make_task(self) -> Any:
        """The problem."""
        return self.problem

    def make_optimizer(self) -> Any:
        """The rule."""
        return self.rule

    def numbers(self) -> dict[str, ArrayLike]:
        """Traced numbers of problem and rule by name."""
        return {**self.parts_of_problem.numbers, **self.parts_of_rule.numbers}

    def fixed(self) -> Fixed:
        """What the program takes for granted."""
        problem, rule = self.parts_of_problem, self.parts_of_rule
        return Fixed(problem.template, rule.template, self.steps, self.batch)

    @property
    def parts_of_problem(self) -> Taken:
        """Numbers, arrays and the rest of the problem."""
        problem = self.bare
        return taken(problem, hints_of(problem))

    @property
    def parts_of_rule(self) -> Taken:
        """Those of the rule."""
        return taken(self.make_optimizer(), None, tuple(hints_of(self.bare)))

    def steps_recorded(self, times: Times) -> tuple[int, ...]:
        """The optimiser steps at which a run records."""
        return steps_of(times, self.steps)

    def contents(self) -> dict[str, str]:
        """Hashes of the code of the problem and of its arrays."""
        return parts.contents(self.problem)

    @staticmethod
    def check_fields(problem: Any, names: Iterable[str], taken: Iterable[str]) -> None:
        """Raise `ValueError` for fields of a problem called like something else of its runs."""
        if both := sorted({*names} & {*taken}):
            raise ValueError(
                f"{type(problem).__name__}: a field cannot be called {both[0]!r} in a sweep, where "
                "that is a setting of the run; choose another name for the field"
            )

    @staticmethod
    def stiffness(numbers: Mapping[str, Float[np.ndarray, " P"]]) -> Float[np.ndarray, " P"]:
        """The learning rate, or the sum of those of all groups."""
        rates = [v for n, v in numbers.items() if parts.is_peak(n)]
        return np.sum(rates, axis=0) if rates else np.zeros_like(next(iter(numbers.values())))
