"""The check of single values."""

import math
from typing import Any

import numpy as np
import pytest

from sweeps.language.fields import Field, LanguageError, allowed, check, closest

NUMBER = Field(types=("number",))
INTEGER = Field(types=("integer",))
COUNT = Field(types=("integer or inf",), bounds={"ge": 1})
ARRAY = {"array": "0f", "shape": [1], "dtype": "float32"}


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        (NUMBER, 1, 1.0),
        (NUMBER, np.float32(0.5), 0.5),
        (NUMBER, np.ones(()), 1.0),
        (NUMBER, math.inf, "inf"),
        (NUMBER, "-inf", "-inf"),
        (NUMBER, ARRAY, ARRAY),
        (INTEGER, 1e3, 1000),
        (INTEGER, np.int64(3), 3),
        (INTEGER, 2**70, 2**70),
        (COUNT, 2.0, 2),
        (COUNT, math.inf, "inf"),
        (Field(types=("text", "none")), "none", None),
        (Field(types=("text",)), "none", "none"),
        (Field(types=("text",)), "inf", "inf"),
        (INTEGER._replace(listed=True), (1, 2.0), [1, 2]),
        (Field(words=("one-two",)), "One Two", "one-two"),
    ],
)
def test_values_have_one_text(field: Field, value: Any, text: Any) -> None:
    found = check(field, value, "x")
    assert found == text
    assert type(found) is type(text)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (NUMBER, math.nan),
        (NUMBER, True),
        (NUMBER, 10**400),
        (NUMBER, "1"),
        (NUMBER, {"array": 1.0}),
        (NUMBER, [1.0]),
        (INTEGER, math.inf),
        (INTEGER, 0.5),
        (INTEGER, ARRAY),
        (COUNT, -math.inf),
        (COUNT, 0),
        (INTEGER._replace(listed=True), 1),
        (Field(types=("boolean",)), 1),
        (Field(types=("text",)), True),
        (Field(types=("function",)), "relu"),
    ],
)
def test_other_values_are_errors(field: Field, value: Any) -> None:
    with pytest.raises(LanguageError, match=r"^x = .*: must be "):
        check(field, value, "x")


@pytest.mark.parametrize(
    ("bounds", "number", "integer"),
    [
        ({}, "a number", "an integer"),
        ({"ge": 0}, "a number in [0, inf)", "an integer >= 0"),
        ({"gt": 0, "le": 1e9}, "a number in (0, 1000000000]", "an integer"),
        ({"ge": 1, "le": 2}, "a number in [1, 2]", "an integer from 1 to 2"),
        ({"lt": "inf"}, "a number in (-inf, inf)", "an integer"),
    ],
)
def test_ranges_in_words(bounds: dict[str, Any], number: str, integer: str) -> None:
    assert allowed(NUMBER._replace(bounds=bounds)) == number
    assert allowed(INTEGER._replace(bounds=bounds)) == integer
    assert allowed(NUMBER._replace(bounds=bounds, unit="s", listed=True, groups=True)) == (
        f"a list, each entry {number}, in s, or one of these for each group"
    )


@pytest.mark.parametrize(
    ("value", "shown"), [({"kind": "sgd", "eta": 1.0}, "'sgd'"), ([1, 2], "[1, 2]"), ("x", "'x'")]
)
def test_errors_show_a_kind_by_its_name(value: object, shown: str) -> None:
    assert str(LanguageError("rule", "is slow", value)) == f"rule = {shown}: is slow"
    assert str(LanguageError("rule", "is missing")) == "rule: is missing"


def test_suggestions_are_close_and_short() -> None:
    names = ["momentum", "rule.momentum", "decay"]
    assert closest("Momentm", names) == "did you mean momentum?"
    assert closest("rule.momentm", names) == "did you mean momentum?"
    assert closest("zzz", names) == ""
    # At most three, of which seven in ten letters agree: 2 * 6 / 18 is less.
    many = [f"alphabet{letter}" for letter in "abcde"]
    assert closest("alphabet", many).count(" or ") == 2
    assert closest("abcdefghij", ["abcdefgxyz"]) == "did you mean abcdefgxyz?"
    assert closest("abcdefghi", ["abcdefxyz"]) == ""
