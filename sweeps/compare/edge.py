"""When the flow of a run reaches the edge of stability, for `dynsim explain`; and how far the
central flow is from training there, for `dynsim compare`."""

import dataclasses
import math

import equinox as eqx
import jax
import numpy as np
import xarray as xr

import odes
from dynsim import Problem, Rule, Status, log_times
from dynsim.problem.checks import has_population
from dynsim.training.recording import PRECONDITIONED
from dynsim.training.stability import EDGE, check_threshold
from odes.central import NEAR
from odes.solver.flows import checked_flow
from odes.theory import refusal

LARGEST = 300
"""Weights up to which the sharpness is measured: `explain` answers within seconds."""
TIMES = 16
"""Steps of the flow at which it is, about."""


@dataclasses.dataclass(frozen=True)
class Reached:
    """The preconditioned sharpness along the flow of all weights, whose edge is at 2
    (`dynsim.training.stability`).

    Attributes:
        start: before the first step.
        largest: the largest of those measured.
        step: optimiser steps after which it reaches the edge, linear between those at which it is
            measured; 0 for a run that starts beyond, NaN for one that stays below.
    """

    start: float
    largest: float
    step: float

    def __str__(self) -> str:
        if self.step == 0:
            return (
                f"The run starts beyond the edge of stability (preconditioned sharpness "
                f"{self.start:.3g}; the edge is {EDGE:g}): the first steps overshoot; training "
                "catapults or diverges."
            )
        if math.isnan(self.step):
            return (
                "The flow stays below the edge of stability: the preconditioned sharpness is at "
                f"most {self.largest:.3g}, the edge is {EDGE:g}."
            )
        return (
            f"The flow reaches the edge of stability at step {self.step:.3g} (preconditioned "
            f"sharpness {EDGE:g}); training then oscillates, moves to flatter weights or diverges."
        )


def reached(problem: Problem, rule: Rule, key: jax.Array, steps: int) -> Reached | None:
    """The edge along the flow of a run; None for a problem that is large or has no population loss,
    for a rule without an edge or a flow, for Adam and RMSProp, whose preconditioner a flow does not
    know, and for a flow that fails before it reaches the edge."""
    if rule.is_adaptive or refusal(check_threshold, rule):
        return None
    if not has_population(problem) or refusal(checked_flow, rule):
        return None
    start = jax.tree.leaves(eqx.filter_eval_shape(problem.init, key))
    weights = [each for each in start if isinstance(each, jax.ShapeDtypeStruct)]
    if sum(each.size for each in weights) > LARGEST:
        return None
    run = odes.flow(problem, rule, log_times(steps, TIMES), key=key, record=PRECONDITIONED)
    sharpness = np.asarray(run[PRECONDITIONED])
    # What a flow has reached before it fails is known.
    valid = np.isfinite(sharpness)
    if not valid[0]:
        return None
    found = of_curve(np.asarray(run.times)[valid], sharpness[valid])
    return None if math.isnan(found.step) and int(run.status) != Status.OK else found


def of_curve(times: np.ndarray, sharpness: np.ndarray) -> Reached:
    """The edge on a curve of the preconditioned sharpness."""
    beyond = np.flatnonzero(sharpness > EDGE)
    step = math.nan
    if beyond.size:
        first = beyond[0]
        # From the last point below the edge to the first one beyond.
        part = slice(max(first - 1, 0), first + 1)
        step = float(np.interp(EDGE, sharpness[part], times[part]))
    return Reached(float(sharpness[0]), float(sharpness.max()), step)


@dataclasses.dataclass(frozen=True)
class Held:
    """The preconditioned sharpness of training from where the central flow reaches the edge, all of
    it averages over time and runs.

    Attributes:
        step: of the earliest record at which a central flow is at the edge.
        training: the mean of training.
        varies: standard deviation of training about that, by oscillations and bursts, which the
            flow averages over.
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
    """The sharpness at the edge, of runs over `seed` that record it; None where no central flow
    gets there, or where nothing at the edge is valid."""
    times = np.asarray(training["time"].values, np.float64)
    sides = [side[PRECONDITIONED].values for side in (training, central)]
    measured, predicted = np.broadcast_arrays(*sides)
    after = np.maximum.accumulate(predicted > EDGE - NEAR, axis=1)
    for side in (training, central):
        bad = side["first_bad_step"].values[:, None]
        after &= (bad < 0) | (times < bad)
    # Records are dense at early times.
    weights = np.gradient(times) * after
    if not weights.any():
        return None
    mean, theory = (
        np.average(each[after], weights=weights[after]) for each in (measured, predicted)
    )
    varies = np.sqrt(np.average((measured[after] - mean) ** 2, weights=weights[after]))
    first = times[np.argmax(after, axis=1)][after.any(axis=1)].min()
    return Held(float(first), float(mean), float(varies), float(theory))
