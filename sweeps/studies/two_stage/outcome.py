"""What a comparison of two-stage training with its theories comes to."""

import dataclasses
import functools
import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dynsim import Trajectory
from dynsim.precision import precision
from dynsim.problem.base import narrowed
from dynsim.problem.train import problem_in
from dynsim.two_stage import observables as prompt_observables
from dynsim.two_stage.annealing import Annealing
from dynsim.two_stage.task import Prompts
from odes.hierarchy import theories
from odes.two_stage import thresholds
from sweeps.compare.comparison import Comparison, average, spread
from sweeps.compare.settings import CompareOptions
from sweeps.studies.two_stage.runs import LEVEL_P, LEVEL_Q, Runs, modulus, settings
from sweeps.studies.two_stage.theory import RECORD

RESAMPLES = 1000
"""Sets of paths, drawn with replacement, by which the error of a mean is judged."""


@dataclasses.dataclass(frozen=True)
class TwoStageComparison(Comparison):
    """The outcome: the runs, and a trajectory by theory with a leading axis of solves."""

    config: CompareOptions
    simulation: Runs
    predictions: dict[str, Trajectory]
    names: tuple[str, ...] = RECORD

    def measured(self, name: str) -> np.ndarray:
        """(R, S) an observable of the runs that ended well; of V_trace the modulus."""
        return self.simulation[name]

    def trained(self) -> dict[str, np.ndarray]:
        """Everything recorded of the runs, and when."""
        return {**self.simulation.values, "steps": self.simulation.steps}

    def predicted(self, theory: str, name: str) -> np.ndarray:
        """(R, S) an observable of the solves that ended well; of V_trace the modulus."""
        return modulus(name, super().predicted(theory, name))

    def about(self, theory: str) -> tuple[str, str]:
        """Title of a theory and what it assumes."""
        found = theories(self.config.run.built[0])[theory]
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
            "corollaries": self._predictions,
            "not_learned": self._not_learned(),
            "over_seeds": self._over_seeds(),
        }

    def theory_facts(self, theory: str) -> dict[str, Any]:
        """When its solves learned either component."""
        prediction, eta_time = self.predictions[theory], self.simulation.eta_time
        return {
            "learned_P": prompt_observables.first_below(eta_time, prediction["K1"], LEVEL_P),
            "learned_Q": prompt_observables.first_below(eta_time, prediction["K2"], LEVEL_Q),
        }

    def _not_learned(self) -> list[str]:
        """Why runs did not learn a component, a sentence each: what they fell short of, and which
        threshold of theory was not met. Empty where all learned both."""
        runs, found, said = self.simulation, self._predictions, []
        missing = {
            name: int(np.sum(~np.isfinite(times)))
            for name, times in (("P", runs.learned_P), ("Q", runs.learned_Q))
        }
        levels = {"P": ("K1", LEVEL_P), "Q": ("K2", LEVEL_Q)}
        for name, number in missing.items():
            if number:
                loss, level = levels[name]
                said.append(
                    f"{name} was not learned by {number} of {runs.count} runs: the mean of {loss} "
                    f"fell to {np.min(runs.mean(loss)):.3g}, learned is below {level}."
                )
        if missing["P"]:
            # At this margin, the same for all prompts, the logistic loss is LEVEL_P.
            needed, margin = -math.log(math.expm1(LEVEL_P)), found["margin_1"]
            said.append(
                f"Unsaturated, its margin would reach {margin:.3g} in stage 1; learned takes "
                f"{needed:.3g}"
                + (": a smaller decay or a larger gamma0 raises it." if margin < needed else ".")
            )
        if missing["Q"]:
            prompts, rule = settings(runs.training)
            said.append(_why_not_Q(found, float(np.divide(rule.stage_2, rule.decay))))
            if prompts.coupling > 0:
                said.append("These thresholds hold without coupling; P starves Q with it.")
        return said

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

    @functools.cached_property
    def _predictions(self) -> dict[str, float]:
        """Scalar predictions; those of the stationary signals and of g hold for c = 0."""
        with precision("float64"):
            found = _corollaries(
                problem_in(self.simulation.training.built[0], "float64"),
                narrowed(self.simulation.stages, "float64"),
            )
            return {name: float(value) for name, value in found.items()}


@eqx.filter_jit  # as one program; hundreds of operations take as many
def _corollaries(task: Prompts, stages: Annealing) -> OrderedDict[str, Array]:
    decay = stages.decay
    found: OrderedDict[str, Array] = OrderedDict()
    found["tau_c"] = thresholds.critical_noise(task, decay)
    found["eta_c"] = thresholds.critical_rate(task, stages)
    for stage, eta in (("1", stages.eta_1), ("2", stages.eta_2)):
        tau = jnp.asarray(stages.stationary(eta))
        found[f"tau_{stage}"] = tau
        found[f"g_{stage}"] = thresholds.growth_rate(task, tau, decay)
        found[f"g_{stage}_hessian"] = thresholds.growth_rate_hessian(task, tau, decay)
    found["margin_1"] = thresholds.unsaturated_margin(task, decay)
    found["a_star"], found["b_star"] = thresholds.stationary_signal(task, decay)
    found["growth_time"] = thresholds.growth_time(task, found["tau_2"], decay)
    found["waiting_time"] = thresholds.waiting_time(decay)
    return found


def _why_not_Q(found: Mapping[str, float], stage_2: float) -> str:
    """Which threshold of stage 2, that lasts so long in eta-time, was not met."""
    tau, critical = found["tau_2"], found["tau_c"]
    if tau >= critical:
        return (
            f"The noise of stage 2, tau_2 = {tau:.3g}, is above the critical tau_c = "
            f"{critical:.3g}, so that nothing grows (g_2 = {found['g_2']:.3g}): anneal below "
            f"eta_2 = {found['eta_c']:.3g}."
        )
    needed = found["waiting_time"] + found["growth_time"]
    if needed > stage_2:
        return (
            f"At g_2 = {found['g_2']:.3g} the signal needs the eta-time {found['growth_time']:.3g} "
            f"to outgrow the noise, after about {found['waiting_time']:.3g} in which noise decays; "
            f"stage 2 lasts {stage_2:.3g}: make stage_2 longer."
        )
    return (
        f"Theory expects it within the eta-time {needed:.3g} of the {stage_2:.3g} of stage 2, at "
        f"tau_2 = {tau:.3g} below tau_c = {critical:.3g}."
    )
