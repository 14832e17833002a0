"""`dynsim compare --task two-stage`: training on prompts against the reduced ODE."""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any

import jax

from dynsim import Trajectory, checks
from dynsim.trajectory import counts
from dynsim.two_stage import observables as prompt_observables
from odes.two_stage import thresholds
from sweeps import output
from sweeps.studies.two_stage import theory as two_stage_theory
from sweeps.studies.two_stage.runs import LEVEL_P, LEVEL_Q, Runs, runs, settings
from sweeps.studies.two_stage.theory import THEORIES
from sweeps.systems.two_stage.settings import TwoStage


@dataclasses.dataclass(frozen=True)
class CompareTwoStage(TwoStage):
    """Train attention on prompts in two stages, integrate the reduced ODE, and compare them.

    Attributes:
        seeds: number of runs.
        out: directory for compare.png, compare.json and compare.npz.
        theories: names of the theories to compare with (ode, infinite, anchored, sde); all that
            apply if left out.
        num_times: number of times to record, a third of them in the first stage.
        seed: root of the random keys; run i uses fold_in(key(seed), i).
        json: print the report as JSON alone on standard output.
    """

    seeds: int = 6
    out: Path = Path("out/compare")
    theories: tuple[str, ...] = ()
    num_times: int = 128
    seed: int = 0
    json: bool = False

    def check(self) -> None:
        """Raise `ValueError`, naming the field, for what the constructors do not see."""
        super().check()
        checks.integer("seeds", self.seeds, 1)
        checks.integer("seed", self.seed, 0)
        checks.integer("num_times", self.num_times, 3)
        for name in self.theories:
            checks.choice("theories", name, tuple(THEORIES))
            self._check_described(f"theories = {name!r}")
        output.check_directory(self.out)

    def described(self) -> tuple[str, ...]:
        """The theories to compare with."""
        if self.core != "fresh" or self.bias:
            return ()
        return self.theories or tuple(THEORIES)

    def _check_described(self, field: str) -> None:
        if self.core != "fresh" or self.bias:
            raise ValueError(
                f"{field}: the reduced ODE describes core = 'fresh' without a bias, got "
                f"core = {self.core!r}, bias = {self.bias}"
            )


@dataclasses.dataclass(frozen=True)
class TwoStageComparison:
    """The outcome: the runs, and a trajectory by theory with a leading axis of solves."""

    config: CompareTwoStage
    simulation: Runs
    predictions: dict[str, Trajectory]

    @functools.cached_property
    def report(self) -> dict[str, Any]:
        """All numbers of the comparison as JSON values; not-a-number becomes None."""
        runs = self.simulation
        names = two_stage_theory.RECORD
        return output.as_json(
            {
                "config": self.config.as_json(),
                "environment": {
                    **output.environment(),
                    "simulation_precision": self.config.dtype,
                    "theory_precision": "float64",
                },
                "simulation": {
                    "runs": runs.count,
                    "diverged": runs.diverged,
                    "sampling_error": {n: self._sampling_error(n) for n in names},
                    "learned_P": runs.learned_P,
                    "learned_Q": runs.learned_Q,
                },
                "theories": {name: self._against(name) for name in self.predictions},
                "corollaries": self._corollaries(),
            }
        )

    def _against(self, theory: str) -> dict[str, Any]:
        prediction, runs = self.predictions[theory], self.simulation
        errors = {}
        for name in two_stage_theory.RECORD:
            want = runs.mean(name)
            difference = two_stage_theory.mean(prediction, name) - want
            errors[name] = {
                "over_time": runs.over_time(difference) / runs.over_time(want),
                "at_end": abs(difference[-1] / want[-1]),
            }
        return {
            "title": THEORIES[theory].title,
            "assumes": THEORIES[theory].assumes,
            "status": counts(prediction.status),
            "learned_P": prompt_observables.first_below(runs.eta_time, prediction["K1"], LEVEL_P),
            "learned_Q": prompt_observables.first_below(runs.eta_time, prediction["K2"], LEVEL_Q),
            "relative_error": errors,
        }

    def _sampling_error(self, name: str) -> dict[str, float]:
        runs = self.simulation
        mean, error = runs.mean(name), runs.spread(name) / math.sqrt(max(runs.count, 1))
        return {
            "over_time": runs.over_time(error) / runs.over_time(mean),
            "at_end": abs(error[-1] / mean[-1]),
        }

    def _corollaries(self) -> dict[str, float]:
        """Scalar predictions; those of the stationary signals and of g hold for c = 0."""
        task, optimizer = self.config.make_task(), self.config.make_optimizer()
        decay = optimizer.decay
        with jax.enable_x64(True):
            found = {"tau_c": thresholds.critical_noise(task, decay)}
            found["eta_c"] = thresholds.critical_rate(task, optimizer)
            for stage, eta in (("1", optimizer.eta_1), ("2", optimizer.eta_2)):
                tau = optimizer.stationary(eta)
                found[f"g_{stage}"] = thresholds.growth_rate(task, tau, decay)
                found[f"g_{stage}_hessian"] = thresholds.growth_rate_hessian(task, tau, decay)
            found["a_star"], found["b_star"] = thresholds.stationary_signal(task, decay)
            found["waiting_time"] = thresholds.waiting_time(decay)
            return {name: float(value) for name, value in found.items()}


def compare(config: CompareTwoStage) -> TwoStageComparison:
    """Train `config.seeds` runs, integrate the theories at the same times.

    Raises:
        ValueError: naming the setting, its value and what is allowed, before anything runs.
    """
    config.check()
    found = runs(settings(config), config.seeds, config.num_times, root=config.seed)
    return TwoStageComparison(config, found, two_stage_theory.predict(found, config.described()))
