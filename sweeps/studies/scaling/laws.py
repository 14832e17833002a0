"""How an order parameter changes with size: moments over seeds (mean, susceptibility, Binder
cumulant), power laws and limits of its step, and the exponents of a scaling collapse."""

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats
from scipy.optimize import minimize

from sweeps.studies.options import TWO_ERRORS, student

Points = Float[np.ndarray, " P"]
Sizes = Float[np.ndarray, " N"]
Values = Float[np.ndarray, "N P S"]
Weights = Float[np.ndarray, "R S"]
OfSizes = Float[np.ndarray, "R N"]
"""A number for each size, of the plain mean and of R - 1 halves of the seeds."""


class Moments(NamedTuple):
    """Moments over the seeds, for R sets of their weights, N sizes and P points; NaN where a run
    has no value: <m>, size times the variance of m, and the Binder cumulant
    1 - <q^4> / (3 <q^2>^2) with q = m - origin. This is 2/3 where q has one absolute value, 0 for a
    normal distribution about the origin, and NaN where q is always 0."""

    mean: Float[np.ndarray, "R N P"]
    susceptibility: Float[np.ndarray, "R N P"]
    binder: Float[np.ndarray, "R N P"]


def weights(seeds: int, draws: int) -> Weights:
    """Return weights of the seeds, each row of sum 1: first equal ones, then those of `draws` fixed
    random halves. Unlike a bootstrap sample, a half has no seed twice. A smoother chosen by leaving
    seeds out would treat a copy as confirmation."""
    half = (seeds + 1) // 2
    # Each row is a permutation of the seeds; those in its first half have a weight.
    ranks = np.random.default_rng(0).permuted(np.tile(np.arange(seeds), (draws, 1)), axis=1)
    return np.concatenate([np.full((1, seeds), 1 / seeds), (ranks < half) / half])


def error(values: Float[np.ndarray, "R *A"], seeds: int) -> Float[np.ndarray, "*A"]:
    """Standard error of a quantity computed for each row of `weights`, from the halves of the seeds
    that have a value; NaN where fewer than half of them have one.

    This is the delete-half jackknife (Shao and Wu, 1989): a half differs from all seeds by as much
    as these differ from the truth. The error includes a bias that grows for fewer seeds.
    """
    apart = values[1:] - values[0]
    known = np.isfinite(apart)
    square = np.where(known, apart, 0) ** 2
    # The mean of d of n seeds has the variance s^2 (n - d) / (n d) about that of all n. The latter
    # has the variance s^2 / n, which is d / (n - d) times as large.
    half = (seeds + 1) // 2
    root = np.sqrt(square.sum(0) / np.maximum(known.sum(0), 1) * half / (seeds - half))
    return np.where(2 * known.sum(0) >= len(apart), root, np.nan)


class Estimate(NamedTuple):
    """A value, or an array of them, and its standard error."""

    value: Any
    error: Any

    @classmethod
    def of(cls, drawn: Float[np.ndarray, "R *A"], seeds: int) -> "Estimate":
        """Return the first row, and the error from the others."""
        return cls(drawn[0], error(drawn, seeds))

    def __str__(self) -> str:
        if not np.isfinite(self.error):
            return f"{self.value:.2f}"
        # At least one digit of the error.
        digits = 2 if self.error == 0 else max(2, -math.floor(math.log10(self.error)))
        return f"{self.value:.{digits}f} ± {self.error:.{digits}f}"


def moments(values: Values, sizes: Sizes, weights: Weights, origin: float = 0.0) -> Moments:
    """Moments of an order parameter of each size, point and seed, NaN where a run has none.

    The variance has the factor S / (S - 1) for the S seeds with a weight; it is NaN for one seed.
    The cumulant has no correction and is biased for few seeds. It distinguishes the phases only
    about `origin`, the value of the order parameter in the disordered phase.
    """

    def mean(values: Float[np.ndarray, "N P S"]) -> Float[np.ndarray, "R N P"]:
        return np.einsum("nps,rs->rnp", values, weights)

    number = 1 / (weights**2).sum(-1)[:, None, None]
    # Deviations from the plain mean: no digits are lost to a large mean.
    apart = values - values.mean(-1, keepdims=True)
    variance = mean(apart**2) - mean(apart) ** 2
    square = mean((values - origin) ** 2)
    with np.errstate(invalid="ignore", divide="ignore"):
        binder = 1 - mean((values - origin) ** 4) / (3 * square**2)
    # Of equal weights up to rounding.
    free = np.where(number > 1.5, number - 1, np.nan)
    chi = sizes[:, None] * np.maximum(variance, 0) * number / free
    return Moments(mean(values), chi, np.where(square > 0, binder, np.nan))


def crossings(x: Points, curves: Float[np.ndarray, "R N P"], places: OfSizes) -> OfSizes:
    """Find where the curves of neighbouring sizes cross, linear between points. Of several
    crossings, take the one nearest to the larger size's step; NaN where they do not cross."""
    apart = np.diff(curves, axis=1)
    left, right = apart[..., :-1], apart[..., 1:]
    # Curves that coincide, as on a common plateau, do not count as crossing.
    crosses = (left * right <= 0) & (left != right)
    share = left / np.where(crosses, left - right, np.nan)
    at = x[:-1] + share * np.diff(x)
    away = np.nan_to_num(np.abs(at - places[:, 1:, None]), nan=np.inf)
    return np.take_along_axis(at, np.argmin(away, -1)[..., None], -1)[..., 0]


LEAST_ERROR = 0.005
"""Smallest error of an exponent: seeds that agree do not make widths known better than this."""


class Power(NamedTuple):
    """A power law, prefactor * L^exponent. The error of the exponent is the larger of the one from
    residuals and the one over seeds, which is widened for few seeds (`student`)."""

    exponent: Estimate
    prefactor: float


def power(sizes: Sizes, values: OfSizes, seeds: int, level: float = TWO_ERRORS) -> Power:
    """Fit a power law to positive values of each size, by least squares of the logarithms. The
    first row is fitted; the others, from halves of the seeds, give the error, for tests at the
    `level`. NaN for fewer than two sizes."""
    used = np.isfinite(values[0])
    if used.sum() < 2:
        return Power(Estimate(np.nan, np.nan), np.nan)
    x, y = np.log(sizes[used]), np.log(values[:, used])
    line: Any = stats.linregress(x, y[0])
    # The slope of each row is a weighted sum of its logarithms.
    apart = x - x.mean()
    spread = student(seeds - 1, level) * error(y @ apart / (apart @ apart), seeds)
    # Two points have no residuals, whose error is 0 or NaN depending on SciPy's version; without an
    # error over the seeds there is none.
    uncertain = np.maximum(np.fmax(line.stderr, LEAST_ERROR), spread)
    return Power(Estimate(line.slope, uncertain), float(np.exp(line.intercept)))


APPROACH = np.geomspace(0.2, 4, 61)
"""Candidate exponents with which a place approaches its limit."""


class Limit(NamedTuple):
    """The place of the step, place + amplitude L^-exponent + drift ln L. The drift is 0 unless the
    step keeps moving, where the amplitude is 0 and the exponent NaN."""

    place: Estimate
    drift: Estimate
    exponent: Estimate
    amplitude: float

    def at(self, sizes: Sizes) -> Sizes:
        """Return the place at each size."""
        approach = self.amplitude and self.amplitude * sizes**-self.exponent.value
        return self.place.value + self.drift.value * np.log(sizes) + approach


def limit(sizes: Sizes, places: OfSizes, widest: float, seeds: int) -> Limit:
    """Extrapolate the place of the step to infinite size; NaN for fewer than three sizes.

    If no exponent of `APPROACH` gives a limit and the place moves by more than the `widest`
    width, the step is taken to keep moving. (Towards a critical point it moves by about a width.)
    """
    used = np.isfinite(places[0])
    if used.sum() < 3:
        unknown = Estimate(np.nan, np.nan)
        return Limit(unknown, unknown, unknown, np.nan)
    y = places[:, used]
    # Halves of the seeds that lack a step of some size count for none.
    y = y[np.isfinite(y).all(-1)]
    smallest = sizes[used].min()
    logs = np.log(sizes[used] / smallest)
    # For each exponent the other two parameters are linear; the last row is for a moving step.
    shrink = np.concatenate([np.exp(-APPROACH[:, None] * logs), logs[None]])
    apart = shrink - shrink.mean(-1, keepdims=True)
    slope = y @ apart.T / (apart**2).sum(-1)
    middle = y.mean(-1)[:, None] - slope * shrink.mean(-1)
    residuals = y[:, None, :] - middle[..., None] - slope[..., None] * shrink
    best = np.argmin((residuals[:, :-1] ** 2).sum(-1), -1)
    at, exponent, drift = middle[np.arange(len(y)), best], APPROACH[best], np.zeros(len(y))
    amplitude = slope[0, best[0]] * smallest ** exponent[0]
    # The slowest approach is the best one: there may be no limit at all.
    if best[0] == 0 and np.ptp(y[0]) > widest:
        drift, exponent, amplitude = slope[:, -1], np.full(len(y), np.nan), 0.0
        at = middle[:, -1] - drift * np.log(smallest)
    place, moving, approach = (Estimate.of(rows, seeds) for rows in (at, drift, exponent))
    return Limit(place, moving, approach, float(amplitude))


NEAR = 1.0
"""Largest distance from its place, in widths, at which a step is used: scaling fails beyond."""
ROUGH = 0.01
"""Smallest error of points relative to their range, for linear interpolation and corrections."""


class Collapse(NamedTuple):
    """m L^(beta/nu) = f((x - x_c) L^(1/nu)). The misfit is about 1 for a collapse."""

    x_c: Estimate
    inverse_nu: Estimate
    beta_nu: Estimate
    misfit: float

    @property
    def has_place(self) -> bool:
        """Whether 1/nu is above 0 by two errors; if not, one curve fits without a place."""
        return bool(self.inverse_nu.value > 2 * self.inverse_nu.error)


def misfit(fit: Float[np.ndarray, " 3"], sizes: Sizes, curves: list[tuple[Points, ...]]) -> float:
    """Mean square distance of points (x, m, error) of each size from the curves of the others,
    linear between their points, over that of the errors (Houdayer and Hartmann, 2004). Large where
    less than half of the points lie on another size's curve."""
    x_c, inverse_nu, beta_nu = fit
    # In units of the largest size, which changes neither exponents nor the misfit.
    ratios = sizes / sizes[-1]
    moved = [
        ((x - x_c) * ratio**inverse_nu, m * grow, e * grow)
        for ratio, grow, (x, m, e) in zip(ratios, ratios**beta_nu, curves, strict=True)
    ]
    total, compared, points = 0.0, 0, 0
    for i, (u, m, e) in enumerate(moved):
        for v, curve, rough in moved[:i] + moved[i + 1 :]:
            inside = (u >= v[0]) & (u <= v[-1])
            square = (m - np.interp(u, v, curve)) ** 2 / (e**2 + np.interp(u, v, rough) ** 2)
            total += float((square * inside).sum())
            compared += int(inside.sum())
            points += len(u)
    return total / compared if 2 * compared >= points else 1e9 * (1 - compared / points)


def collapse(
    x: Float[np.ndarray, "N P"],
    sizes: Sizes,
    mean: Float[np.ndarray, "R N P"],
    places: Sizes,
    widths: Sizes,
    seeds: int,
) -> Collapse | None:
    """Fit the exponents for which curves of different sizes coincide best. The order parameter must
    be zero in the disordered phase. `x` may differ by size. Returns None for fewer than two sizes
    with a step that several points resolve."""
    used = np.flatnonzero(np.isfinite(places))
    near = (np.abs(x - places[:, None]) <= NEAR * widths[:, None]) & np.isfinite(mean[0])
    if len(used) < 2 or near[used].sum(-1).min() < 3:
        return None
    # Without a floor, points at which all seeds agree would decide everything.
    errors = np.hypot(error(mean, seeds), ROUGH * np.ptp(mean[0, used][near[used]]))

    def minimise_from(
        start: Float[np.ndarray, " 3"], size: Float[np.ndarray, " 3"], row: int
    ) -> tuple[Float[np.ndarray, " 3"], float]:
        curves = [tuple(array[i, near[i]] for array in (x, mean[row], errors)) for i in used]
        simplex = start + np.concatenate([np.zeros((1, 3)), np.diag(size)])
        options = {"initial_simplex": simplex, "xatol": 1e-3 * size[0], "fatol": 1e-4}
        minimum = minimize(misfit, start, (sizes[used], curves), "Nelder-Mead", options=options)
        return minimum.x, float(minimum.fun)

    largest = used[-1]
    step = np.array([widths[largest] / 2, 0.2, 0.1])
    # Several starts, because the misfit has shallow local minima.
    starts = [np.array([places[largest], exponent, 0.0]) for exponent in (0.25, 0.5, 1.0)]
    best, least = min((minimise_from(start, step, 0) for start in starts), key=lambda fit: fit[1])
    # Fits of the halves of the seeds are near that of all of them.
    halves = (minimise_from(best, step / 2, row)[0] for row in range(1, len(mean)))
    x_c, inverse_nu, beta_nu = (Estimate.of(rows, seeds) for rows in np.stack([best, *halves], -1))
    return Collapse(x_c, inverse_nu, beta_nu, least)
