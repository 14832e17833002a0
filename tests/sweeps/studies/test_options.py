"""Errors of few samples, crossings, colours and cells of tools, against SciPy and by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from dynsim.trajectory import crossings
from sweeps.output import cells
from sweeps.studies import options

NAN = math.nan


@pytest.mark.parametrize("level", [0.005, 0.1])
@pytest.mark.parametrize("free", [1, 4, 30])
def test_errors_widened_for_few_degrees_of_freedom_are_exceeded_as_often(
    free: int, level: float
) -> None:
    limit = options.student(free, level) * stats.norm.isf(level)
    assert stats.t(free).sf(limit) == pytest.approx(level)
    assert math.isnan(options.student(0, level))
    # Two errors above the mean, unless said otherwise.
    assert stats.t(free).sf(2 * options.student(free)) == pytest.approx(stats.norm.sf(2))


def test_crossings_are_between_the_first_point_beyond_and_the_one_before() -> None:
    times = np.array([0.0, 2, 3, 7])
    curves = np.array([[4.0, 3, 1, 0], [4, 1, 3, 1], [4, 3, 3, 3], [1, 4, 1, 1], [4, 2, 2, 1]])
    level = np.array([2.0, 2, 2, 2, 2])
    found = crossings(times, curves, level)
    # From above or below; at the level is not below it.
    np.testing.assert_allclose(found, [2.5, 4 / 3, NAN, 2 / 3, 3])


@pytest.mark.parametrize(
    ("values", "scale", "edges"),
    [
        ([1, 2, 3], "linear", [0.5, 1.5, 2.5, 3.5]),
        ([1, 2, 4], "linear", [0.5, 1.5, 3, 5]),
        ([1.0, 4.0, 16.0], "log", [0.5, 2, 8, 32]),
        ([0.0, 1.0, 5.0], "linear", [-0.5, 0.5, 3, 7]),
        ([-1.0, 1.0], "linear", [-2, 0, 2]),
        ([1.0, 4.0], "log", [0.5, 2, 8]),
        ([0.1, 0.2, 0.3], "linear", [0.05, 0.15, 0.25, 0.35]),
        ([4.0], "log", [4 * math.exp(-0.5), 4 * math.exp(0.5)]),
        ([0], "linear", [-0.5, 0.5]),
    ],
)
def test_cells_around_values(values: list, scale: str, edges: list[float]) -> None:
    assert cells.scale_of(values) == scale
    np.testing.assert_allclose(cells.cell_edges(values), edges, atol=1e-12)
    np.testing.assert_allclose(cells.cell_edges(values, scale), edges, atol=1e-12)


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        # Steps of integers that were rounded differ by 1, and of other numbers by a millionth of
        # the largest.
        ([1, 2, 4], "linear"),
        ([1, 2, 5], "log"),
        ([1.0, 2.0, 3 + 2.5e-6], "linear"),
        ([1.0, 2.0, 3 + 4e-6], "log"),
        ([-4.0, -1.0], "linear"),
    ],
)
def test_evenly_spaced_values_are_on_a_linear_scale(values: list, scale: str) -> None:
    assert cells.scale_of(values) == scale


@pytest.mark.parametrize(("last", "logarithmic"), [(1000.0, False), (1001.0, True)])
def test_two_values_of_41_at_either_end_decide_no_scale(last: float, logarithmic: bool) -> None:
    values = np.array([1e-9, 1e-9, 1.0, *[1.1] * 35, last, 1e9, 1e9])
    rng = np.random.default_rng(0)
    assert cells.colour_range(rng.permutation(values)) == (1e-9, 1e9, logarithmic)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([2.0, np.inf, NAN, 5.0], (2, 5, False)),
        ([1.0, 1000.0], (1, 1000, False)),
        ([1.0, 1001.0], (1, 1001, True)),
        # One in thirty that is nearly zero.
        ([1e-12, *[1.0] * 20, *[2.0] * 9], (1e-12, 2, False)),
        ([0.0, 1e9], (0, 1e9, False)),
        ([-1.0, 1e9], (-1, 1e9, False)),
        ([NAN], (0, 1, False)),
    ],
)
def test_colours_are_logarithmic_beyond_three_decades(values: list, found: tuple) -> None:
    assert cells.colour_range(np.array(values)) == found


@pytest.mark.parametrize(
    ("colours", "values", "apart"),
    [
        (cells.ColourRange(0, 10, False), [4.0, 5.0], False),
        (cells.ColourRange(0, 10, False), [4.0, 5.1], True),
        (cells.ColourRange(5, 15, False), [5.1, 4.0], True),
        (cells.ColourRange(0, 10, False), [NAN, 5.0], True),
        (cells.ColourRange(0, 10, False), [NAN, NAN], False),
        # A tenth of four decades is a factor of 2.5; what is below the lowest has its colour.
        (cells.ColourRange(1, 1e4, True), [2.0, 4.9], False),
        (cells.ColourRange(1, 1e4, True), [2.0, 5.1], True),
        (cells.ColourRange(1, 1e4, True), [1e-9, 2.4], False),
    ],
)
def test_values_are_apart_by_a_share_of_the_colours(
    colours: cells.ColourRange, values: list, apart: bool
) -> None:
    assert colours.apart(np.array([values]), 0.1).tolist() == [apart]
