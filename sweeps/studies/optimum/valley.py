"""Find the minimum of a curve known at some points, its error, and the width of the valley.

A polynomial through the best point and its neighbours locates the minimum between them; polynomials
through fewer points give its error. Next to a steep wall, all of them dip below the curve. Outside
of two of its points, a convex curve lies above the line through them. A polynomial whose minimum is
below such a line is rejected, and the minimum is only known to lie between the neighbours.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.polynomial.polynomial import polyval

from dynsim.trajectory import crossings

SUBSETS = (slice(1, 4), slice(0, 4), slice(1, 5), slice(0, 5))
"""Which of the five points around the best one each polynomial uses. The last one is the estimate;
the others give its error."""
NUM_PLACES = 101
"""Number of places between the neighbours of the best point at which polynomials are evaluated."""
UNIFORM = 1 / np.sqrt(12)
"""Standard deviation of a uniform distribution of width 1."""


class Valley(NamedTuple):
    """The best place of each of C curves, NaN where nothing is known.

    Attributes:
        index, inside: index of the best point, and whether both of its neighbours are known.
        at, value: the best place, and the value of the curve there.
        shape: standard error of `at` because the curve is known at some points only; at most that
            of a uniform distribution between the neighbours, NaN at an end.
        lower, upper: ends of the range in which the curve stays near its best value.
    """

    index: Int[np.ndarray, " C"]
    inside: Bool[np.ndarray, " C"]
    at: Float[np.ndarray, " C"]
    shape: Float[np.ndarray, " C"]
    value: Float[np.ndarray, " C"]
    lower: Float[np.ndarray, " C"]
    upper: Float[np.ndarray, " C"]


@np.errstate(invalid="ignore")
def valley(
    x: Float[np.ndarray, " P"], curves: Float[np.ndarray, "C P"], sign: int, within: float = 0.0
) -> Valley:
    """Find the best places of curves over increasing x: minima for `sign` 1, maxima for -1.

    Polynomials are fitted to a curve, or to its logarithm if all its values are positive. The best
    point itself is the estimate if they describe no valley, or if fewer than two points are known
    on a side. `within` is the excess at `lower` and `upper`, as a share of the best value.
    """
    known = np.isfinite(curves)
    positive = np.all(~known | (curves > 0), axis=-1)
    logs = np.log(np.where(known & positive[:, None], curves, 1))
    y = np.where(known, sign * np.where(positive[:, None], logs, curves), np.inf)
    index = np.argmin(y, -1)
    near = np.clip(index[:, None] + np.arange(-2, 3), 0, len(x) - 1)
    points = np.take_along_axis(y, near, -1)
    inner = (index > 0) & (index < len(x) - 1)
    inside = inner & np.all(np.isfinite(points[:, 1:4]), axis=-1)
    # All five points are known.
    whole = inside & (index > 1) & (index < len(x) - 2) & np.all(np.isfinite(points), axis=-1)
    at, lowest, curvature = x[index], points[:, 2], np.full(len(index), np.nan)
    width = np.where(inner, x[near[:, 3]] - x[near[:, 1]], np.nan)
    shape = width * UNIFORM
    if whole.any():
        # In units of the distance between both neighbours, polynomials are well conditioned.
        scaled = (x[near[whole]] - at[whole, None]) / width[whole, None]
        place, error, depth, bend = _minima(scaled, points[whole] - lowest[whole, None])
        at[whole] += width[whole] * place
        shape[whole] = width[whole] * error
        lowest[whole] += depth
        curvature[whole] = bend / width[whole] ** 2
    # A share of the value is a constant in its logarithm. y = lowest + curvature * distance^2.
    gap = np.where(positive, np.log1p(within), within * np.abs(lowest))
    level, reach = lowest + gap, np.sqrt(gap / curvature)
    lower = -_reach(-x[::-1], y[:, ::-1], len(x) - 1 - index, level)
    upper = _reach(x, y, index, level)
    # The curve is a parabola near its best value.
    lower = np.where(at - reach >= x[np.maximum(index - 1, 0)], at - reach, lower)
    upper = np.where(at + reach <= x[np.minimum(index + 1, len(x) - 1)], at + reach, upper)
    none = ~known.any(-1)
    value = np.where(positive, np.exp(np.where(none, 0, sign * lowest)), sign * lowest)
    numbers = (np.where(none, np.nan, number) for number in (at, shape, value, lower, upper))
    return Valley(index, inside, *numbers)


def _minima(
    x: Float[np.ndarray, "C 5"], y: Float[np.ndarray, "C 5"]
) -> tuple[Float[np.ndarray, " C"], ...]:
    """Find the minimum of curves through five points, the middle one at x = y = 0 and its
    neighbours 1 apart: its place, the error of the place, y, and half the second derivative.
    Without a valley these are 0, `UNIFORM`, 0 and NaN."""
    t, rows = np.linspace(x[:, 1], x[:, 3], NUM_PLACES), np.arange(len(x))
    # A lower bound for a convex curve: the lines through neighbouring points, outside of these.
    floor = np.full(t.shape, -np.inf)
    for a in range(4):
        line = y[:, a] + (y[:, a + 1] - y[:, a]) / (x[:, a + 1] - x[:, a]) * (t - x[:, a])
        outside = (t < x[:, a]) | (t > x[:, a + 1])
        floor = np.where(outside, np.maximum(floor, line), floor)
    places, valid = [], np.ones(len(x), bool)
    depth = bend = np.zeros(len(x))
    for subset in SUBSETS:
        # Interpolation: as many coefficients as points, from the Vandermonde matrix.
        powers = np.arange(subset.stop - subset.start)
        coefficients = np.linalg.solve(x[:, subset, None] ** powers, y[:, subset, None])[..., 0]
        curve = polyval(t, coefficients.T, tensor=False)
        k = np.clip(np.argmin(curve, 0), 1, NUM_PLACES - 2)
        left, low, right = (curve[k + step, rows] for step in (-1, 0, 1))
        valid &= (low >= floor[k, rows]) & (low <= np.minimum(left, right))
        # Parabola through the three lowest places, for which y(s) = low + (right - left) s / 2 +
        # twice s^2 / 2. Infinite where they lie on a line, which has no minimum.
        twice = np.where(left + right > 2 * low, left + right - 2 * low, np.inf)
        depth, bend = low - (right - left) ** 2 / (8 * twice), twice * (NUM_PLACES - 1) ** 2 / 2
        places.append(t[k, rows] + (left - right) / (2 * twice * (NUM_PLACES - 1)))
    # The last polynomial is the estimate, so that depth and bend are its own.
    error = np.abs(np.array(places) - places[-1]).max(0)
    valid &= error < UNIFORM
    options = ((places[-1], 0.0), (error, UNIFORM), (depth, 0.0), (bend, np.nan))
    return tuple(np.where(valid, estimate, otherwise) for estimate, otherwise in options)


def _reach(
    x: Float[np.ndarray, " P"],
    y: Float[np.ndarray, "C P"],
    index: Int[np.ndarray, " C"],
    level: Float[np.ndarray, " C"],
) -> Float[np.ndarray, " C"]:
    """Follow each curve from its lowest point `index` to larger x, linear between points. Return
    where it rises above `level`, else the last point before an unknown one or at the end."""
    before = np.arange(len(x)) <= index[:, None]
    rising = np.where(before, np.minimum(y, level[:, None]), y)
    # Negated, so that a value at the level itself is not beyond it.
    at = crossings(x, -rising, -level)
    return np.where(np.isnan(at), x[-1], at)
