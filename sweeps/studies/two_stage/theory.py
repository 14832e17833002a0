"""What theory says about a two-stage experiment, at the times at which it was recorded."""

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dynsim import Trajectory
from dynsim.precision import precision
from odes.hierarchy import theories
from odes.theory import Theory
from odes.two_stage.state import ReducedState
from sweeps.compare.comparison import average
from sweeps.studies.two_stage.runs import Runs, modulus, settings

RECORD = ("K1", "K2", "J", "W_norm", "V_norm", "W_trace", "V_trace", "auc_Q")
"""What theory and simulation both have."""
PATHS = 48
"""Paths of the stochastic extension."""


def solve(theory: Theory[Any, Any], runs: Runs) -> Trajectory:
    """A theory for an experiment: once, or by what it needs for many paths, or for every run from
    its measured state at the beginning of each stage. It has a leading axis of solves."""
    solve = functools.partial(theory.solve, *runs.training.built, runs.steps, record=RECORD)
    if "num_test" in theory.needs:
        solve = functools.partial(solve, num_test=settings(runs.training)[0].num_test)
    if "key" in theory.needs:
        return jax.jit(jax.vmap(lambda key: solve(key=key)))(
            jax.random.split(jax.random.key(0), PATHS)
        )
    if "anchors" in theory.needs:
        states = jnp.asarray(runs.values["state"], jnp.float64)
        stages = (0, runs.switch)

        @jax.jit
        @jax.vmap
        def pieces(states: jax.Array) -> Trajectory:
            return solve(anchors={at: ReducedState(*states[at]) for at in stages})

        return pieces(states)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], solve())


def predict(runs: Runs, names: tuple[str, ...]) -> dict[str, Trajectory]:
    """Trajectories by theory, with a leading axis of 1, of runs, or of paths."""

    known = theories(runs.training.built[0])

    def solve_for(name: str) -> Trajectory:
        # Threads do not inherit the precision of the one that starts them.
        with precision("float64"):
            return jax.device_get(solve(known[name], runs))

    # Most of the time goes into compiling, which threads do side by side.
    with ThreadPoolExecutor(len(known)) as pool:
        return dict(zip(names, pool.map(solve_for, names), strict=True))


def mean(prediction: Trajectory, name: str) -> np.ndarray:
    """(S,) mean of an observable over the solves that ended well; of V_trace the modulus."""
    return average(modulus(name, np.asarray(prediction[name])[np.asarray(prediction.ok)]))
