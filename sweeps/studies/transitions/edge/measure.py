"""How far theories of the edge are from training, averaged over its oscillations."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy.ndimage import uniform_filter1d

import dynsim
from dynsim import Problem, Status
from dynsim.training.recording import PARAMS, PRECONDITIONED

SMOOTH = 20
"""Steps over which training is averaged: its oscillations change sign at every step."""
LONG = 500
"""Steps over which losses are averaged: oscillations of small networks come in bursts."""


class Errors(NamedTuple):
    """Of a theory against training, both averaged over `SMOOTH` steps.

    Attributes:
        sharpness: sharpness of the theory, the mean over the second half of the run, in units in
            which the edge is 2.
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


def recorded_as(path: Any) -> str:
    """What a run calls the weights at a path of the tree of all."""
    return ".".join((PARAMS, *(jax.tree_util.keystr((key,), simple=True) for key in path)))


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


def sharpness_of_mean(problem: Problem, training: xr.Dataset, points: int = 10) -> float:
    """Preconditioned sharpness at weights averaged over `SMOOTH` steps: the mean of `points` times
    in the second half of the run. That of single steps is larger, as they lie on either side of
    the valley."""
    if int(training.status) != Status.OK:
        return np.nan
    like = problem.init(jax.random.key(0))
    half = len(training.time) // 2
    chosen = np.linspace(half, len(training.time) - SMOOTH, points, dtype=int)

    def mean(path: Any, leaf: Any) -> Any:
        if not eqx.is_inexact_array(leaf):
            return np.broadcast_to(leaf, (points, *np.shape(leaf)))
        return averaged(training[recorded_as(path)].values, SMOOTH)[chosen].astype(np.float32)

    def at(init: Any, eta: Any) -> Any:
        options = {"steps": 1, "times": [0], "batch": math.inf}
        rule = dynsim.sgd(eta)
        return dynsim.train(problem, rule, init=init, record=PRECONDITIONED, **options)

    means = jax.tree.map_with_path(mean, like)
    eta = np.full(points, float(training.eta), np.float32)
    return float(np.mean(jax.jit(jax.vmap(at))(means, eta)[PRECONDITIONED]))
