"""Finding runs that other sweeps have computed: for more seeds, values, axes, or steps.

A run is decided by its settings and its seed, so that one of another sweep with the same ones is
the same run, whatever its place there; with fewer steps, and with a checkpoint, it is the beginning
of that run. What the other stores hold is read, and never changed.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Int

from dynsim.precision import AnyArray
from dynsim.training.recording import Own
from sweeps.runner.spec import Sweep
from sweeps.runner.store.base import BY_WORD, CHECKPOINT, StoreError, Variable
from sweeps.runner.store.growth import Found, Region, Source, gathered
from sweeps.runner.store.manifest import differences, fingerprint
from sweeps.runner.store.store import Store
from sweeps.systems.base import known

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
        begin, end = (int(config["run"].get("steps", 0)) for config in (theirs, ours))
        self.step = begin if begin < end else 0
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
            _check_rates(store, sweep, begin)
        elif ours["times"] != theirs["times"]:
            raise _differs(store, "times", theirs["times"], ours["times"])
        groups: dict[str, dict[str, np.ndarray]] = {dim: {} for dim in store.dims}
        for name in theirs["axes"]:
            groups[str(coordinates[name].dims[0])][name] = coordinates[name].values
        varied = {name for group in groups.values() for name in group}
        # A sweep without an axis of seeds has the first of them, and words that a store does not
        # name are the usual ones.
        usual = {n: getattr(type(sweep.run), n, None) for n in sweep.run.AXES.words}
        every = {*varied, *sweep.fields}
        one, asked = (
            {"seed": 0, **usual, **mine["run"], **_read(mine, {**other, "usual": usual}, every)}
            for mine, other in ((theirs, ours), (ours, theirs))
        )
        if self.step:
            one["steps"] = asked["steps"]
        for name in sorted({*one, *asked} - every):
            if one.get(name) != asked.get(name):
                raise _differs(store, f"run.{name}", one.get(name), asked.get(name))
        self.known = [_constant(store, dim.axes, one, varied) for dim in sweep.dims]
        there, here = (config.get(BY_WORD, {}) for config in (theirs, ours))
        for dim, alike in zip(sweep.dims, self.known, strict=True):
            for name in there.keys() & here.keys() & dim.axes.keys():
                alike &= [
                    _but(every, there[name].get(word)) == _but(every, here[name][word])
                    for word in dim.axes[name]
                ]
        self.index: list[tuple[int | None, Int[np.ndarray, " N"]]] = []
        for group in groups.values():
            at = [i for i, dim in enumerate(sweep.dims) if set(dim.axes) & set(group)]
            if not at:
                place = _find(group, {name: [_number(asked.get(name))] for name in group})
                if place[0] < 0:
                    values = ", ".join(f"{name} = {asked.get(name)}" for name in group)
                    raise StoreError(f"reuse = {store.name}: has no run with {values}")
                self.index.append((None, place))
                continue
            axes = sweep.dims[at[0]].axes
            if len(at) > 1 or not set(group) <= set(axes):
                raise StoreError(
                    f"reuse = {store.name}: {', '.join(group)} vary together there and not here"
                )
            places = _find(group, {name: axes[name] for name in group})
            self.known[at[0]] &= places >= 0
            self.index.append((at[0], places))
        used = [dim for dim, _ in self.index if dim is not None]
        if len(set(used)) < len(used):
            raise StoreError(f"reuse = {store.name}: axes vary together here and not there")

    def original(self) -> Sweep:
        """The sweep of the store, made of the problem, rule and functions of this one."""
        theirs, ours = self.store.config, self.sweep
        own = {each.name: each for each in ours.record if isinstance(each, Own)}
        if lost := theirs.get("functions", {}).keys() - own.keys():
            raise StoreError(
                f"reuse = {self.store.name}: recorded {min(lost)!r} by a function that this sweep "
                "does not have, so that their programs cannot be compared; record it as well"
            )
        by_word = [read for words in theirs.get(BY_WORD, {}).values() for read in words.values()]
        told = {
            name: math.inf if value == "inf" else value
            for read in (theirs["run"], *by_word)
            for name, value in read.items()
            if name not in theirs["axes"]
            and (name in ours.fields or name == "steps" or read is not theirs["run"])
        }
        made = dataclasses.replace(
            ours,
            axes=theirs["axes"],
            run=ours.run.at(told),
            record=tuple(own.get(name, name) for name in theirs["record"]),
            times=tuple(t) if isinstance(t := theirs["times"], list) else t,
            zip=tuple(map(tuple, theirs["zip"])),
            checkpoint=theirs.get(CHECKPOINT, False),
        )
        if fingerprint(made.as_json()) != self.store.fingerprint:
            raise StoreError(
                f"reuse = {self.store.name}: its sweep cannot be made of this one, so that their "
                "programs cannot be compared; what differs:",
                *(f"  {line}" for line in differences(theirs, made.as_json())),
            )
        return made

    @property
    def state(self) -> int:
        return self.store.variables[CHECKPOINT].shape[0]

    def _is_other(self, region: Region) -> bool:
        """Whether the store's runs of a region belong to another program."""
        here = {**self.store.config["run"], **self.sweep.static_values(region)}
        return any(
            all(_number(here.get(name)) == _number(value) for name, value in other.items())
            for other in self.others
        )

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


def _constant(
    store: Store, axes: Mapping[str, Sequence[float]], one: Mapping[str, Any], varied: set[str]
) -> Bool[np.ndarray, " N"]:
    """Which values of a dimension have what is the same in all runs of the store."""
    alike = np.ones(len(next(iter(axes.values()))), bool)
    for name in set(axes) - varied:
        if name not in one:
            raise StoreError(f"reuse = {store.name}: its runs do not read {name}")
        alike &= _numbers(axes[name]) == _number(one[name])
    return alike


def _find(
    group: Mapping[str, AnyArray], wanted: Mapping[str, Sequence[float]]
) -> Int[np.ndarray, " N"]:
    """Where the values wanted, of axes that vary together, are in the group; -1 where not."""
    rows = zip(*(_numbers(group[name]).tolist() for name in group), strict=True)
    place = {row: i for i, row in enumerate(rows)}
    asked = zip(*(_numbers(wanted[name]).tolist() for name in group), strict=True)
    return np.array([place.get(row, -1) for row in asked])


def _read(config: Mapping[str, Any], other: Mapping[str, Any], axes: set[str]) -> dict[str, Any]:
    """What the words along the axes of one sweep read, as settings of all its runs: all that is
    read by the word which the `other` sweep has alone; and what is among the `axes` of either, NaN
    where the values for several words differ."""
    found: dict[str, Any] = {}
    for name, words in config.get(BY_WORD, {}).items():
        if name not in other["axes"]:
            found |= words.get(other["run"].get(name, other["usual"].get(name)), {})
            continue
        for read in words.values():
            for each in read.keys() & axes:
                found[each] = read[each] if found.get(each, read[each]) == read[each] else math.nan
    return found


def _but(axes: set[str], read: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What a word reads besides axes; None for a word that is not there."""
    return None if read is None else {n: value for n, value in read.items() if n not in axes}


def _numbers(values: Any) -> np.ndarray:
    """The values of an axis, all as numbers unless they are words."""
    array = np.asarray(values)
    return array if array.dtype.kind == "U" else array.astype(np.float64)


def _number(value: Any) -> Any:
    """A setting as a number, or as the word that it is; NaN, which nothing is equal to, for what is
    neither."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return value if isinstance(value, str) else math.nan


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
    times = known(sweep.point(next(sweep.slices())).steps_recorded(sweep.times))
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


def _check_rates(store: Store, sweep: Sweep, begin: int) -> None:
    """Raise `StoreError` where the numbers of a run, or its learning rates until step `begin`, are
    others than those of a run that ends there."""
    firsts = {name: values[0] for name, values in sweep.fields.items()}

    def told(steps: int, chosen: Mapping[str, Any]) -> list[Any]:
        run = sweep.point({**firsts, **chosen, "steps": steps})
        schedules = getattr(run.make_optimizer(), "schedules", {}).values()
        return jax.tree.leaves((run.numbers(), [s.rate(np.arange(begin)) for s in schedules]))

    end = int(sweep.as_json()["run"]["steps"])
    both = (zip(told(begin, c), told(end, c), strict=True) for c in sweep.some_slices())
    if not all(np.array_equal(*each) for runs in both for each in runs):
        raise StoreError(
            f"reuse = {store.name}: the schedule of its runs follows from their {begin} steps, and "
            "is another one in longer runs; give its steps in both sweeps"
        )


def _short(times: Sequence[float]) -> str:
    """Times for a message."""
    few = [f"{time:g}" for time in times]
    return "[" + ", ".join(few if len(few) < 9 else [*few[:6], "...", few[-1]]) + "]"


def _differs(store: Store, name: str, there: Any, here: Any) -> StoreError:
    return StoreError(f"reuse = {store.name}: {name} = {there!r} there, {here!r} here")
