"""Where training is stable, at the edge, catapults or diverges, by theory and by training."""

import math
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float, Int

import dynsim
from dynsim.problem.sharpness import EDGE
from sweeps.runner.spec import Sweep
from sweeps.studies.phase.regions import Stability, stability_of
from sweeps.studies.transitions.edge.cases import Case
from sweeps.systems.experiment import Experiment

CATAPULT = 4.0
"""Preconditioned sharpness at the start from which a two-layer linear network does not recover
(Lewkowycz et al. 2020, arXiv:2003.02218)."""
RECORDS = 60


def sweeps(case: Case, resolution: int) -> dict[str, Sweep]:
    """Trainings and gradient flows over the rate and the scale of the start."""
    assert case.scale is not None
    name, first, last = case.scale
    rates = np.geomspace(case.rates[0], 4 * case.rates[-1], resolution)
    made: dict[str, Any] = {
        f"map-{drawn}": Sweep(
            Experiment(case.problem, dynsim.sgd(1.0), case.steps, math.inf),
            {name: np.geomspace(first, last, resolution), "eta": rates},
            engine=engine,
            record=("loss", "preconditioned_sharpness"),
            times=RECORDS,
            rtol=case.rtol if drawn == "flow" else None,
        )
        for drawn, engine in (("training", "simulation"), ("flow", "flow"))
    }
    return made


def by_theory(sharpness: Float[np.ndarray, "*P S"]) -> Int[np.ndarray, "*P"]:
    """`Stability` by the preconditioned sharpness along the gradient flow."""
    start, most = sharpness[..., 0], np.max(sharpness, axis=-1)
    regions = Stability.DIVERGED, Stability.CATAPULT, Stability.EDGE
    return np.select([start >= CATAPULT, start >= EDGE, most >= EDGE], regions, Stability.STABLE)


def maps(found: dict[str, xr.Dataset]) -> xr.Dataset:
    """`Stability` by theory and by training."""
    trained = stability_of(found["map-training"])
    flow = found["map-flow"].preconditioned_sharpness.transpose(*trained.dims, ...)
    theory = trained.copy(data=by_theory(flow.values))
    return xr.Dataset({"training": trained, "theory": theory})


def shares(maps: xr.Dataset) -> dict[str, float]:
    """Shares of the plane where theory has training's region, and where the edge has the right side
    of divergence: below it nothing diverges."""
    training, theory = maps.training.values, maps.theory.values
    below = theory == Stability.STABLE
    return {
        "same": float(np.mean(training == theory)),
        "stable": float(np.mean(training[below] == Stability.STABLE)),
        "diverged beyond": float(np.mean(training[~below] == Stability.DIVERGED)),
        "diverged below": float(np.mean(training[below] == Stability.DIVERGED)),
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
