"""The command `dynsim compare two_stage`: training on prompts against the reduced equations, and
what that comparison comes to."""

import dataclasses
import functools
import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array

from dynsim import Status
from dynsim.decoding import Count
from dynsim.precision import precision
from dynsim.problem.base import narrowed
from dynsim.problem.train import problem_in
from dynsim.two_stage import observables as prompt_observables
from dynsim.two_stage.annealing import Annealing
from dynsim.two_stage.task import Prompts
from odes.two_stage import THEORIES, thresholds
from sweeps.compare.command import run
from sweeps.compare.comparison import TRAINING, Comparison, cell
from sweeps.compare.scatter import average, spread
from sweeps.compare.settings import CompareOptions
from sweeps.runner.progress import count
from sweeps.studies.two_stage.runs import (
    COMPARED,
    LEVEL_P,
    LEVEL_Q,
    RECORD,
    Runs,
    Times,
    from_dataset,
    from_measured,
    modulus,
    settings,
)
from sweeps.systems.base import Engine
from sweeps.systems.engines import Like, of_theory
from sweeps.systems.experiment import Experiment

__all__ = ["CompareTwoStage", "TwoStageComparison", "run"]

PATHS = 48
"""Paths of the stochastic equations."""
RESAMPLES = 1000
"""Sets of paths, drawn with replacement, by which the error of a mean is judged."""


@dataclasses.dataclass(frozen=True)
class CompareTwoStage(CompareOptions):
    """Train attention on prompts in two stages, solve the reduced ODE, and compare them.

    Attributes:
        theories: names of the theories to compare with (ode, infinite, anchored, sde, seeds). All
            that apply if omitted.
        times: number of times to record, a third of them in the first stage.
    """

    RUN: ClassVar[Mapping[str, Any]] = {"problem": "two_stage"}

    seeds: Count = 6
    times: Times = 128

    def check(self) -> None:
        """Raise `ValueError`, naming the field, for settings that are not allowed."""
        settings(self.run)
        super().check()


@dataclasses.dataclass(frozen=True)
class TwoStageComparison(Comparison):
    """A comparison of two-stage training, with what was learned when, and why not."""

    NAMES: ClassVar[tuple[str, ...]] = COMPARED
    ALSO: ClassVar[tuple[str, ...]] = RECORD
    MEASURED: ClassVar[tuple[str, ...]] = ("anchored",)
    SETTINGS: ClassVar[str] = "sweeps.studies.two_stage.compare:CompareTwoStage"
    PICTURE: ClassVar[str] = "sweeps.studies.two_stage.figure:draw_comparison"

    @classmethod
    def known(cls, run: Experiment) -> dict[str, Engine]:
        """The engines of the theories by name, with that of measured states."""
        problem, found = run.built[0], super().known(run)
        more = {each.name: each for each in THEORIES if each.name in cls.MEASURED}
        found |= {name: of_theory(each, Like(problem)) for name, each in more.items()}
        return {each.name: found.pop(each.name) for each in THEORIES} | found

    @classmethod
    def from_runs(cls, config: CompareOptions, theory: str, simulation: xr.Dataset) -> xr.Dataset:
        """The reduced ODE from measured states."""
        return from_measured(from_dataset(config.run, simulation))

    @classmethod
    def seeds(cls, config: CompareOptions, engine: Engine) -> int:
        """How many runs of an engine there are, or paths."""
        return PATHS if engine.noisy else super().seeds(config, engine)

    @functools.cached_property
    def runs(self) -> Runs:
        """The runs that ended well."""
        return from_dataset(self.config.run, self.simulation)

    def runs_of(self, side: str, name: str) -> np.ndarray:
        """(R, S) an observable of the runs that ended well; of V_trace the modulus."""
        return modulus(name, super().runs_of(side, name))

    def norm(self, values: np.ndarray) -> float:
        """L2 over eta-time, so that it does not depend on how densely a stage was recorded."""
        return self.runs.over_time(values)

    def facts(self) -> dict[str, Any]:
        """Number of runs, when they learned either component, and the scalar predictions."""
        runs = self.runs
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
        prediction, eta_time = self.predictions[theory], self.runs.eta_time
        return {
            "learned_P": prompt_observables.first_below(eta_time, prediction["K1"].values, LEVEL_P),
            "learned_Q": prompt_observables.first_below(eta_time, prediction["K2"].values, LEVEL_Q),
        }

    def _not_learned(self) -> list[str]:
        """Why runs did not learn a component, a sentence each: what they fell short of, and which
        threshold of theory was not met. Empty where all learned both."""
        runs, found, said = self.runs, self._predictions, []
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
        known = self.names if seeds is not None and np.any(seeds["status"] == Status.OK) else ()
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
        runs, paths = self.runs_of(TRAINING, name), self.runs_of("seeds", name)
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
            found["shift"] = self._ratio(average(self.runs_of("ode", name)) - mean, mean)
        return found

    def heading(self) -> list[str]:
        """How many runs there are, and how long they are."""
        (t_1, t_2), runs = self.runs.stages.steps, count(self.runs.count, "run")
        return [f"two_stage: {runs} of {t_1} + {t_2} steps, {self.runs.diverged} diverged"]

    def further_lines(self) -> list[str]:
        """The spread over seeds, when components were learned, and the scalar predictions."""
        report, found = self.report, []
        if report["over_seeds"]:
            found += ["", *spread_lines(report["over_seeds"], self.runs.count)]
        found.append("")
        for label, name in (("t_P", "learned_P"), ("t_Q", "learned_Q")):
            sides = {"runs": report["simulation"], **report["theories"]}
            shown = (f"{who} {_when(side[name])}" for who, side in sides.items())
            found.append(f"{label} in eta-time: " + "; ".join(shown))
        scalars = (f"{name}: {value:.4g}" for name, value in report["corollaries"].items())
        return [*found, *report["not_learned"], *scalars]

    @functools.cached_property
    def _predictions(self) -> dict[str, float]:
        """Scalar predictions; those of the stationary signals and of g hold for c = 0."""
        with precision("float64"):
            found = _corollaries(
                problem_in(self.config.run.built[0], "float64"),
                narrowed(self.runs.stages, "float64"),
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


def spread_lines(found: Mapping[str, Mapping[str, Any]], count: int) -> list[str]:
    """Predicted and measured scatter over seeds, and the error of a mean of `count` of them."""
    columns = {
        "predicted": "sd predicted",
        "measured": "sd of the runs",
        "mean": f"mean of {count}, rms",
        "most": f"mean of {count}, 95 %",
        "shift": "ode against seeds",
    }
    columns = {
        key: title for key, title in columns.items() if all(key in f for f in found.values())
    }
    about = [
        "Scatter over seeds in % of the mean, predicted by 'seeds': over time / at the end.",
        "",
        f"{'':<17}" + "".join(f"{title:>19}" for title in columns.values()),
    ]
    rows = (
        f"{name:<17}" + "".join(f"{cell(**values[key]):>19}" for key in columns)
        for name, values in found.items()
    )
    return [*about, *rows]


def _when(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "never"
    spread = f" ± {np.std(known, ddof=1):.1f}" if len(known) > 1 else ""
    never = (
        f" ({len(values) - len(known)} of {len(values)} never)" if len(known) < len(values) else ""
    )
    return f"{np.mean(known):.1f}{spread}{never}"
