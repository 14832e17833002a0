"""`dynsim figure linear_icl_plateaus`: where heads learn components one at a time [ours].

Over the scale of the starting weights and the ratio of neighbouring eigenvalues: how many plateaus
training rests at, how many eq. 21 says, and the first escape against its prediction. Below it over
the number of heads, where fewer than components leave some unlearned.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dynsim.decoding import Count
from sweeps import output
from sweeps.output import drawing
from sweeps.runner.labels import valid
from sweeps.runner.spec import Sweep
from sweeps.studies.computing import computed
from sweeps.studies.linear_icl import heads, rests
from sweeps.studies.options import Several, cell_edges, heat_map
from sweeps.systems.experiment import experiment

TIMES = 160
TITLES = {"simulation": "descent", "scalar": "one head at a time, eq. 21"}
LINES = (10, 100, 1000)
"""Predicted first escapes, in tau, at which a line is drawn."""


@dataclasses.dataclass(frozen=True)
class LinearICLPlateaus:
    """Count plateaus over starting scale and ratio of eigenvalues, in training and by theory.

    Attributes:
        scale: first and last standard deviation of the starting weights, logarithmic.
        ratio: first and last ratio of neighbouring eigenvalues, logarithmic.
        resolution: number of values of either.
        seeds: number of runs at each point.
        D: dimension of x.
        heads: number of heads of the upper row.
        head_counts: numbers of heads of the lower row, which starts from the smallest scale.
        steps: optimiser steps of a run, on the population loss.
        eta: learning rate.
        out: directory for the picture, linear_icl_plateaus.npz and the stored sweeps, which
            resume.
    """

    scale: tuple[float, float] = (0.02, 1.0)
    ratio: tuple[float, float] = (0.4, 1.0)
    resolution: Several = 24
    seeds: Count = 8
    D: int = 3
    heads: int = 4
    head_counts: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    steps: int = 20_000
    eta: float = 0.25
    out: Path = Path("out/linear_icl_plateaus")

    def sweeps(self) -> dict[str, Sweep]:
        """Training and theory over the same runs."""
        axes: dict[str, Any] = {
            name: {"logspace": [*getattr(self, name), self.resolution]}
            for name in ("scale", "ratio")
        }
        axes["seed"] = {"range": self.seeds}
        training = experiment(
            "linear_icl",
            D=self.D,
            heads=self.heads,
            spectrum="geometric",
            eta=self.eta,
            steps=self.steps,
            batch=math.inf,
        )
        counts = {"heads": self.head_counts, **{name: axes[name] for name in ("ratio", "seed")}}
        small = training.at({"scale": self.scale[0]})
        found = {}
        for name in ("simulation", "scalar"):
            found[name] = Sweep(training, axes, name, ("loss",), TIMES)
            found[f"heads/{name}"] = Sweep(small, counts, name, ("loss",), TIMES)
        return found


def run(config: LinearICLPlateaus) -> list[Path]:
    """Compute or resume, say how often theory counts right, draw and write."""
    found, wanted = computed(config), config.sweeps()
    read = {name: measured(ds, wanted[name]) for name, ds in found.items()}
    trained, theory = read["simulation"], read["scalar"]
    same = trained.plateaus == theory.plateaus
    late = lateness(read)
    print("\n".join([*table(same, late), *heads.table(read, config.D)]))
    arrays = {**read, **{name: trained[name] for name in ("scale", "ratio")}}
    figure = draw(config, read)
    return output.write(config.out, "linear_icl_plateaus", figure=figure, arrays=arrays)


def lateness(read: Mapping[str, xr.Dataset]) -> xr.DataArray:
    """First escape of descent over that of eq. 21, in octaves; NaN where either has none."""
    return np.log2(read["simulation"].escape / read["scalar"].escape)


def draw(config: LinearICLPlateaus, read: Mapping[str, xr.Dataset]) -> Figure:
    """Both rows, from what is `measured`."""
    late, theory = lateness(read), read["scalar"]
    figure, rows = drawing.panels(2, 3, height=3.4, sharey=True)
    axes, top = rows[0], config.D + 1
    heads.plot(read, config.D, rows[1])
    for ax, name in zip(axes, TITLES, strict=False):
        mesh = plot_map(read[name].plateaus.mean("seed"), ax, vmin=0, vmax=top, cmap="cividis")
        ax.set_title(f"plateaus seen: {TITLES[name]}")
    figure.colorbar(mesh, ax=axes[:2], label=f"plateaus seen of {top}, mean over seeds")
    mesh = plot_map(late.median("seed"), axes[2], vmin=-2, vmax=2, cmap="PuOr")
    bar = figure.colorbar(mesh, ax=axes[2], label="first escape: descent over eq. 21")
    bar.set_ticks([-2, -1, 0, 1, 2], labels=["1/4", "1/2", "1", "2", "4"])
    axes[2].set_title("first escape, median over seeds")
    middle = theory.escape.median("seed").transpose("ratio", "scale")
    for ax in axes:
        lines: dict[str, Any] = {"colors": "k", "linestyles": "--", "linewidths": 1}
        drawn = ax.contour(middle.scale, middle.ratio, middle, LINES, **lines)
        ax.clabel(drawn, fmt=r"%g $\tau$", fontsize=8)
        ax.set(xlabel="standard deviation of a starting weight")
    for row in rows:
        row[0].set_ylabel("ratio of neighbouring eigenvalues")
        for ax in row:
            ax.title.set_fontsize("medium")
    length = 2 * config.eta * config.steps
    figure.suptitle(
        f"D = {config.D}, {length:g} $\\tau$; above {config.heads} rank-one heads, dashed: first "
        f"escape by eq. 21; below starting weights of {config.scale[0]:g}"
    )
    return figure


def table(same: xr.DataArray, late: xr.DataArray) -> list[str]:
    """How often eq. 21 counts the plateaus right, and how far it is from the first escape, by the
    starting scale and by the ratio of eigenvalues."""
    lines = [f"as many plateaus as eq. 21 says: {100 * float(same.mean()):.1f} % of the runs"]
    for axis in ("scale", "ratio"):
        others = [dim for dim in same.dims if dim != axis]
        right, octaves = same.mean(others), abs(late).median(others)
        for at in same[axis].values[:: max(same.sizes[axis] // 6, 1)]:
            share, error = 100 * float(right.sel({axis: at})), 2 ** float(octaves.sel({axis: at}))
            lines.append(
                f"{axis} {at:.3f}: {share:.0f} %, first escape off by a factor {error:.2f}"
            )
    return lines


def measured(dataset: xr.Dataset, sweep: Sweep) -> xr.Dataset:
    """Number of plateaus, time of the first escape in units of tau, and loss at the end, of each
    run; by scale or heads, ratio and seed."""
    runs = tuple(sweep.axes)
    ordered = valid(dataset)["loss"].transpose(*runs, "time").isel(time=slice(1, None))
    level = rests.levels(sweep.first, ordered.ratio.values)[None, :, None, :]
    loss, times = ordered.values, ordered.time.values * rests.rate(sweep.first)
    level = np.broadcast_to(level, (*loss.shape[:-1], level.shape[-1]))
    coords = {name: ordered[name] for name in runs}
    return xr.Dataset(
        {
            "plateaus": (runs, rests.seen(times, loss, level)),
            "escape": (runs, rests.escapes(times, loss, level)[..., 0]),
            "end": (runs, loss[..., -1]),
            "level": (("ratio", "plateau"), level[0, :, 0]),
        },
        coords,
    )


def plot_map(values: xr.DataArray, ax: Axes, **options):
    """Heat map over scale and ratio; returns the mesh, for a colour bar."""
    mesh = heat_map(ax, values.transpose("scale", "ratio"), "log", **options)
    ax.set(xscale="log", yscale="log")
    low, *_, high = cell_edges(values.ratio, "log")
    ax.minorticks_off()
    drawing.ticks(ax.yaxis, (t for t in (0.3, 0.4, 0.5, 0.6, 0.8, 1.0) if low <= t <= high))
    return mesh
