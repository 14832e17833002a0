"""Every rung of the ladder against simulation, for one task: `dynsim figure ladder`."""

import dataclasses
import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from dynsim.yz import finite_length
from odes.theory import refusal
from odes.yz import ladder
from sweeps import output
from sweeps.compare import panels as comparison
from sweeps.compare import report
from sweeps.compare.compare import Comparison, compare
from sweeps.compare.settings import Compare

PANELS = ("loss", "entropy", "z_top_distinct", "z_top_common", "speed", "xi")
_LABELS = {**comparison.CURVES, "z_top_common": "attention logit $z$", "xi": r"$\xi_n$"}


@dataclasses.dataclass(frozen=True)
class Ladder(Compare):
    """Draw every theory that applies, its variants included, against simulation.

    Attributes:
        out: directory for ladder.png, ladder.json and ladder.npz.
    """

    steps: int = 300
    seeds: int = 4
    times: int = 40
    out: Path = Path("out/figures")


def run(config: Ladder) -> list[Path]:
    """Compute, draw and write the figure, and print its error table."""
    config.check()
    task, optimizer = config.make_task(), config.make_optimizer()
    long = refusal(finite_length.check_length, task, config.length) is None
    names = config.theories or ladder.applicable(
        task,
        optimizer,
        variants=True,
        zero_start=config.init == "zero",
        finite=math.isfinite(config.length) and long,
    )
    result = compare(dataclasses.replace(config, theories=names))
    print(report.table(result))
    arrays = report.arrays(result)
    return output.write(
        config.out, "ladder", figure=draw(result), arrays=arrays, report=result.report
    )


def draw(result: Comparison) -> Figure:
    """Six observables with every theory, and a table of errors."""
    figure = plt.figure(figsize=(15, 11.5), layout="constrained")
    grid = figure.subplot_mosaic(
        [list(PANELS[:3]), list(PANELS[3:]), ["errors"] * 3], height_ratios=[1, 1, 1]
    )
    for name in PANELS:
        ax = comparison.plot_curves(result, name, ax=grid[name])
        ax.set(title=name, ylabel=_LABELS.get(name, name))
    grid["loss"].set_yscale("log")
    plot_errors(result, ax=grid["errors"])
    handles, labels = grid["loss"].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    figure.suptitle(comparison.title(result))
    return figure


def plot_errors(result: Comparison, ax: Axes | None = None) -> Axes:
    """Table of relative errors over time in %, rung by observable, coloured by size."""
    ax = ax or plt.gca()
    theories = result.report["theories"]
    values = np.array(
        [
            [rung["relative_error"][name]["over_time"] for name in PANELS]
            for rung in theories.values()
        ],
        dtype=float,
    )
    percent = 100 * values
    ax.imshow(np.clip(percent, 0.1, 100), cmap="cividis_r", norm=LogNorm(0.1, 100), aspect="auto")
    for (row, column), value in np.ndenumerate(percent):
        colour = "white" if value > 2 else "black"
        ax.text(column, row, f"{value:.3g}", ha="center", va="center", color=colour)
    ax.set_xticks(range(len(PANELS)), PANELS)
    ax.set_yticks(range(len(theories)), list(theories))
    ax.set_title("relative error against the mean of the runs, over time (%)")
    return ax
