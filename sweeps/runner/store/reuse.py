"""Finding runs that other sweeps have computed: for more seeds, values, axes, or steps.

A run is decided by its settings and its seed, so that one of another sweep with the same ones is
the same run, whatever its place there; with fewer steps, and with a checkpoint, it is the beginning
of that run. What the other stores hold is read, and never changed.
"""

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from dynsim.training.recording import Own
from sweeps.language.grammar import flattened
from sweeps.language.tree import encode
from sweeps.runner.files import from_config
from sweeps.runner.spec import Sweep
from sweeps.runner.store.base import CHECKPOINT, PARTS, StoreError, Variable
from sweeps.runner.store.growth import Found, Region, Source, gathered
from sweeps.runner.store.manifest import differences, fingerprint
from sweeps.runner.store.store import Store
from sweeps.systems.base import known
from sweeps.systems.kinds import language

ALIKE = ("system", "engine", "root", "rtol")
"""What two sweeps must have in common besides the settings of their runs."""


class Reused(Source):
    """A store, and where in it the runs of another sweep are.

    Attributes:
        store: the store.
        known: by dimension of the sweep, which of its values the store has.
        index: by dimension of the store, the dimension of the sweep that it is, and by its values
            the places along it, -1 for those that it does not have; or None and the one place.
        others: values of static axes whose runs belong to another program.
        original: the sweep of the store.
    """

    def __init__(self, store: Store, sweep: Sweep) -> None:
        """Raises `ValueError` for a store of other runs, naming what differs."""
        self.store, self.sweep = store, sweep
        self.others: list[dict[str, Any]] = []
        ours, theirs = sweep.as_json(), store.config
        for name in ALIKE:
            if ours[name] != theirs[name]:
                raise _differs(store, name, theirs[name], ours[name])
        if lacking := [name for name in sweep.names if name not in theirs["record"]]:
            raise StoreError(f"reuse = {store.name}: has not recorded {lacking[0]!r}")
        coordinates = store.dataset().coords
        self.original = _original(store, sweep)
        # By path, as an axis may have another name there.
        axes = {path for each in (self.original, sweep) for path in _paths(each).values()}
        begin, end = (each.first.steps or 0 for each in (self.original, sweep))
        self.step = begin if begin < end and "steps" not in axes else 0
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
        elif ours["times"] != theirs["times"]:
            raise _differs(store, "times", theirs["times"], ours["times"])
        there, here = self._places = tuple(Places(each, axes) for each in (self.original, sweep))
        if self.step:
            there.settings["steps"] = here.settings["steps"]
        for name in sorted({*there.settings, *here.settings}):
            a, b = there.settings.get(name), here.settings.get(name)
            if a != b:
                raise _differs(store, f"run.{name}", a, b)
        self.known = [
            np.array([there.has(point) for point in here.points(paths)]) for paths in here.dims
        ]
        self.index: list[tuple[int | None, Int[np.ndarray, " N"]]] = []
        for paths in there.dims:
            at = [i for i, mine in enumerate(here.dims) if {*mine} & {*paths}]
            if len(at) > 1 or (at and not {*paths} <= {*here.dims[at[0]]}):
                raise StoreError(
                    f"reuse = {store.name}: {', '.join(paths)} vary together there and not here"
                )
            rows = {tuple(point.values()): i for i, point in enumerate(there.points(paths))}
            wanted = here.points(here.dims[at[0]]) if at else [here.first]
            places = np.array([rows.get(tuple(each[p] for p in paths), -1) for each in wanted])
            if at:
                self.known[at[0]] &= places >= 0
            elif places[0] < 0:
                values = ", ".join(f"{path} = {here.first[path]}" for path in paths)
                raise StoreError(f"reuse = {store.name}: has no run with {values}")
            self.index.append((at[0] if at else None, places))
        used = [dim for dim, _ in self.index if dim is not None]
        if len(set(used)) < len(used):
            raise StoreError(f"reuse = {store.name}: axes vary together here and not there")

    @property
    def state(self) -> int:
        return self.store.variables[CHECKPOINT].shape[0]

    def _is_other(self, region: Region) -> bool:
        """Whether the store's runs of a region belong to another program."""
        there, here = self._places
        mine = here.first | here.chosen(self.sweep.static_values(region))
        others = map(there.chosen, self.others)
        return any(all(mine.get(p) == v for p, v in other.items()) for other in others)

    def later(self, sweep: Sweep) -> Sweep:
        """The part of the sweep that is left where the runs of the store end."""
        return dataclasses.replace(sweep, times=self.times, checkpoint=True)

    def read(self, region: Region, variables: Mapping[str, Variable]) -> Found | None:
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
            found[name] = _padded(self.store, name, values, variable, len(keep))
        return keep, found


def take_over(store: Store, sources: Sequence[Reused], program: Callable[[Region], str]) -> None:
    """Write the chunks of a store that the sources have whole, as those of a program; for workers,
    which compute what is left chunk by chunk."""
    if not sources:
        return
    for number in np.flatnonzero(~store.done()):
        region = store.layout.region(int(number))
        arrays, missing = gathered(sources, region, store.variables)
        if not missing.any():
            store.write(region, arrays, program=program(region))


def _original(store: Store, sweep: Sweep) -> Sweep:
    """The sweep of a store, with the functions and arrays of another one."""
    functions = {each.name: each for each in sweep.recorded if isinstance(each, Own)}
    if lost := store.config.get("functions", {}).keys() - functions.keys():
        raise StoreError(
            f"reuse = {store.name}: recorded {min(lost)!r} by a function that this sweep does not "
            "have, so that their programs cannot be compared; record it as well"
        )
    try:
        made = from_config(store.config, sweep.varied.objects)
    except ValueError as error:
        raise StoreError(f"reuse = {store.name}: {error}") from error
    record = tuple(functions.get(name, name) for name in made.names)
    made = dataclasses.replace(made, record=record)
    if fingerprint(made.as_json()) != store.fingerprint:
        raise StoreError(
            f"reuse = {store.name}: its sweep cannot be made of this one, so that their programs "
            "cannot be compared; what differs:",
            *(f"  {line}" for line in differences(store.config, made.as_json())),
        )
    return made


class Places:
    """The runs of a sweep by the paths of their settings.

    Attributes:
        first: the settings of the first run that are axes, of this sweep or of the other one.
        settings: what all runs share, and what files hold that they name.
        dims: by dimension of the sweep, the paths that vary along it.
    """

    def __init__(self, sweep: Sweep, axes: Collection[str]) -> None:
        """`axes`: the paths of all axes of both sweeps."""
        self._sweep, self._axes = sweep, axes
        table = encode(language(), sweep.first)
        self.first = {path: self._text(_part(table, path), path) for path in sorted(axes)}
        left = {f"run.{path}" for path in axes}
        self.settings = {
            name.removeprefix("run."): value
            for name, value in flattened("run", table)
            if not any(name == each or name.startswith(f"{each}.") for each in left)
        }
        self.settings |= sweep.first.files
        paths, parts = _paths(sweep), sweep.as_json().get(PARTS, {})
        self.dims = [[paths[name] for name in dim.axes] for dim in sweep.dims]
        self._labels = {paths[name]: labels for name, labels in sweep.fields.items()}
        # What each label stands for.
        self._values = {
            paths[name]: {
                label: self._text(parts[name][label], paths[name]) if name in parts else label
                for label in labels
            }
            for name, labels in sweep.fields.items()
        }

    def points(self, paths: Sequence[str]) -> list[dict[str, Any]]:
        """The settings along a dimension, by path."""
        columns = [map(self._values[path].get, self._labels[path]) for path in paths]
        rows = zip(*columns, strict=True)
        return [dict(zip(paths, row, strict=True)) for row in rows]

    def has(self, point: Mapping[str, Any]) -> bool:
        """Whether the runs of this sweep, which have one value of what is no axis here, have that
        of a point."""
        return all(p in self._values or self.first[p] == v for p, v in point.items())

    def chosen(self, labels: Mapping[str, Any]) -> dict[str, Any]:
        """Settings by path, from labels by the name of the axis."""
        paths = _paths(self._sweep)
        return {paths[n]: self._values[paths[n]][label] for n, label in labels.items()}

    def _text(self, value: Any, path: str) -> Any:
        """A value that can be compared: of a part its text, without what are axes in it."""
        if not isinstance(value, dict):
            return value
        left = {n: v for n, v in flattened(path, value) if n not in self._axes}
        return json.dumps(left, sort_keys=True)


def _paths(sweep: Sweep) -> dict[str, str]:
    """The paths of all axes by name."""
    return {name: ".".join(axis.path) for name, axis in sweep.varied.named.items()}


def _part(table: Any, path: str) -> Any:
    for name in path.split("."):
        table = table.get(name) if isinstance(table, dict) else None
    return table


def _padded(
    store: Store, name: str, values: np.ndarray, variable: Variable, outer: int
) -> np.ndarray:
    """Values whose own axes are filled up with NaN, as where shapes differ between runs."""
    extra = [want - got for got, want in zip(values.shape[outer:], variable.shape, strict=True)]
    if any(number < 0 for number in extra):
        raise StoreError(f"reuse = {store.name}: {name} has longer axes than it has here")
    if not any(extra):
        return values
    padding = [*(outer * [(0, 0)]), *((0, number) for number in extra)]
    empty = np.nan if values.dtype.kind == "f" else 0
    return np.pad(values, padding, constant_values=empty)


def _parted(
    store: Store, sweep: Sweep, begin: int, recorded: np.ndarray
) -> tuple[int, tuple[int, ...]]:
    """How many of a sweep's times its runs have recorded in a store, where they end at step
    `begin`; and the later ones."""
    times = known(sweep.first.steps_recorded(sweep.times))
    early, late = [t for t in times if t <= begin], tuple(t for t in times if t > begin)
    if early and early != recorded.tolist():
        raise StoreError(
            f"reuse = {store.name}: recorded at the steps {_short(recorded.tolist())}, and this "
            f"sweep, until step {begin}, at {_short(early)}; set times to the former and those to "
            "come, or to 'end'"
        )
    if not late:
        raise StoreError(f"times = {_short(times)}: has none after the {begin} of {store.name}")
    return len(early), late


def _short(times: Sequence[float]) -> str:
    """Times for a message."""
    few = [f"{time:g}" for time in times]
    return "[" + ", ".join(few if len(few) < 9 else [*few[:6], "...", few[-1]]) + "]"


def _differs(store: Store, name: str, there: Any, here: Any) -> StoreError:
    return StoreError(f"reuse = {store.name}: {name} = {there!r} there, {here!r} here")
