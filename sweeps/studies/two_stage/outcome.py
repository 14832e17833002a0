"""What a comparison of two-stage training with its theories comes to."""

import dataclasses
import math
from collections import OrderedDict
from typing import Any

import jax
import numpy as np

from dynsim import Trajectory
from dynsim.precision import Number, precision
from dynsim.two_stage import observables as prompt_observables
from odes.two_stage import ladder, thresholds
from sweeps.compare.comparison import Comparison, average, spread
from sweeps.studies.two_stage.runs import LEVEL_P, LEVEL_Q, Runs, modulus
from sweeps.studies.two_stage.theory import RECORD
from sweeps.systems.two_stage.settings import TwoStage

RESAMPLES = 1000
"""Sets of paths, drawn with replacement, by which the error of a mean is judged."""


@dataclasses.dataclass(frozen=True)
class TwoStageComparison(Comparison):
    """The outcome: the runs, and a trajectory by theory with a leading axis of solves."""

    config: TwoStage
    simulation: Runs
    predictions: dict[str, Trajectory]
    names: tuple[str, ...] = RECORD

    def measured(self, name: str) -> np.ndarray:
        """(R, S) an observable of the runs that ended well; of V_trace the modulus."""
        return self.simulation[name]

    def predicted(self, theory: str, name: str) -> np.ndarray:
        """(R, S) an observable of the solves that ended well; of V_trace the modulus."""
        return modulus(name, super().predicted(theory, name))

    def about(self, theory: str) -> tuple[str, str]:
        """Title of a theory and what it assumes."""
        found = ladder.theories()[theory]
        return found.title, found.assumes

    def norm(self, values: np.ndarray) -> float:
        """L2 over eta-time, so that it does not depend on how densely a stage was recorded."""
        return self.simulation.over_time(values)

    def facts(self) -> dict[str, Any]:
        """Number of runs, when they learned either component, and the scalar predictions."""
        runs = self.simulation
        return {
            "simulation": {
                "runs": runs.count,
                "diverged": runs.diverged,
                "learned_P": runs.learned_P,
                "learned_Q": runs.learned_Q,
            },
            "corollaries": self._corollaries(),
            "over_seeds": self._over_seeds(),
        }

    def theory_facts(self, theory: str) -> dict[str, Any]:
        """When its solves learned either component."""
        prediction, eta_time = self.predictions[theory], self.simulation.eta_time
        return {
            "learned_P": prompt_observables.first_below(eta_time, prediction["K1"], LEVEL_P),
            "learned_Q": prompt_observables.first_below(eta_time, prediction["K2"], LEVEL_Q),
        }

    def _over_seeds(self) -> dict[str, Any]:
        """`scatter` by observable; empty unless the theory "seeds" was asked for and ended well."""
        seeds = self.predictions.get("seeds")
        known = self.names if seeds is not None and np.any(seeds.ok) else ()
        return {name: self.scatter(name) for name in known}

    def scatter(self, name: str) -> dict[str, dict[str, float]]:
        """Standard deviation over seeds, and what it makes of a mean over as many of them as there
        are runs; relative, each over time and at the end. Needs the theory "seeds".

        Returns:
            "predicted" and "measured" standard deviation; "mean" and "most", the root mean square
            and the 95 % quantile of the error that the mean of the runs has by chance, predicted;
            and with the theory "ode" its "shift", its distance from the mean of the predicted
            seeds, which no number of runs makes smaller.
        """
        runs, paths = self.measured(name), self.predicted("seeds", name)
        mean, count = average(paths), max(len(runs), 1)
        drawn = np.random.default_rng(0).integers(len(paths), size=(RESAMPLES, count))
        errors = [self._ratio(paths[rows].mean(0) - mean, mean) for rows in drawn]
        found = {
            "predicted": self._ratio(spread(paths), mean),
            "measured": self._ratio(spread(runs), average(runs)),
            "mean": self._ratio(spread(paths) / math.sqrt(count), mean),
            "most": {at: float(np.quantile([e[at] for e in errors], 0.95)) for at in errors[0]},
        }
        if "ode" in self.predictions:
            found["shift"] = self._ratio(average(self.predicted("ode", name)) - mean, mean)
        return found

    def _corollaries(self) -> dict[str, float]:
        """Scalar predictions; those of the stationary signals and of g hold for c = 0."""
        task, optimizer = self.config.make_task(), self.config.make_optimizer()
        decay = optimizer.decay

        @jax.jit  # as one program; hundreds of operations take as many
        def predicted() -> OrderedDict[str, Number]:
            found: OrderedDict[str, Number] = OrderedDict()
            found["tau_c"] = thresholds.critical_noise(task, decay)
            found["eta_c"] = thresholds.critical_rate(task, optimizer)
            for stage, eta in (("1", optimizer.eta_1), ("2", optimizer.eta_2)):
                tau = optimizer.stationary(eta)
                found[f"g_{stage}"] = thresholds.growth_rate(task, tau, decay)
                found[f"g_{stage}_hessian"] = thresholds.growth_rate_hessian(task, tau, decay)
            found["a_star"], found["b_star"] = thresholds.stationary_signal(task, decay)
            found["waiting_time"] = thresholds.waiting_time(decay)
            return found

        with precision("float64"):
            return {name: float(value) for name, value in predicted().items()}
