"""Runs of a problem by a rule, given as they are: what `sweeps.Sweep(problem, rule, ...)` runs."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import numpy as np

from dynsim import Problem, checks, decoding
from dynsim.decoding import CountOrInf, Field, Steps, plain
from dynsim.precision import DType
from dynsim.problem.choice import Choice, Chooses, unread
from dynsim.training.rule import Rule
from dynsim.training.rules import KNOWN
from sweeps.systems.base import Fields, System
from sweeps.systems.problems import parts
from sweeps.systems.problems.engines import Like, engines_of
from sweeps.systems.problems.labels import labels_of
from sweeps.systems.problems.parts import hints_of, taken
from sweeps.systems.problems.rules import OPTIMIZERS
from sweeps.systems.problems.run import ProblemRun


@dataclasses.dataclass(frozen=True)
class Trained(Chooses, ProblemRun):
    """One training of a problem by a rule, given as they are.

    Attributes:
        problem: what is trained.
        rule: by which rule.
        steps: optimiser steps.
        batch: examples of a step; inf for the population loss.
        dtype: precision of training.
        task: "problem", whatever the problem.
        values: traced numbers that axes replace, by name.
    """

    problem: Any
    rule: Any
    steps: Steps = 1000
    batch: CountOrInf = 32
    dtype: DType = "float32"
    task: Literal["problem"] = "problem"
    values: Any = dataclasses.field(default_factory=dict)

    OWN: ClassVar = ("steps", "batch")
    TAKEN: ClassVar = (*OWN, "problem", "rule", "eta", "seed", "dtype")

    @property
    def AXES(self) -> Fields:  # type: ignore[override]
        """What can be an axis: a property, as it depends on the problem and the rule."""
        hints = hints_of(self.problem)
        whole = tuple(name for name, hint in hints.items() if parts.plain(hint) == (int,))
        words = {n: listed for n, hint in hints.items() if (listed := decoding.words(hint))}
        numbers = self.numbers()
        unset = tuple(n for n in map(self._of_rule, self._unset) if n not in numbers)
        # An error names who reads what this rule does not.
        others = (n for each in self.choices[-1:] for n in each.owned if n not in numbers)
        return Fields(
            traced=tuple(dict.fromkeys((*numbers, *unset, *others))),
            static=(*whole, *self.OWN, *words),
            whole=(*whole, "steps"),
            counts=("batch",),
            words=words,
        )

    def __post_init__(self) -> None:
        checks.kind("problem", self.problem, Problem)
        checks.kind("rule", self.rule, Rule)
        self.check_fields(self.problem, hints_of(self.problem), self.TAKEN)
        super().__post_init__()

    def check(self) -> None:
        """Raise `ValueError` as `dynsim.train` does, and as problem and rule do of numbers."""
        super().check()
        rule = self.make_optimizer()
        for made in (self.make_task(), rule, *rule.schedules.values()):
            for cls in type(made).__mro__:
                if check := vars(cls).get("__check_init__"):
                    check(made)

    def own_system(self) -> System[Any] | None:
        """The system of runs of this problem, which need not be registered."""
        cls = type(self.problem)
        name = f"{cls.__module__}:{cls.__qualname__}"
        engines, labels = engines_of(Like(self.problem)), labels_of(self.problem)
        return System(name, ("problem",), type(self), engines, labels)

    def kinds(self) -> dict[str, Field]:
        """Annotations of what can be a static axis."""
        return {**super().kinds(), **decoding.fields(type(self.problem))}

    def at(self, chosen: Mapping[str, Any]) -> "Trained":
        """The run at the `chosen` values of axes."""
        own = {name: chosen[name] for name in self.OWN if name in chosen}
        sizes = {n: v for n, v in chosen.items() if n in self._sizes}
        sizes |= unread(self.choices, chosen)
        values = {name: v for name, v in chosen.items() if name not in {*own, *sizes}}
        problem = dataclasses.replace(self.problem, **sizes) if sizes else self.problem
        return dataclasses.replace(self, problem=problem, values={**self.values, **values}, **own)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What settings of the problem read, and the rule, unless it steps in its own way."""
        if type(self.rule) not in KNOWN:
            return self.problem.choices
        options = {
            word: {self._of_rule(name): usual for name, usual in reads.items()}
            for word, reads in OPTIMIZERS.items()
        }
        # No axis has this name, whatever the fields of the problem.
        rule = Choice("the rule", self.rule.name, options)
        return (*self.problem.choices, rule)

    def _of_rule(self, name: str) -> str:
        """What a number of the rule is called beside those of the problem."""
        return f"rule.{name}" if name in hints_of(self.problem) else name

    def given(self, name: str) -> Any:
        """A setting of the problem as it was given, None where it was left out."""
        return getattr(self.problem, name)

    def value(self, name: str) -> Any:
        """A setting of the problem as it was given, or the default of what reads it."""
        return self.problem.value(name)

    def make_task(self) -> Any:
        """The problem with the numbers of the axes in it."""
        given = taken(self.problem, hints_of(self.problem))
        return given.template.filled({**given.numbers, **self.values}, given.arrays)

    def make_optimizer(self) -> Any:
        """The rule with the numbers of the axes in it."""
        own = tuple(hints_of(self.problem))
        # A number that the rule leaves out is there as soon as an axis has it.
        added = {n: 0.5 for n in self._unset if self._of_rule(n) in self.values}
        given = taken(dataclasses.replace(self.rule, **added), None, own)
        return given.template.filled({**given.numbers, **self.values}, given.arrays)

    @property
    def _unset(self) -> tuple[str, ...]:
        """Numbers that the rule leaves out."""
        names = (field.name for field in dataclasses.fields(self.rule))
        return tuple(name for name in names if getattr(self.rule, name) is None)

    @property
    def _sizes(self) -> tuple[str, ...]:
        """Fields of the problem that are static."""
        given = taken(self.problem, hints_of(self.problem)).numbers
        return tuple(name for name in hints_of(self.problem) if name not in given)

    def as_json(self) -> dict[str, object]:
        """The problem and the rule by name, and all of their numbers."""
        cls = type(self.problem)
        found: dict[str, object] = {"problem": f"{cls.__module__}:{cls.__qualname__}"}
        found["rule"] = parts.described(self.rule)
        for name in self._sizes:
            value = plain(getattr(self.problem, name))
            # Arrays are known by their contents.
            if not isinstance(value, jax.Array | np.ndarray):
                given = isinstance(value, int | str | bool | None)
                found[name] = value if given else parts.words(value)
        found |= {name: plain(value) for name, value in self.numbers().items()}
        batch = "inf" if math.isinf(self.batch) else self.batch
        return found | {"steps": self.steps, "batch": batch, "dtype": self.dtype}
