"""The picture of the edge of stability."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dynsim import Status
from dynsim.problem.sharpness import EDGE
from sweeps.output import drawing
from sweeps.studies.phase.regions import BY_EDGE
from sweeps.studies.transitions.edge.measure import SMOOTH, averaged

STYLES = {
    "flow": {"label": "gradient flow", "ls": ":", "lw": 1.8},
    "central": {"label": "central flow", "ls": "--", "lw": 1.4},
}


def draw(
    found: Mapping[str, xr.Dataset],
    losses: Mapping[str, str],
    maps: xr.Dataset | None,
    system: str,
) -> Figure:
    """Sharpness above, loss below, a column for each rate; below them the maps, if there are."""
    rates = found["training"].eta.values
    size = (max(2.1 * len(rates), 6), 9.5 if maps is not None else 5.5)
    figure = plt.figure(figsize=size, layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=(5.5, 4)) if maps is not None else (figure,)
    axes = parts[0].subplots(2, len(rates), sharex=True, sharey="row", squeeze=False)
    for column, rate in zip(axes.T, rates, strict=True):
        runs = {name: each.sel(eta=rate) for name, each in found.items()}
        for ax, sharp in zip(column, (True, False), strict=True):
            names = {n: "preconditioned_sharpness" if sharp else losses[n] for n in runs}
            _curves(ax, runs, names)
        column[0].axhline(EDGE, color="0.4", lw=0.8)
        diverged = int(runs["training"].status) != Status.OK
        heading = rf"$\eta$ = {rate:g}" + ("\ndiverges" if diverged else "")
        drawing.finished(column[0], title=heading)
        drawing.finished(column[1], yscale="log")
    axes[0, 0].set_ylim(0, 2 * EDGE)
    drawing.outer(axes, "optimiser steps", "loss")
    axes[0, 0].set_ylabel(r"$\eta \times$ sharpness")
    for ax in axes[1]:
        ax.xaxis.set_major_locator(MaxNLocator(2))
    lines = axes[0, 0].get_lines()[:4]
    parts[0].legend(handles=lines, loc="outside lower center", ncols=4)
    figure.suptitle(f"{system}: descent on all of the data, mean of {SMOOTH} steps (blue)")
    if maps is not None:
        _maps(parts[1], maps)
    return figure


def _curves(ax: Axes, runs: Mapping[str, xr.Dataset], names: Mapping[str, str]) -> None:
    """Training at every step, its mean, and both flows."""
    training = runs["training"]
    times, values = training.time.values, training[names["training"]].values
    ax.plot(times, values, color="0.6", lw=0.6, label="training")
    mean = averaged(values, SMOOTH)
    begin = SMOOTH // 2
    first, second = drawing.colour(0), drawing.colour(1)
    ax.plot(times[begin : begin + len(mean)], mean, color=first, lw=1.6, label="its mean")
    for (name, style), colour in zip(STYLES.items(), (second, "k"), strict=True):
        ax.plot(runs[name].time, runs[name][names[name]], color=colour, **style)


def _maps(part: Any, maps: xr.Dataset) -> None:
    """Regions by theory and by training."""
    legend = BY_EDGE.legend.values()
    colours = ListedColormap([colour for _, colour in legend])
    norm = BoundaryNorm(np.arange(len(legend) + 1) - 0.5, len(legend))
    axes = part.subplots(1, 2, sharey=True)
    scale, eta = maps.theory.dims
    for ax, name in zip(axes, ("theory", "training"), strict=True):
        ax.pcolormesh(
            maps[eta], maps[scale], maps[name], cmap=colours, norm=norm, shading="nearest"
        )
        drawing.finished(ax, title=f"by {name}", xscale="log")
        drawing.logarithmic(ax, "y", maps[scale].values)
        ax.set_xlabel(r"learning rate $\eta$")
    axes[0].set_ylabel("scale of the starting weights")
    keys = [drawing.key(n, color=c, marker="s", ls="") for n, c in legend]
    part.legend(handles=keys, loc="outside right center")
