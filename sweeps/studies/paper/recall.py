"""Figs. 11 and 12 of Scan and Snap: recall of distinct tokens against the threshold."""

import dataclasses
from pathlib import Path
from typing import ClassVar

import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dynsim import Task
from dynsim.decoding import Count
from sweeps import output
from sweeps.output import drawing
from sweeps.runner.labels import valid
from sweeps.runner.spec import Sweep
from sweeps.studies import by_queries, computed, fig6
from sweeps.studies.options import Queries


@dataclasses.dataclass(frozen=True)
class Recall:
    """Share of distinct tokens whose attention exceeds a threshold, over the sweep of Fig. 6.

    Attributes:
        num_queries: numbers of queries, a row of panels each; those of the paper if omitted.
        seeds: number of runs in each cell.
        task: sequence classes; Syn-Medium at `num_queries` if omitted.
        out: folder for the figure, its data and the stored sweep, that of figure 6.
    """

    PAPER: ClassVar[Queries] = ("1,3",)

    num_queries: Queries = ()
    seeds: Count = 10
    task: Task | None = None
    out: Path = Path("out/fig6")

    @property
    def name(self) -> str:
        """Name of the output files."""
        return "fig11" if isinstance(self, Figure11) else "fig12"

    def sweeps(self) -> dict[str, Sweep]:
        """The sweep of Fig. 6."""
        sweep = fig6(self.num_queries, self.PAPER, self.seeds, self.task)
        return {f"simulation-{self.name}": sweep}


@dataclasses.dataclass(frozen=True)
class Figure11(Recall):
    __doc__ = Recall.__doc__


@dataclasses.dataclass(frozen=True)
class Figure12(Recall):
    __doc__ = Recall.__doc__
    PAPER = ("5,10",)


def run(config: Recall) -> list[Path]:
    """Run or resume the sweep, draw and write the figure."""
    (data,) = (by_queries(valid(found), config.task) for found in computed(config).values())
    arrays = {"recall": data.recall, **{str(dim): data[dim] for dim in data.recall.dims}}
    return output.write(config.out, config.name, figure=draw(data), arrays=arrays)


def draw(data: xr.Dataset) -> Figure:
    """Draw a row for each number of queries and a column for each eta_Z."""
    numbers = data.num_queries.values
    rates = data.eta_z.values
    height = 2.3 + 0.7 / len(numbers)
    figure, axes = drawing.panels(len(numbers), len(rates), 2.5, height, sharex=True, sharey=True)
    for row, number in enumerate(numbers):
        for column, eta_z in enumerate(rates):
            word = "query" if number == 1 else "queries"
            ax = plot(data.recall.sel(num_queries=number, eta_z=eta_z), ax=axes[row, column])
            ax.set_title(rf"{number} {word}, $\eta_Z = {eta_z:g}$")
    drawing.outer(axes, "threshold (units of 1/M)", "recall of distinct tokens")
    axes[0, 0].legend(title=r"$\eta_Y/\eta_Z$")
    return figure


def plot(recall: xr.DataArray, ax: Axes) -> Axes:
    """Draw the mean recall over seeds against the threshold, with a line for each eta_Y / eta_Z."""
    colours = drawing.shades(recall.sizes["ratio"])
    for ratio, colour in zip(recall.ratio.values, colours, strict=True):
        style = {"color": colour, "label": f"{ratio:g}"}
        drawing.band(ax, recall.threshold, recall.sel(ratio=ratio), style)
    ax.axvline(1, color="grey", lw=0.8)
    return drawing.finished(ax, xscale="log", ylim=(0, 1.02))
