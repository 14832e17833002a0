"""The command `dynsim compare two_stage`: training on prompts against the reduced equations."""

import dataclasses
import functools
import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array

from dynsim import Annealing, Prompts, Status, Trajectory
from dynsim.decoding import Count
from dynsim.precision import precision
from dynsim.problem.base import narrowed
from dynsim.problem.train import problem_in
from dynsim.two_stage.observables import first_below
from odes.theory import AnyTheory
from odes.two_stage import THEORIES, thresholds
from odes.two_stage.field import solve_anchored
from odes.two_stage.loss import ReducedState
from sweeps import output
from sweeps.compare.command import run
from sweeps.compare.comparison import TRAINING, Comparison, cell
from sweeps.compare.scatter import average, spread
from sweeps.compare.settings import CompareOptions
from sweeps.runner.progress import count
from sweeps.studies.two_stage import claims
from sweeps.studies.two_stage.claims import COMPARED, LEARNED, Runs, Times, modulus, settings
from sweeps.systems.experiment import Experiment

__all__ = ["CompareTwoStage", "TwoStageComparison", "run"]

PATHS = 48
"""Number of paths of the stochastic equations."""
RESAMPLES = 1000
"""Number of bootstrap sets of paths for the error of a mean."""


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
    """A comparison of two-stage training that also reports when components are learned."""

    NAMES: ClassVar[tuple[str, ...]] = COMPARED
    ALSO: ClassVar[tuple[str, ...]] = claims.RECORD
    MEASURED: ClassVar[tuple[str, ...]] = ("anchored",)
    SETTINGS: ClassVar[str] = "sweeps.studies.two_stage.compare:CompareTwoStage"
    PICTURE: ClassVar[str] = "sweeps.studies.two_stage.figure:draw_comparison"

    @classmethod
    def known(cls, run: Experiment) -> dict[str, AnyTheory]:
        """The theories by name, including the one that starts from measured states."""
        found = super().known(run)
        return {each.name: found.pop(each.name, each) for each in THEORIES} | found

    @classmethod
    def from_runs(cls, config: CompareOptions, theory: str, simulation: xr.Dataset) -> xr.Dataset:
        """Solve the reduced ODE for each run from its measured state at the start of each stage."""
        runs = claims.from_dataset(config.run, simulation)
        solve = functools.partial(solve_anchored, *config.run.built, runs.steps, record=COMPARED)

        @jax.jit
        @jax.vmap
        def pieces(states: jax.Array) -> Trajectory:
            return solve(anchors={at: ReducedState(*states[at]) for at in (0, runs.switch)})

        with precision("float64"):
            found = jax.device_get(pieces(jnp.asarray(runs.values["state"], jnp.float64)))
        return found.to_xarray(("seed",))

    @classmethod
    def seeds(cls, config: CompareOptions, theory: AnyTheory) -> int:
        """Number of runs, or paths, of training or of a theory."""
        return PATHS if theory.drawn else super().seeds(config, theory)

    @functools.cached_property
    def runs(self) -> Runs:
        """The runs that ended well."""
        return claims.from_dataset(self.config.run, self.simulation)

    def runs_of(self, side: str, name: str) -> np.ndarray:
        """(R, S) values of an observable in runs that ended well; the modulus for V_trace."""
        return modulus(name, super().runs_of(side, name))

    def norm(self, values: np.ndarray) -> float:
        """L2 norm over eta-time."""
        return self.runs.over_time(values)

    def facts(self) -> dict[str, Any]:
        """Number of runs, times at which they learned each component, and scalar predictions."""
        runs = self.runs
        learned = {f"learned_{component}": runs.learned(component) for component in LEARNED}
        seeds = self.predictions.get("seeds")
        known = self.names if seeds is not None and np.any(seeds["status"] == Status.OK) else ()
        return {
            "simulation": {"runs": runs.count, "diverged": runs.diverged, **learned},
            "corollaries": self._predictions,
            "not_learned": self._not_learned(),
            "over_seeds": {name: self.scatter(name) for name in known},
        }

    def theory_facts(self, theory: str) -> dict[str, Any]:
        """Times at which the solutions learned each component."""
        solves = self.predictions[theory]
        return {
            f"learned_{component}": first_below(self.runs.eta_time, solves[name].values, level)
            for component, (name, level) in LEARNED.items()
        }

    def _not_learned(self) -> list[str]:
        """Explain why runs did not learn a component: how far they fell short, and which threshold
        of theory was not met. Empty if all learned both."""
        runs, found, said = self.runs, self._predictions, []
        missing = {each: int(np.sum(~np.isfinite(runs.learned(each)))) for each in LEARNED}
        for component, number in missing.items():
            loss, level = LEARNED[component]
            if number:
                said.append(
                    f"{component} was not learned by {number} of {runs.count} runs: the mean of "
                    f"{loss} fell to {np.min(runs.mean(loss)):.3g}, learned is below {level}."
                )
        if missing["P"]:
            # With this margin on all prompts, the logistic loss just counts as learned.
            needed, margin = -math.log(math.expm1(LEARNED["P"][1])), found["margin_1"]
            advice = ": a smaller decay or a larger gamma0 raises it" * (margin < needed)
            said.append(
                f"Unsaturated, its margin would reach {margin:.3g} in stage 1; learned takes "
                f"{needed:.3g}{advice}."
            )
        if missing["Q"]:
            prompts, rule = settings(runs.training)
            said.append(_why_not_Q(found, float(np.divide(rule.stage_2, rule.decay))))
            if prompts.coupling > 0:
                said.append("These thresholds hold without coupling; P starves Q with it.")
        return said

    def scatter(self, name: str) -> dict[str, dict[str, float]]:
        """Relative standard deviation across seeds, and the error of the runs' mean that results
        from it, over time and at the end. Needs the theory "seeds".

        Returns:
            "predicted" and "measured" standard deviation; "mean" and "most", root mean square and
            95 % quantile of the predicted chance error of the runs' mean; and with the theory
            "ode", its "shift" from the mean of the seeds, which more runs do not reduce.
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
        """Number and length of the runs."""
        (t_1, t_2), runs = self.runs.stages.steps, count(self.runs.count, "run")
        return [f"two_stage: {runs} of {t_1} + {t_2} steps, {self.runs.diverged} diverged"]

    def further_lines(self) -> list[str]:
        """Standard deviations across seeds, learning times of components, scalar predictions."""
        report, found = self.report, []
        if report["over_seeds"]:
            found += ["", *spread_lines(report["over_seeds"], self.runs.count)]
        found.append("")
        sides = {"runs": report["simulation"], **report["theories"]}
        for component in LEARNED:
            times = ((who, side[f"learned_{component}"]) for who, side in sides.items())
            shown = "; ".join(f"{who} {_when(each)}" for who, each in times)
            found.append(f"t_{component} in eta-time: {shown}")
        scalars = (f"{name}: {value:.4g}" for name, value in report["corollaries"].items())
        return [*found, *report["not_learned"], *scalars]

    @functools.cached_property
    def _predictions(self) -> dict[str, float]:
        """Scalar predictions; those of the stationary signals and of g hold for c = 0."""
        with precision("float64"):
            task = problem_in(self.config.run.built[0], "float64")
            found = _corollaries(task, narrowed(self.runs.stages, "float64"))
            return {name: float(value) for name, value in found.items()}


@eqx.filter_jit  # one program instead of one for each of hundreds of operations
def _corollaries(task: Prompts, stages: Annealing) -> OrderedDict[str, Array]:
    decay, found = stages.decay, OrderedDict()
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
    """Name the threshold that stage 2, of length `stage_2` in eta-time, did not meet."""
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
    """Tabulate predicted and measured scatter over seeds, and the error of a mean of `count`."""
    columns = {
        "predicted": "sd predicted",
        "measured": "sd of the runs",
        "mean": f"mean of {count}, rms",
        "most": f"mean of {count}, 95 %",
        "shift": "ode against seeds",
    }
    columns = {k: title for k, title in columns.items() if all(k in f for f in found.values())}
    rows = [("", *columns.values())]
    rows += [(name, *(cell(**values[k]) for k in columns)) for name, values in found.items()]
    about = "Scatter over seeds in % of the mean, predicted by 'seeds': over time / at the end."
    return [about, "", *output.aligned(rows, 17, 19)]


def _when(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "never"
    spread = f" ± {np.std(known, ddof=1):.1f}" if len(known) > 1 else ""
    missing = len(values) - len(known)
    never = f" ({missing} of {len(values)} never)" if missing else ""
    return f"{np.mean(known):.1f}{spread}{never}"
