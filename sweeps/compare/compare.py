"""Theory against simulation: run both at the same times, and measure the difference."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dynsim
from dynsim import Trajectory
from dynsim.training.clock import without_inertia
from dynsim.trajectory import counts
from dynsim.yz.observables import DEFAULT_RECORD
from odes.formulas import decoder
from odes.yz import ladder
from sweeps import output
from sweeps.systems.yz.settings import Compare

RECORD = (*DEFAULT_RECORD, "attention")
DESCENT = "descent"
"""Name under which descent with T and batch infinite stands beside the theories. It separates
what sampling does from what a theory leaves out."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The outcome of `compare`.

    Attributes:
        config: the settings.
        task: the task.
        simulation: trajectory with a leading axis of `seeds` runs.
        predictions: trajectories by theory, and `DESCENT`; the leading axis has one entry per
            seed, or a single one where the start is the same for all.
        stages: transition times per class (`odes.formulas.decoder.Stages`), None for Adam.
    """

    config: Compare
    task: dynsim.SequenceClasses
    simulation: Trajectory
    predictions: dict[str, Trajectory]
    stages: decoder.Stages | None

    @functools.cached_property
    def report(self) -> dict[str, Any]:
        """All numbers of the comparison as JSON values; not-a-number becomes None."""
        return output.as_json(
            {
                "config": self.config.as_json(),
                "task": {"K": self.task.K, "M": self.task.M, "queries": self.task.num_queries},
                "environment": {
                    **output.environment(),
                    "simulation_precision": self.config.dtype,
                    "theory_precision": "float64",
                },
                "simulation": {
                    "status": counts(self.simulation.status),
                    "sampling_error": {n: self._sampling_error(n) for n in DEFAULT_RECORD},
                    "peak_of_speed": self._measured_peak(self.simulation),
                },
                "theories": {name: self._against(name) for name in self.predictions},
                "predicted_stages": self.stages._asdict() if self.stages else None,
            }
        )

    def mean(self, trajectory: Trajectory, name: str) -> np.ndarray:
        """Mean of an observable over the valid runs, (S, ...); NaN if no run is valid."""
        runs = _valid(trajectory, name)
        return runs.mean(0) if len(runs) else np.full(runs.shape[1:], np.nan)

    def spread(self, trajectory: Trajectory, name: str) -> np.ndarray:
        """Standard deviation (ddof 1) over the valid runs; NaN below two runs."""
        runs = _valid(trajectory, name)
        return runs.std(0, ddof=1) if len(runs) > 1 else np.full(runs.shape[1:], np.nan)

    def _against(self, theory: str) -> dict[str, Any]:
        prediction = self.predictions[theory]
        about = ladder.THEORIES.get(theory)
        errors = {}
        for name in DEFAULT_RECORD:
            want = self.mean(self.simulation, name)
            difference = self.mean(prediction, name) - want
            errors[name] = {
                "over_time": _ratio(difference, want),
                "at_end": _ratio(difference[-1], want[-1]),
            }
        return {
            "title": about.title if about else "descent, T and batch infinite",
            "assumes": about.assumes if about else "T, batch -> infinity",
            "status": counts(prediction.status),
            "peak_of_speed": self._measured_peak(prediction),
            "relative_error": errors,
        }

    def _sampling_error(self, name: str) -> dict[str, float]:
        mean, spread = self.mean(self.simulation, name), self.spread(self.simulation, name)
        error = spread / math.sqrt(max(int(np.sum(self.simulation.ok)), 1))
        return {"over_time": _ratio(error, mean), "at_end": _ratio(error[-1], mean[-1])}

    def _measured_peak(self, trajectory: Trajectory) -> dict[str, Any]:
        speed = self.mean(trajectory, "speed").mean(-1)
        if not np.isfinite(speed).any():
            return {"time": None, "value": None, "between": None}
        times, at = np.asarray(self.simulation.times)[0], int(np.nanargmax(speed))
        ends = [times[max(at - 1, 0)], times[min(at + 1, times.size - 1)]]
        return {"time": times[at], "value": speed[at], "between": ends}


def compare(config: Compare) -> Comparison:
    """Train `config.seeds` runs at once, integrate the theories at the same times.

    Raises:
        ValueError: naming the setting, its value and what is allowed, before anything runs.
    """
    config.check()
    task, optimizer = config.make_task(), config.make_optimizer()
    zero_start = config.init == "zero"
    names = config.theories or ladder.applicable(task, optimizer, zero_start=zero_start)
    theories = [ladder.theory(name, task, optimizer, zero_start) for name in names]
    times = dynsim.log_times(config.steps, config.num_times)
    with jax.enable_x64(True):
        keys = jax.vmap(functools.partial(jax.random.fold_in, jax.random.key(config.seed)))(
            jnp.arange(config.seeds)
        )
        run = functools.partial(
            dynsim.simulate, task, optimizer, steps=config.steps, times=times, record=RECORD
        )
        simulation = jax.vmap(
            lambda key: run(
                key,
                length=config.length,
                batch=config.batch,
                init=config.init,
                dtype=config.dtype,
            )
        )(keys)

        # Without a random start one prediction, with a leading axis of one, serves all seeds.
        def predict(solve: Callable[[dynsim.YZ | None], Trajectory]) -> Trajectory:
            if config.init == "zero":
                return jax.tree.map(lambda leaf: leaf[None], solve(None))
            weights = functools.partial(dynsim.initial_weights, task, config.init)
            return jax.vmap(lambda key: solve(weights(key=key, dtype=config.dtype)))(keys)

        descent = functools.partial(run, length=math.inf, batch=math.inf, dtype="float64")
        predictions = {DESCENT: predict(lambda start: descent(init=start or "zero"))}
        for theory in theories:
            solve = functools.partial(theory.solve, task, optimizer, times, record=RECORD)
            predictions[theory.name] = predict(lambda start, solve=solve: solve(init=start))
        stages = None
        if optimizer.kind != "adam":
            rate = without_inertia(optimizer, task.prior).rate
            stages = decoder.stages(rate * optimizer.eta_y, 1 / jnp.asarray(task.prior), task.M)
        # One by one: a dictionary that goes through JAX comes back sorted by its keys.
        predictions = {name: jax.device_get(found) for name, found in predictions.items()}
        simulation, stages = jax.device_get((simulation, stages))
    return Comparison(config, task, simulation, predictions, stages)


def _valid(trajectory: Trajectory, name: str) -> np.ndarray:
    return np.asarray(trajectory[name], np.float64)[np.asarray(trajectory.ok)]


def _ratio(difference: np.ndarray, reference: np.ndarray) -> float:
    """|difference| / |reference| in the l2 norm over everything; NaN where undefined."""
    scale = float(np.linalg.norm(reference))
    return float(np.linalg.norm(difference)) / scale if scale > 0 else math.nan
