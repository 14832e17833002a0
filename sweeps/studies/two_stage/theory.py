"""What theory predicts for a two-stage experiment, at the times at which it was recorded."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from dynsim import Trajectory
from dynsim.precision import precision
from odes.two_stage import anchored
from odes.two_stage.state import ReducedState
from sweeps.compare.comparison import valid
from sweeps.compare.scatter import average
from sweeps.runner.spec import Sweep
from sweeps.studies.two_stage.runs import Runs, modulus

RECORD = ("K1", "K2", "J", "W_norm", "V_norm", "W_trace", "V_trace", "auc_Q")
"""What theory and simulation both have."""


def ode(runs: Runs) -> Sweep:
    """The sweep of the reduced ODE, over one `seed`."""
    return Sweep(runs.training, {"seed": {"range": 1}}, "ode", RECORD, len(runs.steps))


def from_measured(runs: Runs) -> xr.Dataset:
    """The reduced ODE for each run, from its measured state at the beginning of each stage."""
    options = {"record": RECORD}
    solve = functools.partial(anchored.solve, *runs.training.built, runs.steps, **options)

    @jax.jit
    @jax.vmap
    def pieces(states: jax.Array) -> Trajectory:
        return solve(anchors={at: ReducedState(*states[at]) for at in (0, runs.switch)})

    with precision("float64"):
        found = jax.device_get(pieces(jnp.asarray(runs.values["state"], jnp.float64)))
    return found.to_xarray(("seed",))


def mean(prediction: xr.Dataset, name: str) -> np.ndarray:
    """(S,) mean of an observable over the solves that ended well; of V_trace the modulus."""
    return average(modulus(name, valid(prediction, name)))
