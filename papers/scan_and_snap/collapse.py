"""Theorem 1: f_n . g_n is gamma(t), whose peak depends only on K, M and eta_Y.

So measured peaks lie on one line over their closed form (Lemma 9), whatever else varies. We vary
what the theorem describes, the numbers of classes and tokens and the rate, and what it neglects:
overlap, momentum, batch and length.
"""

from typing import Annotated, Literal

import annotated_types as at
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import xarray as xr

import dynsim
import sweeps
from papers.scan_and_snap import families, peaks
from sweeps import drawing

MARKS = {
    "exact flow (T, batch = ∞)": {},
    "exact descent (T, batch = ∞)": {"marker": "x", "ls": ""},
    "closed form, peak found in the same way": {"color": "0.75", "lw": 4},
}


class Collapse(sweeps.Figure):
    """Time of the peak of f_n . g_n against its closed form, over K, M, eta_Y and more.

    Attributes:
        families: which of size, overlap, momentum and sampling (batch and length); all if omitted,
            none if a task is given.
        seeds: number of runs at each point.
        task: sequence classes to vary over batch and length instead.
    """

    NAME = "collapse"

    families: tuple[Literal["size", "overlap", "momentum", "sampling"], ...] = ()
    seeds: Annotated[int, at.Ge(1)] = 3
    task: dynsim.Task | None = None

    def chosen(self):
        own = {} if self.task is None else {"task": families.of_task(self.task)}
        names = self.families or (() if own else families.FAMILIES)
        return {name: families.FAMILIES[name] for name in names} | own

    def sweeps(self):
        plans = {n: families.of_family(each, self.seeds) for n, each in self.chosen().items()}
        return {f"{n}-{theory}": s for n, plan in plans.items() for theory, s in plan.items()}

    def draw(self, data):
        chosen, plan = self.chosen(), self.sweeps()
        times = {name: peaks.times_of(name, plan, data) for name in chosen}
        table = [line for name, each in times.items() for line in peaks.lines(name, each)]
        rows = min(len(chosen), 2)
        width = 1 + -(-len(chosen) // rows)
        figure = plt.figure(figsize=(3.6 * width, 0.8 + 3.6 * rows), layout="constrained")
        names = [*chosen, *["."] * ((width - 1) * rows - len(chosen))]
        grid = figure.subplot_mosaic([["all", *names[row::rows]] for row in range(rows)])
        for place, (name, each) in enumerate(times.items()):
            mean, predicted = xr.broadcast(each.simulation.mean("seed"), each.predicted)
            style = {"color": drawing.colour(place), "ms": 6, "mfc": "none"}
            style["label"] = chosen[name].title
            grid["all"].plot(predicted.values.ravel(), mean.values.ravel(), "os^Dv"[place], **style)
            plot_deviation(each, chosen[name], grid[name])
        ends = np.concatenate([each.predicted.values.ravel() for each in times.values()])
        line = np.array([ends.min() / 1.3, ends.max() * 1.3])
        grid["all"].plot(line, line, color="k", lw=1, zorder=0, label="y = x (theory)")
        for which in "xy":
            drawing.logarithmic(grid["all"], which, line)
        steps = "peak (optimiser steps)"
        labels = {"xlabel": f"closed-form {steps}", "ylabel": f"measured {steps}"}
        title = r"peak of $f_n \cdot g_n$, simulation"
        drawing.finished(grid["all"], {}, title=title, **labels)
        runs = "mean, s.d." if self.seeds > 1 else "one run"
        marks = {f"simulation ({runs}; shifted right for visibility)": {"marker": "o", "ls": ""}}
        keys = [drawing.key(name, **style) for name, style in (marks | MARKS).items()]
        drawing.below(figure, keys, 2)
        arrays = {name: each.variables for name, each in times.items()}
        text = pd.DataFrame(table, columns=peaks.COLUMNS).to_string(index=False)
        return sweeps.Picture(figure, arrays, text, [peaks.COLUMNS, *table])


def plot_deviation(times, family, ax):
    """Deviations over the predicted time, for each variant of a family."""
    stacked = times.stack(variant=[d for d in times.predicted.dims if d != "eta_y"])
    for i, colour in enumerate(drawing.shades(stacked.sizes["variant"])):
        one = stacked.isel(variant=i)
        label = family.label.format(**{name: float(one[name]) for name in family.axes})
        x, error = one.predicted.values, peaks.deviation(one, "simulation")
        std = error.std("seed", ddof=1) if error.sizes["seed"] > 1 else None
        ax.plot(x, peaks.deviation(one, "gamma"), color="0.75", lw=4, zorder=0)
        # A curve that is the same for all variants is grey.
        exact = "0.4" if "batch" in family.axes else colour
        ax.plot(x, peaks.deviation(one, "symmetric"), "-", color=exact, lw=1)
        ax.plot(x, peaks.deviation(one, "symmetric-descent"), "x", color=exact, ms=7)
        apart = x * 1.03 ** (i + 1)  # so that error bars do not cover one another
        style = {"color": colour, "ms": 4, "capsize": 2, "label": label}
        ax.errorbar(apart, error.mean("seed"), std, fmt="o", **style)
    ax.axhline(0, color="k", lw=0.8, zorder=0)
    ax.set_yscale("symlog", linthresh=1)
    drawing.logarithmic(ax, "x", times.predicted.values)
    ax.margins(y=0.12)
    # Leave room for the legend above the curves.
    ax.set_ylim(top=10 * max(ax.get_ylim()[1], 1))
    ax.yaxis.set_major_formatter("{x:g}")
    place = {"framealpha": 0.6, "loc": "upper center", "ncols": 2, "handlelength": 1}
    place |= {"handletextpad": 0.5, "columnspacing": 1}
    xlabel, ylabel = "closed-form peak (optimiser steps)", "measured / closed form − 1 (%)"
    drawing.finished(ax, place, title=family.title, xlabel=xlabel, ylabel=ylabel)
