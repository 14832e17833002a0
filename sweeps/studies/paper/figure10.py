"""Fig. 10 of Scan and Snap: entropy of attention on held-out text against the learning rate."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dynsim import checks
from dynsim.transformer.observables import uniform_entropy
from sweeps import output
from sweeps.output import drawing
from sweeps.runner.cluster import hosts
from sweeps.runner.run import run as run_sweep
from sweeps.runner.run import valid
from sweeps.runner.spec import Sweep
from sweeps.systems.transformer.settings import TextFigure, TextTraining, describe

RECORDS = 20
"""Intervals, evenly spaced, between the records of a run."""
SIGNIFICANT = 2.0
"""Standard errors that the slope must lie away from zero for the trend to count as found."""


@dataclasses.dataclass(frozen=True)
class Figure10(TextFigure):
    """Entropy of a one-layer transformer's attention on held-out text, learning rates 1 to 5.

    Attributes:
        eta: learning rates.
        seeds: number of runs at each rate.
        layers: blocks of the transformer.
        out: directory for the picture, fig10.npz and .json, and the stored sweep, which resumes.
    """

    eta: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0, 5.0)
    seeds: int = 5
    layers: int = 1
    out: Path = Path("out/fig10")

    def training(self) -> TextTraining:
        """The run of which every point is a variation."""
        return self.variation(layers=self.layers)


class Trend(NamedTuple):
    """Straight line through the runs, by least squares.

    Attributes:
        slope: nat per unit of the learning rate, NaN with less than three runs.
        standard_error: of the slope, from the residuals.
        intercept: nat.
        runs: number of runs that it is through.
        falls: whether the slope is below zero by `SIGNIFICANT` standard errors.
    """

    slope: float
    standard_error: float
    intercept: float
    runs: int
    falls: bool

    def __str__(self) -> str:
        away = abs(self.slope) > SIGNIFICANT * self.standard_error
        verdict = ("falls" if self.slope < 0 else "rises") if away else "inconclusive"
        return f"slope {self.slope:.4f} ± {self.standard_error:.4f}, {verdict}"


def run(config: Figure10) -> list[Path]:
    """Run or resume the sweep, fit the line, draw and write the figure."""
    checks.integer("seeds", config.seeds, 1)
    checks.integer("steps", config.steps, RECORDS)
    if len(set(config.eta)) < 2:
        raise ValueError(f"eta = {config.eta}: needs at least two different learning rates")
    checks.real("eta", config.eta, 0, open_minimum=True)
    output.check_directory(config.out)
    hosts.use_all_cores()
    times = tuple(np.unique(np.linspace(0, config.steps, RECORDS + 1).astype(int)).tolist())
    axes = {"eta": list(config.eta), "seed": {"range": config.seeds}}
    sweep = Sweep(
        axes, config.training(), "simulation", ("loss", "entropy", "top", "change"), times
    )
    data = run_sweep(sweep, config.out / "simulation").load()
    entropy = valid(data)["entropy"].transpose("eta", "seed", "time")
    rates = data["eta"].values
    final = entropy.isel(time=-1).values
    found = {
        "equal steps": trend(rates, final),
        "equal eta-time": trend(rates, at_equal_progress(entropy)),
    }
    diverged = int(np.isnan(final).sum())
    for name, line in found.items():
        print(f"entropy against the learning rate, {name}: {line}")
    print(f"{diverged} of {final.size} runs diverged")
    arrays = {n: valid(data)[n].transpose("eta", "seed", "time").values for n in sweep.record}
    arrays |= {"eta": rates, "time": data["time"].values}
    report = {name: line._asdict() for name, line in found.items()}
    report |= {"diverged": diverged, "final_entropy": final}
    return output.write(
        config.out,
        "fig10",
        figure=draw(config, entropy, found),
        arrays=arrays,
        report=output.as_json(report),
    )


def draw(config: Figure10, entropy: xr.DataArray, found: Mapping[str, Trend]) -> Figure:
    """Entropy (eta, seed, time) of valid runs: at the end against the rate, and over training."""
    final = entropy.isel(time=-1).values
    figure, ((left, right),) = drawing.panels(1, 2, width=4.8, height=4.2)
    bound = uniform_entropy(config.length)
    plot(entropy["eta"].values, final, found["equal steps"], bound, ax=left)
    left.set_title(f"after {config.steps} steps", fontsize="medium")
    plot_over_time(entropy, ax=right)
    right.set_title(f"at equal $\\eta$ x steps: {found['equal eta-time']}", fontsize="medium")
    diverged = int(np.isnan(final).sum())
    runs = f"{config.layers} layer(s), {diverged} of {final.size} runs diverged"
    figure.suptitle(f"{describe(config.training())}; {runs}", fontsize="medium")
    return figure


def trend(rates: Float[np.ndarray, " R"], entropy: Float[np.ndarray, "R S"]) -> Trend:
    """The line through all runs that ended well, each a point."""
    x = np.repeat(rates, entropy.shape[1]).astype(float)
    y = entropy.ravel().astype(float)
    x, y = x[~np.isnan(y)], y[~np.isnan(y)]
    if len(y) < 3 or np.ptp(x) == 0:
        return Trend(math.nan, math.nan, math.nan, len(y), False)
    centred = x - x.mean()
    slope = centred @ y / (centred @ centred)
    intercept = y.mean() - slope * x.mean()
    residual = y - intercept - slope * x
    error = np.sqrt(residual @ residual / (len(y) - 2) / (centred @ centred))
    falls = slope + SIGNIFICANT * error < 0
    return Trend(float(slope), float(error), float(intercept), len(y), bool(falls))


def at_equal_progress(entropy: xr.DataArray) -> Float[np.ndarray, "R S"]:
    """Entropy of each run at the step at which eta times steps is what the smallest rate reaches,
    between records linear: whether larger rates only get further on the same way."""
    reach = float(entropy["eta"].min() * entropy["time"][-1])
    rows = [
        [np.interp(reach / float(one["eta"]), one["time"], run) for run in one.values]
        for one in entropy
    ]
    return np.array(rows)


def plot(
    rates: Float[np.ndarray, " R"],
    entropy: Float[np.ndarray, "R S"],
    line: Trend,
    bound: float,
    ax: Axes,
) -> Axes:
    """Runs as dots, their mean and standard deviation, and the line; `bound` is the entropy of
    uniform attention."""
    ax.plot(np.repeat(rates, entropy.shape[1]), entropy.ravel(), ".", color="grey", label="runs")
    rows = [row[~np.isnan(row)] for row in entropy]
    mean = [row.mean() if row.size else np.nan for row in rows]
    spread = [row.std(ddof=1) if row.size > 1 else 0.0 for row in rows]
    style = {"fmt": "o", "capsize": 4, "color": drawing.colour(0)}
    ax.errorbar(rates, mean, spread, label="mean, standard deviation", **style)
    fitted = line.intercept + line.slope * rates
    ax.plot(rates, fitted, "--", color=drawing.colour(1), label=str(line))
    ax.axhline(bound, color="black", lw=0.8, ls=":", label="uniform attention")
    ax.set(xlabel=r"learning rate $\eta$ (1/step)", ylabel="entropy of attention (nat)")
    ax.legend(fontsize="small")
    ax.grid(alpha=0.25)
    return ax


def plot_over_time(entropy: xr.DataArray, ax: Axes) -> Axes:
    """Mean over seeds and its spread against eta times steps, a colour for each rate."""
    colours = drawing.shades(entropy.sizes["eta"])
    for one, colour in zip(entropy, colours, strict=True):
        rate = float(one["eta"])
        runs = one.dropna("seed")
        if not runs.sizes["seed"]:
            continue
        progress, mean = rate * one["time"], runs.mean("seed")
        spread = runs.std("seed", ddof=min(1, runs.sizes["seed"] - 1))
        ax.plot(progress, mean, color=colour, label=rf"$\eta = {rate:g}$")
        ax.fill_between(progress, mean - spread, mean + spread, color=colour, alpha=0.2, lw=0)
    ax.set(xlabel=r"$\eta\,\times$ steps", ylabel="entropy of attention (nat)")
    if ax.lines:
        ax.legend(fontsize="small")
    ax.grid(alpha=0.25)
    return ax
