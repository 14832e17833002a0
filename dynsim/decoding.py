"""Types of settings: ranges, units and words in the annotations of a dataclass.

Ranges are written as `annotated_types` has them. A class checks its fields against them when it is
made, and `sweeps` reads them for messages, help and the names of axes.
"""

import functools
import math
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Union

import annotated_types as at

from dynsim import checks

MOST = 2**31
"""What there are fewer of than that, of anything, because 32 bits count it."""


class Unit(NamedTuple):
    """The unit of a number, for messages."""

    symbol: str


class Form(NamedTuple):
    """The form that text must have.

    Attributes:
        pattern: regular expression that matches the whole text.
        text: the same in words, for error messages.
        setting: whether the text begins with the name of a setting of the run and a colon.
    """

    pattern: str
    text: str
    setting: bool = False


def _whole(value: float) -> bool:
    return value == math.inf or (value < MOST and value == int(value))


FINITE, WHOLE = at.Predicate(math.isfinite), at.Predicate(_whole)
Count = Annotated[int, at.Ge(1), at.Le(2**31 - 1)]
"""How many there are of something."""
Size = Annotated[int, at.Ge(1), at.Le(2**20)]
"""How long an axis of an array is."""
Index = Annotated[int, at.Ge(0), at.Le(2**31 - 1)]
"""Where something is."""
SizeOrNone = Annotated[int, at.Ge(0), at.Le(2**20)]
"""How long an axis of an array is that can be missing."""
Steps = Annotated[int, at.Ge(1), at.Le(2**31 - 1), Unit("step")]
"""Steps, which 32 bits count."""
Seed = Annotated[int, at.Ge(0), at.Le(2**32 - 1)]
"""Number of a random key or of a run, which has 32 bits."""
CountOrInf = Annotated[int | float, at.Ge(1), WHOLE]
"""How many there are of something, or infinitely many."""
Length = Annotated[int | float, at.Ge(2), WHOLE, Unit("tokens")]
"""Tokens of a sequence with its query, or infinitely many."""
Tokens = Annotated[int, at.Ge(2), at.Le(2**31 - 1), Unit("tokens")]
"""The same, of which there are not infinitely many."""
Rate = Annotated[float, at.Ge(0), FINITE, Unit("1/step")]
"""A learning rate."""
Real = Annotated[float, FINITE]
NotNegative = Annotated[float, at.Ge(0), FINITE]
Positive = Annotated[float, at.Gt(0), FINITE]
Share = Annotated[float, at.Ge(0), at.Le(1)]
"""A probability, or a share of something."""
Decay = Annotated[float, at.Ge(0), at.Lt(1)]
"""What is kept of something from one step to the next."""


def check_stated(made: Any) -> None:
    """Raise `ValueError` unless the fields of a dataclass are in the ranges, or among the words,
    that their annotations say. Numbers may be traced, arrays, or by group in a table."""
    for name, parts in _stated(type(made)).items():
        value = getattr(made, name)
        for group, each in value.items() if isinstance(value, Mapping) else [("", value)]:
            if each is not None or types.NoneType not in parts:
                _check(f"{name}[{group!r}]" if group else name, each, parts)


@functools.cache
def _stated(cls: type) -> dict[str, tuple[Any, ...]]:
    """What the annotations of fields say; lists are checked by their classes."""
    hints = typing.get_type_hints(cls, include_extras=True).items()
    found = {name: parts_of(hint) for name, hint in hints if name in cls.__dataclass_fields__}
    return {name: parts for name, parts in found.items() if tuple not in parts}


def _check(name: str, value: Any, parts: tuple[Any, ...]) -> None:
    words = [w for part in parts if typing.get_origin(part) is Literal for w in part.__args__]
    ends = bounds_of(parts)
    if words:
        if not any(isinstance(part, type) for part in parts if part is not types.NoneType):
            checks.choice(name, value, words)
    elif WHOLE in parts:
        checks.count_or_inf(name, value, int(ends["ge"]))
    elif ends and int in parts and float not in parts:
        most = ends.get("le")
        checks.integer(name, value, int(ends["ge"]), None if most is None else int(most))
    elif ends or FINITE in parts:
        low = ends.get("gt", ends.get("ge", -math.inf))
        high = ends.get("lt", ends.get("le", math.inf))
        ajar = {"open_minimum": "gt" in ends, "open_maximum": "lt" in ends}
        checks.real(name, value, low, high, **ajar)


def parts_of(hint: Any) -> tuple[Any, ...]:
    """The types in an annotation, also those inside tables and lists, and its metadata."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return (*parts_of(inside[0]), *inside[1:])
    if origin in (Union, types.UnionType):
        return tuple(part for each in inside for part in parts_of(each))
    if origin in (dict, Mapping):
        return (origin, *parts_of(inside[1]))
    if origin in (tuple, list, Sequence):
        return (tuple, *parts_of(inside[0]))
    return (hint,)


def bounds_of(parts: Collection[Any]) -> dict[str, float]:
    """The ends of the range that the metadata of an annotation gives, by "ge", "gt", "le", "lt"."""
    ends = (
        (name, getattr(part, name, None)) for part in parts for name in ("ge", "gt", "le", "lt")
    )
    return {name: end for name, end in ends if end is not None}
