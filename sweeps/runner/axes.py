"""Named axes of a sweep: their values, their dimensions, and the hyper-rectangles of runs.

An axis is a numeric field of the run, one that chooses a word, or the seed. Axes form a grid,
except that zipped ones share a dimension. The runs of a sweep are the cells of that array of runs.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from dynsim import checks
from dynsim.decoding import plain, shown
from sweeps.systems.base import Fields


class Dimension(NamedTuple):
    """A dimension of the sweep: one axis, or several zipped ones.

    Attributes:
        name: of the dimension, which is that of its first axis.
        axes: values by field, all of the same length.
        static: whether a step along it changes the task or the shapes of arrays.
    """

    name: str
    axes: dict[str, tuple[Any, ...]]
    static: bool

    @property
    def size(self) -> int:
        """Number of values."""
        return len(next(iter(self.axes.values())))


def values(name: str, given: Any, whole: bool = False) -> tuple[float, ...]:
    """The values of axis `name` as a sweep file writes them.

    Args:
        name: of the axis, for messages.
        given: a list of numbers; or a table with one entry: `linspace` or `logspace`, each
            [first, last, number of values]; or `range`, a number n for 0 .. n-1 or [first, end].
        whole: whether they must be whole numbers.

    Raises:
        ValueError: for anything else, an empty axis, or a value that is no number or, if `whole`,
            no whole number.
    """
    field = f"axes.{name}"
    if isinstance(given, Mapping):
        given = _spaced(field, given)
    if isinstance(given, jax.Array | np.ndarray):
        given = plain(np.asarray(given))
    if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray):
        raise ValueError(
            f"{field} = {shown(given)}: must be a list, or a table with linspace, logspace or range"
        )
    # Of millions of values all are Python's own numbers, and in order.
    found = tuple(given) if _in_order(given, whole) else None
    found = tuple(_number(field, value, whole) for value in given) if found is None else found
    if not found:
        raise ValueError(f"{field} = []: needs at least one value")
    return found


def words(name: str, given: Any, allowed: Sequence[str]) -> tuple[str, ...]:
    """The values of axis `name`, a list of some of the words that are `allowed`; `ValueError` for
    anything else."""
    field = f"axes.{name}"
    found = plain(given.tolist() if isinstance(given, np.ndarray) else given)
    if not isinstance(found, tuple) or not found:
        listed = ", ".join(allowed)
        raise ValueError(f"{field} = {shown(given)}: must be a list of some of {listed}")
    return tuple(checks.choice(field, word, allowed) for word in found)


def _in_order(given: Sequence[Any] | np.ndarray, whole: bool) -> bool:
    """Whether no value needs to be looked at by itself."""
    kinds = set(map(type, given))
    if kinds == {int}:
        return -(2**63) < min(given) and max(given) < 2**63
    return kinds == {float} and not whole and not np.isnan(np.asarray(given)).any()


def dimensions(
    axes: Mapping[str, Any], zipped: Sequence[Sequence[str]], fields: Fields
) -> tuple[Dimension, ...]:
    """The dimensions that `axes` form, in their order; axes in one group of `zipped` share one.

    Args:
        axes: what `values` or `words` takes, by the names of `fields`.
        zipped: groups of names.
        fields: what can be an axis.

    Raises:
        ValueError: for an unknown axis, bad values, groups that do not fit together, or a
            dimension that has a value, or values of zipped axes, twice.
    """
    table: dict[str, tuple[Any, ...]] = {}
    for name, entries in axes.items():
        checks.choice("axes", name, fields.names)
        if name in fields.words:
            table[name] = words(name, entries, fields.words[name])
        else:
            table[name] = values(name, entries, fields.is_whole(name))
        _check_number("axes", sum(map(len, table.values())))
    group_of: dict[str, tuple[str, ...]] = {}
    for group in zipped:
        names = tuple(group)
        for name in names:
            checks.choice("zip", name, tuple(table))
            if name in group_of:
                raise ValueError(f"zip: {name} is in two groups")
            group_of[name] = names
        if "seed" in names:
            raise ValueError("zip: seed is an axis of its own, because its runs share their data")
        lengths = {name: len(table[name]) for name in names}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise ValueError(f"zip: axes need the same number of values, got {shown}")
    found = []
    for name in table:
        group = group_of.get(name, (name,))
        if name == next(n for n in table if n in group):
            ordered = [name, *(n for n in group if n != name)]
            static = any(n in fields.static for n in ordered)
            found.append(Dimension(name, {n: table[n] for n in ordered}, static))
            _check_different(found[-1])
    return tuple(found)


MOST_VALUES = 2**24
"""Values of all axes: each is kept with the results."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """How the array of runs is cut into chunks, the units of work and of storage.

    Attributes:
        shape: number of values along each dimension.
        chunk: number of values of a chunk along each dimension; at the far end less may be left.
    """

    shape: tuple[int, ...]
    chunk: tuple[int, ...]

    @property
    def num_runs(self) -> int:
        """Number of runs."""
        return math.prod(self.shape)

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of chunks along each dimension."""
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunk, strict=True))

    @property
    def num_chunks(self) -> int:
        """Number of chunks."""
        return math.prod(self.counts)

    def regions(self) -> Iterator[tuple[slice, ...]]:
        """The region of each chunk, chunk 0 first, the last dimension fastest."""
        return map(self._at, itertools.product(*map(range, self.counts)))

    def region(self, number: int) -> tuple[slice, ...]:
        """The region of one chunk, by its place among `regions`."""
        return self._at(tuple(int(i) for i in np.unravel_index(number, self.counts)))

    def number(self, region: Sequence[slice]) -> int:
        """The place of a region among `regions`."""
        index = [part.start // size for part, size in zip(region, self.chunk, strict=True)]
        return int(np.ravel_multi_index(index, self.counts))

    def runs_in(self, done: np.ndarray) -> int:
        """Number of runs in the chunks that are `done`, by their numbers."""
        regions = map(self.region, np.flatnonzero(done).tolist())
        return sum(math.prod(part.stop - part.start for part in region) for region in regions)

    def _at(self, index: tuple[int, ...]) -> tuple[slice, ...]:
        return tuple(
            slice(i * c, min((i + 1) * c, n))
            for i, c, n in zip(index, self.chunk, self.shape, strict=True)
        )


def layout(dims: Sequence[Dimension], size: int) -> Layout:
    """Cut the array of runs into chunks of at most `size` runs.

    A chunk extends along no static dimension. Of the others it fills the last one first, and
    seeds after all others: runs that share their data belong together.
    """
    chunk = {dim.name: 1 for dim in dims}
    order = [dim for dim in reversed(dims) if not dim.static]
    order.sort(key=lambda dim: dim.name == "seed")
    left = max(size, 1)
    for dim in order:
        chunk[dim.name] = min(dim.size, left)
        left //= chunk[dim.name]
    return Layout(tuple(dim.size for dim in dims), tuple(chunk[dim.name] for dim in dims))


def _check_different(dim: Dimension) -> None:
    # Zipped axes may well repeat single values, as the points of a part of a grid do.
    values = list(dim.axes.values())
    if len(np.unique(np.asarray(values[0]))) == dim.size:
        return
    seen: set[tuple[Any, ...]] = set()
    for i in range(dim.size):
        point = tuple(axis[i] for axis in values)
        if point in seen:
            shown = point[0] if len(point) == 1 else point
            raise ValueError(f"axes.{', '.join(dim.axes)}: has the value {shown!r} twice")
        seen.add(point)


def _spaced(field: str, table: Mapping[str, Any]) -> list[float]:
    if len(table) != 1:
        raise ValueError(f"{field} = {shown(dict(table))}: must have one entry")
    ((kind, given),) = table.items()
    checks.choice(field, kind, ("linspace", "logspace", "range"))
    if kind == "range":
        given = plain(given)
        ends = [0, given] if isinstance(given, int) else given
        if not (isinstance(ends, list | tuple) and len(ends) == 2):
            raise ValueError(f"{field}.range = {shown(given)}: must be n or [first, end]")
        first, end = (int(_number(f"{field}.range", each, True)) for each in ends)
        _check_number(field, end - first)
        return list(range(first, end))
    if not isinstance(given, list | tuple) or len(given) != 3:
        raise ValueError(
            f"{field}.{kind} = {shown(given)}: must be [first, last, number of values]"
        )
    first, last = (_number(f"{field}.{kind}", end, False) for end in given[:2])
    checks.real(f"{field}.{kind}", [first, last, last - first])
    number = checks.integer(f"{field}.{kind}[2]", given[2], 1)
    if number == 1 and first != last:
        raise ValueError(
            f"{field}.{kind} = {shown(given)}: one value cannot be both ends; must be two or more"
        )
    _check_number(field, number)
    if kind == "linspace":
        return np.linspace(first, last, number).tolist()
    checks.real(f"{field}.logspace", [first, last], 0, open_minimum=True)
    return np.geomspace(first, last, number).tolist()


def _check_number(field: str, number: int) -> None:
    if number > MOST_VALUES:
        raise ValueError(f"{field}: would have {number} values, at most {MOST_VALUES} are possible")


def _number(field: str, value: Any, whole: bool) -> float:
    # Of a million values most are Python's own numbers.
    value = value if type(value) in (int, float) else plain(value)
    if isinstance(value, str) and value == "inf":  # as JSON, which has no infinity, spells it
        value = math.inf
    if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
        raise ValueError(f"{field} = {shown(value)}: must be a number")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError(f"{field} = {shown(value)}: must be a number of 64 bits")
    if whole and (math.isinf(value) or value != int(value)):
        raise ValueError(f"{field} = {value!r}: must be a whole number")
    return int(value) if whole else value
