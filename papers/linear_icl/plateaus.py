"""Where heads learn components one at a time (section 5), by training and by eq. 21 [ours].

The upper row shows the number of plateaus, and the time of the first escape over its prediction,
over the starting scale and the ratio of neighbouring eigenvalues. The lower row varies the heads.
"""

from typing import Annotated

import annotated_types as at
import numpy as np
import xarray as xr

import sweeps
from papers import linear_icl
from sweeps import drawing

THEORIES = ("simulation", "scalar")
COMPONENTS, SMALLEST, STEPS, RATE = 3, 0.02, 20_000, 0.25
HEADS = (1, 2, 3, 4, 6, 8)


class Plateaus(sweeps.Figure):
    """Count plateaus over starting scale and ratio of eigenvalues, in training and by theory.

    Attributes:
        resolution: number of starting scales, and of ratios of neighbouring eigenvalues.
        seeds: number of runs at each point.
    """

    NAME = "linear_icl_plateaus"

    resolution: Annotated[int, at.Ge(2)] = 24
    seeds: Annotated[int, at.Ge(1)] = 8

    def sweeps(self):
        settings = {"D": COMPONENTS, "spectrum": "geometric", "eta": RATE, "steps": STEPS}
        run = sweeps.experiment("linear_icl", heads=4, batch=float("inf"), **settings)
        scale = {"scale": {"logspace": [SMALLEST, 1.0, self.resolution]}}
        ratio = {"ratio": {"logspace": [0.4, 1.0, self.resolution]}, "seed": {"range": self.seeds}}
        small = run.at({"scale": SMALLEST})
        return {
            f"{row}{theory}": sweeps.Sweep(each, first | ratio, theory, ("loss",), 160)
            for theory in THEORIES
            for row, each, first in (("", run, scale), ("heads/", small, {"heads": HEADS}))
        }

    def draw(self, data):
        read = {name: linear_icl.measured(data[name], each) for name, each in self.sweeps().items()}
        grid, heads = ([read[f"{row}{name}"] for name in THEORIES] for row in ("", "heads/"))
        figure, axes = drawing.panels(2, 3, height=3.3, sharey=True)
        number = f"number of plateaus (at most {COMPONENTS + 1}),\n"
        right = heads[0].plateaus == heads[1].plateaus
        for ax, values, title in (
            (axes[0, 0], grid[0].plateaus, f"{number}descent"),
            (axes[0, 1], grid[1].plateaus, f"{number}eq. 21"),
            (axes[1, 0], heads[0].plateaus, f"{number}descent"),
            (axes[1, 1], right, "share of runs with as many\nplateaus as eq. 21 predicts"),
        ):
            most = 1 if values.dtype == bool else COMPONENTS + 1
            heat_map(ax, title, values.mean("seed"), vmin=0, vmax=most, cmap="cividis")
        for ax, (trained, theory) in zip(axes[:, 2], (grid, heads), strict=True):
            late = np.log2(trained.escape / theory.escape).median("seed")
            title = "time of first escape,\ndescent / eq. 21"
            bar = heat_map(ax, title, late, vmin=-2, vmax=2, cmap="PuOr")
            bar.set_ticks([-2, -1, 0, 1, 2], labels=["1/4", "1/2", "1", "2", "4"])
        middle = grid[1].escape.median("seed").transpose("ratio", "scale")
        style = {"colors": "k", "linestyles": "--", "linewidths": 1}
        for above, below in axes.T:
            few = HEADS.index(COMPONENTS) - 0.5
            below.axvline(few, color="k", ls="--", path_effects=drawing.cased())
            lines = above.contour(middle.scale, middle.ratio, middle, (10, 100, 1000), **style)
            lines.set(path_effects=drawing.cased())
            for text in above.clabel(lines, fmt=r"%g $\tau$", fontsize="small"):
                text.set(path_effects=drawing.cased())
        drawing.outer(axes, "number of heads", "ratio of neighbouring\neigenvalues")
        figure.suptitle(
            f"D = {COMPONENTS}, {2 * RATE * STEPS:g} $\\tau$. Top: 4 rank-one heads; dashed: first "
            f"escape by eq. 21. Bottom: starting scale {SMALLEST:g};\nleft of the line there are "
            "fewer heads than components. Means over seeds (right: medians)"
        )
        text = f"{summary(grid, 'scale')}\n{summary(grid, 'ratio')}\n{summary(heads, 'heads')}"
        share = 100 * float((grid[0].plateaus == grid[1].plateaus).mean())
        text += f"\nas many plateaus as eq. 21 predicts, upper row: {share:.1f} % of the runs"
        return sweeps.Picture(figure, read | {n: grid[0][n] for n in ("scale", "ratio")}, text)


def summary(runs, axis):
    """Table over one axis: how often eq. 21 is right about the plateaus, and its first escape."""
    trained, theory = runs
    others = [dim for dim in trained.plateaus.dims if dim != axis]
    off = abs(np.log2(trained.escape / theory.escape)).median(others)
    most = np.minimum(trained.get("heads", COMPONENTS), COMPONENTS)  # a head learns one component
    over = (trained.end - trained.level.isel(plateau=most)) / trained.level.isel(plateau=0)
    columns = {
        "plateaus": trained.plateaus.mean(others),
        "as many as eq. 21 (%)": 100 * (trained.plateaus == theory.plateaus).mean(others),
        "first escape off by a factor": 2**off,
        "last plateau reached (%)": 100 * (over < 0.02).mean(others),
    }
    return xr.Dataset(columns).to_dataframe().to_string(float_format="%.2f")


def heat_map(ax, title, values, **style):
    """Draw a map over the scale or the heads, and the ratio; return its colour bar."""
    style |= {"y": "ratio", "yscale": "log", "add_colorbar": False, "add_labels": False}
    if "scale" in values.dims:
        mesh = values.plot.pcolormesh(x="scale", xscale="log", ax=ax, rasterized=True, **style)
        ax.set_xlabel("standard deviation\nof a starting weight")
    else:
        values = values.assign_coords(heads=range(len(HEADS)))
        mesh = values.plot.pcolormesh(x="heads", ax=ax, rasterized=True, **style)
        ax.set_xticks(values.heads, HEADS)
    ax.set_title(title)
    drawing.ticks(ax.yaxis, (0.4, 0.5, 0.6, 0.8, 1.0))
    return ax.figure.colorbar(mesh, ax=ax)
