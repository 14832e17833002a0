"""Types of settings: ranges and units in the annotations of a dataclass.

Ranges are written with `annotated_types`. A class checks its fields against them when it is
created, and `sweeps` uses them for error messages, help texts and axis labels.
"""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Union

import annotated_types as at

from dynsim import checks

INT32_LIMIT = 2**31
"""Upper bound of all counts, which have 32 bits."""


class Unit(NamedTuple):
    """The unit of a number, for messages."""

    symbol: str


class Form(NamedTuple):
    """The form of a text setting.

    Attributes:
        pattern: regular expression that matches the whole text.
        text: description of the pattern for error messages.
        setting: whether the text begins with the name of a setting of the run and a colon.
    """

    pattern: str
    text: str
    setting: bool = False


def is_count(value: float) -> bool:
    """Return whether a number is infinite, or whole and of 32 bits."""
    return value == math.inf or (value < INT32_LIMIT and value == int(value))


FINITE, WHOLE = at.Predicate(math.isfinite), at.Predicate(is_count)
Count = Annotated[int, at.Ge(1), at.Le(2**31 - 1)]
"""A number of things."""
Size = Annotated[int, at.Ge(1), at.Le(2**20)]
"""Length of an array axis."""
Index = Annotated[int, at.Ge(0), at.Le(2**31 - 1)]
"""A position."""
SizeOrNone = Annotated[int, at.Ge(0), at.Le(2**20)]
"""Length of an array axis that may be absent."""
Steps = Annotated[int, at.Ge(1), at.Le(2**31 - 1), Unit("step")]
"""A number of steps, in 32 bits."""
Seed = Annotated[int, at.Ge(0), at.Le(2**32 - 1)]
"""A random seed or the number of a run, in 32 bits."""
CountOrInf = Annotated[int | float, at.Ge(1), WHOLE]
"""A number of things, possibly infinite."""
Length = Annotated[int | float, at.Ge(2), WHOLE, Unit("tokens")]
"""Number of tokens of a sequence, including the query, possibly infinite."""
Tokens = Annotated[int, at.Ge(2), at.Le(2**31 - 1), Unit("tokens")]
"""A finite number of tokens."""
Rate = Annotated[float, at.Ge(0), FINITE, Unit("1/step")]
"""A learning rate."""
Real = Annotated[float, FINITE]
NotNegative = Annotated[float, at.Ge(0), FINITE]
Positive = Annotated[float, at.Gt(0), FINITE]
Share = Annotated[float, at.Ge(0), at.Le(1)]
"""A probability or a fraction."""
Decay = Annotated[float, at.Ge(0), at.Lt(1)]
"""The fraction that remains from one step to the next."""


def check_annotations(settings: Any) -> None:
    """Raise `ValueError` unless every field of a dataclass satisfies its annotation: a range or a
    list of words. Numbers may be traced, arrays, or a mapping from groups to numbers."""
    for name, parts in _annotations(type(settings)).items():
        field = getattr(settings, name)
        for group, value in field.items() if isinstance(field, Mapping) else [("", field)]:
            if value is not None or types.NoneType not in parts:
                _check(f"{name}[{group!r}]" if group else name, value, parts)


@functools.cache
def _annotations(cls: type) -> dict[str, tuple[Any, ...]]:
    """Parts of the fields' annotations; lists are left out, because their classes check them."""
    hints = typing.get_type_hints(cls, include_extras=True).items()
    fields = {name: parts_of(hint) for name, hint in hints if name in cls.__dataclass_fields__}
    return {name: parts for name, parts in fields.items() if tuple not in parts}


def reals(settings: Any, prefix: str = "") -> Iterator[str]:
    """Yield the names of the fields of a dataclass that are real numbers, including those in its
    parts, such as `data.test`."""
    for name, parts in _annotations(type(settings)).items():
        value = getattr(settings, name)
        if dataclasses.is_dataclass(value):
            yield from reals(value, f"{prefix}{name}.")
        # Not numbers by group, and not a count that may be infinite.
        elif {float} == {float, dict, WHOLE} & {*parts}:
            yield prefix + name


def _check(name: str, value: Any, parts: tuple[Any, ...]) -> None:
    words = [w for part in parts if typing.get_origin(part) is Literal for w in part.__args__]
    ends = bounds_of(parts)
    if words:
        # A type next to the words allows other values too.
        if not any(isinstance(part, type) for part in parts if part is not types.NoneType):
            checks.choice(name, value, words)
    elif WHOLE in parts:
        checks.count_or_inf(name, value, int(ends["ge"]))
    elif ends and int in parts and float not in parts:
        maximum = ends.get("le")
        checks.integer(name, value, int(ends["ge"]), None if maximum is None else int(maximum))
    elif ends or FINITE in parts:
        low = ends.get("gt", ends.get("ge", -math.inf))
        high = ends.get("lt", ends.get("le", math.inf))
        is_open = {"open_minimum": "gt" in ends, "open_maximum": "lt" in ends}
        checks.real(name, value, low, high, **is_open)


def parts_of(hint: Any) -> tuple[Any, ...]:
    """Return the types in an annotation, including those of mappings and lists, and metadata."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return (*parts_of(inside[0]), *inside[1:])
    # `int | None` and `Optional[int]`.
    if origin in (Union, types.UnionType):
        return tuple(part for member in inside for part in parts_of(member))
    # Of numbers by group, the type of the values counts.
    if origin in (dict, Mapping):
        return (origin, *parts_of(inside[1]))
    # The type of a list is followed by that of its entries.
    if origin in (tuple, list, Sequence):
        return (tuple, *parts_of(inside[0]))
    return (hint,)


def bounds_of(parts: Collection[Any]) -> dict[str, float]:
    """Return the bounds in the metadata of an annotation, by "ge", "gt", "le" and "lt"."""
    ends = (
        (name, getattr(part, name, None)) for part in parts for name in ("ge", "gt", "le", "lt")
    )
    return {name: end for name, end in ends if end is not None}
