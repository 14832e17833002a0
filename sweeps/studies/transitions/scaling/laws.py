"""How the width and the place of a step change with size: a power law, and a limit."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from sweeps.studies.options import TWO_ERRORS, line, student
from sweeps.studies.transitions.scaling.moments import error

APPROACH = np.geomspace(0.2, 4, 61)
"""Exponents to choose from with which a place approaches its limit."""
LEAST_ERROR = 0.005
"""Of an exponent: widths are known no better where seeds do not differ."""


class Power(NamedTuple):
    """A power law, prefactor * L^exponent.

    Attributes:
        exponent: exponent of the law.
        error: its standard error, the larger one of the residuals' and that over the seeds, which
            is widened for few of them (`student`).
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
        drift: s, other than 0 where the step keeps moving: it is a power of the size where x is a
            logarithm.
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
        """The place at each size."""
        moved = self.drift * np.log(sizes)
        return self.place + moved + (self.amplitude and self.amplitude * sizes**-self.exponent)


def power(
    sizes: Float[np.ndarray, " N"],
    values: Float[np.ndarray, "R N"],
    seeds: int,
    level: float = TWO_ERRORS,
) -> Power:
    """The power law through positive values of each size, by least squares of the logarithms: the
    first row is fitted, the others, of halves of the seeds, have its error, which is for tests at
    the `level`. NaN for fewer than two sizes."""
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
    """Where the step of an infinite system is, by least squares; NaN for fewer than three sizes.

    A step that approaches no limit with any of the exponents of `APPROACH`, and moves by more than
    its `widest` width, keeps moving. (Towards a critical point it moves by about a width.)
    """
    used = np.isfinite(places[0])
    if used.sum() < 3:
        return Limit(*[np.nan] * 7)
    y = places[:, used]
    y = y[np.isfinite(y).all(-1)]
    logs = np.log(sizes[used] / sizes[used].min())
    # For each exponent the other two numbers are linear; of a step that moves the last row is.
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
