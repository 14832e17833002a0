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

WIDER, SIGNIFICANT = 1.2, 3.0
"""An assumption has broken down if runs scatter more or less than predicted by the first factor,
and by the second number of standard errors."""


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
        an assumption has broken down ("strained"). `rounding` is the error of numbers in the
        runs."""
        # The root mean square, as variances add over entries.
        last = {name: math.sqrt(np.mean(x[-1] ** 2)) for name, x in self._asdict().items()}
        predicted, predicted_error, measured, error = last.values()
        # The sampling error of the runs is relative to their scatter: here to the predicted one.
        sampling = predicted * error / measured if measured else 0.0
        significant = max(SIGNIFICANT * math.hypot(predicted_error, sampling), rounding)
        smaller, larger = sorted((predicted, measured))
        broken = larger > WIDER * smaller and larger - smaller > significant
        return {**last, "strained": broken}


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
        # A single start, without a variance over starts.
        return Scatter(std[0], (0 * std + std_error)[0], *_of_sample(runs))
    # The variance of the means over the starts already includes that of their errors.
    variance, errors = of_starts(mean, std**2 - mean_error**2)
    predicted = np.sqrt(variance)
    error = np.divide(np.sqrt(errors.variance), 2 * predicted, where=predicted > 0, out=0 * std[0])
    return Scatter(predicted, error, *_of_sample(runs))


def over_paths(paths: Float[np.ndarray, "R S ..."], runs: Float[np.ndarray, "N S ..."]) -> Scatter:
    """Estimate from random paths of a theory."""
    return Scatter(*_of_sample(paths), *_of_sample(runs))


def _of_sample(runs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sample standard deviation and its sampling error."""
    std = spread(runs)
    return std, std / math.sqrt(2 * max(len(runs) - 1, 1))


def average(runs: np.ndarray) -> np.ndarray:
    """Return the mean over the runs, (S, ...); NaN without runs."""
    return runs.mean(0) if len(runs) else np.full(runs.shape[1:], np.nan)


def spread(runs: np.ndarray) -> np.ndarray:
    """Return the standard deviation (ddof 1) over the runs, (S, ...); NaN for a single run."""
    return runs.std(0, ddof=1) if len(runs) > 1 else np.full(runs.shape[1:], np.nan)


@dataclasses.dataclass(frozen=True)
class EdgeSharpness:
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


def sharpness_at_edge(training: xr.Dataset, central: xr.Dataset) -> EdgeSharpness | None:
    """Return the sharpness at the edge for runs over `seed` that record it; None if no central flow
    gets there, or nothing at the edge is valid."""
    times = np.asarray(training["time"].values, np.float64)
    measured, predicted = np.broadcast_arrays(
        training[PRECONDITIONED].values, central[PRECONDITIONED].values
    )
    # From the first record at the edge on, also where the flow leaves it again.
    at_edge = np.maximum.accumulate(predicted > EDGE - EDGE_WIDTH, axis=1)
    for side in (training, central):
        first_bad = side["first_bad_step"].values[:, None]
        at_edge &= (first_bad < 0) | (times < first_bad)
    # Weights by duration, because records are dense at early times.
    weights = np.gradient(times) * at_edge
    if not weights.any():
        return None
    weights = weights[at_edge]
    mean, theory = (np.average(x[at_edge], weights=weights) for x in (measured, predicted))
    varies = np.sqrt(np.average((measured[at_edge] - mean) ** 2, weights=weights))
    first = times[np.argmax(at_edge, axis=1)][at_edge.any(axis=1)].min()
    return EdgeSharpness(float(first), float(mean), float(varies), float(theory))
