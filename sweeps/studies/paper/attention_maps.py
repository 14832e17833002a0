"""Figs. 4 and 5 of Scan and Snap: attention on Syn-Small during training and on the optimiser's
flow, for SGD and Adam."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from dynsim import Task
from sweeps import output
from sweeps.output import drawing
from sweeps.runner.labels import valid
from sweeps.runner.spec import Sweep, load
from sweeps.studies import by_theory, computed, on_task

FLOWS = {"fig4": "matched", "fig5": "matched-adam"}
"""The flow that describes the optimiser of each figure, with T and batch infinite."""
SMALLEST = 1e-4
"""Smallest attention that colours distinguish."""
MOST_CLASSES = 6
"""Largest number of classes drawn, in two rows each."""


@dataclasses.dataclass(frozen=True)
class _Maps:
    """Settings of both figures.

    Attributes:
        task: sequence classes; Syn-Small if omitted. Only the first 6 classes are drawn.
    """

    name: ClassVar[Literal["fig4", "fig5"]]
    task: Task | None = None

    def sweeps(self) -> dict[str, Sweep]:
        """Training and the flow of its optimiser."""
        sweep = on_task(load(self.name), self.task)
        return {"simulation": sweep, "flow": by_theory(sweep, FLOWS[self.name])}


@dataclasses.dataclass(frozen=True)
class Figure4(_Maps):
    """Attention c_n of each class by SGD with momentum and on its flow, eta_Y = 1 and 10.

    Attributes:
        out: folder for the figure, fig4.npz and the stored sweeps.
    """

    name = "fig4"
    out: Path = Path("out/fig4")


@dataclasses.dataclass(frozen=True)
class Figure5(_Maps):
    """Attention c_n of each class by Adam and on Adam's flow, rates 0.1, 0.5 and 1.

    Attributes:
        out: folder for the figure, fig5.npz and the stored sweeps.
    """

    name = "fig5"
    out: Path = Path("out/fig5")


def run(config: Figure4 | Figure5) -> list[Path]:
    """Run or resume the sweeps, draw and write the figure."""
    stored, sweep = computed(config), config.sweeps()["simulation"]
    # A sweep with a single rate for both groups is drawn over that of Y.
    stored = {name: data.rename({next(iter(sweep.axes)): "eta_y"}) for name, data in stored.items()}
    found = {"training": stored["simulation"].isel(seed=0), "flow": valid(stored["flow"])}
    layer: Any = sweep.first.problem
    rates = sweep.first.rule.build().schedules
    eta_z = float(np.asarray(rates["Z"].peak)) if "Z" in rates else None
    used = np.flatnonzero(np.asarray(layer.classes.probs).any(0))
    arrays = {
        "attention": found["training"].attention,
        "attention_flow": found["flow"].attention,
        "eta_y": found["training"].eta_y,
        "time": found["training"].time,
        "tokens_drawn": used,
    }
    figure = draw(found, used, eta_z)
    return output.write(config.out, config.name, figure=figure, arrays=arrays)


def draw(found: Mapping[str, xr.Dataset], used: np.ndarray, eta_z: float | None) -> Figure:
    """Draw a column for each rate, and for each class two rows, training and flow, with attention
    on the tokens `used`. The rate of Z is that of Y unless `eta_z` is given."""
    rates = found["training"].eta_y.values
    classes = min(found["training"].sizes["class"], MOST_CLASSES)
    rows = [(source, n) for n in range(classes) for source in found]
    width, height = 3 + 1.2 / len(rates), 1.8 + 0.4 / len(rows)
    figure, axes = drawing.panels(len(rows), len(rates), width, height, sharex=True, sharey=True)
    low, high = limits(np.concatenate([each.attention.values.ravel() for each in found.values()]))
    for row, (source, n) in zip(axes, rows, strict=True):
        for ax, rate in zip(row, rates, strict=True):
            panel = found[source].sel(eta_y=rate)
            mesh = plot(panel.attention.isel({"class": n, "token": used}), low, high, ax=ax)
            other = rate if eta_z is None else eta_z
            rates_used = rf"$\eta_Y = {rate:g}$, $\eta_Z = {other:g}$"
            ax.set_title(f"{source}, class {n}, {rates_used}")
    drawing.outer(axes, "optimiser step (not to scale)", "token")
    label = "attention $c_{nl}$ (grey: token is not in the class)"
    extend = "min" if low == SMALLEST else "neither"
    bar = figure.colorbar(mesh, ax=axes, label=label, extend=extend, aspect=40)
    steps = np.outer([1e-4, 1e-3, 0.01, 0.1], [1, 2, 5]).ravel()
    drawing.ticks(bar.ax.yaxis, (each for each in steps if low <= each <= high))
    return figure


def limits(attention: np.ndarray) -> tuple[float, float]:
    """Return the colour limits: the smallest attention, at least `SMALLEST`, and the largest."""
    present = attention[attention > 0]
    return max(SMALLEST, float(present.min())), float(present.max())


def plot(attention: xr.DataArray, low: float, high: float, ax: Axes) -> QuadMesh:
    """Draw a heat map of attention (time, token) on a logarithmic colour scale from `low` to
    `high`, as it spans orders of magnitude. Tokens without attention at the first time, which are
    not in the class, are grey. Returns the mesh, for a colour bar."""
    absent = np.broadcast_to(attention.isel(time=0).values == 0, attention.shape)
    values = np.ma.array(np.clip(attention.values, low, None), mask=absent).T
    columns = np.arange(attention.sizes["time"])
    mesh = ax.pcolormesh(
        columns,
        attention["token"].values,
        values,
        norm=LogNorm(low, high),
        cmap=plt.get_cmap("viridis").with_extremes(bad="0.8"),
        rasterized=True,
        shading="nearest",
    )
    ax.set_xticks(columns[::2], [f"{t:g}" for t in attention.time.values[::2]])
    return mesh
