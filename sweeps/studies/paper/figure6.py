"""Fig. 6 of Scan and Snap: entropy of attention against eta_Y / eta_Z, next to theory."""

import csv
import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dynsim import Task
from dynsim.decoding import Count
from odes.batch_noise import STD
from sweeps import output
from sweeps.output import drawing
from sweeps.runner.labels import valid
from sweeps.runner.spec import Sweep
from sweeps.studies import by_queries, computed, fig6
from sweeps.studies.options import Queries
from sweeps.systems.yz import DRIFT

TRAINING, THEORY = "simulation", "spread"
RECORD = ("entropy", "entropy" + STD, "entropy" + DRIFT)
LIMITS = {"matched": "flow_", "descent": "descent_"}
"""The momentum flow and descent at infinite T and batch, with the prefix of their columns."""
PUBLISHED_SEEDS = 10
FLOW_RTOL = 1e-5
"""Relative tolerance of the flow: the error of the entropy is far below its spread over seeds."""
Cells = Mapping[tuple[float, float, float], tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Figure6:
    """Entropy of attention on distinct tokens against eta_Y / eta_Z: on Syn-Medium or a task of
    your own.

    Attributes:
        num_queries: numbers of queries, a panel each; 1,3,5,10 on Syn-Medium if omitted.
        seeds: number of runs in each cell; theories use the same random starts.
        training: also train; otherwise only theory is drawn.
        theory: predict means and spread at finite T and batch; with training, also solve the
            momentum flow and the descent with T and batch infinite.
        task: sequence classes; Syn-Medium at `num_queries` if omitted.
        out: folder for the figure, fig6.csv and the stored sweeps, from which the command resumes.
    """

    num_queries: Queries = ()
    seeds: Count = 10
    training: bool = True
    theory: bool = True
    task: Task | None = None

    def theories(self) -> tuple[str, ...]:
        """The names of what is run: training, theories, or both."""
        if not (self.training or self.theory):
            raise ValueError("training, theory = False, False: leaves nothing to draw")
        if not self.theory:
            return (TRAINING,)
        return (TRAINING, THEORY, *LIMITS) if self.training else (THEORY,)

    def sweeps(self) -> dict[str, Sweep]:
        """All sweeps of the figure, by the name of the theory."""
        sweep = fig6(self.num_queries, ("1,3,5,10",), self.seeds, self.task)
        return {name: variant(sweep, name) for name in self.theories()}

    out: Path = Path("out/fig6")


def run(config: Figure6) -> list[Path]:
    """Run or resume the sweeps, draw and write the figure and its table."""
    stored = computed(config)
    found = {theory: by_queries(valid(dataset), config.task) for theory, dataset in stored.items()}
    known = published() if config.task is None else {}
    entropy = next(iter(found.values())).entropy
    print("\n".join(summary(found, known)))
    arrays = {str(dim): entropy[dim] for dim in entropy.dims}
    arrays |= {f"{theory}/entropy": dataset.entropy for theory, dataset in found.items()}
    text = {"csv": table(found, known)}
    return output.write(config.out, "fig6", figure=draw(found, known), arrays=arrays, text=text)


def published() -> Cells:
    """Published mean and standard deviation over 10 seeds by (num_queries, eta_z, ratio), for the
    cells that are known."""
    with Path(__file__).with_name("published_fig6.csv").open() as file:
        rows = list(csv.DictReader(file))
    numbers = [{name: float(value) for name, value in row.items()} for row in rows]
    return {(n["num_queries"], n["eta_z"], n["ratio"]): (n["mean"], n["std"]) for n in numbers}


def draw(found: Mapping[str, xr.Dataset], known: Cells) -> Figure:
    """Draw a panel for each number of queries."""
    panels = next(iter(found.values())).num_queries.values
    width = max(7.0, 2.6 * len(panels))
    figure, axes = drawing.panels(
        1, len(panels), width=width / len(panels), height=4.4, sharey=True
    )
    for ax, number in zip(axes[0], panels, strict=True):
        plot({theory: ds.sel(num_queries=number) for theory, ds in found.items()}, known, ax=ax)
    axes[0, 0].set_ylabel("entropy on distinct tokens (nat)")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    shown = {
        text: style
        for theory, (text, *style) in STYLES.items()
        if theory in (*found, *["known"] * bool(known))
    }
    handles += [drawing.key("", ls=ls, marker=mark, mfc="none") for ls, mark in shown.values()]
    columns = int(width // LEGEND_COLUMN)
    figure.legend(handles, [*labels, *shown], loc="outside lower center", ncols=columns)
    return figure


LEGEND_COLUMN = 3.2
"""Width, in inches, of the longest text below."""
STYLES = {
    TRAINING: ("trained (mean, s.d.)", "-", "o"),
    THEORY: ("theory at finite T (mean, band of s.d.)", "--", ""),
    "matched": ("momentum flow, T = ∞", "-.", ""),
    "descent": ("descent, T = ∞", ":", ""),
    "known": ("published means", "", "s"),
}
"""Text, line and marker of training, of each theory, and of the published means."""


def variant(sweep: Sweep, theory: str) -> Sweep:
    """Return the sweep by a theory, recording only the entropy."""
    if theory == TRAINING:
        return sweep
    if theory == THEORY:
        return dataclasses.replace(sweep, theory=theory, record=RECORD)
    rtol = FLOW_RTOL if theory == "matched" else None
    return dataclasses.replace(sweep, theory=theory, record=("entropy",), rtol=rtol)


def plot(found: Mapping[str, xr.Dataset], known: Cells, ax: Axes) -> Axes:
    """Draw one panel: training and theory with their spread over seeds, and published means."""
    first = next(iter(found.values())).entropy
    colours = drawing.shades(first.sizes["eta_z"])
    ratio = first.ratio.values
    for eta_z, colour in zip(first.eta_z.values, colours, strict=True):
        line = {theory: ds.sel(eta_z=eta_z) for theory, ds in found.items()}
        ax.plot([], [], "o", color=colour, label=rf"$\eta_Z = {eta_z:g}$")
        if TRAINING in line:
            mean, std = trained(line[TRAINING])
            ax.errorbar(ratio, mean, std, fmt="o-", ms=4, color=colour, capsize=2)
        if THEORY in line:
            mean, std = predicted(line[THEORY])
            ax.fill_between(ratio, mean - std, mean + std, color=colour, alpha=0.12, lw=0)
        for theory in (THEORY, *LIMITS):
            if theory in line:
                curve = of_theory(line[theory]).mean("seed")
                ax.plot(ratio, curve, STYLES[theory][1], color=colour, lw=1.2)
        keys = [(float(first.num_queries), float(eta_z), float(r)) for r in ratio]
        at = [r for r, key in zip(ratio, keys, strict=True) if key in known]
        means = [known[key][0] for key in keys if key in known]
        ax.plot(at, means, "s", ms=8, mfc="none", color=colour)
    number = int(first.num_queries)
    ax.set(xscale="log")
    ax.set_xticks(ratio, [f"{r:g}" for r in ratio])
    ax.minorticks_off()
    title = f"{number} {'query' if number == 1 else 'queries'}"
    return drawing.finished(ax, title=title, xlabel=r"$\eta_Y / \eta_Z$")


def trained(dataset: xr.Dataset) -> tuple[xr.DataArray, xr.DataArray]:
    """Mean and standard deviation (ddof 1) of the entropy over valid runs."""
    entropy = dataset.entropy.astype(np.float64)
    return entropy.mean("seed"), entropy.std("seed", ddof=1)


def predicted(dataset: xr.Dataset) -> tuple[xr.DataArray, xr.DataArray]:
    """Mean (with the effect of noise) and standard deviation of the entropy over starts and data.
    The mean over starts of the data's variance and the variance over starts of the mean add up."""
    by_data = (dataset["entropy" + STD] ** 2).mean("seed")
    by_start = dataset.entropy.var("seed", ddof=1) if dataset.sizes["seed"] > 1 else 0
    return of_theory(dataset).mean("seed"), (by_data + by_start) ** 0.5


def of_theory(dataset: xr.Dataset) -> xr.DataArray:
    """Entropy predicted for each start, including the effect of noise if that is known."""
    drift = "entropy" + DRIFT
    return dataset.entropy + dataset[drift] if drift in dataset else dataset.entropy


class Cell(NamedTuple):
    """A cell of the figure."""

    num_queries: float
    eta_z: float
    ratio: float


def cells(dataset: xr.Dataset) -> list[Cell]:
    """The cells of the figure, in the order of its table."""
    values = (dataset[name].values.tolist() for name in Cell._fields)
    return list(itertools.starmap(Cell, itertools.product(*values)))


def summary(found: Mapping[str, xr.Dataset], known: Cells) -> list[str]:
    """Report how far theory is from training with the same starts, and from the published means."""
    lines = []
    if TRAINING in found:
        for theory in (THEORY, *LIMITS):
            if theory in found:
                apart = np.abs((of_theory(found[theory]) - found[TRAINING].entropy).mean("seed"))
                text = STYLES[theory][0].split(" (")[0]
                lines.append(
                    f"{text} against training from the same starts: median deviation "
                    f"{float(apart.median()):.4f} nat, largest {float(apart.max()):.4f}"
                )
    if THEORY in found:
        mean, _ = predicted(found[THEORY])
        close = []
        for cell in cells(found[THEORY]):
            if cell in known:
                want, std = known[cell]
                apart = abs(float(mean.sel(cell._asdict())) - want)
                close.append(apart <= max(3 * std / math.sqrt(PUBLISHED_SEEDS), 0.02 * want))
        if close:
            lines.append(
                f"theory alone is within 3 standard errors or 2 % of the published mean in "
                f"{sum(close)} of {len(close)} cells"
            )
    return lines


def table(found: Mapping[str, xr.Dataset], known: Cells) -> str:
    """Format means and standard deviations over valid runs and starts as CSV."""
    columns: dict[str, xr.DataArray] = {}
    if TRAINING in found:
        columns["mean"], columns["std"] = trained(found[TRAINING])
        columns["seeds"] = found[TRAINING].entropy.count("seed")
    if THEORY in found:
        columns["theory"], columns["theory_std"] = predicted(found[THEORY])
    for theory, name in LIMITS.items():
        if theory in found:
            columns[f"{name}mean"], columns[f"{name}std"] = trained(found[theory])
    rows: list[Sequence[object]] = [(*Cell._fields, *columns, "published_mean", "published_std")]
    for cell in cells(next(iter(found.values()))):
        at = [values.sel(cell._asdict()).item() for values in columns.values()]
        row = [value if isinstance(value, int) else f"{value:.6f}" for value in at]
        rows.append([*cell, *row, *known.get(cell, ("", ""))])
    return output.as_csv(rows)
