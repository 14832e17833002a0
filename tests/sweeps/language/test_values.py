"""Values of axes are found by what they are: equal, or close relative to their own size."""

import decimal
import json
import math
import shutil
import subprocess
from fractions import Fraction

import numpy as np
import pytest

from sweeps.commands.views import page
from sweeps.language.values import distinct, distinct_in, equal_in, find_axis, find_value, matching
from tests.doors import refuses

SIX = decimal.Context(prec=6)
TINY = 5e-324
"""The smallest positive float64."""


def expected(values, wanted):
    """The same by exact arithmetic with fractions."""
    for i, value in enumerate(values):
        if value == wanted:
            return [i]

    def close(value):
        if not (math.isfinite(value) and math.isfinite(wanted)):
            return False
        a, b = Fraction(value), Fraction(wanted)
        whole = a.denominator == b.denominator == 1 and max(abs(a), abs(b)) < 2**53
        copied = float(SIX.create_decimal(value)) == wanted and abs(value) > 1e-300
        return not whole and (copied or abs(a - b) * 10**6 <= min(abs(a), abs(b)))

    return [i for i, value in enumerate(values) if close(value)]


NUMBERS = [
    *(0.0, -0.0, math.inf, -math.inf, TINY, -TINY, 1e-320, 1e-310, 1e-300, 1e300, -1e-300),
    *(1e-12, 1e-10, 1e-9, 1e-8, 5e-9, -1e-9, 0.1, 0.1 + 2**-56, 0.1 + 1e-9, 0.1 * (1 + 3e-6)),
    *(float(np.float32(0.1)), float(np.float32(1e-40)), 1 / 3, 1.0, 1 + 2**-52, 1 + 5e-7),
    *(1e6, 1e6 + 1, 1e6 + 0.25, 2.0**24, 2.0**24 + 1, 2.0**53, 2.0**53 + 2, -1e6, 1.7e308),
]


def test_numbers_match_as_exact_fractions_do():
    """All pairs of numbers at the edges of float64, and axes with both signs and many decades."""
    for value in NUMBERS:
        for wanted in NUMBERS:
            assert matching(np.array([value]), wanted).tolist() == expected([value], wanted), (
                value,
                wanted,
            )
    rng = np.random.default_rng(7)
    for _ in range(300):
        values = rng.choice([*{*NUMBERS}], 8, replace=False)
        near = rng.choice(values) * (1 + rng.choice([0, 1e-16, 1e-9, 9e-7, 1.1e-6, 1e-3]))
        for wanted in (near, rng.choice(NUMBERS)):
            found = matching(values, float(wanted)).tolist()
            assert found == expected(values.tolist(), float(wanted)), (values, wanted)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_value_of_an_axis_is_found_as_it_is_stored_and_as_it_is_printed(dtype):
    axis = np.concatenate([np.geomspace(1e-38, 1e38, 77), -np.geomspace(1e-9, 1, 10), [0]])
    axis = axis.astype(dtype)
    for place, value in enumerate(axis):
        for wanted in (value.item(), float(f"{value:.6g}"), float(f"{value:.7g}")):
            assert find_value("eta", axis, wanted) == place
        if abs(value) < 1e7:
            assert find_value("eta", axis, float(np.float32(value))) == place


def test_numbers_of_float32_axes_are_rounded_first():
    """Whatever is rounded to nothing or to infinity matches neither."""
    axis = np.array([0, 0.1, 1e-40, np.inf, 2.0**24], np.float32)
    for wanted, place in ((0.1, 1), (1e-40, 2), (2.0**24 + 1, 4), (0.0, 0), (math.inf, 3)):
        assert find_value("eta", axis, wanted) == place
    for wanted in (1e-50, 1e39, -0.1, TINY):
        refuses(lambda wanted=wanted: find_value("eta", axis, wanted), "eta = ", "one of 0, ")


def test_numbers_that_differ_are_written_differently():
    assert distinct([0.1, 0.25, 1e-9]) == ["0.1", "0.25", "1e-09"]
    for values in ([0.1, 0.1 + 2**-56], [2**53, 2**53 + 1], [1e-300, 1.0000000001e-300, 0.5]):
        texts = distinct(values)
        assert len({*texts}) == len(values)
        assert [type(v)(text) for v, text in zip(values, texts, strict=True)] == values


def test_points_are_equal_where_all_of_their_numbers_round_to_the_same():
    """2^-24 is half of the distance between 1 and the next float32."""
    steps = 1 + 2.0**-24 * np.arange(4)
    assert equal_in(np.float64, [steps]) == ""
    assert equal_in(np.float32, [steps[::2]]) == ""
    assert equal_in(np.float32, [steps]).startswith("1 and 1.00000006 are equal in float32 (3 of 4")
    assert distinct_in(steps.tolist(), "float32") == (1, steps[2], steps[3])
    assert distinct_in([3, 1, 2], "float32") == (3, 1, 2)
    assert equal_in(np.float32, [[1.0, steps[1]], [0.5, 0.25]]) == ""
    assert equal_in(np.float32, [[1.0, steps[1]], [0.5, 0.5], ["a", "b"]]) == ""
    assert "1 and 1.00000006" in equal_in(np.float32, [[1.0, steps[1]], [0.5, 0.5], ["a", "a"]])
    # Integers are not rounded; floats that hold them are.
    assert equal_in(np.float32, [[2**24, 2**24 + 1]]) == ""
    assert equal_in(np.float32, [[2.0**24, 2.0**24 + 1]]).startswith("16777216 and 16777217 are")
    assert "0 and 1e-50" in equal_in(np.float32, [[0.0, 1e-50]])


def test_an_axis_has_many_spellings():
    for name in ("eta_W0", "eta.W0", "eta-w0", "ETA w0"):
        assert find_axis("x", name, ["eta.W0", "eta.W1", "seed"]) == "eta.W0"
    # An exact name is not ambiguous.
    assert find_axis("x", "eta_a", ["eta.A", "eta_a"]) == "eta_a"


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_page_finds_the_values_that_python_finds(tmp_path):
    """The function of the scripts next to that of Python, over random axes at the edges."""
    rng = np.random.default_rng(3)
    finite = [each for each in NUMBERS if math.isfinite(each)]
    cases = []
    for _ in range(400):
        values = rng.choice([*{*finite}], 6, replace=False).tolist()
        wanted = float(rng.choice(values)) * (1 + float(rng.choice([0, 1e-16, 9e-7, 2e-6])))
        found = matching(np.array(values), wanted)
        cases.append([values, wanted, int(found[0]) if len(found) == 1 else -1])
    words = [[["sgd", "adam"], "adam", 1], [[1, "inf"], "inf", 1], [[0, 1], "", -1]]
    typed = [[[0.5, 1], "0.50", 0], [[0, 2], "2.0", 1], [[0, 2], "x", -1], [[0.1], "1e-1", 0]]
    script = (
        "const fs = require('fs'); const [marks, cases] = process.argv.slice(-2);"
        "const wrong = new Function(`${fs.readFileSync(marks)}; return (cases) => cases.filter("
        "([values, wanted, place]) => placeOn(values, wanted) !== place)`)()"
        "(JSON.parse(fs.readFileSync(cases))); console.log(JSON.stringify(wrong))"
    )
    (tmp_path / "cases.json").write_text(json.dumps([*cases, *words, *typed]))
    told = subprocess.run(
        ["node", "-e", script, "--", page.STATIC / "marks.js", tmp_path / "cases.json"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert json.loads(told.stdout) == []
    assert {place for _, _, place in cases} > {-1, 0, 5}
