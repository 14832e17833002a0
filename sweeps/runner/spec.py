"""The specification of a sweep: one run as a starting point, and the axes along which it varies."""

import contextlib
import dataclasses
import functools
import math
import os
import reprlib
import typing
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import annotated_types as at
import jax
import numpy as np

from dynsim import checks, decoding
from dynsim.decoding import Seed
from dynsim.precision import DType
from dynsim.problem.base import Measured
from dynsim.training.recording import NamedFunction, Table
from dynsim.trajectory import Static
from odes.theory import AnyTheory, Theory
from sweeps import recipes
from sweeps.language.axes import Axes, Axis, Dimension
from sweeps.language.fields import is_number
from sweeps.language.values import equal_in
from sweeps.runner.store import CHECKPOINT, RESERVED_NAMES, check_names
from sweeps.systems import budget, registry
from sweeps.systems.base import System, names_of
from sweeps.systems.experiment import Experiment, RecordTimes
from sweeps.systems.kinds import language
from sweeps.systems.training import Call, Runs, check_runs, partition

Names = Sequence[str | NamedFunction | Mapping[str, Measured]] | str | Mapping[str, Measured]
Tolerance = Annotated[float, at.Ge(1e-13), at.Lt(1)]

PREFERRED_RECORD = ("loss", "accuracy", "entropy")
FURTHER = "choose values further apart, or dtype = 'float64' for the runs"
MAX_CHECKED = 64
"""Maximum number of combinations of static values that are all checked before anything runs."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Many trainings, or many solves of a theory, over named axes.

    Attributes:
        run: the run that the axes vary, or its settings by name; or several tables of settings,
            where later ones override earlier ones.
        axes: values by setting, in the order of the dimensions. A setting is named by its path,
            such as `rule.eta`, or by the end of it where that is unique: fields of the problem,
            numbers of the rule (`eta`, `eta.Y`, `decay`, `clip`), `steps`, `batch`, `seed`. Its
            values are a list of numbers, words or objects, such as rules; a table of these by
            label, which the results then have; or a table with one entry, `linspace` or `logspace`,
            each [first, last, number of values], or `range`, a number n for 0 .. n-1 or [first,
            end]. `seed` determines starting weights and data, so runs with the same seed see the
            same batches at any learning rate. The dimensions of the results have the names given
            here.
        theory: "simulation", which is training; "descent" at infinite batch; the name of another
            theory of the problem; or "best", the first that describes all runs, in the order of
            `odes.applicable`. In Python also an `odes.Theory` that the problem does not have; its
            runs cannot be stored.
        record: names of observables; in Python also `{"mine": function}`, with a function of the
            same arguments as the problem's observables. If omitted, those of loss, accuracy and
            entropy that the problem has, or else its first observable.
        times: "end"; the number of logarithmically spaced steps at which to record, besides step 0;
            or the steps themselves.
        zip: groups of axes that vary together instead of forming a grid.
        rtol: relative tolerance of an adaptive solver; by default that of the theory.
        root: root of the random keys; a run uses fold_in(key(root), seed).
        checkpoint: whether to keep the final state of each run, its weights and the memory of its
            update rule, so that a sweep of more steps can resume from it.
        title: a title of one line.

    Raises:
        ValueError: naming the axis, its value and what is allowed.

    Example:
        >>> run = sweeps.Experiment(DeepLinear(), dynsim.sgd(0.1), steps=200)
        >>> sweep = sweeps.Sweep(run, {"eta": [0.01, 0.1], "seed": range(5)}, record=["loss"])
    """

    run: Experiment | Mapping[str, Any] | list[Mapping[str, Any]]
    axes: Mapping[str, Any]
    theory: str | AnyTheory = "simulation"
    record: Names | None = None
    times: RecordTimes = "end"
    zip: Sequence[Sequence[str]] = ()
    rtol: Tolerance | None = None
    root: Seed = 0
    checkpoint: bool = False
    title: str = ""

    def __post_init__(self) -> None:
        checks.kind("run", self.run, Experiment, Mapping, list)
        checks.kind("axes", self.axes, Mapping)
        checks.kind("theory", self.theory, str, Theory)
        for name, kind in (("checkpoint", bool), ("title", str)):
            checks.kind(name, getattr(self, name), kind)
        decoding.check_annotations(self)
        if isinstance(self.run, Experiment):
            self.run.check_rates()
        put = functools.partial(object.__setattr__, self)
        put("zip", self.varied.zipped)
        put("times", _as_times(self.times))
        put("root", checks.integer("root", self.root, 0, 2**32 - 1))
        if self.theory == registry.BEST:
            planes = map(self.plane, self.some_slices())
            put("theory", registry.best(self.system, tuple(planes)))
        if self.record is None:
            known = self.observables.names()
            default = tuple(name for name in PREFERRED_RECORD if name in known)
            put("record", default or known[:1])
        put("record", _as_record(self.record))

    def __getstate__(self) -> dict[str, Any]:
        # Cached properties are computed again after unpickling.
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @property
    def recorded(self) -> tuple[str | NamedFunction, ...]:
        """The names of recorded observables, or named functions."""
        return typing.cast("tuple[str | NamedFunction, ...]", self.record)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the recorded observables."""
        return names_of(self.recorded)

    @functools.cached_property
    def varied(self) -> Axes:
        """The axes, with the runs along them."""
        varied = Axes(language(), self.run, self.axes, self.zip)
        for dim in varied.dims:
            for axis in dim.members:
                if axis.path == ("dtype",):
                    raise ValueError(f"axes.{axis.name}: cannot vary: all runs share one dtype")
                if axis.path == ("seed",) and (axis.name != "seed" or len(dim.members) > 1):
                    raise ValueError(
                        f"axes.{axis.name}: must be called seed, and not be zipped with other axes"
                    )
        return varied

    @property
    def dims(self) -> tuple[Dimension, ...]:
        """The dimensions of the array of runs."""
        return self.varied.dims

    @functools.cached_property
    def first(self) -> Experiment:
        """The run at the first value of every axis."""
        return self.point({})

    @functools.cached_property
    def system(self) -> System:
        return registry.system_of(self.first)

    @property
    def theory_name(self) -> str:
        return self.theory if isinstance(self.theory, str) else self.theory.name

    @functools.cached_property
    def method(self) -> AnyTheory:
        """The theory, or training, that computes the runs; raises `ValueError` if the problem has
        none of that name."""
        if not isinstance(self.theory, str):
            return self.theory
        known = registry.theories(self.system)
        try:
            return known[checks.choice("theory", self.theory, (*known, registry.BEST))]
        except ValueError as error:
            problem = self.first.built[0]
            if problem.has("population_loss"):
                raise
            name = type(problem).__name__
            raise ValueError(f"{error}; descent and flows need {name}.population_loss") from None

    @functools.cached_property
    def observables(self) -> Table:
        """What the theory, or training, can record."""
        # Building a problem would start JAX, which has to wait for other processes.
        return self.method.observables(self.system.like or self.first.bare)

    @functools.cached_property
    def fields(self) -> dict[str, tuple[Any, ...]]:
        """The values of each axis, by name."""
        return {name: values for dim in self.dims for name, values in dim.axes.items()}

    @property
    def dtype(self) -> DType:
        return self.first.dtype if self.method.trains else "float64"

    def point(self, chosen: Mapping[str, Any]) -> Experiment:
        """Return the run at the `chosen` values of axes. Values of traced axes may be arrays that
        broadcast."""
        return self.varied.run({n: value for n, value in chosen.items() if n != "seed"})

    def plane(self, chosen: Mapping[str, Any]) -> Experiment:
        """Return the runs at the `chosen` values of static axes as one run whose other settings
        hold all values of their axes, as arrays that broadcast, one dimension per axis."""
        traced = [dim.axes for dim in self.dims if not dim.static and dim.name != "seed"]
        values_along = {
            name: np.reshape(values, [-1 if i == dim else 1 for i in range(len(traced))])
            for dim, axes in enumerate(traced)
            for name, values in axes.items()
        }
        return self.point({**values_along, **chosen})

    def slices(self) -> Iterator[dict[str, Any]]:
        """Iterate over all combinations of values along static dimensions."""
        return map(self._slice, np.ndindex(self._static))

    def static_values(self, region: tuple[slice, ...]) -> dict[str, Any]:
        """Return the values of static axes that are common to a region, such as a chunk."""
        return self._slice([part.start for part in region])

    def some_slices(self) -> list[dict[str, Any]]:
        """Return all combinations of static values, or a sample of them if they are many: both
        corners, each extreme and each word of a dimension with the first values of the others, and
        some evenly spaced combinations."""
        number = math.prod(self._static)
        if number <= MAX_CHECKED:
            return list(self.slices())
        # Of each dimension the smallest value, each distinct word, and the largest value: errors
        # and shapes depend on these, hardly on numbers in between.
        extremes: list[list[int]] = []
        for dim in self.dims:
            words, numbers = [], [0]
            for labels in dim.axes.values() if dim.static else ():
                if isinstance(labels[0], str):
                    words += np.unique(labels, return_index=True)[1].tolist()
                else:
                    numbers = labels
            extremes.append([int(np.argmin(numbers)), *words, int(np.argmax(numbers))])
        corners = [[indices[0] for indices in extremes], [indices[-1] for indices in extremes]]
        edges = [
            [i if dim == varied else 0 for dim in range(len(extremes))]
            for varied, indices in enumerate(extremes)
            for i in indices
        ]
        evenly = np.linspace(0, number - 1, MAX_CHECKED // 4).astype(int)
        inside = np.transpose(np.unravel_index(evenly, self._static)).tolist()
        return [self._slice(i) for i in dict.fromkeys(map(tuple, corners + edges + inside))]

    @functools.cached_property
    def _static(self) -> tuple[int, ...]:
        """The number of static values along each dimension: 1 where all runs share a program."""
        return tuple(dim.size if dim.static else 1 for dim in self.dims)

    def _slice(self, index: Sequence[int]) -> dict[str, Any]:
        """Return the values of static axes at an index into the array of runs."""
        return {
            name: values[i]
            for dim, i in zip(self.dims, index, strict=True)
            if dim.static
            for name, values in dim.axes.items()
        }

    def check(self) -> None:
        """Raise `ValueError`, naming the field, the value and what is allowed."""
        if self.rtol is not None and not self.method.adaptive:
            raise ValueError(f"rtol = {self.rtol}: theory {self.theory_name!r} does not use it")
        if self.checkpoint and not self.method.resumes:
            theories = registry.theories(self.system).items()
            able = [name for name, theory in theories if theory.resumes]
            raise ValueError(
                f"checkpoint = true: theory {self.theory_name!r} of {self.system.name} keeps none; "
                f"those that do: {', '.join(able) or 'none of this system'}"
            )
        if CHECKPOINT in self.names:
            raise ValueError(f"record = {CHECKPOINT!r}: set checkpoint = true instead")
        if not self.names:
            raise ValueError("record = []: needs at least one observable")
        for name in self.names:
            if self.names.count(name) > 1:
                raise ValueError(f"record = {name!r}: is named twice")
        self.observables.resolve(self.recorded)
        check_names(("", RESERVED_NAMES), ("axes", self.fields), ("record", self.names))
        for dim in self.dims:
            if same := equal_in(self.dtype, [_rounded_values(axis) for axis in dim.members]):
                raise ValueError(f"axes.{', '.join(dim.axes)}: {same}; {FURTHER}")
        times = self.times if isinstance(self.times, int) else len(self.times)
        steps = max(self.fields.get("steps", (self.first.steps or 1,)))
        runs, programs = math.prod(dim.size for dim in self.dims), math.prod(self._static)
        # Reject sizes that nobody can run before anything is built.
        budget.check_size(runs, programs, times * len(self.names), int(steps))
        first_of: dict[Hashable, tuple[tuple[bytes, ...], dict[str, Any]]] = {}
        for chosen in self.some_slices():
            other = registry.system_of(self.point(chosen)).name
            if other != self.system.name:
                raise ValueError(
                    f"axes: their problems are of several systems, {self.system.name} and {other}, "
                    "whose theories and observables differ; sweep each of them"
                )
            runs = self.runs(chosen)
            budget.check_memory(runs.bytes_per_run)
            # Rules and problems as values of an axis may differ in numbers alone. Then they share a
            # program, and rounding must not make them one run.
            numbers, arrays, _ = map(jax.tree.leaves, partition(runs.training))
            exact, rounded = (
                tuple(np.asarray(number, dtype).tobytes() for number in numbers)
                for dtype in (np.float64, self.dtype)
            )
            first_exact, first = first_of.setdefault((runs.call, rounded), (exact, chosen))
            if first_exact != exact:
                others = jax.tree.leaves(partition(self.runs(first).training)[1])
                if len(arrays) == len(others) and all(map(np.array_equal, arrays, others)):
                    name = next(name for name in chosen if chosen[name] != first[name])
                    raise ValueError(
                        f"axes.{name}: {first[name]} and {chosen[name]} are equal in {self.dtype}; "
                        f"{FURTHER}"
                    )

    def runs(self, chosen: Mapping[str, Any]) -> Runs:
        """Return the runs at the `chosen` values of static axes. Raises `ValueError` as `check`
        does, which examines only some of very many combinations."""
        plane, method = self.plane(chosen), self.method
        plane.check(resumed=self.checkpoint, rounded=method.trains)
        times = plane.steps_recorded(self.times)
        training = registry.training_of(method, plane)
        check_runs(method, training)
        reduced = training
        if method.reduce is not None:
            reduced = plane.training(method.reduce(training.problem, self.recorded))
        numbers, arrays, rest = partition(reduced)
        options = self.rtol, method.draws(reduced), self.checkpoint, plane.spread
        call = Call(method, Static.of(rest), times, self.recorded, self.dtype, *options)
        return Runs(training, numbers, arrays, call)


def _rounded_values(axis: Axis) -> Sequence[float] | Sequence[str]:
    """Return the values of an axis as numbers if runs round them to their dtype, where None is NaN,
    and else as text."""
    if not (axis.field.traced and "number" in axis.field.types):
        return list(map(str, axis.labels))
    if axis.traced:
        return axis.labels
    if all(value is None or is_number(value) for value in axis.values):
        return [math.nan if value is None else float(value) for value in axis.values]
    return list(map(str, axis.labels))


def _as_times(times: object) -> str | int | tuple[float, ...]:
    # NumPy raises for nested lists of different lengths.
    with contextlib.suppress(ValueError):
        listed = np.asarray(times).tolist()
        if listed == "end" or isinstance(listed, int):
            return listed
        if isinstance(listed, list) and all(isinstance(step, int | float) for step in listed):
            return tuple(listed)
    raise ValueError(
        f"times = {reprlib.repr(times)}: must be 'end', a number of them, or a list of steps"
    )


def _as_record(record: object) -> tuple[str | NamedFunction, ...]:
    entries = record if isinstance(record, Sequence) and not isinstance(record, str) else [record]
    converted: list[Any] = []
    for entry in entries:
        if isinstance(entry, Mapping):
            converted += [NamedFunction(*pair) for pair in entry.items()]
        else:
            converted.append(entry)
    if not all(isinstance(entry, str | NamedFunction) for entry in converted):
        raise ValueError(
            f"record = {reprlib.repr(record)}: must be names of observables, such as ['loss']"
        )
    return tuple(converted)


def load(path: str | Path, overrides: Iterable[str] = ()) -> Sweep:
    """Read a sweep from a TOML file.

    Args:
        path: path of the file, or the name of a built-in sweep, such as "fig6".
        overrides: "key = value" in TOML, such as "run.steps = 50", to override the file. Text needs
            no quotes, tables for `run` and `axes` change only the keys that they name, and "key ="
            removes a key.

    Raises:
        ValueError: naming the file and what is wrong in it.

    Example:
        >>> sweep = sweeps.load("fig6", ["run.steps = 50", "axes.seed = [0, 1]"])
        >>> sweep.axes["seed"]
        [0, 1]
    """
    checks.kind("path", path, str, os.PathLike)
    with recipes.naming(path):
        return from_table(recipes.read(path), overrides)


def from_table(table: Mapping[str, Any], overrides: Iterable[str] = ()) -> Sweep:
    """Return the sweep that a parsed TOML table describes; raises `ValueError` like `load`."""
    return Sweep(**recipes.parsed(table, overrides))
