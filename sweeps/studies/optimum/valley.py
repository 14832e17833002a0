"""The lowest place of a curve that is known at some points, and how wide it is there.

A polynomial through the best point and its neighbours says where between them the curve is lowest.
It is right as far as the curve is one: fewer of the points make other polynomials, and their
distance is its error. At a steep wall all of them dip below the curve. Where the points belong to a
convex curve, the straight line through two of them is below it on either side of the two. A
polynomial that is lowest below such a line is no such curve, and what is known is only that the
lowest place is between the neighbours.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.polynomial.polynomial import polyval

REACH = np.arange(-2, 3)
"""Points around the best one through which the polynomial goes."""
PARTS = (slice(1, 4), slice(0, 4), slice(1, 5), slice(0, 5))
"""Which of them the polynomials go through; the last one is used, the others have its error."""
SIDES = ((0, 1), (1, 2), (2, 3), (3, 4))
"""Pairs of them whose lines bound a convex curve from below."""
FINE = 101
"""Places between the neighbours of the best point at which polynomials are looked at."""


class Valley(NamedTuple):
    """The best place of each of C curves, NaN where nothing is known.

    Attributes:
        index: of the best one of the points.
        inside: whether it has known neighbours.
        at: where the best place is.
        shape: standard error of that, as the curve is known at some points only; that of a uniform
            distribution between its neighbours at most, NaN at an end.
        value: the curve there.
        lower: from where on the curve is near its best value.
        upper: up to where it is.
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
    """The best places of curves over increasing x: of the lowest values for `sign` 1, of the
    highest ones for -1.

    Polynomials are those of x and the curve, or its logarithm where all of it is positive. The best
    point itself is the place where they describe no valley, or two points on either side are not
    known. `within` is a share of the best value.
    """
    known = np.asarray(np.isfinite(curves))
    positive = np.asarray(np.where(known, curves > 0, True).all(-1))
    logs = np.log(np.where(known & positive[:, None], curves, 1))
    y = np.where(known, sign * np.where(positive[:, None], logs, curves), np.inf)
    i = np.argmin(y, -1)
    near = np.clip(i[:, None] + REACH, 0, len(x) - 1)
    points = np.take_along_axis(y, near, -1)
    inner = np.asarray((i > 0) & (i < len(x) - 1))
    inside = inner & np.asarray(np.isfinite(points[:, 1:4]).all(-1))
    whole = inside & (i > 1) & (i < len(x) - 2) & np.isfinite(points).all(-1)
    here, width = x[i], np.where(inner, x[near[:, 3]] - x[near[:, 1]], np.nan)
    at, lowest, bend = here, points[:, 2], np.full(len(i), np.nan)
    shape = width / np.sqrt(12)
    if whole.any():
        scaled = (x[near[whole]] - here[whole, None]) / width[whole, None]
        moved, error, sunk, curved = _polynomials(scaled, points[whole] - lowest[whole, None])
        at[whole] += width[whole] * moved
        shape[whole] *= np.sqrt(12) * error
        lowest[whole] += sunk
        bend[whole] = curved / width[whole] ** 2
    gap = np.where(positive, np.log1p(within), within * np.abs(lowest))
    reach = np.sqrt(gap / bend)
    lower = _crossing(x, y, i, lowest + gap, at - reach)
    upper = -_crossing(-x[::-1], y[:, ::-1], len(x) - 1 - i, lowest + gap, -at - reach)
    none = ~known.any(-1)
    found = np.where(positive, np.exp(np.where(none, 0, sign * lowest)), sign * lowest)
    places = (np.where(none, np.nan, each) for each in (at, shape, found, lower, upper))
    return Valley(i, inside, *places)


def _polynomials(
    x: Float[np.ndarray, "C 5"], y: Float[np.ndarray, "C 5"]
) -> tuple[Float[np.ndarray, " C"], ...]:
    """Where curves through five points are lowest next to the middle one, at x = 0 and y = 0; the
    error of that place; y there, and half of the second derivative. The neighbours are at a
    distance of 1 from each other. The middle point, and NaN for the derivative, where there is no
    valley."""
    t = np.linspace(x[:, 1], x[:, 3], FINE)
    floor = np.full(t.shape, -np.inf)
    for a, b in SIDES:
        line = y[:, a] + (y[:, b] - y[:, a]) / (x[:, b] - x[:, a]) * (t - x[:, a])
        beside = (t < x[:, a]) | (t > x[:, b])
        floor = np.where(beside, np.maximum(floor, line), floor)
    places, valid, rows = [], np.ones(len(x), bool), np.arange(len(x))
    bottom = bend = np.zeros(len(x))
    for part in PARTS:
        powers = np.arange(part.stop - part.start)
        numbers = np.linalg.solve(x[:, part, None] ** powers, y[:, part, None])[..., 0]
        curve = polyval(t, numbers.T, tensor=False)
        k = np.clip(np.argmin(curve, 0), 1, FINE - 2)
        left, low, right = (curve[k + step, rows] for step in (-1, 0, 1))
        valid &= (low >= floor[k, rows]) & (low <= np.minimum(left, right))
        # By a parabola through the three lowest places.
        twice = np.where(left + right > 2 * low, left + right - 2 * low, np.inf)
        bottom, bend = low - (right - left) ** 2 / (8 * twice), twice * (FINE - 1) ** 2 / 2
        places.append(t[k, rows] + (left - right) / (2 * twice * (FINE - 1)))
    error = np.abs(np.array(places) - places[-1]).max(0)
    valid &= error < 1 / np.sqrt(12)
    at, error, bottom = (
        np.where(valid, each, other)
        for each, other in ((places[-1], 0.0), (error, 1 / np.sqrt(12)), (bottom, 0.0))
    )
    return at, error, bottom, np.where(valid, bend, np.nan)


def _crossing(
    x: Float[np.ndarray, " P"],
    y: Float[np.ndarray, "C P"],
    i: Int[np.ndarray, " C"],
    level: Float[np.ndarray, " C"],
    root: Float[np.ndarray, " C"],
) -> Float[np.ndarray, " C"]:
    """Where each curve, followed from its lowest point `i` to smaller x, rises above a level: at
    the `root` of the parabola if that is on this side of the next point, else on a straight line;
    the last point before one that is not known, or the first of all, if it does not."""
    points = np.arange(len(x))
    above = (y > level[:, None]) & (points < i[:, None])
    last = np.where(above.any(-1), len(x) - 1 - np.argmax(above[:, ::-1], -1), -1)
    near, far = np.minimum(last + 1, i), np.maximum(last, 0)
    rows = np.arange(len(y))
    low, high = y[rows, near], y[rows, far]
    rises = (last >= 0) & np.isfinite(high) & (high > low)
    share = np.clip((level - low) / np.where(rises, high - low, 1), 0, 1)
    found = np.where(rises, x[near] - share * (x[near] - x[far]), x[near])
    next_to = np.isfinite(root) & (root >= x[np.maximum(i - 1, 0)])
    return np.where(next_to, root, found)
