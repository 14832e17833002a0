"""`dynsim figure sparse_attention`: how long attention takes to become sparse.

Draws the time at which the loss falls to 0.8 of its start: over sqrt(d) T, over the number of
copies, and for three optimisers, with the exact flow, the printed equations and the closed form.
"""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import dynsim
from dynsim.decoding import CountOrInf, Steps
from dynsim.trajectory import crossings
from odes.sparse_attention import escape_time, finite_batch
from sweeps import output
from sweeps.output import drawing
from sweeps.runner.labels import valid
from sweeps.runner.spec import Sweep
from sweeps.studies import computed
from sweeps.studies.options import Several
from sweeps.systems.experiment import experiment

FALLEN = 0.8
"""Share of the starting loss at which the plateau is over."""
TIMES = 600
THEORIES = ("simulation", "plain", "printed")
LENGTHS, SIZES, COPIES = (256, 512, 1024, 2048, 4096), (16, 64), (1, 2, 4, 8)
WIDE = LENGTHS[:-1]
"""Sequence lengths at d = 256."""
RULES = {
    "sgd": (dynsim.sgd(1.0), 1500, "plain", 12_000),
    "momentum": (dynsim.sgd(0.1, momentum=0.9), 1500, "matched", 12_000),
    "adam": (dynsim.adam(0.005), 400, "matched-adam", 400),
}
"""Rule and steps of runs at T = d = 64, the flow of each rule, and its number of steps."""
LADDERS = ((64, 64), (128, 64), (256, 64), (64, 128), (64, 256))
"""(T, d) at which the exponents of T and d are measured."""


@dataclasses.dataclass(frozen=True)
class FigureSparseAttention:
    """Length of the plateau against sqrt(d) T, repetition and the optimiser.

    Attributes:
        seeds: number of runs of each optimiser, and at T = d = 256, on samples; 2 or more.
        batch: batch size of these runs, in sequences.
        steps: length of the longest run in the first panel.
        out: folder for the figure, sparse_attention.npz and .json, and the stored sweeps, from
            which the command resumes.
    """

    seeds: Several = 4
    batch: CountOrInf = 32
    steps: Steps = 80_000
    out: Path = Path("out/sparse_attention")

    def sweeps(self) -> dict[str, Sweep]:
        """All sweeps of the figure, by panel and theory."""
        run = experiment("sparse_attention", batch=self.batch)
        long = run.at({"steps": self.steps, "batch": math.inf})
        short = long.at({"length": 256, "steps": 4000})
        grid = {"length": LENGTHS, "d": SIZES}
        found = {
            "length/plain": Sweep(long, grid, "plain", ("loss",), TIMES),
            "length/simulation": Sweep(long, {"length": LENGTHS}, "simulation", ("loss",), TIMES),
        }
        wide = long.at({"d": 256})
        square = run.at({"length": 256, "d": 256, "steps": 8000})
        seeds = {"seed": {"range": self.seeds}}
        found["wide/plain"] = Sweep(wide, {"length": WIDE}, "plain", ("loss",), TIMES)
        found["square/simulation"] = Sweep(square, seeds, "simulation", ("loss",), TIMES)
        for theory in THEORIES:
            found[f"copies/{theory}"] = Sweep(short, {"B": COPIES}, theory, ("loss",), TIMES)
        for name, (rule, steps, flow, end) in RULES.items():
            sampled = run.at({"rule": rule, "steps": steps})
            found[f"{name}/simulation"] = Sweep(sampled, seeds, "simulation", ("loss",), TIMES)
            for T, d in LADDERS:
                point = sampled.at({"length": T, "d": d, "steps": end})
                axes = {"p": [0.0]}
                found[f"{name}/{T}-{d}"] = Sweep(point, axes, flow, ("loss",), TIMES)
        return found


def run(config: FigureSparseAttention) -> list[Path]:
    """Compute or resume, print exponents and times, draw and write."""
    found = computed(config)
    lines = [
        *length_lines(found),
        "",
        *copies_lines(found),
        "",
        *exponent_lines(found, config.batch),
    ]
    print("\n".join(lines))
    figure = draw(found)
    arrays = {name: {"loss": data.loss, "time": data.time} for name, data in found.items()}
    return output.write(
        config.out, "sparse_attention", figure=figure, arrays=arrays, report={"lines": lines}
    )


def draw(found: dict[str, xr.Dataset]) -> Figure:
    """Draw all three panels."""
    figure, (axes,) = drawing.panels(1, 3, height=4.6)
    plot_lengths(found, ax=axes[0])
    plot_copies(found, ax=axes[1])
    plot_rules(found, ax=axes[2])
    return figure


def plateau(dataset: xr.Dataset) -> xr.DataArray:
    """Optimiser steps until the loss falls to `FALLEN` of its start, linear between recorded steps;
    NaN if it never does."""
    loss = valid(dataset)["loss"].transpose(..., "time")
    start = loss.isel(time=0)
    return start.copy(data=crossings(dataset.time.values, loss.values, FALLEN * start.values))


def predicted(T: int, d: int, B: int = 1) -> float:
    """Escape time of the closed form at eta = 1."""
    return float(escape_time(dynsim.Retrieval(T, d, B)))


def length_lines(found: dict[str, xr.Dataset]) -> list[str]:
    """Report R^2 and slope of the plateau's length against sqrt(d) T, through the origin."""
    flow, trained = plateau(found["length/plain"]), plateau(found["length/simulation"])
    wide, square = plateau(found["wide/plain"]), plateau(found["square/simulation"])
    x = np.outer(np.sqrt(flow["d"].values), flow["length"].values).ravel()
    x = np.concatenate([x, 16 * wide["length"].values])
    y = np.concatenate([flow.transpose("d", "length").values.ravel(), wide.values])
    slope = float(x @ y / (x @ x))
    left = float(np.sum((y - slope * x) ** 2) / np.sum((y - y.mean()) ** 2))
    lines = [
        f"flow: {slope:.4f} sqrt(d) T steps, R^2 = {1 - left:.6f}; closed form: sqrt(pi/2) = "
        f"{math.sqrt(math.pi / 2):.4f}",
        f"T = d = 256: training {float(square.mean()):.1f} ± {float(square.std(ddof=1)):.1f}, flow "
        f"{float(wide.sel(length=256)):.1f}, closed {predicted(256, 256):.1f}",
    ]
    for T in trained["length"].values:
        one, other = trained.sel(length=T), flow.sel(length=T, d=64)
        cells = (float(one), float(other), predicted(int(T), 64))
        lines.append(
            f"T = {T}, d = 64: descent {cells[0]:.1f}, flow {cells[1]:.1f}, closed {cells[2]:.1f}"
        )
    return lines


def copies_lines(found: dict[str, xr.Dataset]) -> list[str]:
    """Report the plateau's length for each number of copies."""
    lines = []
    for B in COPIES:
        steps = {
            e: float(plateau(found[f"copies/{e}"]).sel(B=B))
            for e in ("simulation", "plain", "printed")
        }
        cells = ", ".join(f"{name} {value:.1f}" for name, value in steps.items())
        lines.append(f"B = {B}, T = 256, d = 64: {cells}, closed {predicted(256, 64, B):.1f}")
    return lines


def noisy(batch: int | float) -> float:
    """Escape time of Adam at T = d = 64 and a finite batch, with its noise."""
    rule, steps, *_ = RULES["adam"]
    times = np.arange(steps + 1)
    run = finite_batch.solve(dynsim.Retrieval(), rule, times, batch=batch)
    return float(run.crossing_time("loss", FALLEN * float(run["loss"][0])))


def exponent_lines(found: dict[str, xr.Dataset], batch: int | float) -> list[str]:
    """Report the plateau's length at T = d = 64 and its exponents of T and d, by optimiser."""
    lines = []
    for name in RULES:
        steps = {size: float(plateau(found[f"{name}/{size[0]}-{size[1]}"])[0]) for size in LADDERS}
        slopes = []
        for axis in (0, 1):
            sizes = [size for size in LADDERS if size[1 - axis] == 64]
            logs = np.log([size[axis] for size in sizes]), np.log([steps[size] for size in sizes])
            slopes.append(np.polyfit(*logs, 1)[0])
        trained = plateau(found[f"{name}/simulation"])
        if name == "adam":
            lines.append(f"adam: finite batch {noisy(batch):.1f}")
        lines.append(
            f"{name}: T^{slopes[0]:z.3f} d^{slopes[1]:z.3f}; T = d = 64: flow {steps[64, 64]:.1f}, "
            f"training {float(trained.mean()):.1f} ± {float(trained.std(ddof=1)):.1f}"
        )
    return lines


def plot_lengths(found: dict[str, xr.Dataset], ax: Axes) -> Axes:
    """Length of the plateau over sqrt(d) T."""
    flow, trained = plateau(found["length/plain"]), plateau(found["length/simulation"])
    points: dict[str, Any] = {"marker": "o", "ms": 9, "ls": "none"}
    points |= {"color": drawing.colour(0), "label": "descent, d = 64"}
    ax.plot(8 * trained["length"], trained, **points)
    for marker, d in zip("x+", SIZES, strict=True):
        label = f"flow, d = {d}"
        over = math.sqrt(d) * flow["length"]
        ax.plot(over, flow.sel(d=d), marker, color="k", ls="none", label=label)
    wide, square = plateau(found["wide/plain"]), plateau(found["square/simulation"])
    ax.plot(16 * wide["length"], wide, "1", color="k", ms=10, label="flow, d = 256")
    label = "training, T = d = 256, mean ± sd"
    how: dict[str, Any] = {"fmt": "s", "color": drawing.colour(1), "ms": 5, "label": label}
    ax.errorbar(16 * 256, float(square.mean()), float(square.std(ddof=1)), **how)
    ends = np.array([4 * LENGTHS[0], 8 * LENGTHS[-1]])
    ax.plot(ends, math.sqrt(math.pi / 2) * ends, "k--", lw=1, label=r"$\sqrt{\pi/2}\,\sqrt{d}\,T$")
    ax.set(xscale="log", yscale="log", xlabel=r"$\sqrt{d}\,T$", title="SGD at $\\eta = 1$")
    for axis in (ax.xaxis, ax.yaxis):
        drawing.ticks(axis, (2000, 5000, 10000, 20000))
    return _finished(ax, "steps until the loss is\n0.8 of its initial value")


def plot_copies(found: dict[str, xr.Dataset], ax: Axes) -> Axes:
    """Length of the plateau over the number of copies."""
    steps = {e: plateau(found[f"copies/{e}"]) for e in THEORIES}
    points: dict[str, Any] = {"marker": "o", "ms": 9, "ls": "none"}
    ax.plot(COPIES, steps["simulation"], color=drawing.colour(0), label="descent", **points)
    ax.plot(COPIES, steps["plain"], "kx", label="flow")
    closed = [predicted(256, 64, B) for B in COPIES]
    ax.plot(COPIES, closed, "k--", lw=1, label=r"closed form, $\propto 1/\sqrt{B}$")
    printed: dict[str, Any] = {"color": drawing.colour(1), "label": "eqs. 13, 14 as printed"}
    ax.plot(COPIES, steps["printed"], "s:", **printed)
    ax.set(xscale="log", yscale="log", xlabel="copies $B$", title="repetition, T = 256, d = 64")
    ax.set_xticks(COPIES, [str(B) for B in COPIES])
    ax.set_yticks([500, 1000, 2000], ["500", "1000", "2000"])
    ax.minorticks_off()
    return _finished(ax, "steps until the loss is\n0.8 of its initial value")


def plot_rules(found: dict[str, xr.Dataset], ax: Axes) -> Axes:
    """Draw the loss over steps by optimiser: the runs' mean and deviation, and the flow."""
    for i, (name, (rule, *_)) in enumerate(RULES.items()):
        trained, flow = valid(found[f"{name}/simulation"]), found[f"{name}/64-64"].isel(p=0)
        label = f"training, {name}, $\\eta$ = {rule.eta.peak:g}"
        style = {"color": drawing.colour(i), "lw": 3, "label": label}
        drawing.band(ax, trained.time, trained.loss, style, ddof=0)
        ax.plot(flow.time, flow.loss, "k--", lw=1, label="flow" if name == "sgd" else None)
    ax.set(xlabel="optimiser steps", title="T = d = 64", xlim=(0, 1500))
    return _finished(ax, "mean square error / 2")


def _finished(ax: Axes, quantity: str) -> Axes:
    # The curves fill the panels, so the legend goes below them.
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2)}
    return drawing.finished(ax, below, ylabel=quantity)
