"""What a system is to the sweep engine: a class of runs, and engines that compute them.

A run says what there is to vary, and how its fields become a task, an optimiser and traced
numbers; an engine turns these into trajectories. Nothing else in the engine knows either.
"""

import abc
import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from dynsim import Trajectory
from dynsim.precision import DType
from sweeps.runner.axes import Fields

Times = Literal["end"] | int | tuple[int, ...]
"""When to record: at the end; at so many logarithmically spaced steps; or at the steps given."""


class Run(abc.ABC):
    """One run of a system. Subclasses are frozen dataclasses, of which each field decides numbers.

    Fields that are traced axes may hold NumPy arrays that broadcast: `numbers` then describes
    many runs at once. The other methods are called with plain numbers in all fields.

    Attributes:
        AXES: which fields can be axes of a sweep.
        task: name of the task, by which sweep files choose the class.
        dtype: precision of a simulation; theories are integrated in float64.
    """

    AXES: ClassVar[Fields]
    task: str
    dtype: DType

    @abc.abstractmethod
    def check(self) -> None:
        """Raise `ValueError`, naming the field, for what the constructors do not see."""

    @abc.abstractmethod
    def check_axes(self, axes: Collection[str]) -> None:
        """Raise `ValueError` for axes that these runs do not read, or that say the same."""

    @abc.abstractmethod
    def reads(self, field: str, axes: Collection[str]) -> bool:
        """Whether the numbers of a sweep over `axes` depend on the value of `field` here; `field`
        is none of the axes."""

    @abc.abstractmethod
    def make_task(self) -> Any:
        """The task, a pytree; `ValueError` for fields that describe none."""

    @abc.abstractmethod
    def make_optimizer(self) -> Any:
        """The optimiser, a pytree; `ValueError` for rates that cannot be."""

    @abc.abstractmethod
    def numbers(self) -> dict[str, ArrayLike]:
        """Traced numbers by name, numbers or arrays that broadcast: what `Engine.assemble` turns
        into task and optimiser. Raises `ValueError` for values that cannot be."""

    @abc.abstractmethod
    def steps_recorded(self, times: Times) -> tuple[int, ...] | int:
        """The optimiser steps at which a run records; or only their number, where the steps depend
        on traced fields and the trajectory tells them. `ValueError` for `times` that cannot be."""

    @abc.abstractmethod
    def compiled(self) -> Self:
        """The run with every field reset that its programs take as numbers or arrays: equal for
        runs that can share a program."""

    @staticmethod
    @abc.abstractmethod
    def stiffness(numbers: Mapping[str, Float[np.ndarray, " P"]]) -> Float[np.ndarray, " P"]:
        """What an adaptive solver's number of steps grows with, from the traced numbers."""

    def at(self, chosen: Mapping[str, Any], axes: Collection[str]) -> Self:
        """The run at the `chosen` values of some of the `axes` of a sweep, numbers or arrays; what
        it says for traced axes that are left must hold whatever their values are."""
        del axes
        return dataclasses.replace(self, **chosen)

    def as_json(self) -> dict[str, object]:
        """The fields as JSON values."""
        plain = dataclasses.asdict(self)
        for name, value in plain.items():
            if isinstance(value, Path):
                plain[name] = str(value)
            elif isinstance(value, float) and math.isinf(value):
                plain[name] = "inf"
        return plain


class Settings(NamedTuple):
    """What all runs of one compiled program share, in hashable form.

    Attributes:
        engine: its name.
        run: a run, as `Run.compiled` leaves it.
        times: optimiser steps at which to record, or their number where the run decides.
        record: names of observables.
        dtype: precision of the computation.
        rtol: relative tolerance of an adaptive solver, None for its default.
    """

    engine: str
    run: Run
    times: tuple[int, ...] | int
    record: tuple[str, ...]
    dtype: DType
    rtol: float | None


def num_times(times: tuple[int, ...] | int) -> int:
    """How many steps are recorded, from what `Run.steps_recorded` returns."""
    return times if isinstance(times, int) else len(times)


class Engine(NamedTuple):
    """How runs are computed.

    Attributes:
        system: the class of the runs.
        run: one run, from (settings, task, optimizer, key) as `assemble` returns them; vmappable.
            If `batched`, all runs of one seed, from an optimiser with numbers (P,).
        assemble: task and optimiser of a run from (settings, prepared task, traced numbers); it is
            called inside the compiled program.
        check: raises `ValueError` where it does not describe (run, its task, its optimizer).
        observables: names that it can record.
        bytes_per_run: estimate of the memory that a run in flight needs, from (task, settings).
        adaptive: whether the runs of a batch wait for the stiffest of them.
        tile: number of runs in a batch on a CPU, where small ones stay in the cache.
        prepare: what the program takes instead of the task, from (task, names to record): a
            pytree of arrays.
        trains: whether it is descent in the precision of the run, not theory in float64.
        batched: see `run`.
    """

    system: type[Run]
    run: Callable[[Settings, Any, Any, PRNGKeyArray], Trajectory]
    assemble: Callable[[Settings, Any, Mapping[str, Array]], tuple[Any, Any]]
    check: Callable[[Any, Any, Any], None]
    observables: tuple[str, ...]
    bytes_per_run: Callable[[Any, Settings], int]
    adaptive: bool
    tile: int
    prepare: Callable[[Any, tuple[str, ...]], Any] = lambda task, record: task
    trains: bool = False
    batched: bool = False
