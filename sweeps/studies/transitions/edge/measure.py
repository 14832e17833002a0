"""How far theories of the edge are from training, averaged over its oscillations."""

from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy.ndimage import uniform_filter1d

from dynsim import Status

SMOOTH = 20
"""Steps over which training is averaged: its oscillations change sign at every step."""
LONG = 500
"""Steps over which losses are averaged: oscillations of small networks come in bursts."""


class Errors(NamedTuple):
    """Of a theory against training, both averaged over `SMOOTH` steps.

    Attributes:
        sharpness: mean over the second half of the run, in units in which the edge is 2.
        apart: distance of all weights, the mean over the second half.
        loss: largest difference of averages over `LONG` steps, over the starting loss.
    """

    sharpness: float
    apart: float
    loss: float


def weights(run: xr.Dataset) -> Float[np.ndarray, "S P"]:
    """All weights of a run at each time."""
    arrays = [run[name].values for name in run.data_vars if str(name).startswith("params")]
    return np.concatenate([array.reshape(len(run.time), -1) for array in arrays], axis=1)


def averaged(values: Float[np.ndarray, "S ..."], window: int) -> Float[np.ndarray, "R ..."]:
    """Means of all stretches of `window` steps."""
    begin = window // 2
    means = uniform_filter1d(np.asarray(values, np.float64), window, axis=0)
    return means[begin : len(values) - (window - begin) + 1]


def errors(training: xr.Dataset, theory: xr.Dataset, loss: str) -> Errors:
    """Of a theory whose averaged loss is called `loss`; NaN where training diverged."""
    if int(training.status) != Status.OK:
        return Errors(np.nan, np.nan, np.nan)
    half = len(training.time) // 2
    apart = averaged(weights(theory), SMOOTH) - averaged(weights(training), SMOOTH)
    window = min(LONG, half)
    losses = averaged(theory[loss].values, window) - averaged(training.loss.values, window)
    return Errors(
        float(np.mean(theory.preconditioned_sharpness.values[half:])),
        float(np.mean(np.linalg.norm(apart, axis=1)[half - SMOOTH :])),
        float(np.abs(losses).max() / training.loss.values[0]),
    )


def mean_sharpness(training: xr.Dataset) -> float:
    """Mean of the preconditioned sharpness at the weights of training, over the second half."""
    return float(np.mean(training.preconditioned_sharpness.values[len(training.time) // 2 :]))
