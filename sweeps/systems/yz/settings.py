"""Settings of training: frozen dataclasses that the Python API, sweep files and the CLI share."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from jaxtyping import ArrayLike, Float

from dynsim import checks
from dynsim.precision import DType
from dynsim.training.optim import Kind
from sweeps.systems.base import Fields, FixedT, Run, Times, steps_of
from sweeps.systems.yz.problem import TASKS, Problem

NUMBERS = ("eta_y", "eta_z", "momentum", "b1", "b2", "eps")
"""Numbers of the optimiser that are traced."""
OPTIMIZER_AXES = {"momentum": "sgd", "b1": "adam", "b2": "adam", "eps": "adam"}
TASK_AXES = ("num_queries", "classes_per_query", "num_common", "num_distinct", "K", "M", "overlap")


class Fixed(NamedTuple):
    """What trainings of one program share besides their task's arrays, as in `LayerTraining`."""

    kind: Kind
    steps: int
    length: int | float
    batch: int | float
    init: Literal["zero", "uniform"]
    dtype: DType


@dataclasses.dataclass(frozen=True)
class LayerTraining(Problem, Run[FixedT]):
    """How an attention layer is trained on the problem, whatever its parameters are.

    Attributes:
        steps: optimiser steps of a run.
        length: sequence length T, the query included; inf for P(l|n) in place of counts.
        batch: sequences per step; inf for the population loss, to first order in 1/T.
        init: starting weights, zero or uniform on +-1/sqrt(M).
        dtype: precision of the simulation; theories are integrated in float64.
    """

    AXES: ClassVar = Fields(
        traced=("eta_y", "eta_z", "ratio", "momentum", "b1", "b2", "eps"),
        static=(*TASK_AXES, "steps", "length", "batch"),
        whole=("num_queries", "classes_per_query", "num_common", "num_distinct", "K", "M", "steps"),
        aliases={"T": "length"},
    )

    steps: int = 1000
    length: int | float = 128
    batch: int | float = 128
    init: Literal["zero", "uniform"] = "zero"
    dtype: DType = "float32"

    def check(self) -> None:
        """Raise `ValueError`, naming the field, for what the constructors do not see."""
        checks.integer("steps", self.steps, 1)
        checks.count_or_inf("length", self.length, 2)
        checks.count_or_inf("batch", self.batch, 1)
        checks.choice("init", self.init, ("zero", "uniform"))
        checks.choice("dtype", self.dtype, ("float32", "float64"))

    def check_axes(self, axes: Collection[str]) -> None:
        """Raise `ValueError` for axes that these runs do not read, or that say the same."""
        if "eta_y" in axes and "ratio" in axes:
            raise ValueError("axes: eta_y and ratio = eta_y / eta_z say the same; leave one out")
        for name in axes:
            if name in TASK_AXES and name not in self._task_fields:
                allowed = ", ".join(self._task_fields) or "none"
                raise ValueError(
                    f"axes.{name}: task {self.task!r} does not read it; it reads {allowed}"
                )
            if OPTIMIZER_AXES.get(name, self.optimizer) != self.optimizer:
                raise ValueError(
                    f"axes.{name}: optimizer = {self.optimizer!r} does not read it; "
                    f"it belongs to {OPTIMIZER_AXES[name]!r}"
                )
        if "K" in axes and "num_queries" in axes:
            raise ValueError("axes: K = num_queries * classes_per_query; leave one of them out")

    def reads(self, field: str, axes: Collection[str]) -> bool:
        """Whether the numbers of a sweep over `axes` depend on the value of `field` here."""
        ratio = "ratio" in axes or ("eta_y" not in axes and self.ratio is not None)
        return not (
            (field == "eta_y" and ratio)
            or (field == "ratio" and not ratio)
            or (field in TASK_AXES and field not in self._task_fields)
            or OPTIMIZER_AXES.get(field, self.optimizer) != self.optimizer
        )

    def numbers(self) -> dict[str, ArrayLike]:
        """The numbers of the optimiser by name."""
        optimizer = self.make_optimizer()
        return {name: getattr(optimizer, name) for name in NUMBERS}

    def shared(self) -> Fixed:
        """What trainings of one program share: neither the task, whose arrays say all, nor
        rates."""
        kind = self.make_optimizer().kind
        return Fixed(kind, self.steps, self.length, self.batch, self.init, self.dtype)

    def steps_recorded(self, times: Times) -> tuple[int, ...]:
        """The optimiser steps at which a run records; `ValueError` unless they increase within
        [0, steps]."""
        return steps_of(times, self.steps)

    @staticmethod
    def stiffness(numbers: Mapping[str, Float[np.ndarray, " P"]]) -> Float[np.ndarray, " P"]:
        """The larger effective rate."""
        return np.maximum(numbers["eta_y"], numbers["eta_z"]) / (1 - numbers["momentum"])

    def at(self, chosen: Mapping[str, Any]) -> Self:
        """The training at the `chosen` values of axes; an axis eta_y stands for itself, whatever
        `ratio` says."""
        given = {"ratio": None, **chosen} if "eta_y" in chosen else chosen
        return dataclasses.replace(self, **given)

    @property
    def _task_fields(self) -> tuple[str, ...]:
        return TASKS[self.task][1] if self.task in TASKS else ()


@dataclasses.dataclass(frozen=True)
class Training(LayerTraining[Fixed]):
    """How the attention layer in Y and Z is trained on the problem."""

    def fixed(self) -> Fixed:
        """What its program takes for granted."""
        return self.shared()
