"""Trainings of layers in other parameters than Y and Z, on the same tasks."""

import dataclasses
import math
from typing import Any, ClassVar, Literal, NamedTuple

from jaxtyping import ArrayLike

import dynsim
from dynsim.decoding import CountOrInf, Length, Steps
from dynsim.precision import DType
from dynsim.training.rule import Kind
from dynsim.yz import finite_length
from sweeps.systems.base import Fields, field_names
from sweeps.systems.problems import rules
from sweeps.systems.problems.parts import Template, taken
from sweeps.systems.yz.tasks import ClassOptions

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

    def rule(self, numbers: Any) -> dynsim.Rule:
        """The update rule with these `numbers`, traced ones."""
        return self.optimizer.filled(numbers, ())


@dataclasses.dataclass(frozen=True)
class LayerTraining(ClassOptions):
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

    def make_task(self) -> Any:
        """The task alone."""
        return self.held

    def numbers(self) -> dict[str, ArrayLike]:
        """The numbers of the optimiser by name."""
        return taken(self.make_optimizer(), None).numbers

    def shared(self) -> Fixed:
        """What trainings of one program share: neither the task, whose arrays say all, nor
        rates."""
        rule = self.make_optimizer()
        own = taken(rule, None).template
        return Fixed(rule.kind, own, self.steps, self.length, self.batch, self.init, self.dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, name) for name in field_names(type(self)))


def check_finite(
    fixed: Fixed, task: dynsim.SequenceClasses, optimizer: dynsim.Rule | None = None
) -> None:
    """Raise `ValueError` unless an expansion in 1/T describes runs of this length."""
    del optimizer
    if math.isinf(fixed.length):
        raise ValueError("length = inf: leaves nothing to theories of finite T; use those without")
    finite_length.check_length(task, fixed.length)
