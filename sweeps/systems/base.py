"""What a system is to sweeps, comparison and diagrams: a class of runs, and engines for them.

A run says what there is to vary, and how its fields become a task, an update rule and traced
numbers; an engine turns these into trajectories; labels name what it records. Nothing outside of
`sweeps.systems` knows any of them.
"""

import abc
import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar, get_args

import annotated_types as at
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray, PyTree

from dynsim import Trajectory, checks, decoding, log_times
from dynsim.precision import DType
from dynsim.training.checkpoint import Checkpoint
from dynsim.training.recording import Own, Table
from dynsim.training.run_checks import check_step_times

MOST_TIMES = 2**20
"""How many times are recorded and drawn."""
Times = Annotated[
    Literal["end"] | Annotated[int, at.Ge(2), at.Le(MOST_TIMES)] | tuple[int, ...],
    decoding.Says(f"'end', a number from 2 to {MOST_TIMES} besides step 0, or a list of steps"),
]
"""When to record: at the end; at step 0 and so many logarithmically spaced ones; or as given."""
FixedT = TypeVar("FixedT", bound=Hashable)
"""What all runs of one compiled program have in common, in hashable form."""


class Fields(NamedTuple):
    """Which fields of a run can be axes. `seed`, which is no field, can always be one.

    Attributes:
        traced: fields that runs of one compiled program may differ in.
        static: fields that change the task or the shapes of arrays: a chunk of runs has one
            value of each.
        whole: fields among them that are whole numbers.
        counts: fields among them that are whole numbers or infinite.
        words: of the fields among the static ones that choose a word, the words that there are.
    """

    traced: tuple[str, ...]
    static: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()
    words: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    @property
    def names(self) -> tuple[str, ...]:
        """All that can be an axis."""
        return (*self.traced, "seed", *self.static)

    def is_whole(self, name: str) -> bool:
        """Whether the values of an axis are whole numbers."""
        return name == "seed" or name in self.whole


class Run(abc.ABC, Generic[FixedT]):
    """One run of a system. Subclasses are frozen dataclasses, of which each field decides numbers.

    Fields that are traced axes may hold NumPy arrays that broadcast: the run then stands for many
    at once, and `numbers`, `make_optimizer` and `fixed` describe all of them.

    Attributes:
        AXES: which fields can be axes of a sweep.
        task: name of the task, by which sweep files choose the system.
        dtype: precision of a simulation; theories are integrated in float64.
    """

    AXES: ClassVar[Fields]
    task: str
    dtype: DType

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        """Raise `ValueError` for a setting that there is not, with the one that is meant."""
        del args
        for name in settings.keys() - set(field_names(cls)):
            checks.choice(f"{cls.__name__}: setting", name, field_names(cls))
        return super().__new__(cls)

    def __post_init__(self) -> None:
        decoding.made_plain(self)

    def check(self) -> None:
        """Raise `ValueError`, naming the field, for what is not as its annotation says; subclasses
        add what an annotation cannot say and the constructors do not see."""
        decoding.check(self, many=self.AXES.traced)

    def check_whole(self) -> None:
        """Raise `ValueError` for runs that do not end with their steps, where no checkpoint is kept
        from which they could be resumed."""
        return

    @abc.abstractmethod
    def make_task(self) -> Any:
        """The task, a pytree; `ValueError` for fields that describe none."""

    @abc.abstractmethod
    def make_optimizer(self) -> Any:
        """The update rule, a pytree; `ValueError` for rates that cannot be."""

    @abc.abstractmethod
    def numbers(self) -> dict[str, ArrayLike]:
        """Traced numbers by name, numbers or arrays that broadcast: what `Engine.assemble` turns
        into task and update rule. Raises `ValueError` for values that cannot be."""

    @abc.abstractmethod
    def fixed(self) -> FixedT:
        """What its program takes for granted: equal for runs that can share a program."""

    @abc.abstractmethod
    def steps_recorded(self, times: Times) -> tuple[int, ...] | int:
        """The optimiser steps at which a run records; or only their number, where the steps depend
        on traced fields and the trajectory tells them. `ValueError` for `times` that cannot be."""

    def check_axes(self, axes: Mapping[str, Sequence[Any]]) -> None:
        """Raise `ValueError` for axes, given with their values, that these runs do not read, or
        that say the same."""
        del axes

    def kinds(self) -> dict[str, decoding.Field]:
        """Annotations of the fields, by name."""
        return decoding.fields(type(self))

    def own_system(self) -> "System[Any] | None":
        """The system of runs that bring one of their own, which is not registered."""
        return None

    def reads(self, field: str, axes: Mapping[str, Sequence[Any]]) -> bool:
        """Whether the numbers of a sweep over `axes`, given with their values, depend on the value
        of `field` here; `field` is none of the axes."""
        del field, axes
        return True

    def by_word(self, axes: Mapping[str, Sequence[Any]]) -> dict[str, dict[str, dict[str, Any]]]:
        """By axis of words and by word, the values of the settings, none of them an axis, that only
        some of its words read: part of what the sweep is, in place of these settings."""
        del axes
        return {}

    def at(self, chosen: Mapping[str, Any]) -> Self:
        """The run at the `chosen` values of axes, numbers or arrays that broadcast."""
        return dataclasses.replace(self, **chosen)  # type: ignore[type-var]

    def as_json(self) -> dict[str, object]:
        """The fields as JSON values."""
        plain = {name: getattr(self, name) for name in field_names(type(self))}
        for name, value in plain.items():
            if isinstance(value, Path):
                plain[name] = str(value)
            elif isinstance(value, float) and math.isinf(value):
                plain[name] = "inf"
        return plain

    def contents(self) -> dict[str, str]:
        """Hashes of what files hold that the fields only name: a store must not be resumed with
        another file of the same name."""
        return {}

    @classmethod
    def of(cls, settings: Any, **changes: Any) -> Self:
        """The run that a command's `settings` describe, which have all of its fields and more,
        with `changes`."""
        return cls(**{name: getattr(settings, name) for name in field_names(cls)} | changes)

    @staticmethod
    def stiffness(numbers: Mapping[str, Float[np.ndarray, " P"]]) -> Float[np.ndarray, " P"]:
        """What an adaptive solver's number of steps grows with, from the traced numbers."""
        return np.zeros_like(next(iter(numbers.values())))


class Settings(NamedTuple, Generic[FixedT]):
    """What an engine is told of the runs of one program besides their numbers, all hashable.

    Attributes:
        fixed: what `Run.fixed` returned.
        times: optimiser steps at which to record, or their number where the run decides.
        record: names of observables, and functions with theirs.
        dtype: precision of the computation.
        rtol: relative tolerance of an adaptive solver, None for its default.
        checkpoint: as `dynsim.train` takes it, for engines whose runs can go on.
    """

    fixed: FixedT
    times: tuple[int, ...] | int
    record: tuple[Any, ...]
    dtype: DType
    rtol: float | None
    checkpoint: Checkpoint | bool = False

    @property
    def num_times(self) -> int:
        """How many steps are recorded."""
        return self.times if isinstance(self.times, int) else len(self.times)

    @property
    def width(self) -> int:
        """Bytes of a number."""
        return np.dtype(self.dtype).itemsize


class Engine(NamedTuple, Generic[FixedT]):
    """How runs are computed.

    Attributes:
        run: one run, from (settings, task, rule, key) as `assemble` returns them; vmappable.
            If `batched`, all runs of one seed, from a rule with numbers (P,). With `draw` it
            takes what that returned as well.
        assemble: task and update rule of a run from (settings, prepared task, traced numbers); it
            is called inside the compiled program.
        observables: what it can record.
        bytes_per_run: estimate of the memory that a run in flight needs, from (task, settings).
        check: raises `ValueError` where it does not describe (fixed, task, rule).
        adaptive: whether the runs of a batch wait for the stiffest of them.
        tile: number of runs in a batch on a CPU, where small ones stay in the cache.
        prepare: what the program takes instead of the task, from it and the names to record: a
            pytree of arrays.
        trains: whether it is descent in the precision of the run, not theory in float64.
        batched: see `run`.
        task: the task of a run, from the run; by default what its `make_task` returns.
        draw: what runs of one seed share whatever their numbers, from (settings, prepared task,
            key), where it is worth keeping from one batch to the next.
        variant: whether comparison leaves it out unless it is asked for.
        goes_on: whether its runs can leave a checkpoint and go on from it.
        noisy: whether its runs are drawn, though it is a theory, so that seeds are worth having.
        title: for legends and tables.
        assumes: what it takes for granted, in words.
    """

    run: Callable[..., Trajectory]
    assemble: Callable[[Settings[FixedT], Any, Mapping[str, Array]], tuple[Any, Any]]
    observables: Table
    bytes_per_run: Callable[[Any, Settings[FixedT]], int] = lambda task, settings: 2**16
    check: Callable[[FixedT, Any, Any], None] = lambda fixed, task, rule: None
    adaptive: bool = False
    tile: int = 16
    prepare: Callable[[Any, tuple[Any, ...]], Any] = lambda task, record: task
    trains: bool = False
    batched: bool = False
    task: Callable[[Any], Any] = lambda run: run.make_task()
    draw: Callable[[Settings[FixedT], Any, PRNGKeyArray], PyTree] | None = None
    variant: bool = False
    goes_on: bool = False
    noisy: bool = False
    title: str = ""
    assumes: str = ""


class Labels(NamedTuple):
    """What is to be said about the axes and observables of a system.

    Attributes:
        about: long name and unit of what has more to say than its own name.
        inner_dims: names of the axes of an observable that is not a number.
        values: values along such an axis, where it has some.
    """

    about: Mapping[str, tuple[str, str]] = MappingProxyType({})
    inner_dims: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    values: Mapping[str, np.ndarray] = MappingProxyType({})


class System(NamedTuple, Generic[FixedT]):
    """A system as it is registered.

    Attributes:
        name: by which sweep files and the command line ask for it.
        tasks: names of its tasks. A sweep file that names no system gets the first one registered
            with its task.
        run: the class of its runs, a frozen dataclass with a default for each field.
        engines: how runs are computed, by name. Training is called "simulation".
        labels: names and units for its results.
        compare: what `dynsim compare NAME` runs, "module:Settings" with a function `run` in that
            module; None for the comparison of "simulation" with every other engine that applies.
        more: engines of theories that other packages register, looked up when they are needed.
    """

    name: str
    tasks: tuple[str, ...]
    run: type[Run[FixedT]]
    engines: Mapping[str, Engine[FixedT]]
    labels: Labels = Labels()
    compare: str | None = None
    more: Callable[[], Mapping[str, Engine[FixedT]]] = dict


def names_of(record: tuple[str | Own, ...]) -> tuple[str, ...]:
    """Names of what is recorded."""
    return tuple(each.name if isinstance(each, Own) else each for each in record)


def field_names(cls: type) -> tuple[str, ...]:
    """Names of the fields of a dataclass."""
    return tuple(field.name for field in dataclasses.fields(cls))


def unit_of(annotation: Any) -> str:
    """The unit that an annotation says, "1" where it says none."""
    for part in getattr(annotation, "__metadata__", ()):
        if isinstance(part, decoding.Unit):
            return part.symbol
    return next((unit for part in get_args(annotation) if (unit := unit_of(part)) != "1"), "1")


def known(times: tuple[int, ...] | int) -> tuple[int, ...]:
    """The steps at which a run records, where they depend on none of its traced fields."""
    if isinstance(times, int):
        raise TypeError("times: the runs of this system tell theirs themselves")
    return times


def steps_of(times: Times, steps: int) -> tuple[int, ...]:
    """The steps at which runs of `steps` steps record; `ValueError` unless they increase within
    [0, steps]."""
    if times == "end":
        return (steps,)
    if isinstance(times, int):
        checks.integer("times", times, 2)
        return tuple(log_times(steps, times).tolist())
    if not isinstance(times, tuple) or not all(isinstance(time, int | float) for time in times):
        raise ValueError(f"times = {times!r}: must be 'end', a number of them, or a list of steps")
    check_step_times(times, steps)
    return times
