"""`dynsim figure linear_icl_plateaus`: where heads learn components one at a time [ours].

The upper row maps plateaus in training, plateaus by eq. 21, and the first escape over its
prediction, over the starting scale and the ratio of neighbouring eigenvalues. The lower row varies
the number of heads; fewer heads than components leave some unlearned.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure

from dynsim.decoding import Count
from sweeps import output
from sweeps.output import drawing
from sweeps.output.cells import cell_edges
from sweeps.runner.labels import valid
from sweeps.runner.spec import Sweep
from sweeps.studies import computed, linear_icl
from sweeps.studies.options import Several, heat_map
from sweeps.systems.experiment import experiment

LEFT = 0.02
"""Largest excess loss, as a share of the first, at which the last plateau counts as reached."""


def excess(read: xr.Dataset, D: int) -> xr.DataArray:
    """Final loss above the lowest plateau that the heads can reach (eq. 19 with min(H, D)
    components), over the loss at the start."""
    lowest = read.level.isel(plateau=np.minimum(read.heads, D))
    return (read.end - lowest) / read.level.isel(plateau=0)


def counted_right(read: Mapping[str, xr.Dataset]) -> xr.DataArray:
    """Return whether descent rests on as many plateaus as eq. 21 predicts."""
    return read["heads/simulation"].plateaus == read["heads/scalar"].plateaus


def table_by_heads(read: Mapping[str, xr.Dataset], D: int) -> list[str]:
    """Summarise each number of heads in one line."""
    trained = read["heads/simulation"]
    over, late = excess(trained, D), np.log2(trained.escape / read["heads/scalar"].escape)
    lines = []
    for number in trained.heads.values:
        same, rest, time = (x.sel(heads=number) for x in (counted_right(read), over, late))
        seen = float(trained.plateaus.sel(heads=number).mean())
        share, reached = 100 * float(same.mean()), 100 * float((rest < LEFT).mean())
        lines.append(
            f"{number} heads, D = {D}: {seen:.2f} plateaus, as many as eq. 21 says in "
            f"{share:.0f} %; first escape off by a factor {2 ** float(abs(time).median()):.2f}; "
            f"last plateau reached in {reached:.0f} %"
        )
    return lines


TIMES = 160
LINES = (10, 100, 1000)
"""Predicted times of first escape, in tau, at which contour lines are drawn."""


@dataclasses.dataclass(frozen=True)
class LinearICLPlateaus:
    """Count plateaus over starting scale and ratio of eigenvalues, in training and by theory.

    Attributes:
        scale: first and last standard deviation of the starting weights, logarithmic.
        ratio: first and last ratio of neighbouring eigenvalues, logarithmic.
        resolution: number of values on each of these two axes.
        seeds: number of runs at each point.
        D: dimension of x.
        heads: number of heads of the upper row.
        head_counts: numbers of heads of the lower row, which starts from the smallest scale.
        steps: optimiser steps per run, on the population loss.
        eta: learning rate.
        out: folder for the figure, linear_icl_plateaus.npz and the stored sweeps, from which the
            command resumes.
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
        """Training and theory for the same runs."""
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
    """Compute or resume, print how often theory counts the plateaus correctly, draw and write."""
    found, wanted = computed(config), config.sweeps()
    read = {name: measured(ds, wanted[name]) for name, ds in found.items()}
    trained, theory = read["simulation"], read["scalar"]
    same = trained.plateaus == theory.plateaus
    late = lateness(read)
    print("\n".join([*table(same, late), *table_by_heads(read, config.D)]))
    arrays = {**read, **{name: trained[name] for name in ("scale", "ratio")}}
    figure = draw(config, read)
    return output.write(config.out, "linear_icl_plateaus", figure=figure, arrays=arrays)


def lateness(read: Mapping[str, xr.Dataset], at: str = "") -> xr.DataArray:
    """log2 of the first escape time in descent over that by eq. 21; NaN if either has none."""
    return np.log2(read[f"{at}simulation"].escape / read[f"{at}scalar"].escape)


def draw(config: LinearICLPlateaus, read: Mapping[str, xr.Dataset]) -> Figure:
    """Draw both rows, over the scale and over the number of heads, from the output of `measured`:
    plateaus in descent, plateaus by eq. 21 or its agreement, and the first escape."""
    figure, rows = drawing.panels(2, 3, height=3.3, sharey=True)
    count = {"vmin": 0, "vmax": config.D + 1, "cmap": "cividis"}
    share, late = {**count, "vmax": 1}, {"vmin": -2, "vmax": 2, "cmap": "PuOr"}
    of = f"number of plateaus (at most {config.D + 1})"
    predicted = {f"{of},\neq. 21": (read["scalar"].plateaus.mean("seed"), count)}
    as_many = "share of runs with as many\nplateaus as eq. 21 predicts"
    right = {as_many: (counted_right(read).mean("seed"), share)}
    for row, at, middle in zip(rows, ("", "heads/"), (predicted, right), strict=True):
        trained = read[f"{at}simulation"].plateaus.mean("seed")
        escape = lateness(read, at).median("seed")
        panels = {f"{of},\ndescent": (trained, count), **middle}
        panels["time of first escape,\ndescent / eq. 21"] = escape, late
        for ax, (title, (values, style)) in zip(row, panels.items(), strict=True):
            bar = figure.colorbar(plot_map(values, ax, **style), ax=ax)
            ax.set_title(title)
        bar.set_ticks([-2, -1, 0, 1, 2], labels=["1/4", "1/2", "1", "2", "4"])
        row[0].set_ylabel("ratio of neighbouring\neigenvalues")
    few = int(np.sum(np.array(config.head_counts) < config.D))
    middle = read["scalar"].escape.median("seed").transpose("ratio", "scale")
    for above, below in rows.T:
        below.axvline(few - 0.5, color="k", ls="--", path_effects=drawing.cased())
        lines: dict[str, Any] = {"colors": "k", "linestyles": "--", "linewidths": 1}
        drawn = above.contour(middle.scale, middle.ratio, middle, LINES, **lines)
        drawn.set(path_effects=drawing.cased())
        for text in above.clabel(drawn, fmt=r"%g $\tau$", fontsize="small"):
            text.set(path_effects=drawing.cased())
    length = 2 * config.eta * config.steps
    figure.suptitle(
        f"D = {config.D}, {length:g} $\\tau$. Means over seeds (right: medians). Top: "
        f"{config.heads} rank-one heads; dashed: time of the first escape by eq. 21.\n"
        f"Bottom: starting scale {config.scale[0]:g}; left of the line there are fewer heads than "
        "components"
    )
    return figure


def table(same: xr.DataArray, late: xr.DataArray) -> list[str]:
    """Report how often eq. 21 counts the plateaus correctly and how far off its first escape is, by
    starting scale and by ratio of eigenvalues."""
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
    """Number of plateaus, time of first escape in units of tau, and final loss of each run, over
    scale or heads, ratio and seed."""
    runs = tuple(sweep.axes)
    ordered = valid(dataset)["loss"].transpose(*runs, "time").isel(time=slice(1, None))
    level = linear_icl.levels(sweep.first, ordered.ratio.values)[None, :, None, :]
    loss, times = ordered.values, ordered.time.values * linear_icl.rate(sweep.first)
    level = np.broadcast_to(level, (*loss.shape[:-1], level.shape[-1]))
    coords = {name: ordered[name] for name in runs}
    return xr.Dataset(
        {
            "plateaus": (runs, linear_icl.count_plateaus(times, loss, level)),
            "escape": (runs, linear_icl.escapes(times, loss, level)[..., 0]),
            "end": (runs, loss[..., -1]),
            "level": (("ratio", "plateau"), level[0, :, 0]),
        },
        coords,
    )


def plot_map(values: xr.DataArray, ax: Axes, **options: Any) -> QuadMesh:
    """Draw a heat map over the scale or the heads, and the ratio; return its mesh."""
    if "heads" in values.dims:
        numbers = values.heads.values
        places = np.arange(numbers.size)
        values = values.assign_coords(heads=places).transpose("heads", "ratio")
        mesh = heat_map(ax, values, **options)
        ax.set_xticks(places, [str(number) for number in numbers])
        ax.set_xlabel("number of heads")
    else:
        mesh = heat_map(ax, values.transpose("scale", "ratio"), "log", **options)
        ax.set(xscale="log", xlabel="standard deviation\nof a starting weight")
    ax.set_yscale("log")
    low, *_, high = cell_edges(values.ratio, "log")
    drawing.ticks(ax.yaxis, (t for t in (0.3, 0.4, 0.5, 0.6, 0.8, 1.0) if low <= t <= high))
    return mesh
