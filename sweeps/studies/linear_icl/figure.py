"""`dynsim figure linear_icl`: plateaus of in-context regression (the paper's Figs. 1, 3 and 4)."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from dynsim.decoding import Count, CountOrInf, Steps
from sweeps import output
from sweeps.output import drawing
from sweeps.runner.labels import valid
from sweeps.runner.spec import Sweep
from sweeps.studies import computed, linear_icl
from sweeps.systems.experiment import experiment

TIMES = 200
SCALES = (1e-3, 1e-2, 1e-1)
RANKS = (1, 2, 4, 8)
"""Ranks of the nine heads, at D = 8, as in the paper's Fig. 4."""


@dataclasses.dataclass(frozen=True)
class FigureLinearICL:
    """Losses of merged attention, its equivalent network and separate heads, with theory.

    Attributes:
        seeds: number of runs of separate heads.
        batch: sequences per step; inf for the population loss. The runs over ranks do not use it.
        steps: optimiser steps of separate heads.
        scale: standard deviation of the starting weights of separate heads.
        rank_steps: optimiser steps of the runs over ranks.
        out: folder for the figure, linear_icl.npz and .json, and the stored sweeps, from which the
            command resumes.
    """

    seeds: Count = 6
    batch: CountOrInf = 256
    steps: Steps = 16_000
    scale: float = 0.02
    rank_steps: Steps = 60_000
    out: Path = Path("out/linear_icl")

    def sweeps(self) -> dict[str, Sweep]:
        """The sweeps of all panels, by panel and theory."""
        merged = experiment(
            "linear_icl",
            attention="merged",
            heads=8,
            spectrum="white",
            eta=0.005,
            steps=1200,
            batch=self.batch,
        )
        network = merged.at({"attention": "network"})
        separate = experiment("linear_icl", batch=self.batch, steps=self.steps, scale=self.scale)
        ranked = experiment(
            "linear_icl", D=8, heads=9, eta=1.0, steps=self.rank_steps, batch=math.inf
        )
        seeds, one = {"seed": {"range": self.seeds}}, {"seed": {"range": 1}}
        record = ("loss", "learned")
        found = {}
        axes = {"scale": SCALES, **one}
        found["network/simulation"] = Sweep(network, axes, "simulation", record, TIMES)
        for theory in ("simulation", "sigmoid"):
            found[f"merged/{theory}"] = Sweep(merged, axes, theory, record, TIMES)
        for theory in ("simulation", "plain", "scalar"):
            found[f"separate/{theory}"] = Sweep(separate, seeds, theory, record, TIMES)
        axes = {"rank": RANKS, **one}
        found["ranks/simulation"] = Sweep(ranked, axes, "simulation", record, TIMES)
        return found


def run(config: FigureLinearICL) -> list[Path]:
    """Compute or resume, print the escape times, draw and write."""
    found, wanted = computed(config), config.sweeps()
    names = ("merged", "separate", "ranks")
    trained = {name: wanted[f"{name}/simulation"].first for name in names}
    rate = {name: linear_icl.rate(run) for name, run in trained.items()}
    level = {name: linear_icl.of_run(run) for name, run in trained.items()}
    table = [*escape_table(found, rate["separate"], level["separate"]), "", same_line(found)]
    print("\n".join(table))
    figure = draw(found, rate, level)
    arrays = {**found, **{f"{name}/plateaus": values for name, values in level.items()}}
    return output.write(
        config.out, "linear_icl", figure=figure, arrays=arrays, report={"escapes": table}
    )


def draw(
    found: dict[str, xr.Dataset], rate: dict[str, float], level: dict[str, np.ndarray]
) -> Figure:
    """Draw all four panels. `rate` has the number of units tau per step and `level` the plateaus of
    each kind of model."""
    figure, axes = drawing.panels(2, 2, 5.0, 3.6)
    plot_merged(found, rate["merged"], ax=axes[0, 0])
    plot_separate(found, rate["separate"], level["separate"], ax=axes[0, 1])
    plot_components(found, rate["separate"], ax=axes[1, 0])
    plot_ranks(found["ranks/simulation"], rate["ranks"], level["ranks"], ax=axes[1, 1])
    return figure


def escape_table(found: dict[str, xr.Dataset], rate: float, level: np.ndarray) -> list[str]:
    """List the times, in tau, at which each run leaves its plateaus, in training and theory."""
    theories = ("simulation", "plain", "scalar")
    columns = []
    for theory in theories:
        dataset = found[f"separate/{theory}"]
        loss = valid(dataset)["loss"].transpose("seed", "time").values
        levels = np.broadcast_to(level, (len(loss), len(level)))
        columns.append(linear_icl.escapes(dataset.time.values * rate, loss, levels))
    rows = [("", "seed", *(f"{m} -> {m + 1}" for m in range(len(level) - 1)))]
    for seed, times in enumerate(np.stack(columns, axis=-1)):
        cells = (" / ".join(f"{t:.0f}" if np.isfinite(t) else "-" for t in row) for row in times)
        rows.append(("", str(seed), *cells))
    about = f"Time in tau at which the loss is halfway to the next plateau: {' / '.join(theories)}"
    return [about, "", *output.aligned(rows, 0, 4, 25)]


def same_line(found: dict[str, xr.Dataset]) -> str:
    """Report the largest difference between the losses of merged attention and its network."""
    apart = abs(found["merged/simulation"].loss - found["network/simulation"].loss)
    start = found["merged/simulation"].loss.isel(time=0)
    return (
        f"merged attention and the network on cubic features: losses at most "
        f"{float((apart / start).max()):.1e} of the first apart"
    )


def plot_merged(found: dict[str, xr.Dataset], rate: float, ax: Axes) -> Axes:
    """Draw the loss of merged attention and of its network on white inputs over time, with eq. 10,
    for each starting scale."""
    trained, network, theory = (
        found[name].isel(seed=0)
        for name in ("merged/simulation", "network/simulation", "merged/sigmoid")
    )
    for i, scale in enumerate(SCALES):
        label = f"training, starting scale {scale:g}"
        curve, closed = trained.sel(scale=scale), theory.sel(scale=scale)
        how = {"color": drawing.colour(i), "label": label, **drawing.TRAINED}
        ax.plot(curve.time * rate, curve.loss, **how)
        label = "network on cubic features" if scale == SCALES[-1] else None
        other = network.sel(scale=scale)
        ax.plot(other.time * rate, other.loss, "+", color="k", ms=6, markevery=6, label=label)
        label = "closed form, eq. 10" if scale == SCALES[-1] else None
        ax.plot(closed.time * rate, closed.loss, "k--", lw=1.2, label=label)
    ax.set_title("merged key and query, white inputs")
    return _finished(ax, "mean square error")


def plot_separate(found: dict[str, xr.Dataset], rate: float, level: np.ndarray, ax: Axes) -> Axes:
    """Draw the loss of each run of separate heads over time, with its flow and the plateaus."""
    trained, flow = found["separate/simulation"], found["separate/plain"]
    for seed in range(trained.sizes["seed"]):
        label = "training (one colour per seed)" if seed == 0 else None
        curve, theory = trained.isel(seed=seed), flow.isel(seed=seed)
        how = {"color": drawing.colour(seed), "label": label, **drawing.TRAINED}
        ax.plot(curve.time * rate, curve.loss, **how)
        label = "flow, eq. 14" if seed == 0 else None
        ax.plot(theory.time * rate, theory.loss, "k--", lw=1, label=label)
    ax.set_title("separate rank-one heads")
    return _levels(ax, trained, rate, level)


def plot_components(found: dict[str, xr.Dataset], rate: float, ax: Axes) -> Axes:
    """Draw the shares of the principal components that the first run has learned, with eq. 21."""
    trained, theory = (found[f"separate/{e}"].isel(seed=0) for e in ("simulation", "scalar"))
    for d in range(trained.sizes["component"]):
        how = {"color": drawing.colour(d), "label": f"component {d + 1}", **drawing.TRAINED}
        ax.plot(trained.time * rate, trained.learned[:, d], **how)
    for d in range(trained.sizes["component"]):
        label = "eq. 21" if d == 0 else None
        ax.plot(theory.time * rate, theory.learned[:, d], "k--", lw=1, label=label)
    _logarithmic(ax, trained, rate)
    # Leave room for the legend above the curves.
    ax.set(title="components of the first seed, in training", ylim=(-0.08, 1.75))
    return _finished(ax, "share learned", loc="upper center", ncols=3)


def plot_ranks(dataset: xr.Dataset, rate: float, level: np.ndarray, ax: Axes) -> Axes:
    """Draw the loss over time for nine heads of each rank, at D = 8, with the plateaus."""
    for i, rank in enumerate(RANKS):
        curve = dataset.sel(rank=rank).isel(seed=0)
        how: dict[str, Any] = {"color": drawing.colour(i), "label": f"training, rank {rank}"}
        ax.plot(curve.time * rate, curve.loss, lw=2, **how)
    ax.set_title("nine heads by rank, D = 8, batch infinite")
    return _levels(ax, dataset, rate, level)


def _levels(ax: Axes, dataset: xr.Dataset, rate: float, level: np.ndarray) -> Axes:
    for m, value in enumerate(level):
        label = "plateaus, eq. 19" if m == 0 else None
        ax.axhline(value, color="0.5", lw=1, ls=":", zorder=0, label=label)
    _logarithmic(ax, dataset, rate)
    return _finished(ax, "mean square error")


def _logarithmic(ax: Axes, dataset: xr.Dataset, rate: float) -> None:
    """Set a logarithmic time axis that begins shortly before the first loss falls."""
    loss = dataset.loss.transpose(..., "time").values.reshape(-1, dataset.time.size)
    fallen = (loss < 0.9 * loss[:, :1]).any(axis=0)
    times = dataset.time.values * rate
    ax.set(xscale="log", xlim=(times[max(np.argmax(fallen), 1)] / 3, times[-1]))
    # On a short range, matplotlib would label every minor tick.
    ax.xaxis.set_minor_formatter(NullFormatter())


def _finished(ax: Axes, quantity: str, **legend: Any) -> Axes:
    time = r"time in units of $\tau = 1/(2\eta)$ steps"
    return drawing.finished(ax, legend, xlabel=time, ylabel=quantity)
