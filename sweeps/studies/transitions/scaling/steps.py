"""Place and width of the step of a noisy curve.

The place is where the curve is steepest, the width that of the peak of its slope at half height.
Near a critical point m = L^(-beta/nu) f((x - x_c) L^(1/nu)), whose slope is a peak of width
L^(-1/nu) whatever beta is. The distance from 10 to 90 % of the way would not do: above a continuous
transition the order parameter keeps growing, and that distance stays finite.
"""

import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.interpolate import CubicSpline

FEWEST = 8
"""Points through which a curve is smoothed."""
FINE = 20
"""Points between two neighbours at which the slope is looked at."""
PENALTIES = np.geomspace(1e-12, 1e2, 57)
"""Penalties of curvature to choose from, over that of a curve whose values are 1 and -1 in turn."""
CAUTION = 1.2
"""By how much a degree of freedom counts more than in plain cross-validation, which often follows
the noise where points are few; Kim and Gu (2004) advise 1.2 to 1.4."""


class Step(NamedTuple):
    """Of R curves; NaN where a curve is steepest at the end of its axis, or still steep there.

    Attributes:
        place: where each is steepest.
        width: of the peak of its slope, at half height.
    """

    place: Float[np.ndarray, " R"]
    width: Float[np.ndarray, " R"]


class _Smoother(NamedTuple):
    """Cubic smoothing splines through given points.

    Attributes:
        modes: curves (columns) that are smoothed independently.
        kept: share of each mode that each penalty keeps.
        fine: where the slope is looked at.
        slope: of a spline at these places, by its values at the points.
    """

    modes: Float[np.ndarray, "P P"]
    kept: Float[np.ndarray, "L P"]
    fine: Float[np.ndarray, " F"]
    slope: Float[np.ndarray, "F P"]


@functools.lru_cache(maxsize=16)
def _smoother(points: tuple[float, ...]) -> _Smoother:
    x = np.array(points)
    h = np.diff(x)
    spline = CubicSpline(x, np.eye(len(x)), bc_type="natural")
    bend = spline(x, 2)
    # The integral of the square of a second derivative, which is linear between points.
    product = np.diag(np.append(h, 0) + np.append(0, h)) / 3
    product += (np.diag(h, 1) + np.diag(h, -1)) / 6
    stiffness, modes = np.linalg.eigh(bend.T @ product @ bend)
    kept = 1 / (1 + PENALTIES[:, None] * np.maximum(stiffness, 0) / stiffness[-1] * len(x) ** 4)
    fine = np.interp(np.arange((len(x) - 1) * FINE + 1) / FINE, np.arange(len(x)), x)
    return _Smoother(modes, kept, fine, spline(fine, 1))


def step(x: Float[np.ndarray, " P"], curves: Float[np.ndarray, "R P"], sign: float) -> Step:
    """The step of curves over increasing x that rise (`sign` 1) or fall (-1).

    Each is smoothed by a cubic spline, whose penalty generalised cross-validation chooses. NaN for
    fewer than `FEWEST` points, or a level curve.
    """
    if len(x) < FEWEST:
        return Step(*np.full((2, len(curves)), np.nan))
    modes, kept, fine, slope = _smoother(tuple(x.tolist()))
    seen = curves @ modes
    left = (((1 - kept[:, None]) * seen) ** 2).sum(-1)
    free = len(x) - CAUTION * kept.sum(-1)
    with np.errstate(divide="ignore"):
        score = np.where(free[:, None] > 0, left / np.maximum(free, 1e-9)[:, None] ** 2, np.inf)
    smooth = (kept[np.argmin(score, 0)] * seen) @ modes.T
    rise = sign * smooth @ slope.T
    top = np.argmax(rise, -1)
    peak = np.take_along_axis(rise, top[:, None], -1)
    below, places = rise < peak / 2, np.arange(len(fine))
    before = np.where(below & (places < top[:, None]), places, -1).max(-1)
    after = np.where(below & (places > top[:, None]), places, len(fine)).min(-1)
    inside = (before >= 0) & (after < len(fine)) & (peak[:, 0] > 0)
    width = fine[np.minimum(after, len(fine) - 1)] - fine[np.maximum(before, 0)]
    return Step(np.where(inside, fine[top], np.nan), np.where(inside, width, np.nan))
