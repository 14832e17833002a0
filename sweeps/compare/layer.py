"""`dynsim compare`: training of the attention layer against the theories of its own."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import dynsim
from dynsim import Trajectory, checks
from dynsim.precision import precision
from dynsim.trajectory import counts
from dynsim.yz.observables import DEFAULT_RECORD
from odes import hierarchy
from odes.formulas import decoder
from odes.solver.rescaled import Rescaled, undescribed
from odes.theory import Theory, named, refusal
from odes.yz.layer import weights
from sweeps.compare import comparison, scatter, strain
from sweeps.compare.settings import CompareOptions
from sweeps.runner import progress
from sweeps.systems import budget, registry
from sweeps.systems.base import Settings

RECORD = (*DEFAULT_RECORD, "attention")
DESCENT = "descent"
"""Name under which descent with T and batch infinite stands beside the theories. It separates
what sampling does from what a theory leaves out."""
TRAINING, SPREAD = "simulation", "spread over seeds"
"""What is computed besides, as it is called while it is."""
FINITE_DESCENT = named(DESCENT, finite=True)
DESCENTS = (FINITE_DESCENT, DESCENT)


@dataclasses.dataclass(frozen=True)
class Comparison(comparison.Comparison):
    """The outcome of `compare`.

    Attributes:
        config: the settings.
        task: the task.
        simulation: trajectory with a leading axis of `seeds` runs.
        predictions: trajectories by theory, and `DESCENT`.
        theories: the theories by name.
        stages: transition times per class (`odes.formulas.decoder.Stages`), None for Adam.
        spread: predicted spread over seeds as from `sweeps.compare.scatter.predict`.
        left_out: why there are no theories of finite T, None if there are, or T is infinite.
    """

    config: CompareOptions
    task: dynsim.Layer
    simulation: Trajectory
    predictions: dict[str, Trajectory]
    theories: dict[str, Theory]
    stages: decoder.Stages | None
    spread: Trajectory | None = None
    left_out: str | None = None
    names: tuple[str, ...] = DEFAULT_RECORD

    def about(self, theory: str) -> tuple[str, str]:
        """Title of a theory and what it assumes."""
        known = registry.system("yz").engines if theory in DESCENTS else self.theories
        return known[theory].title, known[theory].assumes

    def mean(self, source: str, name: str) -> np.ndarray:
        """(S, ...) mean of an observable over the valid runs or solves of "simulation" or of a
        theory; NaN if none is valid."""
        runs = self.measured(name) if source == "simulation" else self.predicted(source, name)
        return comparison.average(runs)

    def scatter(self, name: str) -> scatter.Scatter | None:
        """Predicted and measured standard deviation over seeds, at the times of `spread`; None if
        nothing predicts it."""
        if self.spread is None:
            return None
        at = scatter.times_of(np.asarray(self.simulation.times)[0])
        return scatter.scatter(self.spread, self.measured(name)[:, at], name)

    def facts(self) -> dict[str, Any]:
        """Sizes of the task, how the runs ended, and measured and predicted transition times."""
        return {
            "task": {"K": self.task.K, "M": self.task.M, "queries": self.task.num_queries},
            "simulation": {
                "status": counts(self.simulation.status),
                "peak_of_speed": self._peak("simulation"),
            },
            "predicted_stages": self.stages._asdict() if self.stages else None,
            "left_out": self.left_out,
            "spread_at_end": {
                name: scatter.at_end(found)
                for name in self.names
                if (found := self.scatter(name)) is not None
            },
        }

    def theory_facts(self, theory: str) -> dict[str, Any]:
        """When the speed coefficient peaks."""
        return {"peak_of_speed": self._peak(theory)}

    def _peak(self, source: str) -> dict[str, Any]:
        speed = self.mean(source, "speed").mean(-1)
        if not np.isfinite(speed).any():
            return {"time": None, "value": None, "between": None}
        times, at = np.asarray(self.simulation.times)[0], int(np.nanargmax(speed))
        ends = [times[max(at - 1, 0)], times[min(at + 1, times.size - 1)]]
        return {"time": times[at], "value": speed[at], "between": ends}


def compare(config: CompareOptions, theories: Sequence[Theory] = ()) -> Comparison:
    """Train `config.seeds` runs at once, integrate the theories at the same times.

    Args:
        config: the settings.
        theories: theories of your own to compare with, besides those that `config` names.

    Raises:
        ValueError: naming the setting, its value and what is allowed, before anything runs.
    """
    config.check()
    run = config.run
    task, rule = run.built
    assert isinstance(task, dynsim.Layer)
    steps = checks.steps("steps", run.steps)
    if task.start == "zero":
        strain.check_moves(run)
    settings = Settings(run.fixed, config.times, RECORD, run.dtype, None)
    needed = registry.system("yz").engines[TRAINING].bytes_per_run(task, settings)
    budget.check_at_once("seeds", config.seeds, needed)
    zero_start, length = task.start == "zero", task.length
    too_short = refusal(task.check_population)
    finite = math.isfinite(length) and too_short is None
    told = {"batch": run.batch, "steps": steps}
    names = comparison.chosen(config.theories, hierarchy.applicable(task, rule, **told))
    known = hierarchy.theories(task)
    asked = [*(known[name] for name in names), *theories]
    for theory in asked:
        theory.check(task, rule, **told)
    times = dynsim.log_times(steps, config.times)
    with precision("float64"):
        keys = jax.vmap(functools.partial(jax.random.fold_in, jax.random.key(config.root)))(
            jnp.arange(config.seeds)
        )
        options: dict[str, Any] = {"steps": steps, "times": times, "record": RECORD}

        def train(key: Array) -> Trajectory:
            kept = {"batch": run.batch, "dtype": run.dtype, **options}
            return dynsim.train(task, rule, key, **kept)

        work: dict[str, Callable[[], Any]] = {TRAINING: lambda: jax.vmap(train)(keys)}

        # Without a random start one prediction, with a leading axis of one, serves all seeds.
        def predict(solve: Callable[[dynsim.YZ | None], Trajectory]) -> Trajectory:
            if zero_start:
                return jax.tree.map(lambda leaf: leaf[None], solve(None))
            return jax.vmap(lambda key: solve(weights(None, task, "float64", key)))(keys)

        def descend(T: float, start: dynsim.YZ | None) -> Trajectory:
            kept = {"batch": math.inf, "dtype": "float64", **options}
            return dynsim.train(dynsim.layer(task, T), rule, keys[0], init=start, **kept)

        lengths = {FINITE_DESCENT: length} if finite else {}
        for name, T in {**lengths, DESCENT: math.inf}.items():
            work[name] = functools.partial(predict, functools.partial(descend, T))
        for theory in asked:
            own = {n: x for n, x in told.items() if n in theory.needs}
            solve = functools.partial(theory.solve, task, rule, times, record=RECORD, **own)
            work[theory.name] = functools.partial(
                predict, lambda start, solve=solve: solve(init=start)
            )
        if not too_short:
            work[SPREAD] = lambda: scatter.predict(task, rule, run.batch, times, keys)
        found = {name: work[name]() for name in progress.each(tuple(work), "solve")}
        stages = None
        if undescribed(rule, "the closed form") is None:
            clock = Rescaled.of(rule)
            stages = decoder.stages(clock.rate * clock.eta_y, 1 / jnp.asarray(task.prior), task.M)
            stages = stages.at(clock.steps_at)
        # One by one: a dictionary that goes through JAX comes back sorted by its keys.
        predictions = {name: jax.device_get(each) for name, each in found.items()}
        stages = jax.device_get(stages)
    simulation, spread = predictions.pop(TRAINING), predictions.pop(SPREAD, None)
    by_name = {theory.name: theory for theory in asked}
    return Comparison(config, task, simulation, predictions, by_name, stages, spread, too_short)
