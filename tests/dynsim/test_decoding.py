"""Types of settings: what is accepted at both sides of each bound."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pytest

from dynsim import decoding
from dynsim.decoding import bounds_of, check_stated, parts_of

LAST, INF = 2**31 - 1, math.inf
TINY = 5e-324
# Of each type: what is just inside, and what is just outside.
BOUNDS: dict[str, tuple[list[Any], list[Any]]] = {
    "Count": ([1, LAST], [0, LAST + 1, 1.0, True]),
    "Size": ([1, 2**20], [0, 2**20 + 1]),
    "Index": ([0, LAST], [-1, LAST + 1]),
    "SizeOrNone": ([0, 2**20], [-1, 2**20 + 1]),
    "Steps": ([1, LAST], [0, LAST + 1]),
    "Seed": ([0, 2**32 - 1], [-1, 2**32]),
    "CountOrInf": ([1, LAST, INF], [0, LAST + 1, 1.5, -INF]),
    "Length": ([2, LAST, INF], [1, LAST + 1, 2.5]),
    "Tokens": ([2, LAST], [1, LAST + 1, INF]),
    "Rate": ([0, 1e300], [-TINY, INF, math.nan]),
    "Real": ([-1e300, 1e300], [-INF, INF, math.nan, "1"]),
    "NotNegative": ([0.0, 1e300], [-TINY, INF]),
    "Positive": ([TINY, 1e300], [0.0, INF]),
    "Share": ([0.0, 1.0], [-TINY, 1 + 1e-15]),
    "Decay": ([0.0, 1 - 1e-15], [-TINY, 1.0]),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_ranges_end_where_they_are_said_to(name: str) -> None:
    stated = dataclasses.make_dataclass("Stated", [("x", getattr(decoding, name))])
    inside, outside = BOUNDS[name]
    for value in inside:
        check_stated(stated(value))
    for value in outside:
        with pytest.raises(ValueError, match=r"^x = "):
            check_stated(stated(value))


def test_whole_numbers_or_inf_for_words_of_a_command() -> None:
    """The largest of 32 bits among them."""
    whole = decoding.WHOLE.func
    assert all(map(whole, (0, 3.0, LAST, INF)))
    assert not any(map(whole, (2.5, LAST + 1, float(2**40))))


@dataclasses.dataclass
class Stated:
    """Fields of each form that an annotation can have."""

    word: Literal["a", "b"] = "a"
    some: decoding.Share | None = None
    by_group: decoding.NotNegative | Mapping[str, decoding.NotNegative] = 0.0
    either: Literal["auto"] | decoding.Count = 1
    any_number: float = 0.0
    several: tuple[decoding.Positive, ...] = ()


@pytest.mark.parametrize(
    "given",
    [
        {"word": "b"},
        {"some": 0.5},
        {"by_group": {"Y": 1.0, "Z": 0.0}},
        {"either": "auto"},
        {"any_number": -INF},
        # Lists are checked by their classes.
        {"several": (-1.0,)},
    ],
)
def test_fields_within_their_annotations(given: dict[str, Any]) -> None:
    check_stated(Stated(**given))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"word": "c"}, r"^word = 'c': must be one of a, b$"),
        ({"word": None}, r"^word = None: must be one of a, b$"),
        ({"some": 1.5}, r"^some = 1.5: must be finite and in \[0, 1\]$"),
        ({"by_group": {"Y": 1.0, "Z": -1.0}}, r"^by_group\['Z'\] = -1.0: must be finite"),
        ({"by_group": None}, r"^by_group = None: must be a real number$"),
    ],
)
def test_fields_outside_of_their_annotations(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_stated(Stated(**given))


def test_traced_and_array_numbers_are_checked_entry_by_entry() -> None:
    with pytest.raises(ValueError, match=r"^some = 2.0: must be"):
        check_stated(Stated(some=np.array([0.5, 2.0])))


def test_annotations_are_taken_apart() -> None:
    assert bounds_of(parts_of(decoding.Decay)) == {"ge": 0, "lt": 1}
    assert bounds_of(parts_of(decoding.Positive | None)) == {"gt": 0}
    assert parts_of(Mapping[str, int | None]) == (Mapping, int, type(None))
    assert parts_of(tuple[float, ...]) == (tuple, float)
