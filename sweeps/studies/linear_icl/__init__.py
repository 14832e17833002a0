"""Plateaus of in-context regression, measured on loss curves: their levels and escape times."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from dynsim.trajectory import crossings
from odes import linear_icl
from sweeps.systems.experiment import Experiment

NEAR = 0.02
"""Largest distance from a plateau, as a share of tr Lambda (the loss at the start), that counts as
being on it."""
LASTING = 1.25
"""A plateau counts if the loss stays on it while time grows by this factor."""


def rate(run: Experiment) -> float:
    """Number of units tau of time in one step."""
    return 2 * float(np.asarray(run.rule.build().schedules[""].peak))


def levels(run: Experiment, ratios: Float[np.ndarray, " Q"]) -> Float[np.ndarray, "Q D1"]:
    """(Q, D + 1) plateaus of eq. 19 for runs that differ in the ratio of their eigenvalues."""
    return np.stack([of_run(run.at({"ratio": float(r)})) for r in ratios])


def of_run(run: Experiment) -> Float[np.ndarray, " D1"]:
    """Plateaus of eq. 19 for one run."""
    problem: Any = run.built[0]
    return np.asarray(linear_icl.plateaus(problem))


def count_plateaus(
    times: Float[np.ndarray, " S"],
    loss: Float[np.ndarray, "*B S"],
    level: Float[np.ndarray, "*B D1"],
) -> Int[np.ndarray, "*B"]:
    """Count the plateaus on which each loss rests; `times` increase from above 0."""
    found = np.zeros(loss.shape[:-1], int)
    for m in range(level.shape[-1]):
        at = np.abs(loss - level[..., m, None]) < NEAR * level[..., :1]
        since = np.full(loss.shape[:-1], np.inf)
        rested = np.zeros(loss.shape[:-1], bool)
        for s, t in enumerate(times):
            since = np.where(at[..., s], np.minimum(since, t), np.inf)
            rested |= t >= LASTING * since
        found += rested
    return found


def escapes(
    times: Float[np.ndarray, " S"],
    loss: Float[np.ndarray, "*B S"],
    level: Float[np.ndarray, "*B D1"],
) -> Float[np.ndarray, "*B D"]:
    """(..., D) first times at which each loss is halfway from one plateau to the next, interpolated
    linearly between recorded times; NaN if it never is."""
    middle = (level[..., 1:] + level[..., :-1]) / 2
    curves = np.broadcast_to(loss[..., None, :], (*middle.shape, times.size))
    return crossings(times, curves, middle)
