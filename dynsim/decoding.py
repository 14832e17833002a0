"""Typed decoding of settings: types, ranges and units stand in the annotations of a dataclass.

What Python, a sweep file or the command line gives for a field is what its annotation says, or an
error says `path = value: must be ...`. pydantic checks types and ranges, which are written as
`annotated_types` has them; numbers of NumPy and lists count as Python's own numbers and tuples.
"""

import contextlib
import dataclasses
import decimal
import fractions
import functools
import math
import reprlib
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Union

import annotated_types as at
import jax
import numpy as np
import pydantic

from dynsim import checks

MOST = 2**31
"""What there are fewer of than that, of anything, because 32 bits count it."""


class Unit(NamedTuple):
    """The unit of a number, for messages."""

    symbol: str


class Says(NamedTuple):
    """What is allowed, in words, where types would say it badly."""

    allowed: str


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

SHOWN = reprlib.Repr()
SHOWN.maxdict = SHOWN.maxlist = SHOWN.maxtuple = 6
SHOWN.maxstring = SHOWN.maxother = SHOWN.maxlong = 80


class Field(NamedTuple):
    """A field of settings.

    Attributes:
        annotation: its type with ranges and unit.
        adapter: what checks a value for it.
    """

    annotation: Any
    adapter: pydantic.TypeAdapter[Any]


@functools.cache
def fields(cls: type) -> dict[str, Field]:
    """The fields of a dataclass by name."""
    hints = typing.get_type_hints(cls, include_extras=True)
    config = pydantic.ConfigDict(strict=True, arbitrary_types_allowed=True)
    found = {}
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        # An object of such a class checked itself when it was made.
        made = dataclasses.is_dataclass(hint)
        kind = pydantic.InstanceOf[hint] if made else hint
        adapter = pydantic.TypeAdapter(kind, config=None if made else config)
        found[field.name] = Field(hint, adapter)
    return found


def check(settings: Any, path: str = "", many: Collection[str] = ()) -> None:
    """Raise `ValueError` unless every field of `settings`, a dataclass, is what its annotation
    says. Those named in `many` may hold arrays of such values, or values that are traced."""
    for name, field in fields(type(settings)).items():
        check_value(f"{path}{name}", getattr(settings, name), field, name in many)


def check_stated(made: Any, many: bool = False) -> None:
    """Raise `ValueError` unless the fields of a dataclass whose annotations say more than a type
    are what these say; with `many` they may be arrays of such values, or traced."""
    for name, field in fields(type(made)).items():
        if says_more(field.annotation):
            check_value(name, plain(getattr(made, name)), field, many)


def check_ranges(made: Any) -> None:
    """Raise `ValueError` unless the numbers of a dataclass, which may be traced, arrays, or by
    group in a table, are in the ranges that their annotations say."""
    for name, (limits, optional) in _ranges(type(made)).items():
        value = getattr(made, name)
        for group, each in value.items() if isinstance(value, Mapping) else [("", value)]:
            if each is not None or not optional:
                checks.real(f"{name}[{group!r}]" if group else name, each, **limits)


@functools.cache
def _ranges(cls: type) -> dict[str, tuple[dict[str, Any], bool]]:
    """The ranges of fields that have one, as `checks.real` takes them, and whether they may be
    None."""
    hints = typing.get_type_hints(cls, include_extras=True)
    found = {}
    for field in dataclasses.fields(cls):
        parts = parts_of(hints[field.name])
        if ends := bounds_of(parts):
            limits = {
                "minimum": ends.get("gt", ends.get("ge", -math.inf)),
                "maximum": ends.get("lt", ends.get("le", math.inf)),
                "open_minimum": "gt" in ends,
                "open_maximum": "lt" in ends,
            }
            found[field.name] = limits, type(None) in parts
    return found


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


def check_table(table: Mapping[str, Any], cls: type, path: str) -> None:
    """Raise `ValueError` unless all values of a table are what the fields of `cls` take."""
    for name, value in table.items():
        check_value(f"{path}{name}", whole(cls, name, plain(value)), fields(cls)[name])


def check_value(path: str, value: Any, field: Field, many: bool = False) -> None:
    """Raise `ValueError`, as `path = value: must be ...`, unless a field takes `value`."""
    if many and (checks.is_traced(value) or np.ndim(value)):
        _check_array(path, value, field.annotation)
        return
    try:
        field.adapter.validate_python(value)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        inside = first["loc"] and all(isinstance(each, int) for each in first["loc"])
        where = "".join(f"[{each}]" for each in first["loc"]) if inside else ""
        given = first["input"] if inside else value
        large = isinstance(value, int) and value >= MOST
        too_high = large or first["type"].startswith("less_than")
        wrong_kind = not first["type"].startswith(("greater_than", "less_than", "predicate"))
        words = allowed(field.annotation, too_high=too_high, kind=wrong_kind)
        hint = checks.hint(given, choices(field.annotation))
        raise ValueError(f"{path}{where} = {shown(given)}: {hint}must be {words}") from None
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError(f"{path} = {shown(value)}: must be an integer of 64 bits")
    if isinstance(value, float) and math.isnan(value):
        raise ValueError(f"{path} = nan: is not a number; must be {allowed(field.annotation)}")


def rounded(settings: Any, dtype: str) -> None:
    """Raise `ValueError` for a number that lies within its open range, but not any more as a
    number of the precision `dtype`: 1 - 1e-9 is 1 in float32, and 1e39 is infinite."""
    for name, field in fields(type(settings)).items():
        value = getattr(settings, name)
        if not isinstance(value, float):
            continue
        bounds = _bounds(field.annotation)
        with np.errstate(over="ignore"):
            near = float(np.asarray(value).astype(dtype))
        too_large = math.isinf(near) and not math.isinf(value)
        if too_large or (near != value and near in (bounds.lt, bounds.gt)):
            raise ValueError(
                f"{name} = {value!r}: is {near:g} in {dtype}; must be "
                f"{allowed(field.annotation)}, or dtype = 'float64'"
            )


def plain(value: Any) -> Any:
    """A value with numbers of NumPy and lists as Python's own numbers and tuples."""
    if isinstance(value, list | tuple):
        # Named tuples are values of their own.
        return value if hasattr(value, "_fields") else tuple(map(plain, value))
    if isinstance(value, decimal.Decimal | fractions.Fraction):
        return float(value)
    scalar = isinstance(value, np.generic | np.ndarray | jax.Array) and np.ndim(value) == 0
    if scalar and not checks.is_traced(value):
        # A random key is no number, and stays what it is.
        with contextlib.suppress(TypeError, ValueError, AttributeError, NotImplementedError):
            return value.item()
    return value


def whole(cls: type, name: str, value: Any) -> Any:
    """A value for a field; 1e3 as an integer, where the field takes integers alone."""
    if not isinstance(value, float) or not value.is_integer():
        return value
    parts, _ = flat(fields(cls)[name].annotation)
    return int(value) if int in parts and float not in parts else value


def made_plain(settings: Any) -> None:
    """Make the values of a frozen dataclass `plain`, and `whole`: to be called when it is made."""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        found = whole(type(settings), field.name, plain(value))
        if found is not value:
            object.__setattr__(settings, field.name, found)


def shown(value: Any) -> str:
    """A value for a message, cut where it is long or deep."""
    try:
        return repr(value) if isinstance(value, float) else SHOWN.repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} too long to be shown"


def allowed(annotation: Any, *, too_high: bool = False, kind: bool = False) -> str:
    """What a field takes, in words; of a range the end that was missed, and for what is of another
    `kind` the type."""
    parts, extras = flat(annotation)
    for each in extras:
        if isinstance(each, Says):
            return each.allowed
    bounds = _bounds(annotation)
    # What is counted says its unit by its name.
    unit = (
        ""
        if int in parts
        else "".join(f", in {each.symbol}" for each in extras if isinstance(each, Unit))
    )
    if named := choices(annotation):
        return f"one of {', '.join(named)}"
    if float in parts and int in parts:
        return f"an integer {f'< {MOST}' if too_high else f'>= {bounds.ge}'}, or inf{unit}"
    if float in parts:
        if kind:
            return f"a number{unit}"
        left, right = "[" if bounds.gt is None else "(", "]" if bounds.le is not None else ")"
        low = next((b for b in (bounds.ge, bounds.gt) if b is not None), -math.inf)
        high = next((b for b in (bounds.le, bounds.lt) if b is not None), math.inf)
        left = "(" if math.isinf(low) else left
        return f"finite and in {left}{low:g}, {high:g}{right}{unit}"
    if int in parts:
        if bounds.ge is None:
            return "an integer"
        limit = f"<= {bounds.le}" if too_high and bounds.le else f">= {bounds.ge}"
        return f"an integer {limit}{unit}"
    if bool in parts:
        return "true or false"
    if str in parts:
        return "text"
    if parts and typing.get_origin(parts[0]) is tuple:
        return f"a list, each {allowed(typing.get_args(parts[0])[0], kind=True)}"
    return " or ".join(getattr(part, "__name__", str(part)) for part in parts)


class Bounds(NamedTuple):
    """A range: its ends that belong to it, or that do not."""

    ge: Any = None
    gt: Any = None
    le: Any = None
    lt: Any = None


def says_more(annotation: Any) -> bool:
    """Whether an annotation says more than a type: a range, or a choice."""
    parts, extras = flat(annotation)
    return bool(extras) or any(typing.get_origin(part) is Literal for part in parts)


def _bounds(annotation: Any) -> Bounds:
    found = {}
    for each in flat(annotation)[1]:
        for kind in (at.Ge, at.Gt, at.Le, at.Lt):
            if isinstance(each, kind):
                found[kind.__name__.lower()] = getattr(each, kind.__name__.lower())
    return Bounds(**found)


def choices(annotation: Any) -> list[str]:
    """The values that an annotation lists, none where it does not list them."""
    listed = [part for part in flat(annotation)[0] if typing.get_origin(part) is Literal]
    return [str(each) for part in listed for each in typing.get_args(part)]


def words(annotation: Any) -> tuple[str, ...]:
    """The words that an annotation lists; none where it allows anything else but None."""
    listed = [part for part in flat(annotation)[0] if typing.get_origin(part) is Literal]
    found = [each for part in listed for each in typing.get_args(part)]
    alone = len(listed) == len(flat(annotation)[0]) and all(isinstance(w, str) for w in found)
    return tuple(found) if alone else ()


def flat(annotation: Any) -> tuple[list[Any], list[Any]]:
    """The types of a union without None, and all that annotations add to them."""
    if typing.get_origin(annotation) is Annotated:
        parts, extras = flat(typing.get_args(annotation)[0])
        return parts, [*extras, *annotation.__metadata__]
    if typing.get_origin(annotation) in (Union, types.UnionType):
        every = [flat(part) for part in typing.get_args(annotation) if part is not type(None)]
        return [p for parts, _ in every for p in parts], [e for _, extras in every for e in extras]
    return [annotation], []


def _check_array(path: str, value: Any, annotation: Any) -> None:
    bounds = _bounds(annotation)
    low = bounds.ge if bounds.gt is None else bounds.gt
    high = bounds.le if bounds.lt is None else bounds.lt
    checks.real(
        path,
        value,
        -math.inf if low is None else low,
        math.inf if high is None else high,
        open_minimum=bounds.gt is not None,
        open_maximum=bounds.lt is not None,
    )
