"""What theory says about a two-stage experiment, at the times at which it was recorded."""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dynsim import Trajectory
from odes import two_stage
from odes.two_stage import sde as two_stage_sde
from odes.two_stage.state import ReducedState
from sweeps.compare.comparison import average
from sweeps.studies.two_stage.runs import Runs, modulus

RECORD = ("K1", "K2", "J", "W_norm", "V_norm", "W_trace", "V_trace", "auc_Q")
"""What theory and simulation both have."""
PATHS = 48
"""Paths of the stochastic extension."""


class Theory(NamedTuple):
    """A theory: one line about it, what it leaves out, and how it is solved for an experiment."""

    title: str
    assumes: str
    solve: Callable[[Runs], Trajectory]


def _nominal(runs: Runs, *, finite_length: bool) -> Trajectory:
    task, optimizer = runs.training.make_task(), runs.training.make_optimizer()
    found = two_stage.solve(task, optimizer, runs.steps, finite_length=finite_length, record=RECORD)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], found)


def _anchored(runs: Runs) -> Trajectory:
    """Either stage from the measured state at its beginning, once for each run."""
    task, optimizer = runs.training.make_task(), runs.training.make_optimizer()
    solve = functools.partial(two_stage.solve, task, optimizer, record=RECORD)
    at, states = runs.switch, jnp.asarray(runs.values["state"], jnp.float64)
    first, second = (
        jax.vmap(
            lambda state, steps=steps: solve(steps, start=ReducedState(*state), begin=steps[0])
        )(states[:, i])
        for i, steps in ((0, runs.steps[: at + 1]), (at, runs.steps[at:]))
    )
    joined = {name: jnp.concatenate([first[name][:, :-1], second[name]], axis=1) for name in RECORD}
    # The codes of failures are positive: the larger one tells that there was one.
    return Trajectory(
        jnp.broadcast_to(jnp.asarray(runs.steps), (len(states), runs.steps.size)),
        joined,
        second.params,
        jnp.maximum(first.status, second.status),
        jnp.maximum(first.first_bad_step, second.first_bad_step),
        "two-stage",
    )


def _stochastic(runs: Runs) -> Trajectory:
    task, optimizer = runs.training.make_task(), runs.training.make_optimizer()
    solve = functools.partial(two_stage_sde.solve_sde, task, optimizer, runs.steps, record=RECORD)
    return jax.vmap(lambda key: solve(key=key))(jax.random.split(jax.random.key(0), PATHS))


THEORIES: dict[str, Theory] = {
    "ode": Theory(
        "reduced ODE",
        "isotropic blocks, noise-free a and b, nominal start",
        functools.partial(_nominal, finite_length=True),
    ),
    "infinite": Theory(
        "reduced ODE, L = ∞",
        "as ode, and no variance of the outputs at finite L",
        functools.partial(_nominal, finite_length=False),
    ),
    "anchored": Theory(
        "reduced ODE from measured states",
        "isotropic blocks, noise-free a and b within a stage",
        _anchored,
    ),
    "sde": Theory(
        "reduced SDE, mean of paths",
        "isotropic blocks, nominal start; noise on a and b",
        _stochastic,
    ),
}
"""Theories of the two-stage system by name."""


def predict(runs: Runs, names: tuple[str, ...]) -> dict[str, Trajectory]:
    """Trajectories by theory, with a leading axis of 1, of runs, or of paths."""

    def solve(name: str) -> Trajectory:
        # Threads do not inherit the precision of the one that starts them.
        with jax.enable_x64(True):
            return jax.device_get(THEORIES[name].solve(runs))

    # Most of the time goes into compiling, which threads do side by side.
    with ThreadPoolExecutor(len(THEORIES)) as pool:
        return dict(zip(names, pool.map(solve, names), strict=True))


def mean(prediction: Trajectory, name: str) -> np.ndarray:
    """(S,) mean of an observable over the solves that ended well; of V_trace the modulus."""
    return average(modulus(name, np.asarray(prediction[name])[np.asarray(prediction.ok)]))
