"""Settings of training: frozen dataclasses that the Python API, sweep files and the CLI share."""

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from jaxtyping import ArrayLike, Float

import dynsim
from dynsim.decoding import CountOrInf, Length, Steps
from dynsim.precision import DType
from dynsim.training.rule import Kind, Rule
from dynsim.training.run_checks import check_rule
from dynsim.yz import finite_length
from sweeps.systems.base import Fields, FixedT, Run, Times, steps_of
from sweeps.systems.problems import rules
from sweeps.systems.problems.parts import Template, taken
from sweeps.systems.yz.problem import Problem

ALTERNATIVES = (
    (("eta_y", "ratio"), "ratio = eta_y / eta_z"),
    (("K", "num_queries"), "K = num_queries * classes_per_query"),
)
"""Pairs of fields of which one says the other."""
TASK_AXES = ("num_queries", "classes_per_query", "num_common", "num_distinct", "K", "M", "overlap")


class Fixed(NamedTuple):
    """What trainings of one program share besides their task's arrays, as in `LayerTraining`."""

    kind: Kind
    optimizer: Template
    steps: int
    length: int | float
    batch: int | float
    init: Literal["zero", "uniform"]
    dtype: DType

    def rule(self, numbers: Mapping[str, Any]) -> Rule:
        """The update rule with these `numbers`, traced ones."""
        return self.optimizer.filled(numbers, ())


@dataclasses.dataclass(frozen=True)
class LayerTraining(Problem, Run[FixedT]):
    """How an attention layer is trained on the problem, whatever its parameters are.

    Attributes:
        steps: optimiser steps of a run.
        length: sequence length T including the query; inf replaces sampled counts by P(l|n).
        batch: sequences per step; inf for the population loss, to first order in 1/T.
        init: starting weights: zero, or uniform on +-1/sqrt(M).
        dtype: precision of training; theories are solved in float64.
    """

    AXES: ClassVar = Fields(
        traced=("eta_y", "eta_z", "ratio", *rules.NUMBERS, *rules.SCHEDULED),
        static=(*TASK_AXES, "steps", "length", "batch"),
        whole=("num_queries", "classes_per_query", "num_common", "num_distinct", "K", "M", "steps"),
        counts=("length", "batch"),
    )

    steps: Steps = 1000
    length: Length = 128
    batch: CountOrInf = 128
    init: Literal["zero", "uniform"] = "zero"
    dtype: DType = "float32"

    def check_axes(self, axes: Collection[str]) -> None:
        """Raise `ValueError` for axes that these runs do not read, or that say the same."""
        for names, same in ALTERNATIVES:
            said = [name for name in names if name in axes]
            if len(said) == 2:
                raise ValueError(f"axes: {same}; leave one of {' and '.join(names)} out")
            other = next((name for name in names if name not in axes), "")
            if said and getattr(self, other) is not None:
                raise ValueError(
                    f"run.{other} = {getattr(self, other)!r}: {said[0]} is an axis, and {same}; "
                    "leave one of them out"
                )
        super().check_axes(axes)

    def reads(self, field: str, axes: Collection[str]) -> bool:
        """Whether the numbers of a sweep over `axes` depend on the value of `field` here."""
        ratio = "ratio" in axes or ("eta_y" not in axes and self.ratio is not None)
        if field in ("eta_y", "ratio"):
            return (field == "ratio") == ratio
        return super().reads(field, axes)

    def as_json(self) -> dict[str, object]:
        """The fields as JSON values, those that were left out at their defaults."""
        task = self.task if isinstance(self.task, str) else "of your own"
        return {**super().as_json(), "eta_y": self.value("eta_y"), "task": task}

    def numbers(self) -> dict[str, ArrayLike]:
        """The numbers of the optimiser by name."""
        return taken(self.make_optimizer(), None).numbers

    def check_whole(self) -> None:
        """Raise `ValueError` for a schedule that ends after the run."""
        check_rule(self.make_optimizer(), self.steps, False)

    def shared(self) -> Fixed:
        """What trainings of one program share: neither the task, whose arrays say all, nor
        rates."""
        rule = self.make_optimizer()
        own = taken(rule, None).template
        return Fixed(rule.kind, own, self.steps, self.length, self.batch, self.init, self.dtype)

    def steps_recorded(self, times: Times) -> tuple[int, ...]:
        """The optimiser steps at which a run records; `ValueError` unless they increase within
        [0, steps]."""
        return steps_of(times, self.steps)

    @staticmethod
    def stiffness(numbers: Mapping[str, Float[np.ndarray, " P"]]) -> Float[np.ndarray, " P"]:
        """The larger effective rate."""
        return np.maximum(numbers["eta.Y"], numbers["eta.Z"]) / (1 - numbers["momentum"])

    def at(self, chosen: Mapping[str, Any]) -> Self:
        """The training at the `chosen` values of axes; what says the same as one of them in another
        way is left out."""
        others = {
            other: None
            for names, _ in ALTERNATIVES
            for name, other in (names, names[::-1])
            if name in chosen
        }
        return dataclasses.replace(self, **{**others, **chosen})


def check_finite(
    fixed: Fixed, task: dynsim.SequenceClasses, optimizer: dynsim.Rule | None = None
) -> None:
    """Raise `ValueError` unless an expansion in 1/T describes runs of this length."""
    del optimizer
    if math.isinf(fixed.length):
        raise ValueError("length = inf: leaves nothing to theories of finite T; use those without")
    finite_length.check_length(task, fixed.length)
