"""The axes of a sweep: settings with several values, and the runs at all combinations.

Axes of numbers that can be traced are traced: their runs share one compiled program. All other axes
are static: each of their combinations is a run of its own, which is built and checked.
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from sweeps.language.fields import (
    Field,
    LanguageError,
    Table,
    check,
    fold,
    is_branch,
    is_number,
    must_be,
)
from sweeps.language.grammar import Language, Path, Setting, chooses_kind, flattened
from sweeps.language.tree import build, encode, put

MOST_VALUES = 2**24
"""The most values of an axis, as each is stored with the results."""
MOST_POINTS = 64
"""The largest grid of traced axes that is checked at every point; a larger one at its corners."""
LISTS = "a list, or a table with linspace, logspace or range"
_REAL = Field(types=("number",), bounds={"gt": "-inf", "lt": "inf"})
_POSITIVE = Field(types=("number",), bounds={"gt": 0, "lt": "inf"})
_WHOLE = Field(types=("integer",), bounds={"ge": 0, "le": MOST_VALUES})
_COUNT = Field(types=("integer",), bounds={"ge": 2, "le": MOST_VALUES})
SPACINGS: Mapping[str, tuple[Callable[..., np.ndarray], tuple[Field, ...], str]] = {
    "linspace": (np.linspace, (_REAL, _REAL, _COUNT), "[first, last, number of values]"),
    "logspace": (np.geomspace, (_POSITIVE, _POSITIVE, _COUNT), "[first, last, number of values]"),
    "range": (np.arange, (_WHOLE, _WHOLE), "n or [first, end]"),
}
Groups: TypeAlias = list[list[str]]
"""The names of axes by dimension."""


class Axis(NamedTuple):
    """A setting with several values.

    Attributes:
        path: to the setting.
        values: an array if they are traced, otherwise a list of values in text form.
        labels: of the values, for coordinates.
        traced: whether runs along this axis share one compiled program.
    """

    path: Path
    values: Any
    labels: list[Any]
    traced: bool


class Dimension(NamedTuple):
    """One axis, or several zipped ones."""

    axes: tuple[Axis, ...]

    @property
    def size(self) -> int:
        """The number of values."""
        return len(self.axes[0].labels)

    @property
    def traced(self) -> bool:
        """Whether runs along this dimension share one compiled program."""
        return all(axis.traced for axis in self.axes)

    @property
    def ends(self) -> list[int]:
        """The indices of the smallest and largest values of each axis."""
        ends = (np.argmin, np.argmax)
        return sorted({int(end(axis.values)) for axis in self.axes for end in ends})


class Axes:
    """The runs of a sweep. All of them are checked.

    Args:
        language: of the settings.
        given: the settings that all runs share.
        axes: the values of settings by name: a list, or a table with `linspace`, `logspace` or
            `range`.
        zipped: groups of names of axes that share one dimension.
        arrays: by digest.

    Attributes:
        dims: the dimensions, in the order of `axes`.
        runs: a run by its indices along the static dimensions. Traced settings have their first
            values.

    Raises:
        LanguageError: if a name, a value or a combination of values is not allowed.
    """

    def __init__(
        self,
        language: Language,
        given: Table,
        axes: Mapping[str, object],
        zipped: Sequence[Sequence[str]] = (),
        arrays: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self._language, self._given, self._arrays = language, given, {**(arrays or {})}
        self._values = {name: self._listed(f"axes.{name}", v) for name, v in axes.items()}
        groups = _grouped(self._values, zipped)
        # What the name of a number means depends on the kinds along other axes.
        numeric = {name for name, values in self._values.items() if all(map(is_number, values))}
        tables = [table for _, table in self._tables([g for g in groups if {*g} - numeric])]
        self.dims = tuple(
            Dimension(tuple(self._axis(name, tables) for name in group)) for group in groups
        )
        for dim in self.dims:
            _check_different(dim)
        self.runs: dict[tuple[int, ...], Any] = {}
        static = [group for group, dim in zip(groups, self.dims, strict=True) if not dim.traced]
        for index, table in self._tables(static):
            self.runs[index] = build(language, table, self._arrays)
            for point in self._points():
                put(self.runs[index], point)

    @property
    def numbers(self) -> dict[Path, np.ndarray]:
        """The values of the traced settings for all runs of a program: the grid of the traced
        dimensions, flattened, with the last one fastest."""
        dims = [dim for dim in self.dims if dim.traced]
        grid = np.meshgrid(*(range(dim.size) for dim in dims), indexing="ij")
        pairs = zip(dims, grid, strict=True)
        return {axis.path: axis.values[index.ravel()] for dim, index in pairs for axis in dim.axes}

    def _points(self) -> Iterator[dict[Path, float]]:
        """The values of the traced settings for which each static combination is checked. A class
        compares its numbers, so the corners of a grid show whether all of it is allowed."""
        dims = [dim for dim in self.dims if dim.traced]
        small = math.prod(dim.size for dim in dims) <= MOST_POINTS
        for index in itertools.product(*(range(d.size) if small else d.ends for d in dims)):
            pairs = zip(dims, index, strict=True)
            yield {axis.path: axis.values[i].item() for dim, i in pairs for axis in dim.axes}

    def _listed(self, path: str, given: object) -> list[Any]:
        """The values of an axis as a list, with objects in text form."""
        if isinstance(given, Mapping):
            return _spaced(path, given)
        if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray) or not len(given):
            raise LanguageError(path, f"must be {LISTS}", given)
        values = given.tolist() if isinstance(given, np.ndarray) else given
        is_object = dataclasses.is_dataclass
        return [encode(self._language, v, self._arrays) if is_object(v) else v for v in values]

    def _tables(self, groups: Groups) -> Iterator[tuple[tuple[int, ...], Table]]:
        """The settings at all combinations along some dimensions, and the first values of others,
        by index."""
        for index in itertools.product(*(range(len(self._values[group[0]])) for group in groups)):
            at = {name: i for group, i in zip(groups, index, strict=True) for name in group}
            chosen = [(name, each[at.get(name, 0)]) for name, each in self._values.items()]
            try:
                yield index, self._language.assign(self._given, chosen)
            except LanguageError as error:
                raise LanguageError(f"axes.{error.path}", error.reason, error.value) from None

    def _axis(self, name: str, tables: list[Table]) -> Axis:
        settings = [self._language.resolve(table, name) for table in tables]
        if len(paths := dict.fromkeys(each.name for each in settings)) > 1:
            raise LanguageError(f"axes.{name}", f"is ambiguous; write {' or '.join(paths)}")
        setting, values = settings[0], self._values[name]
        if any(chooses_kind(setting.field, each) for each in values):
            return Axis(setting.path, values, self._labels(setting, values), traced=False)
        for each in settings:
            values = [check(each.field, value, f"axes.{each.name}") for value in values]
        if all(each.field.traced for each in settings) and all(map(is_number, values)):
            numbers = [float(each) if isinstance(each, str) else each for each in values]
            return Axis(setting.path, np.asarray(numbers), values, traced=True)
        labels = [json.dumps(each) if isinstance(each, list | dict) else each for each in values]
        return Axis(setting.path, values, labels, traced=False)

    def _labels(self, setting: Setting, values: list[Any]) -> list[Any]:
        """The words of kinds. If they are not unique, their settings are added."""
        words: list[Any] = [
            self._language.choice(setting, v)["kind"] if chooses_kind(setting.field, v) else v
            for v in values
        ]
        if len({*words}) == len(words):
            return words
        labels = []
        for word, value in zip(words, values, strict=True):
            pairs = [
                (n[1:], v["kind"] if is_branch(v) else v) for n, v in flattened("", value) if n
            ]
            labels.append(" ".join([str(word), *(f"{name}={each}" for name, each in pairs)]))
        return labels


def _grouped(values: Mapping[str, list[Any]], zipped: Sequence[Sequence[str]]) -> Groups:
    """The names of axes by dimension."""
    if not values:
        raise LanguageError("axes", "needs at least one axis")
    names = {fold(name): name for name in values}
    groups: Groups = []
    for given in zipped:
        if isinstance(given, str):
            raise LanguageError("zip", "must be a list of names", given)
        for name in given:
            if fold(name) not in names:
                reason = must_be(name, values, f"one of {', '.join(values)}")
                raise LanguageError("zip", reason, name)
            if any(names[fold(name)] in group for group in groups):
                raise LanguageError("zip", "is in two groups", name)
        groups.append([name for name in values if fold(name) in map(fold, given)])
        if len({len(values[name]) for name in groups[-1]}) > 1:
            lengths = ", ".join(f"{name} {len(values[name])}" for name in groups[-1])
            raise LanguageError("zip", f"axes need the same number of values, got {lengths}")
    done = {name for group in groups for name in group}
    groups += [[name] for name in values if name not in done]
    return sorted(groups, key=lambda group: list(values).index(group[0]))


def _check_different(dim: Dimension) -> None:
    """Raise an error if two runs along a dimension are the same."""
    seen = set()
    for point in zip(*(axis.labels for axis in dim.axes), strict=True):
        if point in seen:
            names = ", ".join(".".join(axis.path) for axis in dim.axes)
            value = point if point[1:] else point[0]
            raise LanguageError(f"axes.{names}", "is given twice", value)
        seen.add(point)


def _spaced(path: str, given: Mapping[str, Any]) -> list[float]:
    """The values that a table with `linspace`, `logspace` or `range` describes."""
    how, numbers = next(iter(given.items()), ("", None))
    if len(given) != 1 or how not in SPACINGS:
        raise LanguageError(path, must_be(how, SPACINGS, LISTS), {**given})
    path, (space, fields, form) = f"{path}.{how}", SPACINGS[how]
    ends = [0, numbers] if how == "range" and isinstance(numbers, int) else numbers
    if not isinstance(ends, list | tuple) or len(ends) != len(fields):
        raise LanguageError(path, f"must be {form}", numbers)
    checked = [check(field, each, path) for field, each in zip(fields, ends, strict=True)]
    if values := space(*checked).tolist():
        return values
    raise LanguageError(path, "has no values", numbers)
