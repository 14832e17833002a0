"""Where training is stable, at the edge, catapults or diverges, by theory and by training."""

import math
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float, Int

import dynsim
from dynsim import Status
from sweeps.runner.spec import Sweep
from sweeps.studies.transitions.edge.cases import Case

EDGE, CATAPULT = 2.0, 4.0
"""Preconditioned sharpness at which steps oscillate and grow, and at which a two-layer linear
network no longer recovers (Lewkowycz et al. 2020, arXiv:2003.02218)."""
RISE = 1.05
"""Times the first loss that a catapult's loss rises to."""
RECORDS = 60
REGIONS: dict[str, tuple[str, str]] = {
    "stable": ("the sharpness stays below the edge", "#4575b4"),
    "edge": ("it reaches the edge, where training goes on", "#fee090"),
    "catapult": ("it begins beyond the edge; the loss rises, the sharpness falls", "#f46d43"),
    "diverged": ("training diverges", "#6a2b2b"),
}
"""The regions: what each means, and its colour."""


def sweeps(case: Case, resolution: int) -> dict[str, Sweep]:
    """Trainings and gradient flows over the rate and the scale of the start."""
    assert case.scale is not None
    name, first, last = case.scale
    rates = np.geomspace(case.rates[0], 4 * case.rates[-1], resolution)
    made: dict[str, Any] = {
        f"map-{drawn}": Sweep(
            case.problem,
            dynsim.sgd(1.0),
            {name: np.geomspace(first, last, resolution), "eta": rates},
            steps=case.steps,
            batch=math.inf,
            engine=engine,
            record=["loss", "preconditioned_sharpness"],
            times=RECORDS,
        )
        for drawn, engine in (("training", "simulation"), ("flow", "flow"))
    }
    return made


def by_training(
    loss: Float[np.ndarray, "*P S"],
    sharpness: Float[np.ndarray, "*P S"],
    status: Int[np.ndarray, "*P"],
) -> Int[np.ndarray, "*P"]:
    """Places in `REGIONS` of runs with these losses and preconditioned sharpnesses over time."""
    reached = np.max(np.nan_to_num(sharpness), axis=-1) >= EDGE
    rises = np.max(np.nan_to_num(loss), axis=-1) > RISE * loss[..., 0]
    ends = (loss[..., -1] < loss[..., 0]) & (sharpness[..., -1] < sharpness[..., 0])
    catapult = (sharpness[..., 0] >= EDGE) & rises & ends
    return np.select([status != Status.OK, catapult, reached], [3, 2, 1], 0)


def by_theory(sharpness: Float[np.ndarray, "*P S"]) -> Int[np.ndarray, "*P"]:
    """Places in `REGIONS` by the preconditioned sharpness along the gradient flow."""
    start, most = sharpness[..., 0], np.max(sharpness, axis=-1)
    return np.select([start >= CATAPULT, start >= EDGE, most >= EDGE], [3, 2, 1], 0)


def maps(found: dict[str, xr.Dataset]) -> xr.Dataset:
    """The places by theory and by training."""
    trained, flow = found["map-training"], found["map-flow"]
    arrays = [
        each.transpose(*trained.status.dims, ...).values
        for each in (trained.loss, trained.preconditioned_sharpness, trained.status)
    ]
    flowed = flow.preconditioned_sharpness.transpose(*trained.status.dims, ...).values
    dims = trained.status.dims
    return xr.Dataset(
        {"training": (dims, by_training(*arrays)), "theory": (dims, by_theory(flowed))},
        {dim: trained[dim] for dim in dims},
    )


def shares(maps: xr.Dataset) -> dict[str, float]:
    """Shares of the plane where theory has training's region, and where the edge has the right side
    of divergence: below it nothing diverges."""
    training, theory = maps.training.values, maps.theory.values
    return {
        "same": float(np.mean(training == theory)),
        "stable": float(np.mean(training[theory == 0] == 0)),
        "diverged beyond": float(np.mean((training == 3)[theory > 0])),
        "diverged below": float(np.mean((training == 3)[theory == 0])),
    }


def report(maps: xr.Dataset) -> list[str]:
    """The shares as lines of text."""
    found = shares(maps)
    return [
        f"theory has the region of training in {found['same']:.1%} of the map",
        f"where the flow stays below the edge, {found['stable']:.1%} of the trainings are stable "
        f"and {found['diverged below']:.1%} diverge",
        f"where it does not, {found['diverged beyond']:.1%} diverge",
    ]
