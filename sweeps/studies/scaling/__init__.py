"""Transition or crossover: how the step of an order parameter changes with the size of a system.

A step is where a noisy curve is steepest; its width is that of the peak of the slope at half
height. Near a critical point m = L^(-beta/nu) f((x - x_c) L^(1/nu)), so the peak of the slope has
width L^(-1/nu) for any beta. The distance from 10 to 90 % of the rise is no substitute: above a
continuous transition the order parameter keeps growing, and that distance stays finite.
"""

import enum
import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats
from scipy.interpolate import CubicSpline

from dynsim import checks
from sweeps.studies.scaling import laws
from sweeps.studies.scaling.laws import Estimate, OfSizes, Points, Power, Sizes, Values, Weights

FEWEST_POINTS, FEWEST_SIZES = 8, 3
"""Smallest number of points for smoothing a curve, and of sizes."""
SLOPES = 20
"""Places from one point to the next at which the slope is evaluated."""
PENALTIES = np.geomspace(1e-12, 1e2, 57)
"""Candidate curvature penalties, relative to a curve that alternates between 1 and -1."""
RESOLVED = 3.0
"""Width, in distances of neighbouring points, below which the grid determines it rather than the
step: a jump between two points has a width of about 1.5."""
LEVEL = 0.025
"""Largest probability of each kind of false verdict."""
DECREASE, SLOWEST = 2.0, 0.25
"""For a crossover, errors must exclude that the width falls by the first factor over all sizes, or
by the second exponent. For sizes that differ by little, the first would exclude little."""


@functools.lru_cache(maxsize=16)
def smoother(points: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return cubic smoothing splines through P points: modes (P, P), curves that are smoothed
    independently; the share (L, P) of each that remains at each of `PENALTIES`; places (F,) at
    which the slope is evaluated; and the slope (F, P) there of a spline with these values at the
    points."""
    x = np.array(points)
    h = np.diff(x)
    spline = CubicSpline(x, np.eye(len(x)), bc_type="natural")
    bend = spline(x, 2)
    # Integral of the squared second derivative, which is linear between points: h (a^2 + a b + b^2)
    # / 3 for ends a and b.
    product = np.diag(np.append(h, 0) + np.append(0, h)) / 3
    product += (np.diag(h, 1) + np.diag(h, -1)) / 6
    # In the eigenbasis of the penalty, smoothing divides each mode by 1 + penalty * stiffness
    # (Demmler and Reinsch, 1975).
    stiffness, modes = np.linalg.eigh(bend.T @ product @ bend)
    shares = 1 / (1 + PENALTIES[:, None] * np.maximum(stiffness, 0) / stiffness[-1] * len(x) ** 4)
    fine = np.interp(np.arange((len(x) - 1) * SLOPES + 1) / SLOPES, np.arange(len(x)), x)
    return modes, shares, fine, spline(fine, 1)


def step(
    x: Points, values: Float[np.ndarray, "P S"], weights: Weights, sign: float
) -> tuple[Float[np.ndarray, " R"], Float[np.ndarray, " R"]]:
    """Return place and width of the step of weighted averages over seeds that rise (`sign` 1) or
    fall (-1) with x. NaN for fewer than `FEWEST_POINTS`, for a constant curve, or for one that is
    steepest at the end of its axis or still steep there.

    Averages are smoothed by cubic splines. The penalty minimises the error of predicting each seed
    from the smoothed average of the others (Rice and Silverman, 1991). Leaving out points would not
    work: runs of one seed share their data, so their noise is a smooth curve.
    """
    if len(x) < FEWEST_POINTS:
        return np.full(len(weights), np.nan), np.full(len(weights), np.nan)
    modes, shares, fine, slope = smoother(tuple(x.tolist()))
    coefficients = modes.T @ values
    # Equal weights of S seeds have the sum of squares 1 / S.
    number = 1 / (weights**2).sum(-1, keepdims=True)
    mean = weights @ coefficients.T
    variance = np.maximum(weights @ (coefficients**2).T - mean**2, 0)
    # Squared error of predicting each seed y_s of a mode from the mean of the others, times its
    # share h: <(y_s - h (S m - y_s) / (S - 1))^2> = (1 - h)^2 m^2 + (1 + h / (S - 1))^2 v.
    with np.errstate(invalid="ignore", divide="ignore"):
        loss = mean**2 @ ((1 - shares) ** 2).T
        for exponent, factor in enumerate((1, 2 / (number - 1), 1 / (number - 1) ** 2)):
            loss = loss + factor * (variance @ (shares**exponent).T)
    rise = sign * ((shares[np.argmin(loss, -1)] * mean) @ modes.T) @ slope.T
    # The width is that at half of the peak, which the slope has to reach on either side.
    top = np.argmax(rise, -1)[:, None]
    peak = np.take_along_axis(rise, top, -1)
    below, places = rise < peak / 2, np.arange(len(fine))
    before = np.where(below & (places < top), places, -1).max(-1)
    after = np.where(below & (places > top), places, len(fine)).min(-1)
    inside = (before >= 0) & (after < len(fine)) & (peak[:, 0] > 0)
    width = fine[np.minimum(after, len(fine) - 1)] - fine[np.maximum(before, 0)]
    return np.where(inside, fine[top[:, 0]], np.nan), np.where(inside, width, np.nan)


class Steps(NamedTuple):
    """Steps of all sizes; NaN where they are not known. Widths are NaN as well where points lie too
    far apart, which is so for `narrow` sizes."""

    places: OfSizes
    widths: OfSizes
    narrow: int


def steps(x: Points, values: Values, weights: Weights) -> Steps:
    """Find the steps of all sizes, in the direction that most of the curves go. Points at which a
    run has no value are left out."""
    known = np.asarray(np.isfinite(values).all(-1))
    # Sizes may lack different points, so that their smoothers differ.
    curves = [value[points] for value, points in zip(values, known, strict=True)]
    sign = float(np.sign(sum((c[-1] - c[0]).mean() for c in curves if len(c))))
    pairs = [step(x[i], curve, weights, sign) for i, curve in zip(known, curves, strict=True)]
    places, widths = (np.stack(column, -1) for column in zip(*pairs, strict=True))
    return resolved(x, places, widths)


def resolved(x: Points, places: OfSizes, widths: OfSizes) -> Steps:
    """Return steps without the widths that the points do not resolve."""
    narrow = widths < RESOLVED * np.interp(places, (x[1:] + x[:-1]) / 2, np.diff(x))
    return Steps(places, np.where(narrow | narrow[0], np.nan, widths), int(narrow[0].sum()))


class Verdict(enum.StrEnum):
    """Behaviour of the step as the system grows."""

    TRANSITION = "transition"
    CROSSOVER = "crossover"
    UNDECIDED = "undecided"


def verdict_on(
    sizes: Sizes, measured: Steps, seeds: int, level: float = LEVEL
) -> tuple[Power, Power, Verdict, str]:
    """Return the power laws of the widths of all sizes and of the larger half, the verdict as in
    `scaling`, and the evidence in words, from the steps of curves of `seeds` seeds."""
    used = np.flatnonzero(np.isfinite(measured.widths[0]))
    later = np.isin(np.arange(len(sizes)), used[len(used) // 2 :])
    width, late = (
        laws.power(sizes, np.where(part, measured.widths, np.nan), seeds, level / 2)
        for part in (True, later[None])
    )
    verdict, why = decide(sizes[used], width, late, level)
    if measured.narrow:
        why += f"; {measured.narrow} of {len(sizes)} steps are too narrow for the points"
    return width, late, verdict, why


def decide(sizes: Sizes, width: Power, late: Power, level: float = LEVEL) -> tuple[Verdict, str]:
    """Return the verdict on the power laws of the widths of all `sizes` and of the larger half of
    them, and its reason.

    A transition needs an exponent above 0 at the level, both for all sizes and for the larger half,
    where it must be at least half as large. So a width that has levelled off among the larger sizes
    is taken for a transition with at most that probability. For a crossover either law is enough,
    each at half the level, so that both together keep to the level (Bonferroni).
    """
    if len(sizes) < FEWEST_SIZES:
        reason = f"the width of the step is known for {len(sizes)} sizes, needs {FEWEST_SIZES}"
        return Verdict.UNDECIDED, reason
    # Widths fall as L^(-a), and as L^(-b) among the larger sizes.
    (a, of_a), (b, of_b) = (Estimate(-p.exponent.value, p.exponent.error) for p in (width, late))
    errors, wider = stats.norm.isf(level), stats.norm.isf(level / 2)
    evidence = f"the width falls as L^(-a), a = {Estimate(a, of_a)} ({Estimate(b, of_b)} for the "
    evidence += f"larger half of the sizes), at a level of {100 * level:g} %"
    if a > errors * of_a and b > max(errors * of_b, a / 2):
        return Verdict.TRANSITION, evidence
    excluded = min(SLOWEST, float(np.log(DECREASE) / np.log(sizes[-1] / sizes[0])))
    # Any two widths define a power law, so it needs at least three.
    pairs = [(a, of_a), (b, of_b)][: 1 + (len(sizes) - len(sizes) // 2 > 2)]
    if any(p <= errors * off and p + wider * off < excluded for p, off in pairs):
        evidence += f": it levels off, a > {excluded:.2f} is excluded, a smaller one is not"
        return Verdict.CROSSOVER, evidence
    falls = a > errors * of_a
    why = "whether it keeps falling is not known" if falls else "the errors are too large"
    return Verdict.UNDECIDED, f"{evidence}: {why}"


class Scaling(NamedTuple):
    """Finite-size scaling of an order parameter m of N sizes at P values of x.

    Attributes:
        moments, errors: over the seeds, (N, P), and their standard errors.
        places, widths: where each step is steepest, and its width, (N,); NaN where not known.
        crossings: where Binder cumulants of neighbouring sizes cross, (N - 1,).
        width, late: power laws of the widths, of all sizes and of their larger half.
        verdict, why: transition, crossover or undecided, and the evidence in words.
        place: the limit of the places, or how they keep moving.
        peak: power law of the largest susceptibility.
        collapse: collapse of m over x minus the drift of the places; None without enough data.
    """

    moments: laws.Moments
    errors: laws.Moments
    places: Estimate
    widths: Estimate
    crossings: Estimate
    width: Power
    late: Power
    verdict: Verdict
    why: str
    place: laws.Limit
    peak: Power
    collapse: laws.Collapse | None


def scaling(
    x: Points,
    sizes: Sizes,
    values: Values,
    *,
    origin: float = 0.0,
    level: float = LEVEL,
    draws: int = 50,
) -> Scaling:
    """Decide whether an order parameter has a transition or a crossover.

    The step of each size is where the mean over the seeds is steepest, and its width that of the
    peak of the slope at half height. All errors are standard errors by random halves of the seeds
    (the delete-half jackknife), the same ones at all points and sizes, with a fixed random state.

    Args:
        x: control parameter, increasing, such as the logarithm of a rate.
        sizes: different positive numbers, increasing; any measure of size, to which all exponents
            refer.
        values: order parameter of each size, point and seed; NaN where a run has none.
        origin: its value in the disordered phase, for the Binder cumulant and beta/nu.
        level: largest probability, in (0, 0.5), of taking a width that stays the same, at least
            among the larger half of the sizes, for one that falls, and one that falls as L^(-1/4)
            for one that stays. `make tables TABLES=verdicts` measures both.
        draws: number of random halves of the seeds; two seeds are too few for a verdict.

    Raises:
        ValueError: for other shapes, too few points, sizes or seeds, or values out of order.

    Example:
        >>> x, sizes = np.linspace(-6, 6, 49), np.array([8, 16, 32])
        >>> starts = np.random.default_rng(0).logistic(size=(3, 1, 40))
        >>> values = (x[:, None] > starts / sizes[:, None, None]).astype(float)
        >>> sweeps.scaling(x, sizes, values, draws=5).verdict.value
        'undecided'
    """
    x, sizes, values = (np.asarray(array, float) for array in (x, sizes, values))
    if values.ndim != 3 or values.shape[:2] != (len(sizes), len(x)) or values.shape[2] < 2:
        needed = f"(sizes, points, seeds) = ({len(sizes)}, {len(x)}, at least 2)"
        raise ValueError(f"values: shape {values.shape}: must be {needed}")
    for name, axis, fewest in (("x", x, FEWEST_POINTS), ("sizes", sizes, FEWEST_SIZES)):
        if len(axis) < fewest or (np.diff(axis) <= 0).any() or not np.isfinite(axis).all():
            raise ValueError(f"{name}: must be {fewest} or more finite numbers that increase")
    checks.real("sizes", sizes, 0, open_minimum=True)
    checks.integer("draws", draws, 2)
    checks.real("level", level, 0, 0.5, open_minimum=True, open_maximum=True)
    seeds = values.shape[-1]
    resampled = laws.weights(seeds, draws)
    drawn = laws.moments(values, sizes, resampled, origin)
    measured = steps(x, values, resampled)
    crossed = laws.crossings(x, drawn.binder, measured.places)
    places, widths, crossings = (
        Estimate.of(rows, seeds) for rows in (measured.places, measured.widths, crossed)
    )
    place = laws.limit(sizes, measured.places, float(np.nanmax(widths.value, initial=0)), seeds)
    # A step that keeps moving has no x_c. Its curves can still coincide once the drift is removed.
    moved = np.nan_to_num(place.drift.value) * np.log(sizes)
    order, at = drawn.mean - origin, x - moved[:, None]
    # A susceptibility that is 0 at all points has no power law.
    highest = np.fmax.reduce(drawn.susceptibility, axis=-1)
    return Scaling(
        laws.Moments(*(rows[0] for rows in drawn)),
        laws.Moments(*(laws.error(rows, seeds) for rows in drawn)),
        places,
        widths,
        crossings,
        *verdict_on(sizes, measured, seeds, level),
        place,
        laws.power(sizes, np.where(highest > 0, highest, np.nan), seeds),
        laws.collapse(at, sizes, order, places.value - moved, widths.value, seeds),
    )
