"""Where Q can be learned: the noise of the weights against the shift of Q [ours].

The paper says that a large rate, whose noise is large, keeps Q from being learned. The reduced ODE
gives the AUC of Q over the noise tau ~ sqrt(eta) and the shift r. Next to it we draw training and
the lines of `odes.two_stage.thresholds`, below which Q is learned in the end, or in the time T.
"""

import math
from typing import Annotated

import annotated_types as at
import jax
import numpy as np

import odes
import sweeps
from sweeps import drawing

LEARNED, UNLEARNED = 0.9, 0.6
"""AUC of Q above which, and below which, training counts as having learned it or not."""
SENTENCE = (
    f"above {LEARNED} at {{learned}} of {{learned_side}} points where it should be learned by the "
    f"finite-time line, below {UNLEARNED} at {{unlearned}} of {{other_side}} others; {{near}} near"
)
SIDES = {"weights": "auc_Q", "signal": "auc_Q_signal"}
COLOURS = {"vmin": 0.5, "vmax": 1, "cmap": "viridis"}


class TwoStagePhase(sweeps.Figure):
    """Whether Q is learned, over the noise tau ~ sqrt(eta) of the weights and the shift r of Q.

    Attributes:
        resolution: number of values on each axis for the reduced ODE.
        points: the same for training.
        seeds: number of runs at each point.
        run: the run that every point varies, by default one long stage at one large rate: the
            dynamics depends only on eta-time and tau, and a large rate needs the fewest steps.
    """

    NAME = "two_stage_phase"
    RUN = {"problem": "two_stage", "control": "forever", "stage_2": 4.75}
    AXES = {"tau": (0.06, 0.6), "r": (0.9, 2.2)}

    resolution: Annotated[int, at.Ge(2)] = 25
    points: Annotated[int, at.Ge(2)] = 6
    seeds: Annotated[int, at.Ge(1)] = 6
    run: sweeps.Experiment = sweeps.experiment(**RUN)

    def sweeps(self):
        every, some = (
            {name: {"logspace": [*ends, number]} for name, ends in self.AXES.items()}
            for number in (self.resolution, self.points)
        )
        some |= {"seed": {"range": self.seeds}}
        return {
            "ode": sweeps.Sweep(self.run, every, "ode", ("auc_Q",)),
            "simulation": sweeps.Sweep(self.run, some, record=("auc_Q", "auc_Q_signal")),
        }

    @property
    def eta_time(self):
        stages = self.run.setting("stage_1") + self.run.setting("stage_2")
        return stages / self.run.setting("decay")

    def boundaries(self, r):
        """Noise below which theory learns Q at each r, after long times and within T."""
        task, decay = self.run.built[0], self.run.setting("decay")
        ends = {"infinite_time": math.inf, "finite_time": self.eta_time}
        line = odes.two_stage.thresholds.finite_time_boundary
        with jax.enable_x64(True):
            boundaries = {name: np.asarray(line(task, decay, end, r)) for name, end in ends.items()}
        return {"r": r, **boundaries}

    def draw(self, data):
        theory = sweeps.valid(data["ode"]).auc_Q.transpose("tau", "r")
        trained = sweeps.valid(data["simulation"]).mean("seed").transpose("tau", "r")
        line = self.boundaries(trained.r.values)["finite_time"]
        report = {side: count(trained[auc], line) for side, auc in SIDES.items()}
        lines = self.boundaries(np.geomspace(*self.AXES["r"], 200))
        figure, ((ax,),) = drawing.panels(1, 1, width=6, height=5.2)
        style = {"x": "tau", "xscale": "log", "yscale": "log", "extend": "neither", **COLOURS}
        theory.plot.pcolormesh(ax=ax, rasterized=True, cbar_kwargs={"label": "AUC of Q"}, **style)
        limits = {"xlim": ax.get_xlim(), "ylim": ax.get_ylim()}
        # A black edge within a white one is visible on all colours.
        for size, edge in ((110, "white"), (70, "black")):
            style = {"s": size, "edgecolors": edge, "linewidths": 1.5, "zorder": 3, **COLOURS}
            trained.plot.scatter(x="tau", y="r", hue="auc_Q", ax=ax, add_colorbar=False, **style)
        finite = rf"$gT = \ln(\sigma / r^2\tau)$, T = {self.eta_time:g}"
        labels = {"infinite_time": r"$g = 0$: the limit of long times", "finite_time": finite}
        for (name, label), ls in zip(labels.items(), ("-", "--"), strict=True):
            style = {"ls": ls, "lw": 1.6, "label": label, "path_effects": drawing.cased()}
            ax.plot(lines[name], lines["r"], "k", **style)
        for axis in (ax.xaxis, ax.yaxis):
            drawing.ticks(axis, (0.05, 0.1, 0.2, 0.5, 1, 1.5, 2, 3, 5))
        ax.set(**limits, xlabel=r"noise $\tau \propto \sqrt{\eta}$", ylabel="shift $r$ of Q")
        ax.set_title(rf"AUC of Q at $\eta$-time {self.eta_time:g} by the reduced ODE")
        training = f"training, {self.seeds} {'run' if self.seeds == 1 else 'runs'} each"
        mark = drawing.key(training, marker="o", ms=9, mec="black", mfc="none", ls="")
        drawing.below(figure, [*ax.get_legend_handles_labels()[0], mark], 2)
        arrays = {"theory": {"tau": theory.tau, "r": theory.r, "auc": theory}, "lines": lines}
        arrays["simulation"] = {"tau": trained.tau, "r": trained.r, "auc": trained.auc_Q}
        arrays["simulation"]["auc_signal"] = trained.auc_Q_signal
        text = [f"AUC of Q by the {name}: {SENTENCE.format(**n)}" for name, n in report.items()]
        return sweeps.Picture(figure, arrays, "\n".join(text), report=report)


def count(auc, line):
    """Count points of training that behave as their side of the `line` predicts; those within a
    cell of the grid are near it. Noise in the weights lowers the AUC, but not the signal's."""
    log_tau = np.log(auc.tau)
    distance, cell = log_tau - np.log(auc.r.copy(data=line)), float(log_tau[1] - log_tau[0])
    below, above = distance < -cell, distance > cell
    points = {"near": ~(below | above), "learned_side": below, "learned": below & (auc > LEARNED)}
    points |= {"other_side": above, "unlearned": above & (auc < UNLEARNED)}
    return {name: int(each.sum()) for name, each in points.items()}
