"""Fig. 10 of Scan and Snap: entropy of attention on held-out text against the learning rate."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dynsim import checks
from dynsim.decoding import Count
from dynsim.transformer.model import uniform_entropy
from sweeps import output
from sweeps.output import drawing
from sweeps.runner.labels import valid
from sweeps.runner.spec import Sweep
from sweeps.studies import computed
from sweeps.studies.options import line
from sweeps.studies.paper import CLIPPED, describe, transformer
from sweeps.systems.experiment import Experiment, experiment

RECORD = ("loss", "entropy", "top", "change")
RECORDS = 20
"""Number of evenly spaced intervals between the records of a run."""
SIGNIFICANT = 2.0
"""Distance of the slope from zero, in standard errors, at which a trend counts as significant."""


@dataclasses.dataclass(frozen=True)
class Figure10:
    """Entropy of a one-layer transformer's attention on held-out text, learning rates 1 to 5.

    Attributes:
        run: the run at all rates.
        eta: learning rates.
        seeds: number of runs at each rate.
        out: folder for the figure, fig10.npz and .json, and the stored sweep, from which the
            command resumes.
    """

    RUN: ClassVar[Mapping[str, Any]] = CLIPPED

    run: Experiment = dataclasses.field(default_factory=lambda: experiment(**CLIPPED))
    eta: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0, 5.0)
    seeds: Count = 5
    out: Path = Path("out/fig10")

    def sweeps(self) -> dict[str, Sweep]:
        """The runs of all rates."""
        steps = checks.integer("steps", self.run.steps, RECORDS)
        transformer(self.run)
        if len(set(self.eta)) < 2:
            raise ValueError(f"eta = {self.eta}: needs at least two different learning rates")
        checks.real("eta", self.eta, 0, open_minimum=True)
        times = tuple(np.unique(np.linspace(0, steps, RECORDS + 1).astype(int)).tolist())
        axes = {"eta": list(self.eta), "seed": {"range": self.seeds}}
        return {"simulation": Sweep(self.run, axes, "simulation", RECORD, times)}


class Trend(NamedTuple):
    """Straight line through the runs, by least squares.

    Attributes:
        slope: nat per unit of the learning rate, NaN with less than three runs.
        standard_error: standard error of the slope, from the residuals.
        intercept: nat.
        runs: number of runs in the fit.
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
    data = valid(computed(config)["simulation"]).transpose("eta", "seed", "time", ...)
    entropy = data["entropy"]
    rates = data["eta"].values
    final = entropy.isel(time=-1).values
    found = {
        "equal steps": trend(rates, final),
        "equal eta-time": trend(rates, at_equal_progress(entropy)),
    }
    reach = reached(entropy)
    diverged = int(np.isnan(final).sum())
    for where, fitted in zip(
        (f"after {config.run.steps} steps", f"at eta times steps = {reach:g}"),
        found.values(),
        strict=True,
    ):
        print(f"entropy against the learning rate, {where}: {fitted}")
    print(f"{diverged} of {final.size} runs diverged")
    arrays: dict[str, Any] = {name: data[name] for name in (*RECORD, "eta", "time")}
    report = {name: fitted._asdict() for name, fitted in found.items()}
    products, lines = at_products(entropy)
    arrays["product"], arrays["slope"] = products, np.array([each[:2] for each in lines])
    report |= {"diverged": diverged, "final_entropy": final, "eta_time": reach}
    figure = draw(config, entropy, found)
    return output.write(config.out, "fig10", figure=figure, arrays=arrays, report=report)


def draw(config: Figure10, entropy: xr.DataArray, found: Mapping[str, Trend]) -> Figure:
    """Draw the entropy (eta, seed, time) of valid runs: at the end against the rate, over training,
    and below these the slope over the rates."""
    final = entropy.isel(time=-1).values
    figure = plt.figure(figsize=(9.6, 5), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=(5, 3))
    left, right = figure.add_subplot(grid[:, 0]), figure.add_subplot(grid[0, 1])
    below = figure.add_subplot(grid[1, 1], sharex=right)
    bound = uniform_entropy(transformer(config.run).length)
    plot(entropy["eta"].values, final, found["equal steps"], bound, ax=left)
    left.set_title(f"after {config.run.steps} steps")
    plot_over_time(entropy, ax=right).set_title(r"at equal $\eta\,\times$ steps")
    right.tick_params(labelbottom=False)
    plot_slopes(*at_products(entropy), ax=below)
    diverged = int(np.isnan(final).sum())
    runs = f"layers: {transformer(config.run).layers}; {diverged} of {final.size} runs diverged"
    figure.suptitle(f"{describe(config.run)}\n{runs}")
    return figure


def trend(rates: Float[np.ndarray, " R"], entropy: Float[np.ndarray, "R S"]) -> Trend:
    """Fit a line through all runs that ended well, one point each."""
    x = np.repeat(rates, entropy.shape[1]).astype(float)
    y = entropy.ravel().astype(float)
    x, y = x[~np.isnan(y)], y[~np.isnan(y)]
    if len(y) < 3 or np.ptp(x) == 0:
        return Trend(math.nan, math.nan, math.nan, len(y), False)
    found = line(x, y)
    return Trend(*found, len(y), bool(found.slope + SIGNIFICANT * found.error < 0))


def reached(entropy: xr.DataArray) -> float:
    """Largest product of eta and steps that the runs of every rate reach."""
    return float(entropy["eta"].min() * entropy["time"][-1])


def at_equal_progress(
    entropy: xr.DataArray, product: float | None = None
) -> Float[np.ndarray, "R S"]:
    """Interpolate each run's entropy to where eta times steps is `product`, by default `reached`.
    It shows whether larger rates only get further along the same path."""
    product = reached(entropy) if product is None else product
    rows = [
        [np.interp(product / float(one["eta"]), one["time"], run) for run in one.values]
        for one in entropy
    ]
    return np.array(rows)


def at_products(entropy: xr.DataArray) -> tuple[np.ndarray, list[Trend]]:
    """Return products of eta and steps up to the largest that three rates reach, and for each the
    line through the runs that reach it, because trends differ from one product to another."""
    ends = entropy["eta"].values * float(entropy["time"][-1])
    last = np.sort(ends)[-min(3, len(ends))]
    products = np.linspace(0, last, 2 * RECORDS + 1)[1:]
    there = [entropy.isel(eta=np.flatnonzero(ends >= product * (1 - 1e-9))) for product in products]
    return products, [
        trend(part["eta"].values, at_equal_progress(part, product))
        for part, product in zip(there, products, strict=True)
    ]


def plot(
    rates: Float[np.ndarray, " R"],
    entropy: Float[np.ndarray, "R S"],
    fit: Trend,
    bound: float,
    ax: Axes,
) -> Axes:
    """Draw runs as dots, their mean and standard deviation, and the line; `bound` is the entropy of
    uniform attention."""
    ax.plot(np.repeat(rates, entropy.shape[1]), entropy.ravel(), ".", color="grey", label="runs")
    rows = [row[~np.isnan(row)] for row in entropy]
    mean = [row.mean() if row.size else np.nan for row in rows]
    spread = [row.std(ddof=1) if row.size > 1 else 0.0 for row in rows]
    style = {"fmt": "o", "capsize": 4, "color": drawing.colour(0)}
    ax.errorbar(rates, mean, spread, label="mean, standard deviation", **style)
    fitted = fit.intercept + fit.slope * rates
    label = rf"slope ${fit.slope:.3f} \pm {fit.standard_error:.3f}$ nat per unit of rate"
    ax.plot(rates, fitted, "--", color=drawing.colour(1), label=label)
    ax.axhline(bound, color="black", lw=0.8, ls=":", label="uniform attention")
    labels = {"xlabel": r"learning rate $\eta$ (1/step)", "ylabel": "entropy of attention (nat)"}
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14), "ncols": 2, "frameon": False}
    return drawing.finished(ax, below, **labels)


def plot_over_time(entropy: xr.DataArray, ax: Axes) -> Axes:
    """Draw mean and standard deviation over seeds against eta times steps, for each rate."""
    colours = drawing.shades(entropy.sizes["eta"])
    for one, colour in zip(entropy, colours, strict=True):
        rate = float(one["eta"])
        runs = one.dropna("seed")
        if not runs.sizes["seed"]:
            continue
        style = {"color": colour, "label": rf"$\eta = {rate:g}$"}
        drawing.band(ax, rate * one["time"], runs, style)
    return drawing.finished(ax, {} if ax.lines else None, ylabel="entropy of attention (nat)")


def plot_slopes(products: np.ndarray, lines: Sequence[Trend], ax: Axes) -> Axes:
    """Draw the slope over the rates against eta times steps, ± `SIGNIFICANT` standard errors."""
    slopes, errors, *_ = (np.array(each) for each in zip(*lines, strict=True))
    around = SIGNIFICANT * errors
    ax.fill_between(
        products, slopes - around, slopes + around, color="0.8", lw=0, label="± 2 standard errors"
    )
    ax.plot(products, slopes, color="k")
    ax.axhline(0, color="0.4", lw=0.8)
    labels = {"xlabel": r"$\eta\,\times$ steps", "ylabel": "slope in the rate\n(nat per unit)"}
    return drawing.finished(ax, {}, **labels)
