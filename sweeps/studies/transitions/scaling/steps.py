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


class Step(NamedTuple):
    """Of R curves; NaN where a curve is steepest at the end of its axis, or still steep there.

    Attributes:
        place: where each is steepest.
        width: width of the peak of its slope, at half height.
    """

    place: Float[np.ndarray, " R"]
    width: Float[np.ndarray, " R"]


class _Smoother(NamedTuple):
    """Cubic smoothing splines through given points.

    Attributes:
        modes: curves (columns) that are smoothed independently.
        kept: share of each mode that each penalty keeps.
        fine: where the slope is looked at.
        slope: slope of a spline at these places, by its values at the points.
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


def step(
    x: Float[np.ndarray, " P"],
    values: Float[np.ndarray, "P S"],
    weights: Float[np.ndarray, "R S"],
    sign: float,
) -> Step:
    """The step of averages over seeds, by the weights of each, which rises (`sign` 1) or falls (-1)
    over increasing x.

    Averages are smoothed by cubic splines, of the penalty with which the plain average over all
    seeds but one is nearest to the seed that is left out (Rice and Silverman, 1991). To leave out
    points would not do: runs of one seed share their data, so that their noise is a smooth curve.
    NaN for fewer than `FEWEST` points, or a level curve.
    """
    if len(x) < FEWEST:
        return Step(*np.full((2, len(weights)), np.nan))
    modes, kept, fine, slope = _smoother(tuple(x.tolist()))
    seen = modes.T @ values
    number = 1 / (weights**2).sum(-1, keepdims=True)
    mean = weights @ seen.T
    variance = np.maximum(weights @ (seen**2).T - mean**2, 0)
    # The sum over the seeds that are left out, of each mode, is known in closed form.
    with np.errstate(invalid="ignore", divide="ignore"):
        lost = mean**2 @ ((1 - kept) ** 2).T
        for power, factor in enumerate((1, 2 / (number - 1), 1 / (number - 1) ** 2)):
            lost = lost + factor * (variance @ (kept**power).T)
    smooth = (kept[np.argmin(lost, -1)] * mean) @ modes.T
    rise = sign * smooth @ slope.T
    top = np.argmax(rise, -1)
    peak = np.take_along_axis(rise, top[:, None], -1)
    below, places = rise < peak / 2, np.arange(len(fine))
    before = np.where(below & (places < top[:, None]), places, -1).max(-1)
    after = np.where(below & (places > top[:, None]), places, len(fine)).min(-1)
    inside = (before >= 0) & (after < len(fine)) & (peak[:, 0] > 0)
    width = fine[np.minimum(after, len(fine) - 1)] - fine[np.maximum(before, 0)]
    return Step(np.where(inside, fine[top], np.nan), np.where(inside, width, np.nan))
