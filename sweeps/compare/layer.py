"""`dynsim compare` for the attention layer: theories, descent, scatter and transition times."""

import dataclasses
import functools
import math
from typing import Any, ClassVar

import jax
import numpy as np

import dynsim
from dynsim import checks, log_times
from dynsim.precision import precision
from dynsim.yz.observables import DEFAULT_RECORD
from odes import decoder
from odes.batch_noise import STD
from odes.theory import named, refusal
from sweeps.compare.comparison import TRAINING, Comparison, counted, valid
from sweeps.compare.scatter import Scatter, lines, over_starts
from sweeps.compare.settings import CompareOptions
from sweeps.compare.stages import check_moves, stages_by_class
from sweeps.runner.progress import count
from sweeps.runner.spec import Sweep

DESCENT = "descent"
"""Descent with T and batch infinite is shown next to the theories. It separates sampling effects
from the errors of a theory."""
FINITE_DESCENT = named(DESCENT, finite=True)
DESCENTS = (FINITE_DESCENT, DESCENT)
SPREAD = "spread"
NUM_TIMES = 9
"""Number of recorded times at which to predict the scatter; each costs a backward pass."""
MOST_STARTS = 8
"""Maximum number of random starts over which to average the predicted variance."""


@dataclasses.dataclass(frozen=True)
class LayerComparison(Comparison):
    """A comparison of the attention layer, with the predicted scatter and the closed form."""

    NAMES: ClassVar[tuple[str, ...]] = DEFAULT_RECORD
    ALSO: ClassVar[tuple[str, ...]] = ("attention",)
    ALWAYS: ClassVar[tuple[str, ...]] = DESCENTS
    PICTURE: ClassVar[str] = "sweeps.compare.picture:draw_layer"

    @staticmethod
    def further(config: CompareOptions) -> dict[str, Sweep]:
        """Return the prediction of the standard deviation across seeds; none at infinite batch."""
        run = config.run
        task = run.built[0]
        if task.start == "zero":
            check_moves(run)
        if math.isinf(run.batch) or refusal(task.check_population):
            return {}
        steps = log_times(checks.steps("steps", run.steps), config.times)
        at = np.unique(np.rint(np.linspace(0, len(steps) - 1, NUM_TIMES)).astype(int))
        seeds = {"range": 1 if task.start == "zero" else min(config.seeds, MOST_STARTS)}
        record = (*DEFAULT_RECORD, *(name + STD for name in DEFAULT_RECORD))
        times = tuple(np.asarray(steps)[at].tolist())
        return {SPREAD: Sweep(run, {"seed": seeds}, SPREAD, record, times, root=config.root)}

    @property
    def task(self) -> dynsim.Layer:
        """The layer."""
        return self.config.run.built[0]

    @functools.cached_property
    def stages(self) -> decoder.Stages | None:
        """Transition times per class; None for rules that the closed form does not describe."""
        with precision("float64"):
            return jax.device_get(stages_by_class(self.task, self.config.run.built[1]))

    def scatter(self, name: str) -> Scatter | None:
        """Return the predicted and measured standard deviation across seeds, at the times of the
        prediction; None without a prediction."""
        if SPREAD not in self.extra:
            return None
        predicted = self.extra[SPREAD]
        at = np.searchsorted(self.times, predicted["time"].values)
        runs, mean = self.runs_of(TRAINING, name)[:, at], valid(predicted, name)
        return over_starts(runs, mean, valid(predicted, name + STD))

    def facts(self) -> dict[str, Any]:
        """Return task sizes, statuses of the runs, and measured and predicted transition times."""
        training = super().facts()[TRAINING]
        return {
            "task": {"K": self.task.K, "M": self.task.M, "queries": self.task.num_queries},
            TRAINING: training | self.theory_facts(TRAINING),
            "predicted_stages": self.stages._asdict() if self.stages else None,
            "left_out": refusal(self.task.check_population),
            "spread_at_end": self.at_end({name: self.scatter(name) for name in self.names}),
        }

    def theory_facts(self, theory: str) -> dict[str, Any]:
        """Return when the speed coefficient peaks."""
        speed, times = self.means[theory]["speed"].values.mean(-1), self.times
        found = {"time": None, "value": None, "between": None}
        if np.isfinite(speed).any():
            at = int(np.nanargmax(speed))
            ends = [times[max(at - 1, 0)], times[min(at + 1, times.size - 1)]]
            found = {"time": times[at], "value": speed[at], "between": ends}
        return {"peak_of_speed": found}

    def heading(self) -> list[str]:
        """Return lines about the task, the rule, and the statuses of the runs."""
        config, run = self.config, self.config.run
        return [
            f"{run.about}: K = {self.task.K}, M = {self.task.M}, {run.rule.build()}, "
            f"T = {self.task.length}, batch = {run.batch}",
            f"{count(config.seeds, 'run')} of {count(run.steps or 0, 'step')}: "
            f"{counted(self.report[TRAINING]['status'])}",
        ]

    def further_lines(self) -> list[str]:
        """Return lines about the scatter at the end, and when the speed coefficient peaks."""
        report, found = self.report, []
        if report["left_out"]:
            found += ["", f"Finite-T theories are left out. {report['left_out']}"]
        if report["spread_at_end"]:
            found += lines(report["spread_at_end"])
        peak = report[TRAINING]["peak_of_speed"]
        if self.stages and peak["time"] is not None:
            low, high = peak["between"]
            where = f"peaks at t = {peak['time']:g} (between {low:g} and {high:g})"
            if peak["time"] == high:
                where = f"is still rising at the end, t = {high:g}"
            mean = {name: np.mean(each) for name, each in self.stages._asdict().items()}
            found += [
                "",
                f"speed coefficient f.g {where}, value {peak['value']:.3f}",
                f"closed form: t0' = {mean['rise_end']:.2f}, peak at t = {mean['peak']:.2f}, value "
                f"{mean['peak_gamma']:.3f}, t0 = {mean['snap']:.2f}",
            ]
        return found
