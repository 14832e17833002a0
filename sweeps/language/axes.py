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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dynsim import checks
from sweeps.language.fields import (
    MISSING,
    Field,
    LanguageError,
    Path,
    Setting,
    Table,
    Value,
    allowed,
    check,
    errors_in,
    is_branch,
    is_number,
    must_be,
    normalise,
)
from sweeps.language.grammar import Language, chooses_kind, flattened
from sweeps.language.values import LISTS, MOST_VALUES, is_spacing, spaced

MOST_RUNS = 2**40
"""Maximum number of runs, far beyond any real sweep."""


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
        # Convert the run and the values of axes to text.
        _check_sizes(axes, zipped)
        is_text = isinstance(run, Mapping | list)
        if is_text:
            self._table = _combine(language, [run] if isinstance(run, Mapping) else run, axes)
        else:
            self._table = self._text(run, full=False)
        self._values = {
            name: [self._text(value) for value in _listed(f"axes.{name}", values)]
            for name, values in axes.items()
        }
        groups = _group(self._values, zipped)
        self.zipped = tuple(map(tuple, zipped))

        # Look up the axes in runs of all kinds, which decide what settings there are. Along an axis
        # of numbers the kinds stay the same.
        numeric = {name for name, values in self._values.items() if all(map(is_number, values))}
        kinds = [group for group in groups if {*group} - numeric]
        tables = [
            self._at({name: i for group, i in zip(kinds, index, strict=True) for name in group})
            for index in itertools.product(*(range(len(self._values[g[0]])) for g in kinds))
        ]
        members = [tuple(self._axis(n, tables, axes[n]) for n in group) for group in groups]
        self.dims = tuple(map(Dimension, members))
        self.named = {axis.name: axis for dim in self.dims for axis in dim.members}

        # Check that no two runs are equal, and that no setting has two values.
        for dim in self.dims:
            ((point, number),) = Counter(zip(*dim.axes.values(), strict=True)).most_common(1)
            if number > 1:
                names = ", ".join(".".join(axis.path) for axis in dim.members)
                value = point if point[1:] else point[0]
                raise LanguageError(f"axes.{names}", "is given twice", value)
        for inner, outer in itertools.permutations(self.named.values(), 2):
            if outer.traced and inner.path[: len(outer.path)] == outer.path:
                reason = f"is part of axes.{'.'.join(outer.path)}; leave one out"
                raise LanguageError(f"axes.{'.'.join(inner.path)}", reason)
        # In a run as an object every setting has a value, which the axis replaces.
        for axis in self.named.values() if is_text else ():
            value: Any = self._table
            for part in axis.path:
                value = value.get(part, MISSING) if isinstance(value, dict) else MISSING
            if value is not MISSING and (not isinstance(value, dict) or {*value} == {"kind"}):
                raise LanguageError(".".join(axis.path), "is also an axis; leave one out", value)
        self._static_run = functools.lru_cache(maxsize=64)(self._build)

    def run(self, chosen: Mapping[str, object]) -> Any:
        """Return the run at the chosen labels of axes, by name; other axes have their first label.

        Numbers that can be traced may be arrays that broadcast: the run then stands for many runs.

        Raises:
            LanguageError: for values that a class does not allow in combination.
        """
        named = self.named
        numbers = {named[n].path: value for n, value in chosen.items() if named[n].traced}
        run = self._static_run(tuple((n, v) for n, v in chosen.items() if not named[n].traced))
        return put(run, numbers) if numbers else run

    def _build(self, static: tuple[tuple[str, object], ...]) -> Any:
        from sweeps.language.tree import build

        index = {name: list(self.named[name].labels).index(label) for name, label in static}
        return build(self._language, self._at(index), self.objects)

    def _at(self, index: Mapping[str, int]) -> Table:
        """Return the settings at these indices of axes, and at the first values of others."""
        pairs = [(name, values[index.get(name, 0)]) for name, values in self._values.items()]
        try:
            return self._language.assign(self._table, pairs)
        except LanguageError as error:
            raise LanguageError(f"axes.{error.path}", error.reason, error.value) from None

    def _text(self, value: Any, *, full: bool = True) -> Any:
        if type(value) in (bool, int, float, str):
            return value
        from sweeps.language.tree import encode

        return encode(self._language, value, self.objects, full=full)

    def _axis(self, name: str, tables: list[Table], values: object) -> Axis:
        settings = [self._language.resolve(table, name) for table in tables]
        if len(paths := dict.fromkeys(setting.name for setting in settings)) > 1:
            raise LanguageError(f"axes.{name}", f"is ambiguous; write {' or '.join(paths)}")
        (path, kinds, field, *_), texts = settings[0], self._values[name]
        if groups := [part for part, kind in zip(path, kinds, strict=True) if not kind]:
            # "learning rate: of every step" becomes "learning rate of W0".
            about = re.split("[.:;]", field.doc)[0]
            field = field._replace(doc=f"{about} of {groups[0]}")

        chooses_kinds = any(chooses_kind(field, text) for text in texts)
        if not chooses_kinds:
            # Another kind may have another range.
            for setting in settings:
                texts = _check_values(setting.field, texts, f"axes.{setting.name}")
            self._values[name] = texts

        traced, named = False, True
        if isinstance(values, Mapping) and not is_spacing(values):
            labels = [*values]
        elif chooses_kinds:
            labels = self._kind_labels(settings[0], texts)
        elif all(map(is_number, texts)):
            labels = [float(text) if isinstance(text, str) else text for text in texts]
            traced, named = all(setting.field.traced for setting in settings), False
        elif all(isinstance(text, str) for text in texts):
            labels, named = texts, False
        else:
            labels = [text if isinstance(text, str) else json.dumps(text) for text in texts]
        return Axis(name, path, texts, labels, traced, named, field)

    def _kind_labels(self, setting: Setting, values: list[Any]) -> list[str]:
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
            inside = [(name[1:], part) for name, part in flattened("", value) if name]
            parts = [f"{name}={p['kind'] if is_branch(p) else p}" for name, p in inside]
            labels.append(" ".join([str(word), *parts]))
        return labels


def _combine(language: Language, tables: Sequence[Mapping[str, Any]], axes: Iterable[str]) -> Table:
    pairs = [pair for table in tables for pair in table.items()]
    names = [name for pair in pairs for name, _ in flattened(*pair)]
    if "problem" not in map(normalise, (*names, *axes)):
        # Without a problem, other names would be unknown.
        field = language.resolve({}, "problem").field
        kinds = allowed(field, language.words(field))
        raise LanguageError("run.problem", f"is missing ({field.doc}); must be {kinds}")
    combined: Table = {}
    # Later ones override earlier ones.
    for table in tables:
        combined = language.assign(combined, [pair for pair in table.items() if pair[0] != "kind"])
    return combined


def _check_sizes(axes: Mapping[str, object], zipped: Sequence[Sequence[str]]) -> None:
    """Reject sizes that nobody can run before any value is listed, as a list may never end."""
    sizes = {}
    for name, values in axes.items():
        match values:
            case {"range": int(last)}:
                sizes[name] = last
            case {"range": [int(first), int(end)]}:
                sizes[name] = end - first
            case {"linspace": [_, _, int(number)]} | {"logspace": [_, _, int(number)]}:
                sizes[name] = number
            case range() | list() | tuple():
                sizes[name] = len(values)
            case array if getattr(array, "ndim", 0):
                sizes[name] = len(array)  # pyright: ignore[reportArgumentType]
        # That of a table is checked with its other numbers.
        if sizes.get(name, 0) > MOST_VALUES and not isinstance(values, Mapping):
            reason = f"has {sizes[name]} values; at most {MOST_VALUES} are possible"
            raise LanguageError(f"axes.{name}", reason)
    # Zipped axes have one dimension. Whether these groups are valid is checked with their values.
    groups = zipped if isinstance(zipped, list | tuple) else ()
    others = {normalise(str(n)) for g in groups if isinstance(g, list | tuple) for n in g[1:]}
    runs = math.prod(max(n, 1) for name, n in sizes.items() if normalise(name) not in others)
    if runs > MOST_RUNS:
        raise LanguageError("axes", f"give {runs} runs; at most {MOST_RUNS} are possible")


def _listed(path: str, axis: Any) -> Sequence[Any]:
    """Return the values of an axis; for a table with labels, its values."""
    values = axis
    if isinstance(axis, Mapping):
        values = spaced(path, axis) if is_spacing(axis) else list(axis.values())
    if getattr(values, "ndim", 0):
        # Only values in Python are arrays; errors of sweep files appear without importing JAX.
        from dynsim import numeric

        values = numeric.as_numpy(path, values).tolist()
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise LanguageError(path, f"must be {LISTS}", axis)
    if not len(values):
        raise LanguageError(path, "is empty; needs at least one value", axis)
    return values


def _check_values(field: Field, values: list[Any], path: str) -> list[Value]:
    """Return the values of an axis in text form. Of many numbers, only the ends are checked."""
    if "number" in field.types and {*map(type, values)} <= {int, float}:
        ends = (np.min(values), np.max(values))
        if all(check(field, end, path) is not None for end in ends):
            return [float(value) for value in values]
    return [check(field, value, path) for value in values]


def _group(values: Mapping[str, list[Any]], zipped: Sequence[Sequence[str]]) -> list[list[str]]:
    if not values:
        raise LanguageError("axes", "needs at least one axis")
    lists = isinstance(zipped, list | tuple) and all(isinstance(g, list | tuple) for g in zipped)
    if not lists or not all(isinstance(name, str) for group in zipped for name in group):
        raise LanguageError("zip", "must be a list of lists of axes", zipped)
    known, left = {normalise(name): name for name in values}, [*values]
    groups: list[list[str]] = []
    for names in zipped:
        group = [known.get(normalise(name), name) for name in names]
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
    corners = [_put(tree, {**values, **corner}, ()) for corner in _corners(arrays)]
    return _put(corners[0], arrays, (), checked=False) if arrays else corners[0]


def _corners(arrays: Mapping[Path, np.ndarray]) -> Iterator[dict[Path, float]]:
    """Yield the numbers at the smallest and largest values along each dimension of arrays."""
    shape = np.broadcast_shapes(*(np.shape(array) for array in arrays.values()))
    whole = {path: np.broadcast_to(array, shape) for path, array in arrays.items()}
    ends: list[set[int]] = [set() for _ in shape]
    for array in arrays.values():
        # Along a dimension that the array lacks, its first place stands for all.
        aligned = np.reshape(array, [1] * (len(shape) - np.ndim(array)) + list(np.shape(array)))
        for at in (np.argmin(aligned), np.argmax(aligned)):
            for dim, place in zip(ends, np.unravel_index(at, aligned.shape), strict=True):
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
    # Without `__init__`, whose checks reject tracers, and without cached properties, which depend
    # on the old numbers.
    copy = object.__new__(type(tree))
    for name, value in {**fields, **new}.items():
        object.__setattr__(copy, name, value)
    return copy
