"""Section 6: the learning rates set the time of the transition and the final sparsity.

Theorem 4's growth bound B has three consequences: a larger eta_Y makes the transition earlier; at
fixed eta_Z, a smaller eta_Y gives a larger final B and sparser attention; so does scaling up both
rates. We compare them with training, the exact flow and Eq. 10.
"""

from typing import Annotated

import annotated_types as at
import numpy as np
import pandas as pd

import dynsim
import sweeps
from papers.scan_and_snap import controls
from papers.scan_and_snap.controls import CONTROLS, DENSE, THEORIES
from sweeps import drawing

PANELS = {
    "eta_y": (r"$\eta_Y$ at fixed $\eta_Z$", r"\eta_Y", "falls"),
    "eta_z": (r"$\eta_Z$ at fixed $\eta_Y$", r"\eta_Z", "rises"),
    "both": (r"both at $\eta_Y = 10\,\eta_Z$", r"\eta_Y", "rises"),
}
"""Title of a column, the rate across, and the final B according to the paper."""
FLOW = {"lw": 1.2, "path_effects": drawing.cased(0.5)}
"""Lines of the flow, with a white edge so that they show on those of training."""
MARKS = {
    "simulation (mean), s.d. as band": {"lw": 2.5},
    "exact flow": {"ls": "--", **FLOW},
    "$t_0'$ to $t_0$ in closed form": {"marker": "|"},
    r"peak of $\gamma$ in closed form": {"marker": "o", "ls": ""},
}


class Snap(sweeps.Figure):
    """How eta_Y and eta_Z set the time of the transition and the final sparsity: on Syn-Small or a
    task of your own.

    Attributes:
        rates: number of values of a rate in training.
        seeds: number of runs at each of these values.
        steps: optimiser steps per run.
        task: sequence classes; Syn-Small if omitted.
    """

    NAME = "snap"

    rates: Annotated[int, at.Ge(2)] = 5
    seeds: Annotated[int, at.Ge(1)] = 4
    steps: Annotated[int, at.Ge(10)] = 1000
    task: dynsim.Task | None = None

    def sweeps(self):
        run = sweeps.experiment(task=self.task or dynsim.SynSmall(), steps=self.steps)
        return {
            f"{control}-{theory}": controls.sweep(run, control, theory, self.rates, self.seeds)
            for control in CONTROLS
            for theory in THEORIES
        }

    def draw(self, data):
        task, arrays, tables = (self.task or dynsim.SynSmall()).build(), {}, []
        figure, axes = drawing.panels(2, 3, height=3.6, sharey="row")
        for (above, below), control in zip(axes.T, CONTROLS, strict=True):
            title, symbol, final = PANELS[control]
            column = {
                theory: controls.by_rate(data[f"{control}-{theory}"], control, task)
                for theory in THEORIES
            }
            plot_curves(column["simulation"], column["symmetric"], symbol, above)
            plot_final(column, below)
            above.set_title(title)
            below.set(xlabel=f"${symbol}$", title=f"paper: final B {final}")
            arrays |= {f"{control}/{theory}": each.variables for theory, each in column.items()}
            tables += [controls.table(each, control, theory) for theory, each in column.items()]
        # Room for the legends below the curves.
        axes[1, 0].set_ylim(bottom=axes[1, 0].get_ylim()[0] / 6)
        axes[0, 0].set_ylabel("entropy on distinct tokens (nat)")
        axes[1, 0].set_ylabel("final gain of the top distinct logit")
        drawing.below(figure, [drawing.key(name, **style) for name, style in MARKS.items()], 4)
        table = pd.concat(tables)
        text = table.to_string(index=False, float_format="{:.5g}".format)
        cells = table.map(lambda each: each if isinstance(each, str) else f"{each:.5g}")
        return sweeps.Picture(figure, arrays, text, [[*cells], *cells.values.tolist()])


def plot_curves(trained, flow, symbol, ax):
    """Entropy over time, with a colour and a bar from t0' to t0 for each trained rate."""
    for i, colour in enumerate(drawing.shades(trained.sizes["rate"])):
        one, exact = trained.isel(rate=i, time=slice(1, None)), flow.isel(rate=DENSE * i)
        style = {"color": colour, "lw": 2.5, "label": f"${symbol}$ = {float(one.rate):.3g}"}
        drawing.band(ax, one.time, one.entropy, style)
        ax.plot(exact.time[1:], exact.entropy[1:], "--", color=colour, **FLOW)
        height, bar = 0.04 + 0.03 * i, {"color": colour, "transform": ax.get_xaxis_transform()}
        ax.plot([float(one.rise_end), float(one.snap)], [height] * 2, "-|", **bar)
        ax.plot(float(one.peak), height, "o", ms=4, **bar)
    labels = {"xlabel": "optimiser steps", "xlim": (0.2, float(trained.time[-1]))}
    drawing.finished(ax, {"loc": "center left"}, xscale="log", **labels)


def plot_final(column, ax):
    """Final logit gain against the rate, and the bound B of Eq. 10, which its gain cannot exceed
    (Theorem 3). Slopes are exponents."""
    lines = [(title, column[name], "z_top_distinct") for name, title in THEORIES.items()]
    lines.append(("bound B, Eq. 10", column["eq10"], "B"))
    colours = ("k", *(drawing.colour(place) for place in (0, 1, 1)))
    for (title, data, name), fmt, colour in zip(lines, ("o", "--", ":", "-"), colours, strict=True):
        final = controls.final(data, name)
        rate, mean, std = (each.values for each in (final.rate, final["mean"], final["std"]))
        slope, _ = np.polyfit(np.log(rate), np.log(mean), 1)  # exponent of the rate
        style = {"fmt": fmt, "color": colour, "label": f"{title}: slope ${slope:+.2f}$"}
        ax.errorbar(rate, mean, std if std.any() else None, capsize=2, **style)
    drawing.finished(ax, {}, xscale="log", yscale="log")
