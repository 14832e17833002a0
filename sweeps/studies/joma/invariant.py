"""`dynsim figure joma_invariant`: the error of JoMA's Theorem 1 in training [ours].

For softmax attention over temperature, number of classes, overlap and activation, and for several
queries, where only the sum over queries obeys the theorem.
"""

import dataclasses
from pathlib import Path

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

import dynsim
from dynsim.decoding import Count
from sweeps import output
from sweeps.output import drawing
from sweeps.runner.labels import valid
from sweeps.runner.spec import Sweep
from sweeps.studies import computed
from sweeps.systems.experiment import experiment

ACTIVATIONS = ("linear", "relu", "tanh", "quadratic")
KINDS = ("exp", "softmax")
RECORD = ("loss", "logits", "conserved", "weight")
DISTINCT = 10
"""Distinct tokens per class; with c common tokens, the overlap of classes is c / (c + 10)."""
TIMES = 200
SHOWN = 0.01, 10.0
"""Limits of the colour scale of the errors."""


@dataclasses.dataclass(frozen=True)
class JoMAInvariant:
    """Error of JoMA's Theorem 1 at half the loss, and for several queries at the end.

    Attributes:
        temperatures: temperatures of attention.
        common: numbers of common tokens, next to ten distinct tokens per class.
        classes: numbers of classes, which share one query.
        queries: numbers of queries of syn-medium, for the law of their sum.
        seeds: number of runs at each point.
        steps: optimiser steps per run, on the population loss.
        eta: both learning rates.
        scale: standard deviation of a starting weight.
        out: folder for the figure, joma_invariant.npz and .json, and the stored sweeps, from which
            the command resumes.
    """

    temperatures: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0)
    common: tuple[int, ...] = (1, 10, 40)
    classes: tuple[int, ...] = (2, 4, 8)
    queries: tuple[int, ...] = (1, 2, 3, 5)
    seeds: Count = 4
    steps: int = 6000
    eta: float = 0.2
    scale: float = 0.03
    out: Path = Path("out/joma_invariant")

    def sweeps(self) -> dict[str, Sweep]:
        """Return a sweep for each activation's map, and one over queries for each attention."""
        rates = {"eta": self.eta, "scale": self.scale, "steps": self.steps}
        one = experiment("joma", task=dynsim.Syn(1, num_distinct=DISTINCT), **rates)
        several = experiment("joma", task="syn-medium", activation="tanh", **rates)
        seeds = {"seed": {"range": self.seeds}}
        grid = {
            "temperature": self.temperatures,
            "num_common": self.common,
            "classes_per_query": self.classes,
        }
        found = {
            f"map/{activation}": Sweep(
                one.at({"activation": activation}),
                {**grid, **seeds},
                "simulation",
                RECORD[:-1],
                TIMES,
            )
            for activation in ACTIVATIONS
        }
        for attention in KINDS:
            run = several.at({"attention": attention})
            axes = {"num_queries": self.queries, **seeds}
            found[f"queries/{attention}"] = Sweep(run, axes, "simulation", RECORD, TIMES)
        return found


def run(config: JoMAInvariant) -> list[Path]:
    """Run or resume the sweeps, print the tables and write the figure."""
    found = computed(config)
    maps = {a: map_errors(found[f"map/{a}"]) for a in ACTIVATIONS}
    sums = {kind: query_errors(found[f"queries/{kind}"]) for kind in KINDS}
    lines = [*map_lines(maps), "", *query_lines(sums)]
    print("\n".join(lines))
    arrays = {"map": maps, "queries": sums}
    return output.write(
        config.out, "joma_invariant", figure=draw(maps), arrays=arrays, report={"lines": lines}
    )


def draw(maps: dict[str, xr.DataArray]) -> Figure:
    """Draw a row for each activation and a column for each number of classes."""
    classes = next(iter(maps.values())).classes_per_query.values
    figure, axes = drawing.panels(len(maps), len(classes), height=2.2, sharex=True, sharey=True)
    for row, (activation, errors) in zip(axes, maps.items(), strict=True):
        for ax, K in zip(row, classes, strict=True):
            mesh = plot_map(errors.sel(classes_per_query=K), ax)
            ax.set_title(f"{activation}, K = {K}")
    drawing.outer(axes, "temperature", "overlap of classes")
    figure.colorbar(
        mesh,
        ax=axes,
        label="error of Theorem 1 / displacement of $z$",
        format=PercentFormatter(1.0, symbol=" %"),
        extend="both",
        shrink=0.6,
    )
    return figure


def halved(dataset: xr.Dataset) -> xr.Dataset:
    """Return the records of each run when its loss first halves, whether it does (`reached`), and
    the records at the start (`first/...`)."""
    runs = valid(dataset)
    below = runs.loss <= runs.loss.isel(time=0) / 2
    reached = below.any("time")
    at = below.argmax("time")
    then = runs.isel(time=at).where(reached)
    start = runs.isel(time=0).rename({name: f"first/{name}" for name in runs.data_vars})
    return xr.merge([then, start], compat="override").assign(reached=reached)


def map_errors(dataset: xr.Dataset) -> xr.DataArray:
    """Root mean square error of Theorem 1 for T z over tokens and seeds, relative to the change of
    T z; NaN where no run has halved its loss."""
    at = halved(dataset)
    moved = (at.logits - at["first/logits"]).isel(query=0) * at.temperature
    missed = at.conserved - at["first/conserved"]
    over = ("token", "seed")
    return np.sqrt((missed**2).mean(over) / (moved**2).mean(over))


def query_errors(dataset: xr.Dataset) -> dict[str, xr.DataArray]:
    """Return the same errors at the end of the runs, at T = 1: for the sum over queries, and for a
    single query by the law of exp attention."""
    runs = valid(dataset)
    first, last = runs.isel(time=0), runs.isel(time=-1)
    moved = last.logits - first.logits
    own = moved - (last.weight**2 - first.weight**2) / 2
    missed, over = last.conserved - first.conserved, ("token", "seed")
    return {
        "sum": np.sqrt((missed**2).mean(over) / (moved.sum("query", min_count=1) ** 2).mean(over)),
        "own": np.sqrt((own**2).mean((*over, "query")) / (moved**2).mean((*over, "query"))),
    }


def overlaps(errors: xr.DataArray) -> np.ndarray:
    """Overlap f_n . f_n' of the classes for each number of common tokens."""
    common = errors.num_common.values
    return common / (common + DISTINCT)


def map_lines(maps: dict[str, xr.DataArray]) -> list[str]:
    """Format a line for each activation, number of classes and overlap, with all temperatures."""
    lines = ["Error of Theorem 1 for softmax in % of how far z has moved, at half the loss"]
    for activation, errors in maps.items():
        for K in errors.classes_per_query.values:
            for common, overlap in zip(errors.num_common.values, overlaps(errors), strict=True):
                row = errors.sel(classes_per_query=K, num_common=common)
                cells = ", ".join(
                    f"T = {float(T):g}: {100 * float(row.sel(temperature=T)):.1f}"
                    for T in row.temperature.values
                )
                lines.append(f"{activation}, K = {K}, overlap {overlap:.2f}: {cells}")
    return lines


def query_lines(sums: dict[str, dict[str, xr.DataArray]]) -> list[str]:
    """Format a line for each attention and number of queries."""
    lines = ["The same at the end, for several queries, tanh, T = 1"]
    for kind, errors in sums.items():
        for number in errors["sum"].num_queries.values:
            whole, own = (100 * float(errors[n].sel(num_queries=number)) for n in ("sum", "own"))
            alone = f", each by exp's law: {own:.3g}" if kind == "exp" else ""
            lines.append(f"{kind}, {number} queries: sum {whole:.3g}{alone}")
    return lines


def plot_map(errors: xr.DataArray, ax: Axes) -> QuadMesh:
    """Draw a heat map over temperature and overlap, labelled with the errors; return its mesh."""

    def text(error: float) -> str:
        digits = 0 if error >= 0.1 else 1
        return f"{100 * error:.{digits}f} %" if np.isfinite(error) else "never"

    temperatures = [f"{T:g}" for T in errors.temperature.values]
    common = [f"{overlap:.2f}" for overlap in overlaps(errors)]
    # As in all figures, light colours show where a theory is accurate.
    colours = {"norm": LogNorm(*SHOWN), "cmap": "cividis_r"}
    values = errors.transpose("num_common", "temperature").values
    return drawing.table(ax, values, text, temperatures, common, **colours)
