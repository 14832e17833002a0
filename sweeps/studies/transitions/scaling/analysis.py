"""Decide whether the step of an order parameter is a transition or a crossover, and report why.

A step is where a noisy curve is steepest; its width is that of the peak of the slope at half
height. Near a critical point m = L^(-beta/nu) f((x - x_c) L^(1/nu)), so the peak of the slope has
width L^(-1/nu) for any beta. The distance from 10 to 90 % of the rise is no substitute: above a
continuous transition the order parameter keeps growing, and that distance stays finite.
"""

import enum
import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy import stats
from scipy.interpolate import CubicSpline

from dynsim import checks
from sweeps.studies.transitions.scaling.laws import (
    Collapse,
    Limit,
    Moments,
    Power,
    collapse,
    crossings,
    error,
    limit,
    moments,
    power,
    weights,
)

FEWEST = 8
"""Smallest number of points for smoothing a curve."""
FINE = 20
"""Points between two neighbours at which the slope is evaluated."""
PENALTIES = np.geomspace(1e-12, 1e2, 57)
"""Candidate curvature penalties, relative to a curve that alternates between 1 and -1."""


class Step(NamedTuple):
    """Steps of R curves; NaN if a curve is steepest at the end of its axis, or still steep there.

    Attributes:
        place: where each curve is steepest.
        width: width of the peak of its slope, at half height.
    """

    place: Float[np.ndarray, " R"]
    width: Float[np.ndarray, " R"]


class _Smoother(NamedTuple):
    """Cubic smoothing splines through given points.

    Attributes:
        modes: curves (columns) that are smoothed independently.
        kept: share of each mode that each penalty keeps.
        fine: places at which the slope is evaluated.
        slope: slope of a spline at these places, from its values at the points.
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
    # Integral of the squared second derivative, which is linear between points.
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
    """Find the step of weighted averages over seeds that rise (`sign` 1) or fall (-1) with x.

    Averages are smoothed by cubic splines. The penalty minimises the error of predicting each seed
    from the smoothed average of the others (Rice and Silverman, 1991). Leaving out points would not
    work: runs of one seed share their data, so their noise is a smooth curve. NaN for fewer than
    `FEWEST` points or a constant curve.
    """
    if len(x) < FEWEST:
        return Step(*np.full((2, len(weights)), np.nan))
    modes, kept, fine, slope = _smoother(tuple(x.tolist()))
    seen = modes.T @ values
    number = 1 / (weights**2).sum(-1, keepdims=True)
    mean = weights @ seen.T
    variance = np.maximum(weights @ (seen**2).T - mean**2, 0)
    # The sum over left-out seeds has a closed form for each mode.
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


FEWEST_SIZES = 3
RESOLVED = 3.0
"""Width, in distances of neighbouring points, below which the grid determines it rather than the
step: a jump between two points has a width of about 1.5."""
LEVEL = 0.025
"""Largest probability of each kind of false verdict."""
FALL, SLOWEST = 2.0, 0.25
"""For a crossover, errors must exclude that the width falls by the first factor over all sizes, or
by the second exponent. For sizes that differ by little, the first would exclude little."""


class Verdict(enum.StrEnum):
    """Behaviour of the step as the system grows."""

    TRANSITION = "transition"
    CROSSOVER = "crossover"
    UNDECIDED = "undecided"


class Scaling(NamedTuple):
    """Finite-size scaling of an order parameter m of N sizes at P values of x.

    Attributes:
        moments: over the seeds, (N, P).
        errors: their standard errors.
        places: (N,) where each step is steepest, NaN where that is not known.
        place_errors: their standard errors.
        widths: (N,) of the steps; NaN as well where points lie too far apart.
        width_errors: their standard errors.
        width: their power law; minus its exponent is a.
        late: power law of the widths of the larger half of the sizes.
        place: the limit of the places, or how they keep moving.
        peak: power law of the largest susceptibility.
        crossings: (N - 1,) where Binder cumulants of neighbouring sizes cross.
        crossing_errors: their standard errors.
        collapse: collapse of m over x, or over x - s ln L if places keep moving; None without
            enough data.
        verdict: transition, crossover or undecided.
        why: the evidence, in words.
    """

    moments: Moments
    errors: Moments
    places: Float[np.ndarray, " N"]
    place_errors: Float[np.ndarray, " N"]
    widths: Float[np.ndarray, " N"]
    width_errors: Float[np.ndarray, " N"]
    width: Power
    late: Power
    place: Limit
    peak: Power
    crossings: Float[np.ndarray, " N-1"]
    crossing_errors: Float[np.ndarray, " N-1"]
    collapse: Collapse | None
    verdict: Verdict
    why: str


def scaling(
    x: Float[np.ndarray, " P"],
    sizes: Float[np.ndarray, " N"],
    values: Float[np.ndarray, "N P S"],
    *,
    origin: float = 0.0,
    level: float = LEVEL,
    draws: int = 50,
) -> Scaling:
    """Decide whether an order parameter has a transition or a crossover.

    The step of each size is where the mean over the seeds is steepest, and its width that of the
    peak of the slope at half height (`steps`). All errors are standard errors by random halves of
    the seeds (`moments.error`), the same ones at all points and sizes, with a fixed random state.

    Args:
        x: control parameter, increasing, such as the logarithm of a rate.
        sizes: different positive numbers, increasing; any measure of size, to which all exponents
            refer.
        values: order parameter of each size, point and seed; NaN where a run has none.
        origin: its value in the disordered phase, for the Binder cumulant and beta/nu.
        level: level of significance, in (0, 0.5): the largest probability of taking a width that
            stays the same, at least among the larger half of the sizes, for one that falls, and
            one that falls as L^(-1/4) for one that stays.
            `make tables TABLES=verdicts` measures both.
        draws: number of random halves of the seeds. Two seeds give no verdict, because a half has
            a single seed, which cannot determine the smoothing.

    Raises:
        ValueError: for other shapes, too few points, sizes or seeds, or values out of order.
    """
    x, sizes = np.asarray(x, float), np.asarray(sizes, float)
    values = np.asarray(values, float)
    if values.ndim != 3 or values.shape[:2] != (len(sizes), len(x)) or values.shape[2] < 2:
        raise ValueError(
            f"values: shape {values.shape}: must be (sizes, points, seeds), here "
            f"({len(sizes)}, {len(x)}, at least 2)"
        )
    for name, axis, fewest in (("x", x, FEWEST), ("sizes", sizes, FEWEST_SIZES)):
        if len(axis) < fewest or (np.diff(axis) <= 0).any() or not np.isfinite(axis).all():
            raise ValueError(f"{name}: must be {fewest} or more finite numbers that increase")
    checks.real("sizes", sizes, 0, open_minimum=True)
    checks.integer("draws", draws, 2)
    checks.real("level", level, 0, 0.5, open_minimum=True, open_maximum=True)
    seeds = values.shape[-1]
    resampled = weights(seeds, draws)
    drawn = moments(values, sizes, resampled, origin)
    places, widths, law, late, verdict, why = verdict_on(
        x, sizes, *steps(x, values, resampled), seeds, level
    )
    # A susceptibility that is 0 at all points has no power law.
    highest = np.fmax.reduce(drawn.susceptibility, axis=-1)
    peaks = np.where(highest > 0, highest, np.nan)
    crossed = crossings(x, drawn.binder, places)
    widest = float(np.nanmax(widths[0], initial=0))
    place = limit(sizes, places, widest, seeds)
    moved = np.nan_to_num(place.drift) * np.log(sizes)
    return Scaling(
        Moments(*(each[0] for each in drawn)),
        Moments(*(error(each, seeds) for each in drawn)),
        places[0],
        error(places, seeds),
        widths[0],
        error(widths, seeds),
        law,
        late,
        place,
        power(sizes, peaks, seeds),
        crossed[0],
        error(crossed, seeds),
        collapse(
            x - moved[:, None], sizes, drawn.mean - origin, places[0] - moved, widths[0], seeds
        ),
        verdict,
        why,
    )


class Grounds(NamedTuple):
    """Steps of N sizes, of the plain mean and R - 1 halves of the seeds, and the verdict on them.

    Attributes:
        places: where they are steepest.
        widths: widths of the steps.
        law: law of the widths of all sizes.
        late: law of the widths of the larger half.
        verdict: verdict from these laws.
        why: its reason, in words.
    """

    places: Float[np.ndarray, "R N"]
    widths: Float[np.ndarray, "R N"]
    law: Power
    late: Power
    verdict: Verdict
    why: str


def verdict_on(
    x: Float[np.ndarray, " P"],
    sizes: Float[np.ndarray, " N"],
    places: Float[np.ndarray, "R N"],
    widths: Float[np.ndarray, "R N"],
    seeds: int,
    level: float = LEVEL,
) -> Grounds:
    """Decide as in `scaling`, from the places and widths that `steps` found for `seeds` seeds."""
    spacing = np.interp(places, (x[1:] + x[:-1]) / 2, np.diff(x))
    narrow = widths < RESOLVED * spacing
    coarse = narrow[0]
    widths = np.where(narrow | coarse, np.nan, widths)
    used = np.flatnonzero(np.isfinite(widths[0]))
    later = np.isin(np.arange(len(sizes)), used[len(used) // 2 :])
    law, late = (
        power(sizes, np.where(part, widths, np.nan), seeds, level / 2)
        for part in (True, later[None])
    )
    verdict, why = decide(sizes[used], law, late, level)
    if coarse.any():
        why += f"; {int(coarse.sum())} of {len(sizes)} steps are too narrow for the points"
    return Grounds(places, widths, law, late, verdict, why)


def steps(
    x: Float[np.ndarray, " P"],
    values: Float[np.ndarray, "N P S"],
    weights: Float[np.ndarray, "R S"],
) -> tuple[Float[np.ndarray, "R N"], Float[np.ndarray, "R N"]]:
    """Find places and widths of the steps of all sizes, in the direction that most of the curves
    go. Points at which a run has no value are left out."""
    known: Bool[np.ndarray, "N P"] = np.asarray(np.isfinite(values).all(-1))
    curves = [value[points] for value, points in zip(values, known, strict=True)]
    sign = float(np.sign(sum((c[-1] - c[0]).mean() for c in curves if len(c))))
    found = [
        step(x[points], curve, weights, sign) for points, curve in zip(known, curves, strict=True)
    ]
    return np.stack([s.place for s in found], -1), np.stack([s.width for s in found], -1)


def decide(
    sizes: Float[np.ndarray, " N"], width: Power, late: Power, level: float = LEVEL
) -> tuple[Verdict, str]:
    """Return the verdict on the power laws of the widths of all `sizes` and of the larger half of
    them, and its reason.

    A transition needs an exponent above 0 at the level, both for all sizes and for the larger half,
    where it must be at least half as large. So a width that has levelled off among the larger sizes
    is taken for a transition with at most that probability. For a crossover either law is enough,
    each at half the level, so that both together keep to the level (Bonferroni).
    """
    if len(sizes) < FEWEST_SIZES:
        known = f"the width of the step is known for {len(sizes)} sizes, needs {FEWEST_SIZES}"
        return Verdict.UNDECIDED, known
    a, b, errors = -width.exponent, -late.exponent, stats.norm.isf(level)
    said = f"the width falls as L^(-a), a = {a:.2f} ± {width.error:.2f}"
    said += f" ({b:.2f} ± {late.error:.2f} for the larger half of the sizes)"
    said += f", at a level of {100 * level:g} %"
    if a > errors * width.error and b > max(errors * late.error, a / 2):
        return Verdict.TRANSITION, said
    excluded = min(SLOWEST, float(np.log(FALL) / np.log(sizes[-1] / sizes[0])))
    # Any two widths define a power law, so it needs at least three.
    laws = [(a, width.error), (b, late.error)][: 1 + (len(sizes) - len(sizes) // 2 > 2)]
    wider = stats.norm.isf(level / 2)
    for exponent, uncertain in laws:
        if exponent <= errors * uncertain and exponent + wider * uncertain < excluded:
            said += f": it levels off, a > {excluded:.2f} is excluded, a smaller one is not"
            return Verdict.CROSSOVER, said
    if a > errors * width.error:
        return Verdict.UNDECIDED, f"{said}: whether it keeps falling is not known"
    return Verdict.UNDECIDED, f"{said}: the errors are too large"
