"""Values of axes: those that a table describes by their spacing, and the one that a number means.

All code that looks up what somebody typed uses this module: `--where`, `--times`, plots, diagrams,
differences of sweeps. Pages of the explorer have the same function in `marks.js`. Distances are
relative, because rates of 1e-12 and 1e-9 are as different as 1 and 1000.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Int, Shaped
from numpy.typing import ArrayLike, DTypeLike

from dynsim import checks
from sweeps.language.fields import Field, LanguageError, check, closest, must_be, normalise

CLOSE = 1e-6
"""Largest relative difference between a value of an axis and a number that means it: more than that
of float32. A number that was copied from a table of six digits may differ by more."""
FEW_VALUES = 6
"""Maximum number of values of an axis that a message lists in full."""
MOST_VALUES = 2**24
"""Maximum number of values of an axis, as each is stored with the results."""
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


def is_spacing(value: object) -> bool:
    """Return whether a table has (possibly misspelt) spacings rather than labelled values."""
    if not isinstance(value, Mapping):
        return False
    # A label may resemble the name of a spacing, but has no list as its value.
    name, inside = next(iter(value.items()), ("", None))
    mistyped = len(value) == 1 and closest(name, SPACINGS) and isinstance(inside, list)
    return bool({*value} & {*SPACINGS} or mistyped)


def spaced(path: str, axis: Mapping[str, object]) -> list[float]:
    """Return the values that a table with `linspace`, `logspace` or `range` describes."""
    spacing, numbers = next(iter(axis.items()), ("", None))
    if len(axis) != 1 or spacing not in SPACINGS:
        raise LanguageError(path, must_be(spacing, SPACINGS, LISTS), {**axis})
    path, (space, fields, form) = f"{path}.{spacing}", SPACINGS[spacing]
    ends = [0, numbers] if spacing == "range" and isinstance(numbers, int) else numbers
    if not isinstance(ends, list | tuple) or len(ends) != len(fields):
        raise LanguageError(path, f"must be {form}", numbers)
    checked = [check(field, end, path) for field, end in zip(fields, ends, strict=True)]
    if values := space(*checked).tolist():
        return values
    raise LanguageError(path, "has no values", numbers)


def find_value(field: str, values: Shaped[np.ndarray, " N"], wanted: float | str) -> int:
    """Return the index of a value on an axis.

    Args:
        field: name of the axis or option, for messages.
        values: values of the axis: numbers or words.
        wanted: a number, or a word on an axis of words.

    Raises:
        ValueError: if there is no such value, naming those that there are, or several.

    Example:
        >>> find_value("eta", np.geomspace(1e-4, 1, 5), 0.1)
        3
        >>> find_value("eta", np.array([0.0, 1e-12, 1e-9]), 1e-10)
        Traceback (most recent call last):
        ValueError: eta = 1e-10: must be one of 0, 1e-12, 1e-09
    """
    if values.dtype.kind not in "iuf":
        words = values.tolist()
        return words.index(checks.choice(field, wanted, words))  # pyright: ignore[reportArgumentType]
    indices = matching(values, float(wanted) if isinstance(wanted, str) else wanted)
    if len(indices) == 1:
        return int(indices[0])
    # All numbers of a message have as many digits as distinguish them.
    if len(indices):
        number, *near = distinct([wanted, *values[indices].tolist()])
        reason = f"is close to {' and '.join(near)}; write the one that you mean in full"
    elif len(values) <= FEW_VALUES:
        number, *known = distinct([wanted, *values.tolist()])
        reason = f"must be one of {', '.join(known)}"
    else:
        nearest = np.argsort(np.abs(values.astype(float) - float(wanted)), kind="stable")[:2]
        some = [values.min(), values.max(), *np.sort(values[nearest])]
        number, low, high, *near = distinct([wanted, *(value.item() for value in some)])
        reason = (
            f"is none of the {len(values)} values from {low} to {high}; the nearest are "
            f"{', '.join(near)}"
        )
    raise ValueError(f"{field} = {number}: {reason}")


def matching(values: Shaped[np.ndarray, " N"], wanted: float) -> Int[np.ndarray, " M"]:
    """Return the indices of the values of an axis that a number means.

    These are the first value that equals it; else those that it equals after rounding to float32,
    if the axis is in float32; else those that differ by at most `CLOSE` of the smaller one, or that
    are this number when they are rounded to six digits. So 0 means only 0, infinity only infinity,
    and a whole number no other whole number.
    """
    numbers = values.astype(np.float64) if values.dtype.kind == "f" else values
    # NumPy would round the number to float32 first.
    equal = np.flatnonzero(numbers == wanted)
    if len(equal) or values.dtype.kind != "f" or not np.isfinite(wanted):
        return equal[:1]
    with np.errstate(over="ignore", invalid="ignore"):
        rounded, number = np.float32(wanted), float(wanted)
        if values.dtype == np.float32 and rounded and np.isfinite(rounded):
            equal = np.flatnonzero(values == rounded)
            if len(equal):
                return equal[:1]
        distance, size = abs(numbers - number), np.minimum(abs(numbers), abs(number))
        # Six digits differ by at most 5e-6.
        close = [
            i
            for i in np.flatnonzero(distance <= 1e-5 * size)
            if (distance[i] <= CLOSE * size[i] or float(f"{numbers[i]:.6g}") == number)
            and not (_is_whole(number) and _is_whole(numbers[i].item()))
        ]
    return np.array(close, int)


def _is_whole(number: float) -> bool:
    # Such as a step. Larger floats have no fraction, also where they are not counts.
    return number.is_integer() and abs(number) < 2**53


def distinct(values: Sequence[float | str]) -> list[str]:
    """Return numbers as text with six digits, or with as many as tell different ones apart."""
    number = len({*values})
    for digits in (6, 9, 12, 15):
        texts = [value if isinstance(value, str) else f"{value:.{digits}g}" for value in values]
        if len({*texts}) == number:
            return texts
    return list(map(str, values))


def equal_in(dtype: DTypeLike, columns: Sequence[ArrayLike]) -> str:
    """Return which points of a dimension are equal when their numbers are rounded to `dtype`, in
    words; empty if none are. `columns` has the values of each axis along it."""
    exact = [np.asarray(column) for column in columns]
    with np.errstate(over="ignore"):
        rounded = [column.astype(dtype) if column.dtype.kind == "f" else column for column in exact]
    size = len(exact[0])
    # Nearly always the values of one axis suffice, at little cost.
    if any(len(np.unique(column)) == size for column in rounded):
        return ""
    codes = np.stack([np.unique(column, return_inverse=True)[1] for column in rounded])
    points, first, at = np.unique(codes, axis=1, return_index=True, return_inverse=True)
    if points.shape[1] == size:
        return ""
    # The first point that equals an earlier one, and in which numbers they differ before rounding.
    later = np.flatnonzero(first[at] != np.arange(size))[0]
    pair = first[at[later]], later
    pairs = [
        " and ".join(distinct([column[i].item() for i in pair]))
        for column in exact
        if column.dtype.kind == "f" and column[pair[0]] != column[pair[1]]
    ]
    some = f" ({points.shape[1]} of {size} values differ)" if size > 2 else ""
    return f"{', '.join(pairs)} are equal in {np.dtype(dtype)}{some}"


def distinct_in(values: Sequence[float], dtype: DTypeLike) -> tuple[float, ...]:
    """Return the first of each set of values that are equal when floats are rounded to `dtype`."""
    exact = np.asarray(values)
    rounded = exact.astype(dtype) if exact.dtype.kind == "f" else exact
    return tuple(exact[np.sort(np.unique(rounded, return_index=True)[1])].tolist())


def find_axis(field: str, name: str, names: Iterable[object]) -> str:
    """Return the axis that a name means. As in names of settings, `-`, `_`, `.`, blanks and case do
    not matter. Raises `ValueError` if there is none."""
    known = list(map(str, names))
    alike = [axis for axis in known if normalise(axis) == normalise(name)]
    return alike[0] if len(alike) == 1 else checks.choice(field, name, known)
