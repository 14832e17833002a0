"""The axes of a sweep: settings with several values, and the runs at all combinations.

Axes of numbers that can be traced are traced: their runs share one compiled program. All other axes
are static: each program has one value of them.
"""

import dataclasses
import functools
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dynsim import checks
from sweeps.language.fields import (
    MISSING,
    Field,
    LanguageError,
    Table,
    allowed,
    check,
    errors_in,
    fold,
    is_branch,
    is_number,
    must_be,
)
from sweeps.language.grammar import Language, Path, Setting, chooses_kind, flattened
from sweeps.language.values import LISTS, MOST_VALUES, is_spacing, spaced

MOST_RUNS = 2**40
"""Maximum number of runs, far beyond any real sweep."""
Groups = list[list[str]]
"""Names of axes, grouped by dimension."""


class Axis(NamedTuple):
    """A setting with several values.

    Attributes:
        name: name as given.
        path: path of the setting.
        values: values in text form.
        labels: labels of the values, for coordinates: numbers, words or text.
        traced: whether runs along this axis can share one compiled program.
        named: whether the labels are names for the values.
        field: field of the setting, with its unit and description.
    """

    name: str
    path: Path
    values: Sequence[Any]
    labels: Sequence[Any]
    traced: bool
    named: bool
    field: Field


class Dimension(NamedTuple):
    """One axis, or several zipped ones."""

    members: tuple[Axis, ...]

    @property
    def name(self) -> str:
        """The name of its first axis."""
        return self.members[0].name

    @property
    def axes(self) -> dict[str, tuple[Any, ...]]:
        """Labels of each axis, by name."""
        return {axis.name: tuple(axis.labels) for axis in self.members}

    @property
    def size(self) -> int:
        """The number of values."""
        return len(self.members[0].labels)

    @property
    def static(self) -> bool:
        """Whether its values need different programs."""
        return not all(axis.traced for axis in self.members)


class Axes:
    """The runs of a sweep.

    Args:
        language: language of the settings.
        run: the run to vary, as an object or as a table of settings by name; or several tables,
            where later ones override earlier ones.
        axes: values of settings by name: a list, or a table with `linspace`, `logspace` or `range`.
        zipped: groups of names of axes that share one dimension.

    Attributes:
        dims: the dimensions, in the order of `axes`.
        named: the axes by name.
        objects: objects that the text refers to by name.
        zipped: the groups as given.

    Raises:
        LanguageError: for an unknown name or an invalid value.
    """

    def __init__(
        self,
        language: Language,
        run: Any,
        axes: Mapping[str, object],
        zipped: Sequence[Sequence[str]] = (),
    ) -> None:
        self._language, self.objects = language, {}
        _check_sizes(axes, zipped)
        described = isinstance(run, Mapping | list)
        tables = [run] if isinstance(run, Mapping) else run
        self._given = _given(language, tables, axes) if described else self._text(run, full=False)
        self._values = {
            name: [self._text(each) for each in _values(f"axes.{name}", given)]
            for name, given in axes.items()
        }
        groups = _grouped(self._values, zipped)
        self.zipped = tuple(map(tuple, zipped))
        # The setting that a numeric axis refers to may depend on kinds along other axes.
        numeric = {name for name, values in self._values.items() if all(map(is_number, values))}
        kinds = [group for group in groups if {*group} - numeric]
        tables = [
            self._assigned({name: i for group, i in zip(kinds, at, strict=True) for name in group})
            for at in itertools.product(*(range(len(self._values[group[0]])) for group in kinds))
        ]
        self.dims = tuple(
            Dimension(tuple(self._axis(name, tables, axes[name]) for name in group))
            for group in groups
        )
        for dim in self.dims:
            _check_different(dim)
        self.named = {axis.name: axis for dim in self.dims for axis in dim.members}
        for inner, outer in itertools.permutations(self.named.values(), 2):
            if outer.traced and inner.path[: len(outer.path)] == outer.path:
                reason = f"is part of axes.{'.'.join(outer.path)}; leave one out"
                raise LanguageError(f"axes.{'.'.join(inner.path)}", reason)
        for axis in self.named.values() if described else ():
            value: Any = self._given
            for part in axis.path:
                value = value.get(part, MISSING) if isinstance(value, dict) else MISSING
            if value is not MISSING and (not isinstance(value, dict) or {*value} == {"kind"}):
                raise LanguageError(".".join(axis.path), "is also an axis; leave one out", value)
        self._made = functools.lru_cache(maxsize=64)(self._build)

    def run(self, chosen: Mapping[str, Any]) -> Any:
        """Return the run at the chosen labels of axes, by name; other axes have their first label.

        Numbers that can be traced may be arrays that broadcast: the run then stands for many runs.

        Raises:
            LanguageError: for values that a class does not allow in combination.
        """
        named = self.named
        numbers = {n: value for n, value in chosen.items() if named[n].traced}
        static = {n: value for n, value in chosen.items() if n not in numbers}
        made = self._made(tuple(static.items()))
        return put(made, {named[n].path: v for n, v in numbers.items()}) if numbers else made

    def _build(self, static: tuple[tuple[str, Any], ...]) -> Any:
        from sweeps.language.tree import build

        at = {name: list(self.named[name].labels).index(label) for name, label in static}
        return build(self._language, self._assigned(at), self.objects)

    def _assigned(self, at: Mapping[str, int]) -> Table:
        """Return the settings at the given indices of axes, and at the first values of others."""
        pairs = [(name, values[at.get(name, 0)]) for name, values in self._values.items()]
        try:
            return self._language.assign(self._given, pairs)
        except LanguageError as error:
            raise LanguageError(f"axes.{error.path}", error.reason, error.value) from None

    def _text(self, value: Any, *, full: bool = True) -> Any:
        if type(value) in (bool, int, float, str):
            return value
        from sweeps.language.tree import encode

        return encode(self._language, value, self.objects, full=full)

    def _axis(self, name: str, tables: list[Table], given: object) -> Axis:
        settings = [self._language.resolve(table, name) for table in tables]
        if len(paths := dict.fromkeys(each.name for each in settings)) > 1:
            raise LanguageError(f"axes.{name}", f"is ambiguous; write {' or '.join(paths)}")
        (path, kinds, field, *_), values = settings[0], self._values[name]
        if groups := [part for part, kind in zip(path, kinds, strict=True) if not kind]:
            # "learning rate: of every step" becomes "learning rate of W0".
            about = re.split("[.:;]", field.doc)[0]
            field = field._replace(doc=f"{about} of {groups[0]}")
        labels = [*given] if isinstance(given, Mapping) and not is_spacing(given) else None
        if any(chooses_kind(field, each) for each in values):
            labels = labels or self._labels(settings[0], values)
            return Axis(name, path, values, labels, False, True, field)
        for each in settings:
            values = _checked(each.field, values, f"axes.{each.name}")
        self._values[name] = values
        if labels is None and all(map(is_number, values)):
            numbers = [float(each) if isinstance(each, str) else each for each in values]
            traced = all(each.field.traced for each in settings)
            return Axis(name, path, values, numbers, traced, False, field)
        if words := labels is None and all(isinstance(each, str) for each in values):
            labels = values
        texts = [each if isinstance(each, str) else json.dumps(each) for each in values]
        return Axis(name, path, values, labels or texts, False, not words, field)

    def _labels(self, setting: Setting, values: list[Any]) -> list[Any]:
        """Return the names of kinds as labels. If they are not unique, settings are added."""
        words = list(values)
        for i, value in enumerate(values):
            if chooses_kind(setting.field, value):
                # A file name that chooses its kind is a label itself.
                kind, *file = self._language.choice(setting, value).values()
                words[i] = (file or [kind])[0]
        if len({*words}) == len(words):
            return words
        labels = []
        for word, value in zip(words, values, strict=True):
            pairs = [
                (n[1:], v["kind"] if is_branch(v) else v) for n, v in flattened("", value) if n
            ]
            labels.append(" ".join([str(word), *(f"{name}={each}" for name, each in pairs)]))
        return labels


def _given(language: Language, tables: Sequence[Mapping[str, Any]], axes: Collection[str]) -> Table:
    """Merge the settings of several tables; later ones override earlier ones."""
    given: Table = {}
    pairs = [pair for table in tables for pair in table.items()]
    names = [name for pair in pairs for name, _ in flattened(*pair)]
    if "problem" not in map(fold, (*names, *axes)):
        # Without a problem, other names would be unknown.
        field = language.resolve({}, "problem").field
        kinds = allowed(field, language.words(field))
        raise LanguageError("run.problem", f"is missing ({field.doc}); must be {kinds}")
    for table in tables:
        given = language.assign(given, [pair for pair in table.items() if pair[0] != "kind"])
    return given


def _check_sizes(axes: Mapping[str, object], zipped: Sequence[Sequence[str]]) -> None:
    """Reject sizes that nobody can run before any value is listed, as a list may never end."""
    sizes = {}
    for name, given in axes.items():
        match given:
            case {"range": int(last)}:
                sizes[name] = last
            case {"range": [int(first), int(end)]}:
                sizes[name] = end - first
            case {"linspace": [_, _, int(number)]} | {"logspace": [_, _, int(number)]}:
                sizes[name] = number
            case range() | list() | tuple():
                sizes[name] = len(given)
            case array if getattr(array, "ndim", 0):
                sizes[name] = len(array)  # pyright: ignore[reportArgumentType]
        # That of a table is checked with its other numbers.
        if sizes.get(name, 0) > MOST_VALUES and not isinstance(given, Mapping):
            reason = f"has {sizes[name]} values; at most {MOST_VALUES} are possible"
            raise LanguageError(f"axes.{name}", reason)
    # Zipped axes have one dimension. Whether these groups are valid is checked with their values.
    groups = zipped if isinstance(zipped, list | tuple) else ()
    others = {fold(str(n)) for g in groups if isinstance(g, list | tuple) for n in g[1:]}
    runs = math.prod(max(n, 1) for name, n in sizes.items() if fold(name) not in others)
    if runs > MOST_RUNS:
        raise LanguageError("axes", f"give {runs} runs; at most {MOST_RUNS} are possible")


def _values(path: str, given: Any) -> Sequence[Any]:
    """Return the values of an axis; for a table with labels, its values."""
    values = given
    if isinstance(given, Mapping):
        values = spaced(path, given) if is_spacing(given) else list(given.values())
    if getattr(values, "ndim", 0):
        # Only values in Python are arrays; errors of sweep files appear without importing JAX.
        from dynsim import numeric

        values = numeric.as_numpy(path, values).tolist()
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise LanguageError(path, f"must be {LISTS}", given)
    if not len(values):
        raise LanguageError(path, "is empty; needs at least one value", given)
    return values


def _checked(field: Field, values: list[Any], path: str) -> list[Any]:
    """Return the values of an axis in text form. Of many numbers, only the ends are checked."""
    if "number" in field.types and {*map(type, values)} <= {int, float}:
        ends = (np.min(values), np.max(values))
        if all(check(field, end, path) is not None for end in ends):
            return [float(each) for each in values]
    return [check(field, value, path) for value in values]


def _grouped(values: Mapping[str, list[Any]], zipped: Sequence[Sequence[str]]) -> Groups:
    """Return the names of axes by dimension."""
    if not values:
        raise LanguageError("axes", "needs at least one axis")
    names, left, groups = {fold(name): name for name in values}, [*values], Groups()
    lists = isinstance(zipped, list | tuple) and all(isinstance(g, list | tuple) for g in zipped)
    if not lists or not all(isinstance(name, str) for group in zipped for name in group):
        raise LanguageError("zip", "must be a list of lists of axes", zipped)
    for given in zipped:
        group = [names.get(fold(name), name) for name in given]
        for name in group:
            if name not in values:
                reason = must_be(name, values, f"one of {', '.join(values)}")
                raise LanguageError("zip", reason, name)
            if name not in left:
                raise LanguageError("zip", "is in two groups", name)
            left.remove(name)
        if len({len(values[name]) for name in group}) > 1:
            lengths = ", ".join(f"{name} {len(values[name])}" for name in values if name in group)
            raise LanguageError("zip", f"axes need the same number of values, got {lengths}")
        groups.append(sorted(group, key=[*values].index))
    groups += [[name] for name in left]
    return sorted(groups, key=lambda group: [*values].index(group[0]))


def _check_different(dim: Dimension) -> None:
    """Raise an error if two runs along a dimension are equal."""
    ((point, number),) = Counter(zip(*dim.axes.values(), strict=True)).most_common(1)
    if number > 1:
        names = ", ".join(".".join(axis.path) for axis in dim.members)
        raise LanguageError(f"axes.{names}", "is given twice", point if point[1:] else point[0])


def put(tree: Any, values: Mapping[Path, Any]) -> Any:
    """Return a copy of a run with other numbers, such as `{("rule", "eta"): 0.1}`.

    Every part that contains a changed number is constructed again, so that its class checks all of
    them together. For many runs, numbers are arrays that broadcast: classes check them at the ends
    of each dimension, as they compare scalars. Traced numbers are not checked.

    Args:
        tree: a run.
        values: numbers by path.

    Raises:
        LanguageError: if the path does not exist, or a class does not allow the values.
    """
    if checks.is_traced(list(values.values())):
        return _put(tree, values, (), checked=False)
    arrays = {path: value for path, value in values.items() if np.ndim(value)}
    made = [_put(tree, {**values, **corner}, ()) for corner in _corners(arrays)]
    return _put(made[0], arrays, (), checked=False) if arrays else made[0]


def _corners(arrays: Mapping[Path, np.ndarray]) -> Iterator[dict[Path, float]]:
    """Yield the numbers at the smallest and largest values along each dimension of arrays."""
    shape = np.broadcast_shapes(*(np.shape(array) for array in arrays.values()))
    whole = {path: np.broadcast_to(array, shape) for path, array in arrays.items()}
    ends: list[set[int]] = [set() for _ in shape]
    for array in arrays.values():
        given = np.reshape(array, [1] * (len(shape) - np.ndim(array)) + list(np.shape(array)))
        for at in (np.argmin(given), np.argmax(given)):
            for dim, place in zip(ends, np.unravel_index(at, given.shape), strict=True):
                dim.add(int(place))
    for index in itertools.product(*map(sorted, ends)):
        yield {path: array[index].item() for path, array in whole.items()}


def _put(tree: Any, values: Mapping[Path, Any], path: Path, *, checked: bool = True) -> Any:
    if () in values:
        short = "" if checked else getattr(type(tree), "SHORT", "")
        return _put(tree, {(short,): values[()]}, path, checked=False) if short else values[()]
    names = getattr(tree, "__dataclass_fields__", ())
    fields = tree if isinstance(tree, Mapping) else {name: getattr(tree, name) for name in names}
    inside: dict[str, dict[Path, Any]] = {}
    for (part, *rest), value in values.items():
        if part not in fields:
            raise LanguageError(".".join((*path, part)), "does not exist")
        inside.setdefault(part, {})[tuple(rest)] = value
    new = {n: _put(fields[n], v, (*path, n), checked=checked) for n, v in inside.items()}
    if isinstance(tree, Mapping):
        return {**tree, **new}
    if checked:
        with errors_in(path, fields):
            return dataclasses.replace(tree, **new)
    made = object.__new__(type(tree))
    # Copy only the fields: cached properties depend on the old numbers.
    for name, value in {**fields, **new}.items():
        object.__setattr__(made, name, value)
    return made
