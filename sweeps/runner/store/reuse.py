"""Taking over runs that other sweeps have computed: more seeds, more values, other axes.

A run is decided by its settings and its seed, so that one of another sweep with the same ones is
the same run, whatever its place there. What the other stores hold is read, and never changed.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from dynsim.precision import AnyArray
from sweeps.runner.spec import Sweep
from sweeps.runner.store.base import MISSING, StoreError, Variable
from sweeps.runner.store.store import Store

Region = tuple[slice, ...]
Arrays = dict[str, np.ndarray]
ALIKE = ("system", "engine", "times", "root", "rtol")
"""What two sweeps must have in common besides the settings of their runs."""


class Reused:
    """A store, and where in it the runs of another sweep are.

    Attributes:
        store: the store.
        known: by dimension of the sweep, which of its values the store has.
        index: by dimension of the store, the dimension of the sweep that it is, and by its values
            the places along it, -1 for those that it does not have; or None and the one place.
    """

    def __init__(self, store: Store, sweep: Sweep) -> None:
        """Raises `ValueError` for a store of other runs, naming what differs."""
        self.store = store
        ours, theirs = sweep.as_json(), store.config
        for name in ALIKE:
            if ours[name] != theirs[name]:
                raise _differs(store, name, theirs[name], ours[name])
        if lacking := [name for name in sweep.record if name not in theirs["record"]]:
            raise ValueError(f"reuse = {store.name}: has not recorded {lacking[0]!r}")
        coordinates = store.dataset().coords
        groups: dict[str, dict[str, np.ndarray]] = {dim: {} for dim in store.dims}
        for name in theirs["axes"]:
            groups[str(coordinates[name].dims[0])][name] = coordinates[name].values
        varied = {name for group in groups.values() for name in group}
        # A sweep without an axis of seeds has the first of them.
        one = {"seed": 0, **theirs["run"]}
        asked = {"seed": 0, **ours["run"]}
        for name in sorted({*one, *asked} - {*varied, *sweep.fields}):
            if one.get(name) != asked.get(name):
                raise _differs(store, f"run.{name}", one.get(name), asked.get(name))
        self.known = [_constant(store, dim.axes, one, varied) for dim in sweep.dims]
        self.index: list[tuple[int | None, Int[np.ndarray, " N"]]] = []
        for group in groups.values():
            at = [i for i, dim in enumerate(sweep.dims) if set(dim.axes) & set(group)]
            if not at:
                place = _find(group, {name: [_number(asked[name])] for name in group})
                if place[0] < 0:
                    values = ", ".join(f"{name} = {asked[name]}" for name in group)
                    raise ValueError(f"reuse = {store.name}: has no run with {values}")
                self.index.append((None, place))
                continue
            axes = sweep.dims[at[0]].axes
            if len(at) > 1 or not set(group) <= set(axes):
                raise ValueError(
                    f"reuse = {store.name}: {', '.join(group)} vary together there and not here"
                )
            places = _find(group, {name: axes[name] for name in group})
            self.known[at[0]] &= places >= 0
            self.index.append((at[0], places))
        used = [dim for dim, _ in self.index if dim is not None]
        if len(set(used)) < len(used):
            raise ValueError(f"reuse = {store.name}: axes vary together here and not there")

    def read(
        self, region: Region, variables: Mapping[str, Variable]
    ) -> tuple[tuple[Int[np.ndarray, " N"], ...], Arrays] | None:
        """What the store has of a region: places in it along each dimension, and arrays of these;
        None where it has nothing."""
        keep = tuple(
            np.flatnonzero(known[part]) for known, part in zip(self.known, region, strict=True)
        )
        if not all(map(len, keep)):
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


def take_over(store: Store, sources: Sequence[Reused]) -> None:
    """Write the chunks of a store that the sources have whole; for workers, which compute what is
    left chunk by chunk."""
    if not sources:
        return
    for number in np.flatnonzero(~store.done()):
        region = store.layout.region(int(number))
        arrays, missing = gathered(sources, region, store.variables)
        if not missing.any():
            store.write(region, arrays)


def complete(
    sources: Sequence[Reused],
    region: Region,
    variables: Mapping[str, Variable],
    compute: Callable[[Region], Arrays],
) -> Arrays:
    """The arrays of a region: what the sources have of it, and the rest as `compute` makes it."""
    if not sources:
        return compute(region)
    arrays, missing = gathered(sources, region, variables)
    for box in boxes(missing):
        moved = zip(box, region, strict=True)
        made = compute(tuple(slice(b.start + r.start, b.stop + r.start) for b, r in moved))
        for name, values in made.items():
            arrays[name][box] = values
    return arrays


def gathered(
    sources: Sequence[Reused], region: Region, variables: Mapping[str, Variable]
) -> tuple[Arrays, Bool[np.ndarray, "..."]]:
    """What the sources have of a region, and which of its runs none of them has."""
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
    """Boxes that cover the cells that are missing, each once."""
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


def _constant(
    store: Store, axes: Mapping[str, Sequence[float]], one: Mapping[str, Any], varied: set[str]
) -> Bool[np.ndarray, " N"]:
    """Which values of a dimension have what is the same in all runs of the store."""
    alike = np.ones(len(next(iter(axes.values()))), bool)
    for name in set(axes) - varied:
        if name not in one:
            raise ValueError(f"reuse = {store.name}: its runs do not read {name}")
        alike &= np.asarray(axes[name], np.float64) == _number(one[name])
    return alike


def _find(
    group: Mapping[str, AnyArray], wanted: Mapping[str, Sequence[float]]
) -> Int[np.ndarray, " N"]:
    """Where the values wanted, of axes that vary together, are in the group; -1 where not."""
    rows = zip(*(np.asarray(group[name], np.float64).tolist() for name in group), strict=True)
    place = {row: i for i, row in enumerate(rows)}
    asked = zip(*(np.asarray(wanted[name], np.float64).tolist() for name in group), strict=True)
    return np.array([place.get(row, -1) for row in asked])


def _number(value: Any) -> float:
    """A setting as a number; NaN, which nothing is equal to, for what is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


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
    return np.pad(values, padding, constant_values=np.nan)


def _differs(store: Store, name: str, there: Any, here: Any) -> ValueError:
    return ValueError(f"reuse = {store.name}: {name} = {there!r} there, {here!r} here")
