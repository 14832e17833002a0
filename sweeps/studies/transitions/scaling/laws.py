"""How an order parameter changes with size: moments over seeds (mean, susceptibility, Binder
cumulant), power laws and limits of its step, and the exponents of a scaling collapse."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize

from sweeps.studies.options import TWO_ERRORS, line, student


class Moments(NamedTuple):
    """Moments for N sizes at P values of the control parameter, for R sets of weights of the seeds.

    All are NaN at a point where a run has no value.

    Attributes:
        mean: <m>.
        susceptibility: size times the variance of m over the seeds.
        binder: 1 - <q^4> / (3 <q^2>^2) with q = m - origin. It is 2/3 where q has one absolute
            value, 0 for a normal distribution about the origin, and NaN where q is always 0.
    """

    mean: Float[np.ndarray, "R N P"]
    susceptibility: Float[np.ndarray, "R N P"]
    binder: Float[np.ndarray, "R N P"]


def weights(seeds: int, draws: int) -> Float[np.ndarray, "R S"]:
    """Return weights of the seeds, each row of sum 1: first equal ones, then those of `draws` fixed
    random halves. Unlike a bootstrap sample, a half has no seed twice. A smoother chosen by leaving
    seeds out would treat a copy as confirmation."""
    chosen = np.random.default_rng(0).permuted(np.tile(np.arange(seeds), (draws, 1)), axis=1)
    drawn = (chosen < _half(seeds)) / _half(seeds)
    return np.concatenate([np.full((1, seeds), 1 / seeds), drawn])


def _half(seeds: int) -> int:
    return (seeds + 1) // 2


def error(values: Float[np.ndarray, "R *A"], seeds: int) -> Float[np.ndarray, "*A"]:
    """Standard error of a quantity computed for each row of `weights`, from the halves of the seeds
    that have a value; NaN where fewer than half of them have one.

    This is the delete-half jackknife (Shao and Wu, 1989): a half differs from all seeds by as much
    as these differ from the truth. The error includes a bias that grows for fewer seeds.
    """
    apart = values[1:] - values[0]
    known = np.isfinite(apart)
    square = np.where(known, apart, 0) ** 2
    kept = _half(seeds)
    found = np.sqrt(square.sum(0) / np.maximum(known.sum(0), 1) * kept / (seeds - kept))
    return np.where(2 * known.sum(0) >= len(apart), found, np.nan)


def moments(
    values: Float[np.ndarray, "N P S"],
    sizes: Float[np.ndarray, " N"],
    weights: Float[np.ndarray, "R S"],
    origin: float = 0.0,
) -> Moments:
    """Moments of an order parameter of each size, point and seed, NaN where a run has none.

    The variance has the factor S / (S - 1) for the S seeds with a weight; it is NaN for one seed.
    The cumulant has no correction and is biased for few seeds. It distinguishes the phases only
    about `origin`, the value of the order parameter in the disordered phase.
    """
    number = 1 / (weights**2).sum(-1)[:, None, None]
    mean = over_seeds(values, weights)
    # Deviations from the plain mean: no digits are lost to a large mean.
    apart = values - values.mean(-1, keepdims=True)
    variance = over_seeds(apart**2, weights) - over_seeds(apart, weights) ** 2
    square = over_seeds((values - origin) ** 2, weights)
    with np.errstate(invalid="ignore", divide="ignore"):
        binder = 1 - over_seeds((values - origin) ** 4, weights) / (3 * square**2)
    # Of equal weights up to rounding.
    free = np.where(number > 1.5, number - 1, np.nan)
    chi = sizes[:, None] * np.maximum(variance, 0) * number / free
    return Moments(mean, chi, np.where(square > 0, binder, np.nan))


def over_seeds(
    values: Float[np.ndarray, "N P S"], weights: Float[np.ndarray, "R S"]
) -> Float[np.ndarray, "R N P"]:
    """Average over the seeds with their weights."""
    return np.einsum("nps,rs->rnp", values, weights)


def crossings(
    x: Float[np.ndarray, " P"],
    curves: Float[np.ndarray, "R N P"],
    places: Float[np.ndarray, "R N"],
) -> Float[np.ndarray, "R N-1"]:
    """Find where the curves of neighbouring sizes cross, linear between points. Of several
    crossings, take the one nearest to the larger size's step; NaN where they do not cross."""
    apart = np.diff(curves, axis=1)
    left, right = apart[..., :-1], apart[..., 1:]
    # Curves that coincide, as on a common plateau, do not count as crossing.
    crosses = (left * right <= 0) & (left != right)
    share = np.where(crosses, left, 0) / np.where(crosses, left - right, 1)
    at = np.where(crosses, x[:-1] + share * np.diff(x), np.inf)
    away = np.abs(at - places[:, 1:, None])
    nearest = np.argmin(np.where(np.isfinite(away), away, np.inf), -1)[..., None]
    found = np.take_along_axis(at, nearest, -1)[..., 0]
    return np.where(np.isfinite(found), found, np.nan)


APPROACH = np.geomspace(0.2, 4, 61)
"""Candidate exponents with which a place approaches its limit."""
LEAST_ERROR = 0.005
"""Smallest error of an exponent: seeds that agree do not make widths known better than this."""


class Power(NamedTuple):
    """A power law, prefactor * L^exponent.

    Attributes:
        exponent: exponent of the law.
        error: its standard error: the larger of the one from residuals and the one over seeds,
            which is widened for few seeds (`student`).
        prefactor: the law at 1.
        off: largest ratio of a point to the law, or the law to a point, minus 1.
    """

    exponent: float
    error: float
    prefactor: float
    off: float


class Limit(NamedTuple):
    """The place of the step, x_c + b L^-c + s ln L, where either b or s is 0.

    Attributes:
        place: x_c.
        error: its standard error.
        drift: s, nonzero if the step keeps moving; if x is a logarithm, as a power of the size.
        drift_error: its standard error; 0 where s is 0.
        exponent: c, at least the first of `APPROACH`, at most the last; NaN where s is not 0.
        exponent_error: its standard error.
        amplitude: b.
    """

    place: float
    error: float
    drift: float
    drift_error: float
    exponent: float
    exponent_error: float
    amplitude: float

    def at(self, sizes: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        """Return the place at each size."""
        moved = self.drift * np.log(sizes)
        return self.place + moved + (self.amplitude and self.amplitude * sizes**-self.exponent)


def power(
    sizes: Float[np.ndarray, " N"],
    values: Float[np.ndarray, "R N"],
    seeds: int,
    level: float = TWO_ERRORS,
) -> Power:
    """Fit a power law to positive values of each size, by least squares of the logarithms. The
    first row is fitted; the others, from halves of the seeds, give the error, for tests at the
    `level`. NaN for fewer than two sizes."""
    used = np.isfinite(values[0])
    if used.sum() < 2:
        return Power(*[np.nan] * 4)
    x, y = np.log(sizes[used]), np.log(values[:, used])
    fitted = line(x, y[0])
    apart = x - x.mean()
    spread = student(seeds - 1, level) * error(y @ apart / (apart @ apart), seeds)
    off = np.exp(np.abs(y[0] - fitted.intercept - fitted.slope * x).max()) - 1
    # Two points have no residuals.
    uncertain = float(np.fmax(np.fmax(fitted.error, LEAST_ERROR), spread))
    uncertain = uncertain if np.isfinite(spread) else np.nan
    return Power(fitted.slope, uncertain, float(np.exp(fitted.intercept)), float(off))


def limit(
    sizes: Float[np.ndarray, " N"],
    places: Float[np.ndarray, "R N"],
    widest: float,
    seeds: int,
) -> Limit:
    """Extrapolate the place of the step to infinite size; NaN for fewer than three sizes.

    If no exponent of `APPROACH` gives a limit and the place moves by more than the `widest`
    width, the step is taken to keep moving. (Towards a critical point it moves by about a width.)
    """
    used = np.isfinite(places[0])
    if used.sum() < 3:
        return Limit(*[np.nan] * 7)
    y = places[:, used]
    y = y[np.isfinite(y).all(-1)]
    logs = np.log(sizes[used] / sizes[used].min())
    # For each exponent the other two parameters are linear; the last row is for a moving step.
    shrink = np.concatenate([np.exp(-APPROACH[:, None] * logs), logs[None]])
    apart = shrink - shrink.mean(-1, keepdims=True)
    slope = y @ apart.T / (apart**2).sum(-1)
    middle = y.mean(-1)[:, None] - slope * shrink.mean(-1)
    left = y[:, None, :] - middle[..., None] - slope[..., None] * shrink
    best = np.argmin((left[:, :-1] ** 2).sum(-1), -1)
    rows, smallest = np.arange(len(y)), sizes[used].min()
    if best[0] == 0 and np.ptp(y[0]) > widest:
        at = middle[:, -1] - slope[:, -1] * np.log(smallest)
        errors = error(np.stack([at, slope[:, -1]], -1), seeds)
        return Limit(
            float(at[0]),
            float(errors[0]),
            float(slope[0, -1]),
            float(errors[1]),
            np.nan,
            np.nan,
            0.0,
        )
    at, exponent = middle[rows, best], APPROACH[best]
    amplitude = slope[0, best[0]] * smallest ** exponent[0]
    errors = error(np.stack([at, exponent], -1), seeds)
    return Limit(
        float(at[0]),
        float(errors[0]),
        0.0,
        0.0,
        float(exponent[0]),
        float(errors[1]),
        float(amplitude),
    )


NEAR = 1.0
"""Largest distance from its place, in widths, at which a step is used: scaling fails beyond."""
ROUGH = 0.01
"""Smallest error of points relative to their range, for linear interpolation and corrections."""


class Collapse(NamedTuple):
    """m L^(beta/nu) = f((x - x_c) L^(1/nu)), with standard errors by halves of the seeds.

    Attributes:
        x_c: critical value of the control parameter.
        inverse_nu: 1/nu.
        beta_nu: beta/nu.
        errors: errors of these three.
        misfit: mean square distance of points from other sizes' curves, over that of their errors:
            about 1 for a collapse.
    """

    x_c: float
    inverse_nu: float
    beta_nu: float
    errors: tuple[float, float, float]
    misfit: float


def misfit(
    fit: Float[np.ndarray, " 3"],
    sizes: Float[np.ndarray, " N"],
    curves: list[tuple[np.ndarray, np.ndarray, np.ndarray]],
) -> float:
    """Mean square distance of points (x, m, error) of each size from the curves of the others,
    linear between their points, over that of the errors (Houdayer and Hartmann, 2004). Large where
    less than half of the points lie on another size's curve."""
    x_c, inverse_nu, beta_nu = fit
    ratios = sizes / sizes[-1]
    grow = ratios**beta_nu
    moved = [
        ((x - x_c) * ratio**inverse_nu, m * g, e * g)
        for ratio, g, (x, m, e) in zip(ratios, grow, curves, strict=True)
    ]
    total, compared, points = 0.0, 0, 0
    for i, (u, m, e) in enumerate(moved):
        others = [each for j, each in enumerate(moved) if j != i]
        inside = np.array([(u >= other[0][0]) & (u <= other[0][-1]) for other in others])
        curve = np.array([np.interp(u, other[0], other[1]) for other in others])
        rough = np.array([np.interp(u, other[0], other[2]) for other in others])
        total += float((((m - curve) ** 2 / (e**2 + rough**2)) * inside).sum())
        compared += int(inside.sum())
        points += len(u) * len(others)
    return total / compared if 2 * compared >= points else 1e9 * (1 - compared / points)


def collapse(
    x: Float[np.ndarray, "N P"],
    sizes: Float[np.ndarray, " N"],
    mean: Float[np.ndarray, "R N P"],
    places: Float[np.ndarray, " N"],
    widths: Float[np.ndarray, " N"],
    seeds: int,
) -> Collapse | None:
    """Fit the exponents for which curves of different sizes coincide best. The order parameter must
    be zero in the disordered phase. `x` may differ by size. Returns None for fewer than two sizes
    with a step that several points resolve."""
    used = np.flatnonzero(np.isfinite(places))
    if len(used) < 2:
        return None
    window = [
        np.flatnonzero((np.abs(x[i] - places[i]) <= NEAR * widths[i]) & np.isfinite(mean[0, i]))
        for i in used
    ]
    if min(map(len, window)) < 3:
        return None
    spread = error(mean, seeds)
    rough = ROUGH * np.ptp(
        np.concatenate([mean[0, i, w] for i, w in zip(used, window, strict=True)])
    )

    def fitted(row: int, start: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, float]:
        curves = [
            (x[i, w], mean[row, i, w], np.hypot(spread[i, w], rough))
            for i, w in zip(used, window, strict=True)
        ]
        simplex = start + np.concatenate([np.zeros((1, 3)), np.diag(size)])
        options = {"initial_simplex": simplex, "xatol": 1e-3 * size[0], "fatol": 1e-4}
        found = minimize(misfit, start, (sizes[used], curves), "Nelder-Mead", options=options)
        return found.x, float(found.fun)

    largest = used[-1]
    step = np.array([widths[largest] / 2, 0.2, 0.1])
    # Several starts, because the misfit has shallow local minima.
    starts = [np.array([places[largest], exponent, 0.0]) for exponent in (0.25, 0.5, 1.0)]
    best, least = min((fitted(0, start, step) for start in starts), key=lambda found: found[1])
    drawn = [fitted(row, best, step / 2)[0] for row in range(1, len(mean))]
    errors = error(np.stack([best, *drawn]), seeds)
    return Collapse(*map(float, best), errors=tuple(errors.tolist()), misfit=least)
