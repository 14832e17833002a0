"""Figs. 11 and 12: how many distinct tokens keep their attention.

The share of distinct tokens whose attention exceeds a threshold, over the learning rates of Fig. 6:
for one and three queries in Fig. 11, for five and ten in Fig. 12.
"""

from typing import Annotated, ClassVar

import annotated_types as at

import dynsim
import sweeps
from papers import scan_and_snap
from sweeps import drawing


class Figure11(sweeps.Figure):
    """Share of distinct tokens whose attention exceeds a threshold, over the sweep of Fig. 6.

    Attributes:
        num_queries: numbers of queries, a row of panels each; those of the paper if omitted.
        seeds: number of runs in each cell.
        task: sequence classes; Syn-Medium at `num_queries` if omitted.
    """

    NAME = "fig11"
    PAPER: ClassVar[tuple[int, ...]] = (1, 3)

    num_queries: tuple[Annotated[int, at.Ge(1)], ...] = ()
    seeds: Annotated[int, at.Ge(1)] = 10
    task: dynsim.Task | None = None

    def sweeps(self):
        runs = scan_and_snap.figure6_runs(self.num_queries, self.PAPER, self.seeds, self.task)
        return {f"simulation-{self.NAME}": runs}

    def draw(self, data):
        recall = scan_and_snap.by_queries(data[f"simulation-{self.NAME}"], self.task).recall
        numbers, rates = recall.num_queries.values, recall.eta_z.values
        figure, axes = drawing.panels(
            len(numbers), len(rates), 2.5, 2.3 + 0.7 / len(numbers), sharex=True, sharey=True
        )
        for row, number in zip(axes, numbers, strict=True):
            for ax, eta_z in zip(row, rates, strict=True):
                runs = recall.sel(num_queries=number, eta_z=eta_z)
                for ratio, colour in zip(runs.ratio, drawing.shades(runs.ratio.size), strict=True):
                    style = {"color": colour, "label": f"{ratio:g}"}
                    drawing.band(ax, recall.threshold, runs.sel(ratio=ratio), style)
                ax.axvline(1, color="grey", lw=0.8)  # uniform attention, 1/M
                title = rf"{scan_and_snap.queries(number)}, $\eta_Z = {eta_z:g}$"
                drawing.finished(ax, xscale="log", ylim=(0, 1.02), title=title)
        drawing.outer(axes, "threshold (units of 1/M)", "recall of distinct tokens")
        axes[0, 0].legend(title=r"$\eta_Y/\eta_Z$")
        axes = {name: recall[name] for name in recall.dims}
        return sweeps.Picture(figure, {"recall": recall, **axes})


class Figure12(Figure11):
    """Share of distinct tokens whose attention exceeds a threshold, with more queries."""

    NAME = "fig12"
    PAPER = (5, 10)
