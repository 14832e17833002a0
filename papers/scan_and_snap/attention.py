"""Figs. 4 and 5: attention on distinct tokens becomes sparse, by SGD and by Adam.

Attention on each token of Syn-Small over 100 steps. The paper shows training; below each map we
draw the flow of the optimiser, with T and batch infinite.
"""

import dataclasses
from typing import Any, ClassVar

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm

import dynsim
import sweeps
from sweeps import drawing

SMALLEST = 1e-4
"""Smallest attention that colours distinguish."""
MOST_CLASSES = 6


class Figure4(sweeps.Figure):
    """Attention c_n of each class by SGD with momentum and on its flow, eta_Y = 1 and 10.

    Attributes:
        task: sequence classes; Syn-Small if omitted. Only the first 6 classes are drawn.
    """

    NAME = "fig4"
    FLOW: ClassVar[str] = "matched"
    RATES: ClassVar[str] = r"$\eta_Y = {0:g}$, $\eta_Z = 1$"

    task: dynsim.Task | None = None

    def sweeps(self):
        sweep = sweeps.load(self.NAME)
        if self.task is not None:
            sweep = dataclasses.replace(sweep, run=sweep.first.at({"task": self.task}))
        (rate, values), _ = sweep.axes.items()
        flow = dataclasses.replace(sweep, axes={rate: values}, theory=self.FLOW)
        return {"simulation": sweep, "flow": flow}

    def draw(self, data):
        sweep = self.sweeps()["simulation"]
        layer: Any = sweep.first.problem
        used = np.flatnonzero(np.asarray(layer.classes.probs).any(0))  # tokens of any class
        # Fig. 5 has a single rate for Y and Z.
        rename = {next(iter(sweep.axes)): "eta_y"}
        maps = {
            "training": sweeps.valid(data["simulation"]).isel(seed=0).attention.rename(rename),
            "flow": sweeps.valid(data["flow"]).attention.rename(rename),
        }
        low, high = limits(maps.values())
        rates = maps["flow"].eta_y.values
        classes = min(maps["flow"].sizes["class"], MOST_CLASSES)
        rows = [(source, n) for n in range(classes) for source in maps]
        width, height = 3 + 1.2 / len(rates), 1.8 + 0.4 / len(rows)
        figure, axes = drawing.panels(
            len(rows), len(rates), width, height, sharex=True, sharey=True
        )
        for row, (source, n) in zip(axes, rows, strict=True):
            for ax, rate in zip(row, rates, strict=True):
                panel = maps[source].sel(eta_y=rate).isel({"class": n, "token": used})
                mesh = heat_map(ax, panel, low, high)
                ax.set_title(f"{source}, class {n}, {self.RATES.format(rate)}")
        drawing.outer(axes, "optimiser step (not to scale)", "token")
        label = "attention $c_{nl}$ (grey: token is not in the class)"
        extend = "min" if low == SMALLEST else "neither"
        bar = figure.colorbar(mesh, ax=axes, label=label, extend=extend, aspect=40)
        steps = np.outer([1e-4, 1e-3, 0.01, 0.1], [1, 2, 5]).ravel()
        drawing.ticks(bar.ax.yaxis, (each for each in steps if low <= each <= high))
        arrays = {
            "attention": maps["training"],
            "attention_flow": maps["flow"],
            "eta_y": rates,
            "time": maps["flow"].time,
            "tokens_drawn": used,
        }
        apart = float(abs(maps["training"] - maps["flow"]).max())
        text = f"largest difference of attention between training and the flow: {apart:.3g}"
        return sweeps.Picture(figure, arrays, text)


class Figure5(Figure4):
    """Attention c_n of each class by Adam and on Adam's flow, rates 0.1, 0.5 and 1."""

    NAME = "fig5"
    FLOW = "matched-adam"
    RATES = r"$\eta_Y = {0:g}$, $\eta_Z = {0:g}$"


def limits(maps):
    """The smallest attention that is not zero, at least `SMALLEST`, and the largest."""
    values = np.concatenate([each.values.ravel() for each in maps])
    present = values[values > 0]
    return max(SMALLEST, float(present.min())), float(present.max())


def heat_map(ax, attention, low, high):
    """Draw attention (time, token), which spans orders of magnitude, on a logarithmic scale.
    Tokens without attention at the first time, which are not in the class, are grey."""
    absent = np.broadcast_to(attention.isel(time=0).values == 0, attention.shape)
    values = np.ma.array(np.clip(attention.values, low, None), mask=absent).T
    columns = np.arange(attention.sizes["time"])
    colours = plt.get_cmap("viridis").with_extremes(bad="0.8")
    style = {"norm": LogNorm(low, high), "cmap": colours, "rasterized": True}
    mesh = ax.pcolormesh(columns, attention.token, values, shading="nearest", **style)
    ax.set_xticks(columns[::2], [f"{t:g}" for t in attention.time.values[::2]])
    return mesh
