"""The runs of a two-stage experiment, read from the sweep over its seeds, and what theory predicts
at the times at which they were recorded."""

import dataclasses
import functools
from typing import Annotated

import annotated_types as at
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Float

from dynsim import Annealed, Annealing, Prompts, Status, Trajectory, checks
from dynsim.precision import precision
from dynsim.two_stage import observables as prompt_observables
from odes.two_stage.field import solve_anchored
from odes.two_stage.loss import ReducedState
from sweeps.compare.comparison import valid
from sweeps.compare.scatter import average, spread
from sweeps.runner.spec import Sweep
from sweeps.systems.base import MOST_TIMES
from sweeps.systems.experiment import Experiment

RECORD = (*prompt_observables.OBSERVABLES, "eta_time")
COMPARED = ("K1", "K2", "J", "W_norm", "V_norm", "W_trace", "V_trace", "auc_Q")
"""What theory and simulation both have."""
LEVEL_P, LEVEL_Q = 0.2, 0.6
"""A component counts as learned when its loss falls below this (section 4 of the theory)."""

Times = Annotated[int, at.Ge(3), at.Le(MOST_TIMES)]
"""How many times to record: at least the start and the ends of both stages."""


def settings(training: Experiment) -> tuple[Prompts, Annealed]:
    """The prompts and the rule of an experiment, as they are described; `ValueError` for another
    problem or rule."""
    problem, rule = training.problem, training.rule
    checks.kind("problem", problem, Prompts)
    checks.kind("rule", rule, Annealed)
    assert isinstance(problem, Prompts)
    assert isinstance(rule, Annealed)
    return problem, rule


def sweep(training: Experiment, seeds: int, times: int, root: int = 0) -> Sweep:
    """The sweep over `seeds` of one experiment, with everything recorded."""
    return Sweep(training, {"seed": {"range": seeds}}, "simulation", RECORD, times, root=root)


@dataclasses.dataclass(frozen=True)
class Runs:
    """The runs of one experiment that ended well.

    Attributes:
        training: what was trained.
        steps: (S,) optimiser steps at which they recorded.
        eta_time: (S,) the same on the clock of the theory.
        values: (R, S, ...) observables by name, without runs that diverged.
        diverged: number of those.
    """

    training: Experiment
    steps: Float[np.ndarray, " S"]
    eta_time: Float[np.ndarray, " S"]
    values: dict[str, np.ndarray]
    diverged: int

    @property
    def switch(self) -> int:
        """Index of the end of the first stage."""
        return int(np.argmin(np.abs(self.steps - float(self.stages.first))))

    @property
    def stages(self) -> Annealing:
        """Their two stages."""
        return Annealing.of(self.training.rule)

    @property
    def count(self) -> int:
        """Number of runs."""
        return len(self.values["K1"])

    def __getitem__(self, name: str) -> np.ndarray:
        """The observable `name`; of V_trace, whose sign is random, the modulus."""
        return modulus(name, self.values[name])

    def mean(self, name: str) -> np.ndarray:
        """Mean over the runs; NaN if there is none."""
        return average(self[name])

    def spread(self, name: str) -> np.ndarray:
        """Standard deviation (ddof 1) over the runs; NaN below two of them."""
        return spread(self[name])

    def over_time(self, values: Float[np.ndarray, " S"]) -> float:
        """L2 norm of a curve over eta-time, by the trapezoidal rule, so that it does not depend
        on how densely a stage was recorded."""
        return float(np.sqrt(np.trapezoid(values**2, self.eta_time)))

    @property
    def learned_P(self) -> Float[np.ndarray, " R"]:
        """t_P: eta-time at which K1 falls below 0.2; inf where it does not."""
        return prompt_observables.first_below(self.eta_time, self["K1"], LEVEL_P)

    @property
    def learned_Q(self) -> Float[np.ndarray, " R"]:
        """t_Q: eta-time at which K2 falls below 0.6; inf where it does not."""
        return prompt_observables.first_below(self.eta_time, self["K2"], LEVEL_Q)


def from_dataset(training: Experiment, dataset: xr.Dataset) -> Runs:
    """The runs of a dataset with `seed` as its only axis."""
    dataset = dataset.load()
    good = dataset["status"].values == Status.OK
    values = {name: dataset[name].values[good] for name in RECORD}
    # All seeds share the schedule, so that any of them tells the times.
    return Runs(
        training,
        dataset["time"].values[0],
        dataset["eta_time"].values[0],
        values,
        int((~good).sum()),
    )


def modulus(name: str, values: np.ndarray) -> np.ndarray:
    """An observable as it is compared: of V_trace, whose sign is random, the modulus."""
    return np.abs(values) if name == "V_trace" else values


def ode(runs: Runs) -> Sweep:
    """The sweep of the reduced ODE, over one `seed`."""
    return Sweep(runs.training, {"seed": {"range": 1}}, "ode", COMPARED, len(runs.steps))


def from_measured(runs: Runs) -> xr.Dataset:
    """The reduced ODE for each run, from its measured state at the beginning of each stage."""
    solve = functools.partial(solve_anchored, *runs.training.built, runs.steps, record=COMPARED)

    @jax.jit
    @jax.vmap
    def pieces(states: jax.Array) -> Trajectory:
        return solve(anchors={at: ReducedState(*states[at]) for at in (0, runs.switch)})

    with precision("float64"):
        found = jax.device_get(pieces(jnp.asarray(runs.values["state"], jnp.float64)))
    return found.to_xarray(("seed",))


def theory_mean(prediction: xr.Dataset, name: str) -> np.ndarray:
    """(S,) mean of an observable over the solves that ended well; of V_trace the modulus."""
    return average(modulus(name, valid(prediction, name)))
