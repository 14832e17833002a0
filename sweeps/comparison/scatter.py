"""Predicted and measured scatter: standard deviations, and sharpness at the edge of stability."""

import dataclasses
import math
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float

from dynsim.problem.sharpness import EDGE
from dynsim.training.recording import PRECONDITIONED
from odes.batch_noise.noise import of_starts
from odes.central import EDGE_WIDTH

WIDER, SURE = 1.2, 3.0
"""A prediction is strained if runs scatter more or less than predicted by the first factor, and by
the second number of standard errors."""


class Scatter(NamedTuple):
    """Standard deviation across seeds of an observable.

    Attributes:
        predicted: (S, ...) prediction.
        predicted_error: (S, ...) its standard error, from the starts, examples or paths of the
            theory.
        measured: (S, ...) of the runs (ddof 1); NaN for fewer than two runs.
        error: (S, ...) sampling error, measured / sqrt(2 (runs - 1)) as for normal numbers.
    """

    predicted: Float[np.ndarray, "S ..."]
    predicted_error: Float[np.ndarray, "S ..."]
    measured: Float[np.ndarray, "S ..."]
    error: Float[np.ndarray, "S ..."]

    def at_end(self, rounding: float = 0.0) -> dict[str, float | bool]:
        """Return values at the last time, as root mean square over classes or entries, and whether
        the prediction is strained. `rounding` is the error of numbers in the runs."""
        found = {name: math.sqrt(np.mean(x[-1] ** 2)) for name, x in self._asdict().items()}
        predicted, own, measured, error = found.values()
        smaller, larger = sorted((predicted, measured))
        # The sampling error that the runs have if the prediction is right.
        chance = math.hypot(own, predicted * error / measured if measured else 0.0)
        enough = max(SURE * chance, rounding)
        return found | {"strained": larger > WIDER * smaller and larger - smaller > enough}


def over_starts(
    runs: Float[np.ndarray, "N S ..."],
    mean: Float[np.ndarray, "R S ..."],
    std: Float[np.ndarray, "R S ..."],
    mean_error: Float[np.ndarray, "R S ..."] | float = 0.0,
    std_error: Float[np.ndarray, "R S ..."] | float = 0.0,
) -> Scatter:
    """Combine the predicted mean and standard deviation of each start, with their standard errors,
    and put the measured runs next to them."""
    if len(mean) == 1:
        return Scatter(std[0], (0 * std + std_error)[0], *_of_sample(runs))
    variance, errors = of_starts(mean, std**2 - mean_error**2)
    predicted = np.sqrt(variance)
    error = np.divide(np.sqrt(errors.variance), 2 * predicted, where=predicted > 0, out=0 * std[0])
    return Scatter(predicted, error, *_of_sample(runs))


def over_paths(paths: Float[np.ndarray, "R S ..."], runs: Float[np.ndarray, "N S ..."]) -> Scatter:
    """Estimate from random paths of a theory."""
    return Scatter(*_of_sample(paths), *_of_sample(runs))


def _of_sample(runs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sample standard deviation and its sampling error."""
    found = spread(runs)
    return found, found / math.sqrt(2 * max(len(runs) - 1, 1))


def average(runs: np.ndarray) -> np.ndarray:
    """Return the mean over the runs, (S, ...); NaN without runs."""
    return runs.mean(0) if len(runs) else np.full(runs.shape[1:], np.nan)


def spread(runs: np.ndarray) -> np.ndarray:
    """Return the standard deviation (ddof 1) over the runs, (S, ...); NaN for a single run."""
    return runs.std(0, ddof=1) if len(runs) > 1 else np.full(runs.shape[1:], np.nan)


@dataclasses.dataclass(frozen=True)
class Held:
    """The preconditioned sharpness of training after the central flow reaches the edge. All values
    are averages over time and runs.

    Attributes:
        step: step of the earliest record at which a central flow is at the edge.
        training: the mean of training.
        varies: standard deviation of training about its mean, from oscillations and bursts, which
            the flow averages out.
        central: the mean of the central flow.
    """

    step: float
    training: float
    varies: float
    central: float

    def __str__(self) -> str:
        return (
            f"At the edge of stability, from step {self.step:.3g} on, the preconditioned sharpness "
            f"of training is {self.training:.3f} on average, with a standard deviation of "
            f"{self.varies:.2g} over time (oscillations and bursts); central flow: "
            f"{self.central:.3f}."
        )


def held(training: xr.Dataset, central: xr.Dataset) -> Held | None:
    """Return the sharpness at the edge for runs over `seed` that record it; None if no central flow
    gets there, or nothing at the edge is valid."""
    times = np.asarray(training["time"].values, np.float64)
    sides = [side[PRECONDITIONED].values for side in (training, central)]
    measured, predicted = np.broadcast_arrays(*sides)
    after = np.maximum.accumulate(predicted > EDGE - EDGE_WIDTH, axis=1)
    for side in (training, central):
        bad = side["first_bad_step"].values[:, None]
        after &= (bad < 0) | (times < bad)
    # Weights by duration, because records are dense at early times.
    weights = np.gradient(times) * after
    if not weights.any():
        return None
    mean, theory = (
        np.average(each[after], weights=weights[after]) for each in (measured, predicted)
    )
    varies = np.sqrt(np.average((measured[after] - mean) ** 2, weights=weights[after]))
    first = times[np.argmax(after, axis=1)][after.any(axis=1)].min()
    return Held(float(first), float(mean), float(varies), float(theory))
