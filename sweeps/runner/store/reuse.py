"""Reuses runs that other sweeps have computed, to add seeds, values, axes, or steps.

A run is determined by its settings and its seed, wherever it lies in the array of its sweep. A run
with fewer steps and a checkpoint is the beginning of the longer run. Other stores are only read.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Int

from dynsim.training.recording import NamedFunction
from sweeps.language.grammar import flattened
from sweeps.runner.config import config_of, contents, from_config
from sweeps.runner.spec import Sweep
from sweeps.runner.store import CHECKPOINT, PARTS, StoreError, Variable
from sweeps.runner.store.arrays import MISSING
from sweeps.runner.store.manifest import differences, fingerprint
from sweeps.runner.store.store import Store
from sweeps.runner.work import Work
from sweeps.systems.base import static_times

SAME_IN_BOTH = ("system", "theory", "root", "rtol")
"""Fields that two sweeps must share besides the settings of their runs."""
ChunkRegion = tuple[slice, ...]
Settings = dict[str, str]
"""Settings of a run by dotted name, each as JSON text, so that any two can be compared."""


class ReusableRuns:
    """The runs of a store that a sweep copies or resumes.

    Attributes:
        original: the sweep of the store.
        step: last step of its runs, from which those of the sweep resume; 0 for complete runs.
        num_early: number of the sweep's times up to that step, all of which it has recorded.
        late: later recording times of resumed runs, in steps.
        available: for each dimension of the sweep, a mask of its values that the store has.
        positions: for each dimension of the store, the matching dimension of the sweep and, for
            each value there, its position in the store (-1 if absent); or None and one position.
        other_programs: static values whose runs belong to another program.
    """

    def __init__(self, store: Store, sweep: Sweep) -> None:
        """Raise `ValueError` for a store whose runs cannot be reused, naming the difference."""
        self.store, self.sweep = store, sweep
        self.other_programs: list[Mapping[str, Hashable]] = []
        self._continuation: Work | None = None

        # Convert the runs of both sweeps to settings that can be compared.
        ours, theirs = config_of(sweep), store.config
        for name in SAME_IN_BOTH:
            if theirs[name] != ours[name]:
                raise _difference(store, name, json.dumps(theirs[name]), json.dumps(ours[name]))
        if lacking := [name for name in sweep.names if name not in theirs["record"]]:
            raise StoreError(f"reuse = {store.name}: has not recorded {lacking[0]!r}")
        self.original = _original(store, sweep)
        there, here = self._there, self._here = RunIndex(self.original), RunIndex(sweep)
        varied = there.varied | here.varied

        # Runs with fewer steps are resumed from their checkpoints, others are copied as they are.
        begin, end = self.original.first.steps or 0, sweep.first.steps or 0
        self.step = begin if begin < end and "steps" not in varied else 0
        self.num_early, self.late = 0, ()
        if (self.step or sweep.checkpoint) and CHECKPOINT not in store.names:
            runs = f"its runs of {begin} steps" if self.step else "its runs"
            raise StoreError(
                f"reuse = {store.name}: has no checkpoints of {runs}; a sweep keeps them with "
                "checkpoint = true"
            )
        if self.step:
            times = static_times(sweep.first.steps_recorded(sweep.times))
            early = [time for time in times if time <= begin]
            self.num_early, self.late = len(early), times[len(early) :]
            recorded = np.atleast_1d(store.dataset().coords["time"].values).tolist()
            if early and early != recorded:
                raise StoreError(
                    f"reuse = {store.name}: recorded at the steps {_few(recorded)}, and this "
                    f"sweep, until step {begin}, at {_few(early)}; set times to the former plus "
                    "later ones, or to 'end'"
                )
            if not self.late:
                raise StoreError(
                    f"times = {_few(times)}: none is after step {begin} of {store.name}"
                )
            there.first["steps"] = here.first["steps"]
        elif theirs["times"] != ours["times"]:
            raise _difference(
                store, "times", json.dumps(theirs["times"]), json.dumps(ours["times"])
            )

        # Settings that vary in neither sweep must be the same.
        for name in sorted({*there.first, *here.first} - varied):
            if there.first.get(name) != here.first.get(name):
                raise _difference(store, f"run.{name}", there.first.get(name), here.first.get(name))

        # Find the values of each dimension of the store among those of the sweep. A dimension may
        # vary several settings, if axes are zipped or have kinds.
        self.available = [
            np.array([there.agrees(row) for row in here.rows(dim, names)])
            for dim, names in enumerate(here.dims)
        ]
        self.positions: list[tuple[int | None, Int[np.ndarray, " N"]]] = []
        for dim, names in enumerate(there.dims):
            matching = [i for i, own in enumerate(here.dims) if own & names]
            if len(matching) > 1:
                raise StoreError(
                    f"reuse = {store.name}: {', '.join(sorted(names))} vary together there and "
                    "not here"
                )
            stored = {tuple(row.items()): i for i, row in enumerate(there.rows(dim, names))}
            wanted = here.rows(matching[0] if matching else None, names)
            places = np.array([stored.get(tuple(row.items()), -1) for row in wanted])
            if matching:
                self.available[matching[0]] &= places >= 0
            elif places[0] < 0:
                values = ", ".join(f"{name} = {value}" for name, value in wanted[0].items())
                raise StoreError(f"reuse = {store.name}: has no run with {values}")
            self.positions.append((matching[0] if matching else None, places))
        used = [dim for dim, _ in self.positions if dim is not None]
        if len(set(used)) < len(used):
            raise StoreError(f"reuse = {store.name}: axes vary together here and not there")

    @functools.cached_property
    def state(self) -> Variable:
        """The final states of runs, as bytes."""
        return self.store.variables[CHECKPOINT]

    def continuation(self, work: Work) -> Work:
        """Return the `Work` that continues the runs of the store to the end of the sweep."""
        if self._continuation is None:
            later = dataclasses.replace(self.sweep, times=self.late, checkpoint=True)
            tile, state = math.prod(work.tile), self.state.shape[0]
            options = {"layout": work.plan.layout, "tile": tile, "begin": self.step, "state": state}
            self._continuation = Work(later, work.mesh, **options)
        return self._continuation

    def read(
        self, region: ChunkRegion, variables: Mapping[str, Variable]
    ) -> tuple[tuple[Int[np.ndarray, " N"], ...], dict[str, np.ndarray]] | None:
        """Read the runs that the store has in a region: their places in it along each dimension,
        and their arrays. None if there are none."""
        places = tuple(
            np.flatnonzero(mask[part]) for mask, part in zip(self.available, region, strict=True)
        )
        if not all(map(len, places)):
            return None
        # Runs whose program has changed are computed again.
        settings = self._here.first | self._here.settings(self.sweep.static_values(region))
        for labels in self.other_programs:
            other = self._there.settings(labels)
            if all(settings.get(name) == value for name, value in other.items()):
                return None

        dims = [dim for dim, _ in self.positions]
        stored = [
            rows if dim is None else rows[region[dim]][places[dim]] for dim, rows in self.positions
        ]
        # From the dimensions of the store to those of the sweep: drop those with a single run,
        # reorder the others, and add those that vary only settings common to the stored runs.
        single = tuple(i for i, dim in enumerate(dims) if dim is None)
        shared = [dim for dim in dims if dim is not None]
        added = [i for i in range(len(places)) if i not in shared]
        arrays = {}
        for name, variable in variables.items():
            values = np.squeeze(self.store.select(name, stored), single)
            inner = range(len(shared), values.ndim)
            values = np.expand_dims(np.transpose(values, [*np.argsort(shared), *inner]), added)
            try:
                arrays[name] = variable.padded(values)
            except ValueError:
                raise StoreError(
                    f"reuse = {self.store.name}: {name} has longer axes than it has here"
                ) from None
        return places, arrays


def copy_chunks(
    store: Store, sources: Sequence[ReusableRuns], program: Callable[[ChunkRegion], str]
) -> None:
    """Write the chunks that the sources have completely, attributed to the program of each region.
    Workers then compute the rest chunk by chunk."""
    for number in np.flatnonzero(~store.done()) if sources else ():
        region = store.layout.region(int(number))
        arrays, missing = read_sources(sources, region, store.variables)
        if not missing.any():
            store.write(region, arrays, program=program(region))


def copy_or_compute(
    sources: Sequence[ReusableRuns],
    work: Work,
    region: ChunkRegion,
    variables: Mapping[str, Variable],
    check: Callable[[int], None],
) -> dict[str, np.ndarray]:
    """Return the arrays of a region, reading from sources and computing the rest. Runs that several
    sources have begun resume from the latest step."""
    if not sources:
        return work.compute(region, variables, check)
    complete = [source for source in sources if not source.step]
    arrays, missing = read_sources(complete, region, variables)
    for source in sorted((s for s in sources if s.step), key=lambda s: -s.step):
        num_early, num_late = source.num_early, len(source.late)
        before = {name: _with_times(each, num_early) for name, each in variables.items()}
        after = {name: _with_times(each, num_late) for name, each in variables.items()}
        # If no time was recorded there, no other array is needed.
        needed = before if num_early else {"status": before["status"]}
        begun, absent = read_sources([source], region, {**needed, CHECKPOINT: source.state})
        for box in boxes(missing & ~absent):
            states = begun[CHECKPOINT][box]
            rest = source.continuation(work)
            results = rest.compute(_shifted(box, region), after, check, states)
            for name, variable in variables.items():
                if num_early and "time" in variable.dims:
                    both = (begun[name][box], num_early), (results[name], num_late)
                    # A single time has no axis.
                    parts = [np.expand_dims(x, len(region)) if n == 1 else x for x, n in both]
                    arrays[name][box] = np.concatenate(parts, len(region))
                else:
                    arrays[name][box] = results[name]
        missing &= absent
    for box in boxes(missing):
        for name, values in work.compute(_shifted(box, region), variables, check).items():
            arrays[name][box] = values
    return arrays


def read_sources(
    sources: Sequence[ReusableRuns], region: ChunkRegion, variables: Mapping[str, Variable]
) -> tuple[dict[str, np.ndarray], Bool[np.ndarray, "..."]]:
    """Return the arrays of a region from all sources, and a mask of the missing runs."""
    shape = tuple(part.stop - part.start for part in region)
    missing = np.ones(shape, bool)
    arrays = {
        name: np.zeros((*shape, *variable.shape), variable.dtype)
        for name, variable in variables.items()
    }
    for source in sources:
        runs = source.read(region, variables)
        if runs is None:
            continue
        places, own = runs
        cells, there = np.ix_(*places), own["status"] != MISSING
        for name, values in own.items():
            mask = there.reshape(there.shape + (1,) * (values.ndim - there.ndim))
            arrays[name][cells] = np.where(mask, values, arrays[name][cells])
        missing[cells] &= ~there
    return arrays, missing


def boxes(missing: Bool[np.ndarray, "..."]) -> Iterator[ChunkRegion]:
    """Yield disjoint boxes that cover all missing cells."""
    if missing.ndim == 0:
        if missing:
            yield ()
        return
    # Neighbours along the first axis with the same missing cells share their boxes.
    start = 0
    for stop in range(1, len(missing) + 1):
        if stop == len(missing) or (missing[stop] != missing[start]).any():
            for inner in boxes(missing[start]):
                yield (slice(start, stop), *inner)
            start = stop


def _original(store: Store, sweep: Sweep) -> Sweep:
    """Rebuild the sweep of a store, with the functions and arrays of `sweep`."""
    functions = {each.name: each for each in sweep.recorded if isinstance(each, NamedFunction)}
    if lost := store.config.get("functions", {}).keys() - functions.keys():
        raise StoreError(
            f"reuse = {store.name}: recorded {min(lost)!r} by a function that this sweep does not "
            "have, so their programs cannot be compared; record it as well"
        )
    try:
        original = from_config(store.config, sweep.varied.objects)
    except ValueError as error:
        raise StoreError(f"reuse = {store.name}: {error}") from error
    record = tuple(functions.get(name, name) for name in original.names)
    original = dataclasses.replace(original, record=record)
    # A setting that its configuration only names, such as an object, may be another one here.
    if fingerprint(config_of(original)) != store.fingerprint:
        raise StoreError(
            f"reuse = {store.name}: its sweep cannot be derived from this one, so their programs "
            "cannot be compared; what differs:",
            *(f"  {line}" for line in differences(store.config, config_of(original))),
        )
    return original


class RunIndex:
    """The settings of all runs of a sweep.

    Attributes:
        first: settings of the first run, and the hashes of files that they name.
        dims: for each dimension, the names of the settings that vary along it.
    """

    def __init__(self, sweep: Sweep) -> None:
        config = config_of(sweep)
        self.first: Settings = {
            name.removeprefix("run."): text for name, text in _texts("run", config["run"])
        }
        self.first |= sweep.first.files
        self._labels = [dim.axes for dim in sweep.dims]
        self._by_label: dict[str, dict[Hashable, Settings]] = {}
        for axis, labels in sweep.fields.items():
            path = ".".join(sweep.varied.named[axis].path)
            parts, hashes = config.get(PARTS, {}).get(axis, {}), contents(sweep, axis)
            rows = [
                {**dict(_texts(path, parts.get(label, label))), **hashes.get(label, {})}
                for label in labels
            ]
            # Labels of kinds may have different sets of settings; what all share does not vary.
            same = set(rows[0].items()).intersection(*(row.items() for row in rows))
            self._by_label[axis] = {
                label: dict(row.items() - same) for label, row in zip(labels, rows, strict=True)
            }
        self.dims = [
            {name for axis in axes for row in self._by_label[axis].values() for name in row}
            for axes in self._labels
        ]

    @property
    def varied(self) -> set[str]:
        """The names of all settings that vary."""
        return set[str]().union(*self.dims)

    def rows(self, dim: int | None, names: Collection[str]) -> list[dict[str, str | None]]:
        """Return the named settings along a dimension; without one, those of the first run."""
        constant = {name: self.first.get(name) for name in sorted({*names} - self.varied)}
        if dim is None:
            return [constant]
        rows = []
        for labels in zip(*self._labels[dim].values(), strict=True):
            own = self.settings(dict(zip(self._labels[dim], labels, strict=True)))
            row: dict[str, str | None] = {**constant, **own}
            rows.append({name: row.get(name) for name in sorted(names)})
        return rows

    def agrees(self, row: Mapping[str, str | None]) -> bool:
        """Return whether the settings of a row that do not vary in the sweep match its runs."""
        return all(self.first.get(n) == v for n, v in row.items() if n not in self.varied)

    def settings(self, labels: Mapping[str, Hashable]) -> Settings:
        """Return the settings that the labels of axes stand for."""
        by_axis = [self._by_label[axis][label] for axis, label in labels.items()]
        return {name: value for settings in by_axis for name, value in settings.items()}


def _texts(path: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield a setting, or all settings of a part of a run, as text."""
    for name, each in flattened(path, value):
        # JSON has no infinity.
        yield name, json.dumps("inf" if each == math.inf else each, sort_keys=True)


def _difference(store: Store, name: str, there: str | None, here: str | None) -> StoreError:
    return StoreError(f"reuse = {store.name}: {name} = {there} there, {here} here")


def _few(times: Sequence[float]) -> str:
    texts = [f"{time:g}" for time in times]
    return "[" + ", ".join(texts if len(texts) < 9 else [*texts[:6], "...", texts[-1]]) + "]"


def _shifted(box: ChunkRegion, region: ChunkRegion) -> ChunkRegion:
    """Shift a box within a region to the coordinates of the array of all runs."""
    both = zip(box, region, strict=True)
    return tuple(slice(b.start + r.start, b.stop + r.start) for b, r in both)


def _with_times(variable: Variable, number: int) -> Variable:
    """Return the variable with another number of recorded times; a single time has no axis."""
    if "time" not in variable.dims:
        return variable
    front, dims = ((number,), variable.dims) if number > 1 else ((), variable.dims[1:])
    return Variable((*front, *variable.shape[1:]), dims, variable.dtype)
