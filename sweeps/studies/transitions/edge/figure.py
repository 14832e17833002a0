"""`dynsim figure edge`: the sharpness of training, next to gradient flow and central flow."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

import dynsim
from dynsim import Status, checks
from dynsim.problem.sharpness import EDGE
from sweeps import output
from sweeps.output import drawing
from sweeps.runner.spec import Sweep
from sweeps.studies import computed
from sweeps.studies.phase.regions import BY_EDGE
from sweeps.studies.transitions import edge
from sweeps.studies.transitions.edge import CASES, SMOOTH, Case, averaged, errors, sharpness_of_mean
from sweeps.systems.experiment import Experiment

STYLES = {
    "flow": {"label": "gradient flow", "ls": ":", "lw": 1.8},
    "central": {"label": "central flow", "ls": "--", "lw": 1.4},
}


def draw(
    found: Mapping[str, xr.Dataset],
    losses: Mapping[str, str],
    maps: xr.Dataset | None,
    system: str,
) -> Figure:
    """Draw sharpness above loss, a column per rate, and below them the maps if there are any."""
    rates = found["training"].eta.values
    size = (max(2.1 * len(rates), 6), 9.5 if maps is not None else 5.5)
    figure = plt.figure(figsize=size, layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=(5.5, 4)) if maps is not None else (figure,)
    axes = parts[0].subplots(2, len(rates), sharex=True, sharey="row", squeeze=False)
    for column, rate in zip(axes.T, rates, strict=True):
        runs = {name: each.sel(eta=rate) for name, each in found.items()}
        for ax, sharp in zip(column, (True, False), strict=True):
            names = {n: "preconditioned_sharpness" if sharp else losses[n] for n in runs}
            _curves(ax, runs, names)
        column[0].axhline(EDGE, color="0.4", lw=0.8)
        diverged = int(runs["training"].status) != Status.OK
        heading = rf"$\eta$ = {rate:g}" + ("\ndiverges" if diverged else "")
        drawing.finished(column[0], title=heading)
        drawing.finished(column[1], yscale="log")
    axes[0, 0].set_ylim(0, 2 * EDGE)
    drawing.outer(axes, "optimiser steps", "loss")
    axes[0, 0].set_ylabel(r"$\eta \times$ sharpness")
    for ax in axes[1]:
        ax.xaxis.set_major_locator(MaxNLocator(2))
    lines = axes[0, 0].get_lines()[:4]
    parts[0].legend(handles=lines, loc="outside lower center", ncols=4)
    figure.suptitle(f"{system}: full-batch descent (grey), mean over {SMOOTH} steps (blue)")
    if maps is not None:
        _maps(parts[1], maps)
    return figure


def _curves(ax: Axes, runs: Mapping[str, xr.Dataset], names: Mapping[str, str]) -> None:
    """Draw training at every step, its moving average, and both flows."""
    training = runs["training"]
    times, values = training.time.values, training[names["training"]].values
    ax.plot(times, values, color="0.6", lw=0.6, label="training")
    mean = averaged(values, SMOOTH)
    begin = SMOOTH // 2
    first, second = drawing.colour(0), drawing.colour(1)
    ax.plot(times[begin : begin + len(mean)], mean, color=first, lw=1.6, label="its mean")
    for (name, style), colour in zip(STYLES.items(), (second, "k"), strict=True):
        ax.plot(runs[name].time, runs[name][names[name]], color=colour, **style)


def _maps(part: Any, maps: xr.Dataset) -> None:
    """Draw the regions by theory and by training."""
    legend = BY_EDGE.legend.values()
    colours = ListedColormap([colour for _, colour in legend])
    norm = BoundaryNorm(np.arange(len(legend) + 1) - 0.5, len(legend))
    axes = part.subplots(1, 2, sharey=True)
    scale, eta = maps.theory.dims
    for ax, name in zip(axes, ("theory", "training"), strict=True):
        ax.pcolormesh(
            maps[eta], maps[scale], maps[name], cmap=colours, norm=norm, shading="nearest"
        )
        drawing.finished(ax, title=f"by {name}", xscale="log")
        drawing.logarithmic(ax, "y", maps[scale].values)
        ax.set_xlabel(r"learning rate $\eta$")
    axes[0].set_ylabel("scale of the starting weights")
    keys = [drawing.key(n, color=c, marker="s", ls="") for n, c in legend]
    part.legend(handles=keys, loc="outside right center")


THEORIES = {"training": "simulation", "flow": "flow", "central": "central"}
"""The theory, or training, that computes each curve."""
LOSSES = {"training": "loss", "flow": "loss", "central": "averaged_loss"}
"""The name of the loss averaged over oscillations, for each curve."""


@dataclasses.dataclass(frozen=True)
class Edge:
    """Follow the sharpness at several learning rates, against the edge of stability: training on
    all of the data, gradient flow and central flow; and map where training oscillates.

    Attributes:
        system: network (a tanh network on 24 examples), linear_icl, yz (Syn-Small) or two_stage
            (64 prompts).
        rates: learning rates; by default five, from below the edge to beyond.
        steps: optimiser steps at each rate; 0 for as many as the system needs.
        resolution: number of points on each axis of the map, learning rate and scale of the
            starting weights; 0 for none. Only network and linear_icl have one.
        out: folder for the figure, edge.npz, edge.json and the stored sweeps, from which the
            command resumes.
    """

    system: str = "network"
    rates: tuple[float, ...] = ()
    steps: int = 0
    resolution: int = 24
    out: Path = Path("out/edge")

    def case(self) -> Case:
        """The case to draw; `ValueError` for invalid settings."""
        case = CASES[checks.choice("system", self.system, tuple(CASES))]()
        for rate in self.rates:
            checks.real("rates", rate, 0, open_minimum=True)
        checks.integer("steps", self.steps, 0)
        checks.integer("resolution", self.resolution, 0)
        rates = tuple(sorted({*self.rates})) or case.rates
        return case._replace(rates=rates, steps=self.steps or case.steps)

    def sweeps(self) -> dict[str, Sweep]:
        """All sweeps, by the name of their curve or map."""
        case = self.case()
        found = {name: followed(case, name) for name in THEORIES}
        if self.resolution and case.scale is not None:
            found |= edge.sweeps(case, self.resolution)
        return found


def followed(case: Case, name: str) -> Sweep:
    """Return the sweep of a curve: runs at all rates, recorded at every step."""
    record = dict.fromkeys(("loss", LOSSES[name], "preconditioned_sharpness", "params"))
    made: Any = Sweep(
        Experiment(case.begun(), dynsim.sgd(1.0), case.steps, math.inf),
        {"eta": case.rates},
        theory=THEORIES[name],
        record=tuple(record),
        times=tuple(range(case.steps + 1)),
        rtol=case.rtol if name == "flow" else None,
    )
    return made


def run(config: Edge) -> list[Path]:
    """Run or resume the sweeps, print the errors of both flows, draw and write the figure."""
    case, found = config.case(), computed(config)
    rows = [row(case, found, rate) for rate in case.rates]
    lines = table(rows)
    maps = edge.maps(found) if "map-training" in found else None
    if maps is not None:
        lines += ["", *edge.report(maps)]
    print("\n".join(lines))
    arrays = {f"{name}/{n}": v for name in THEORIES for n, v in found[name].variables.items()}
    report = {"system": config.system, "rates": rows}
    if maps is not None:
        arrays |= {f"map/{name}": values for name, values in maps.variables.items()}
        report["map"] = edge.shares(maps)
    figure = draw({name: found[name] for name in THEORIES}, LOSSES, maps, config.system)
    return output.write(config.out, "edge", figure=figure, arrays=arrays, report=report)


def row(case: Case, found: dict[str, xr.Dataset], rate: float) -> dict[str, Any]:
    """Return the errors of both flows at one learning rate."""
    runs = {name: found[name].sel(eta=rate) for name in THEORIES}
    training = runs["training"]
    ended = {name: Status(int(each.status)).name for name, each in runs.items()}
    mean = sharpness_of_mean(case.problem, training)
    measured = {"eta": rate, "ended": ended, "sharpness": mean}
    flows = {n: errors(training, runs[n], LOSSES[n])._asdict() for n in ("flow", "central")}
    return {**measured, **flows}


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Format the errors as lines of text."""
    head = ("eta", "sharpness", "flow", "central", "weights off", "central", "loss off", "central")
    lines = []
    for each in rows:
        flow, central = each["flow"], each["central"]
        numbers = (each["sharpness"], flow["sharpness"], central["sharpness"])
        off = (flow["apart"], central["apart"], flow["loss"], central["loss"])
        cells = [f"{each['eta']:g}", *(f"{n:.3f}" for n in (*numbers, *off))]
        ended = ", ".join(f"{name}: {how}" for name, how in each["ended"].items() if how != "OK")
        lines.append([*cells, f"  {ended}"])
    return output.aligned([[*head, ""], *lines], 8, *[12] * 7)
