"""The lowest place of a curve that is known at some points, and how wide it is there."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int


class Valley(NamedTuple):
    """The best place of each of C curves, NaN where nothing is known.

    Attributes:
        index: of the best one of the points.
        inside: whether it has known neighbours, with which it was refined.
        at: where the best place is.
        value: the curve there.
        lower: from where on the curve is near its best value.
        upper: up to where it is.
    """

    index: Int[np.ndarray, " C"]
    inside: Bool[np.ndarray, " C"]
    at: Float[np.ndarray, " C"]
    value: Float[np.ndarray, " C"]
    lower: Float[np.ndarray, " C"]
    upper: Float[np.ndarray, " C"]


@np.errstate(invalid="ignore")
def valley(
    x: Float[np.ndarray, " P"], curves: Float[np.ndarray, "C P"], sign: int, within: float = 0.0
) -> Valley:
    """The best places of curves over increasing x: of the lowest values for `sign` 1, of the
    highest ones for -1.

    Through the best point and its neighbours goes a parabola in x and the curve, or its logarithm
    where all of it is positive. `within` is a share of the best value.
    """
    known = np.asarray(np.isfinite(curves))
    positive = np.asarray(np.where(known, curves > 0, True).all(-1))
    logs = np.log(np.where(known & positive[:, None], curves, 1))
    y = np.where(known, sign * np.where(positive[:, None], logs, curves), np.inf)
    i = np.argmin(y, -1)
    take = lambda j: np.take_along_axis(y, np.clip(j, 0, len(x) - 1)[:, None], -1)[:, 0]  # noqa: E731
    left, low, right = (take(i + step) for step in (-1, 0, 1))
    inside = (i > 0) & (i < len(x) - 1) & np.isfinite(left) & np.isfinite(right)
    left, low, right = (np.where(inside, each, 0) for each in (left, low, right))
    before, here, after = (x[np.clip(i + step, 0, len(x) - 1)] for step in (-1, 0, 1))
    run = np.where(inside, here - before, 1), np.where(inside, after - here, 1)
    fall, rise = (low - left) / run[0], (right - low) / run[1]
    bend = (rise - fall) / (run[0] + run[1])
    curved = bend > 0
    shift = np.where(curved, -fall / (2 * np.where(curved, bend, 1)) - run[0] / 2, 0.0)
    shift = np.where(inside, shift, 0.0)
    # By the tangent at the best point, whose slope is that of the parabola there.
    slope = fall + bend * run[0]
    lowest = take(i) + np.where(inside, slope * shift + bend * shift**2, 0)
    gap = np.where(positive, np.log1p(within), within * np.abs(lowest))
    reach = np.sqrt(gap / np.where(curved, bend, 1))
    at = here + shift
    lower = _crossing(x, y, i, lowest + gap, np.where(inside & curved, at - reach, np.nan))
    mirrored = np.where(inside & curved, -at - reach, np.nan)
    upper = -_crossing(-x[::-1], y[:, ::-1], len(x) - 1 - i, lowest + gap, mirrored)
    none = ~known.any(-1)
    found = np.where(positive, np.exp(np.where(none, 0, sign * lowest)), sign * lowest)
    places = (np.where(none, np.nan, each) for each in (at, found, lower, upper))
    return Valley(i, inside, *places)


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
