"""Reuses runs that other sweeps have computed, to add seeds, values, axes, or steps.

A run is determined by its settings and its seed, wherever it lies in the array of its sweep. A run
with fewer steps and a checkpoint is the beginning of the longer run. Other stores are only read.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

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
from sweeps.systems.base import known

ALIKE = ("system", "theory", "root", "rtol")
"""Fields that two sweeps must share besides the settings of their runs."""
Region = tuple[slice, ...]
Arrays = dict[str, np.ndarray]
Found = tuple[tuple[Int[np.ndarray, " N"], ...], Arrays]
"""Runs that a source has in a region: places along each dimension, and their arrays."""


class Reused:
    """A source store, with the positions of its runs in the sweep.

    Attributes:
        known: for each dimension of the sweep, a mask of its values that the store has.
        index: for each dimension of the store, the matching dimension of the sweep and, for each
            value there, the place in the store (-1 if absent); or None and a single place.
        others: static values whose runs belong to another program.
        step: last step of its runs, from which those of the sweep resume; 0 for complete runs.
        early: number of the sweep's times up to that step, all of which it has recorded.
        times: later recording times of resumed runs, in steps.
        original: the sweep of the store.
    """

    def __init__(self, store: Store, sweep: Sweep) -> None:
        """Raise `ValueError` for a store whose runs cannot be reused, naming the difference."""
        self.store, self.sweep = store, sweep
        self.others: list[dict[str, Any]] = []
        self._rest: Work | None = None
        ours, theirs = config_of(sweep), store.config

        def require(name: str, there: Any, here: Any, shown: Callable[[Any], Any] = str) -> None:
            if there != here:
                raise StoreError(
                    f"reuse = {store.name}: {name} = {shown(there)} there, {shown(here)} here"
                )

        for name in ALIKE:
            require(name, theirs[name], ours[name], json.dumps)
        if lacking := [name for name in sweep.names if name not in theirs["record"]]:
            raise StoreError(f"reuse = {store.name}: has not recorded {lacking[0]!r}")
        coordinates = store.dataset().coords
        self.original = _original(store, sweep)
        begin, end = (each.first.steps or 0 for each in (self.original, sweep))
        there, here = self._places = Places(self.original), Places(sweep)
        varied = there.varied | here.varied
        self.step = begin if begin < end and "steps" not in varied else 0
        self.early, self.times = 0, ()
        if (self.step or sweep.checkpoint) and CHECKPOINT not in store.names:
            runs = f"its runs of {begin} steps" if self.step else "its runs"
            raise StoreError(
                f"reuse = {store.name}: has no checkpoints of {runs}; a sweep keeps them with "
                "checkpoint = true"
            )
        if self.step:
            times = np.atleast_1d(coordinates["time"].values)
            self.early, self.times = _parted(store, sweep, begin, times)
            there.first["steps"] = here.first["steps"]
        else:
            require("times", theirs["times"], ours["times"], json.dumps)
        for name in sorted({*there.first, *here.first} - varied):
            require(f"run.{name}", there.first.get(name), here.first.get(name))
        self.known = [
            np.array([there.has(row) for row in here.rows(dim, names)])
            for dim, names in enumerate(here.dims)
        ]
        self.index: list[tuple[int | None, Int[np.ndarray, " N"]]] = []
        for dim, names in enumerate(there.dims):
            at = [i for i, mine in enumerate(here.dims) if mine & names]
            if len(at) > 1:
                raise StoreError(
                    f"reuse = {store.name}: {', '.join(sorted(names))} vary together there and "
                    "not here"
                )
            rows = {tuple(row.items()): i for i, row in enumerate(there.rows(dim, names))}
            wanted = here.rows(at[0] if at else None, names)
            places = np.array([rows.get(tuple(row.items()), -1) for row in wanted])
            if at:
                self.known[at[0]] &= places >= 0
            elif places[0] < 0:
                values = ", ".join(f"{name} = {value}" for name, value in wanted[0].items())
                raise StoreError(f"reuse = {store.name}: has no run with {values}")
            self.index.append((at[0] if at else None, places))
        used = [dim for dim, _ in self.index if dim is not None]
        if len(set(used)) < len(used):
            raise StoreError(f"reuse = {store.name}: axes vary together here and not there")

    @functools.cached_property
    def state(self) -> Variable:
        """The final states of runs, as bytes."""
        return self.store.variables[CHECKPOINT]

    def rest(self, work: Work) -> Work:
        """Return the `Work` that continues the runs of the store to the end of the sweep."""
        if self._rest is None:
            later = dataclasses.replace(self.sweep, times=self.times, checkpoint=True)
            self._rest = work.going_on(later, self.step, self.state.shape[0])
        return self._rest

    def _is_other(self, region: Region) -> bool:
        """Return whether the store's runs of a region belong to another program."""
        there, here = self._places
        mine = here.first | here.chosen(self.sweep.static_values(region))
        others = map(there.chosen, self.others)
        return any(all(mine.get(p) == v for p, v in other.items()) for other in others)

    def read(self, region: Region, variables: Mapping[str, Variable]) -> Found | None:
        """Read the runs that it has in a region; None if there are none."""
        keep = tuple(
            np.flatnonzero(known[part]) for known, part in zip(self.known, region, strict=True)
        )
        if not all(map(len, keep)) or self._is_other(region):
            return None
        chosen = [
            places if dim is None else places[region[dim]][keep[dim]] for dim, places in self.index
        ]
        order = [dim for dim, _ in self.index]
        found = {}
        for name, variable in variables.items():
            values = self.store.select(name, chosen)
            single = tuple(i for i, dim in enumerate(order) if dim is None)
            values = np.squeeze(values, single)
            left = [dim for dim in order if dim is not None]
            values = np.transpose(values, [*np.argsort(left), *range(len(left), values.ndim)])
            values = np.expand_dims(values, [i for i in range(len(keep)) if i not in left])
            try:
                found[name] = variable.padded(values)
            except ValueError:
                raise StoreError(
                    f"reuse = {self.store.name}: {name} has longer axes than it has here"
                ) from None
        return keep, found


def take_over(store: Store, sources: Sequence[Reused], program: Callable[[Region], str]) -> None:
    """Write the chunks that the sources have completely, attributed to the given program. Workers
    then compute the rest chunk by chunk."""
    for number in np.flatnonzero(~store.done()) if sources else ():
        region = store.layout.region(int(number))
        arrays, missing = gathered(sources, region, store.variables)
        if not missing.any():
            store.write(region, arrays, program=program(region))


def completed(
    sources: Sequence[Reused],
    work: Work,
    region: Region,
    variables: Mapping[str, Variable],
    check: Callable[[int], None],
) -> Arrays:
    """Return the arrays of a region, reading from sources and computing the rest. Runs that several
    sources have begun resume from the latest step."""
    if not sources:
        return work.compute(region, variables, check)
    arrays, missing = gathered([each for each in sources if not each.step], region, variables)

    def put(box: Region, made: Arrays) -> None:
        for name, values in made.items():
            arrays[name][box] = values

    for source in sorted((s for s in sources if s.step), key=lambda s: -s.step):
        early, late = source.early, len(source.times)
        before = {name: _at_times(each, early) for name, each in variables.items()}
        after = {name: _at_times(each, late) for name, each in variables.items()}
        # If no time was recorded there, no other array is needed.
        asked = before if early else {"status": before["status"]}
        found, absent = gathered([source], region, {**asked, CHECKPOINT: source.state})
        for box in boxes(missing & ~absent):
            states = found[CHECKPOINT][box]
            made = source.rest(work).compute(_moved(box, region), after, check, states)
            for name in [n for n, each in variables.items() if early and "time" in each.dims]:
                both = (found[name][box], early), (made[name], late)
                # A single time has no axis.
                parts = [np.expand_dims(x, len(region)) if n == 1 else x for x, n in both]
                made[name] = np.concatenate(parts, len(region))
            put(box, made)
        missing &= absent
    for box in boxes(missing):
        put(box, work.compute(_moved(box, region), variables, check))
    return arrays


def gathered(
    sources: Sequence[Reused], region: Region, variables: Mapping[str, Variable]
) -> tuple[Arrays, Bool[np.ndarray, "..."]]:
    """Return the arrays of a region from all sources, and a mask of the missing runs."""
    shape = tuple(part.stop - part.start for part in region)
    missing = np.ones(shape, bool)
    arrays = {
        name: np.zeros((*shape, *variable.shape), variable.dtype)
        for name, variable in variables.items()
    }
    for source in sources:
        read = source.read(region, variables)
        if read is None:
            continue
        places, found = read
        there = found["status"] != MISSING
        for name, values in found.items():
            old = arrays[name][np.ix_(*places)]
            mask = there.reshape(there.shape + (1,) * (values.ndim - there.ndim))
            arrays[name][np.ix_(*places)] = np.where(mask, values, old)
        missing[np.ix_(*places)] &= ~there
    return arrays, missing


def boxes(missing: Bool[np.ndarray, "..."]) -> Iterator[Region]:
    """Yield disjoint boxes that cover all missing cells."""
    if missing.ndim == 0:
        if missing:
            yield ()
        return
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
        made = from_config(store.config, sweep.varied.objects)
    except ValueError as error:
        raise StoreError(f"reuse = {store.name}: {error}") from error
    record = tuple(functions.get(name, name) for name in made.names)
    made = dataclasses.replace(made, record=record)
    if fingerprint(config_of(made)) != store.fingerprint:
        raise StoreError(
            f"reuse = {store.name}: its sweep cannot be derived from this one, so their programs "
            "cannot be compared; what differs:",
            *(f"  {line}" for line in differences(store.config, config_of(made))),
        )
    return made


class Places:
    """The runs of a sweep in terms of their settings, as comparable texts. `first` has those of the
    first run and the hashes of files that they name; `dims` has, for each dimension, the names of
    the settings that vary along it. Values of an axis of kinds may have different sets of
    settings."""

    def __init__(self, sweep: Sweep) -> None:
        config = config_of(sweep)
        self.first = {n.removeprefix("run."): v for n, v in _texts("run", config["run"])}
        self.first |= sweep.first.files
        self._labels: list[dict[str, tuple[Any, ...]]] = [dim.axes for dim in sweep.dims]
        self._values: dict[str, dict[Any, dict[str, str]]] = {}
        for name, labels in sweep.fields.items():
            path, hashes = ".".join(sweep.varied.named[name].path), contents(sweep, name)
            parts = config.get(PARTS, {}).get(name, {})
            rows = [
                {**dict(_texts(path, parts.get(label, label))), **hashes.get(label, {})}
                for label in labels
            ]
            same = functools.reduce(lambda same, row: same & row.items(), rows, rows[0].items())
            self._values[name] = {
                label: dict(row.items() - same) for label, row in zip(labels, rows, strict=True)
            }
        self.dims = [
            {path for name in axes for row in self._values[name].values() for path in row}
            for axes in self._labels
        ]

    @property
    def varied(self) -> set[str]:
        """The names of all settings that vary."""
        return set[str]().union(*self.dims)

    def rows(self, dim: int | None, names: Collection[str]) -> list[dict[str, Any]]:
        """Return the named settings along a dimension; without one, those of the first run."""
        usual = {name: self.first.get(name) for name in sorted({*names} - self.varied)}
        if dim is None:
            return [usual]
        rows = []
        for labels in zip(*self._labels[dim].values(), strict=True):
            row = dict(usual)
            for name, label in zip(self._labels[dim], labels, strict=True):
                row |= self._values[name][label]
            rows.append({name: row.get(name) for name in sorted(names)})
        return rows

    def has(self, row: Mapping[str, Any]) -> bool:
        """Return whether the settings of a row that do not vary in the sweep match its runs."""
        return all(self.first.get(n) == v for n, v in row.items() if n not in self.varied)

    def chosen(self, labels: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings, by name, that the labels of axes stand for."""
        found = {name: self._values[name][label] for name, label in labels.items()}
        return {n: v for row in found.values() for n, v in row.items()}


def _texts(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield a setting, or all settings of a part of a run, as text."""
    for name, each in flattened(path, value):
        yield name, json.dumps("inf" if each == math.inf else each, sort_keys=True)


def _parted(
    store: Store, sweep: Sweep, begin: int, recorded: np.ndarray
) -> tuple[int, tuple[int, ...]]:
    """Return how many of the times up to `begin` the store has, and the later times."""
    times = known(sweep.first.steps_recorded(sweep.times))
    early, late = [t for t in times if t <= begin], tuple(t for t in times if t > begin)
    if early and early != recorded.tolist():
        raise StoreError(
            f"reuse = {store.name}: recorded at the steps {_short(recorded.tolist())}, and this "
            f"sweep, until step {begin}, at {_short(early)}; set times to the former plus later "
            "ones, or to 'end'"
        )
    if not late:
        raise StoreError(f"times = {_short(times)}: none is after step {begin} of {store.name}")
    return len(early), late


def _short(times: Sequence[float]) -> str:
    """Format times for a message."""
    few = [f"{time:g}" for time in times]
    return "[" + ", ".join(few if len(few) < 9 else [*few[:6], "...", few[-1]]) + "]"


def _moved(box: Region, region: Region) -> Region:
    """Shift a box within a region to the coordinates of the array of all runs."""
    both = zip(box, region, strict=True)
    return tuple(slice(b.start + r.start, b.stop + r.start) for b, r in both)


def _at_times(variable: Variable, number: int) -> Variable:
    """Return the variable with another number of recorded times; a single time has no axis."""
    if "time" not in variable.dims:
        return variable
    front, dims = ((number,), variable.dims) if number > 1 else ((), variable.dims[1:])
    return Variable((*front, *variable.shape[1:]), dims, variable.dtype)
