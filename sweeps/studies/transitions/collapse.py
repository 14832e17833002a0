"""Transition times on one line: the measured peak of f_n . g_n against its closed form.

By Theorem 1 of Scan and Snap, f_n . g_n is gamma(t), whose peak depends only on K, M and eta_Y.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dynsim import Task, checks
from dynsim.decoding import Count
from sweeps import output
from sweeps.language.tree import encode
from sweeps.output import drawing
from sweeps.runner.labels import valid
from sweeps.runner.spec import Sweep
from sweeps.studies import computed
from sweeps.studies.options import unreduced
from sweeps.studies.transitions.peaks import gamma_peak, measured_peak, over_points, predicted_peak
from sweeps.systems.base import known
from sweeps.systems.experiment import about, experiment
from sweeps.systems.kinds import language

HORIZON = 2.5
"""Steps of a run relative to the predicted peak at the smallest rate, to include late peaks."""
RATIO = 100
"""eta_Y / eta_Z: attention hardly moves before the decoder's peak (Assumption 1c)."""
RATES = (0.2, 0.5, 1.2, 3.0)
"""Effective eta_Y / (1 - mu)."""
NUM_TIMES = 60


class Family(NamedTuple):
    """Runs that vary the same settings.

    Attributes:
        title: title of the panel.
        run: settings of a run.
        axes: axes besides eta_Y, eta_Z and seeds.
        label: label of a line, formatted with the values of the axes.
        zipped: axes that vary together.
    """

    title: str
    run: Mapping[str, Any]
    axes: Mapping[str, tuple[float, ...]]
    label: str
    zipped: tuple[str, ...] = ()


# With one class per query there are as many queries as classes.
_ONE_COMMON = {"task": "syn", "classes_per_query": 1, "num_common": 1, "batch": 128, "length": 512}
FAMILIES = {
    "size": Family(
        "classes and vocabulary",
        _ONE_COMMON,
        {"num_queries": (2, 3, 5, 10, 20), "M": (500, 40, 100, 150, 250)},
        "K = {num_queries:g}, M = {M:g}",
        zipped=("num_queries", "M"),
    ),
    "overlap": Family(
        "overlap (K = 5, M = 30)",
        {"task": "overlapping", "K": 5, "batch": 128, "length": 512},
        {"overlap": (0.0, 0.1, 0.3, 0.6)},
        r"$f_n \cdot f_{{n'}}$ = {overlap:g}",
    ),
    "momentum": Family(
        "momentum 0.9 (M = 100)",
        {**_ONE_COMMON, "M": 100, "momentum": 0.9},
        {"num_queries": (2, 5, 8)},
        "K = {num_queries:g}",
    ),
    "sampling": Family(
        "batch and length (K = 5, M = 100)",
        {**_ONE_COMMON, "num_queries": 5, "M": 100},
        {"batch": (8, 128), "length": (16, 512)},
        "batch {batch:g}, T = {length:g}",
    ),
}
THEORIES = ("simulation", "symmetric", "symmetric-descent")
LIMIT = ("batch", "length")
"""Axes that the symmetric theories take as infinite."""


def of_task(task: Task) -> Family:
    """Vary batch and sequence length on a given task."""
    sampled, title = FAMILIES["sampling"], about(encode(language(), task))
    return sampled._replace(title=f"batch and length ({title})", run={"task": task})


def variants(family: Family, seeds: int) -> dict[str, Sweep]:
    """The sweeps of a family: training, and both symmetric theories at infinite T and batch."""
    rates = tuple(rate * (1 - family.run.get("momentum", 0)) for rate in RATES)
    rate_axes = {"eta_y": rates, "eta_z": tuple(rate / RATIO for rate in rates)}
    zipped = (("eta_y", "eta_z"),)
    # Runs of one size have the same number of steps; zipped sizes each have their own.
    probe = Sweep(
        experiment(**family.run),
        {**family.axes, **rate_axes},
        zip=(*zipped, family.zipped) if family.zipped else zipped,
    )
    latest = over_points(probe, predicted_peak).max("eta_y")
    by_size = [dim for dim in latest.dims if dim in ("num_queries", "M")]
    latest = latest.max([dim for dim in latest.dims if dim not in by_size])
    steps = np.ceil(HORIZON * latest.values).astype(int)
    run, axes = dict(family.run), dict(family.axes)
    if by_size:
        axes["steps"] = tuple(steps.tolist())
        zipped = (*zipped, (*(family.zipped or by_size), "steps"))
    else:
        run["steps"] = int(steps)
    simulation = Sweep(
        experiment(**run),
        {**axes, **rate_axes, "seed": {"range": seeds}},
        record=("speed",),
        times=NUM_TIMES,
        zip=zipped,
    )
    exact = {field: values for field, values in axes.items() if field not in LIMIT}
    run["dtype"] = "float64"
    return {"simulation": simulation} | {
        theory: unreduced(
            dataclasses.replace(
                simulation, axes={**exact, **rate_axes}, run=experiment(**run), theory=theory
            )
        )
        for theory in THEORIES[1:]
    }


LATE = 10
"""Predicted peak, in steps, above which neighbouring steps are close in log t."""


@dataclasses.dataclass(frozen=True)
class Collapse:
    """Time of the peak of f_n . g_n against its closed form, over K, M, eta_Y and more.

    Attributes:
        families: which of size, overlap, momentum and sampling (batch and length); all if omitted,
            none if a task is given.
        seeds: number of runs at each point.
        task: sequence classes to vary over batch and length instead.
        out: folder for the figure, collapse.csv and the stored sweeps, from which the command
            resumes.
    """

    families: tuple[str, ...] = ()
    seeds: Count = 3
    task: Task | None = None
    out: Path = Path("out/collapse")

    def chosen(self) -> dict[str, Family]:
        """The chosen families, by name."""
        for name in self.families:
            checks.choice("families", name, tuple(FAMILIES))
        own = {} if self.task is None else {"task": of_task(self.task)}
        names = self.families or (() if own else FAMILIES)
        return {**{name: FAMILIES[name] for name in names}, **own}

    def sweeps(self) -> dict[str, Sweep]:
        """The sweeps of all chosen families, by family and theory."""
        return {
            f"{name}-{theory}": sweep
            for name, family in self.chosen().items()
            for theory, sweep in variants(family, self.seeds).items()
        }


def run(config: Collapse) -> list[Path]:
    """Run or resume the sweeps, draw and write the figure and its table."""
    stored, wanted, chosen = computed(config), config.sweeps(), config.chosen()
    found = {
        name: peaks(
            wanted[f"{name}-simulation"], {e: valid(stored[f"{name}-{e}"]) for e in THEORIES}
        )
        for name in chosen
    }
    text = table(found)
    print(text)
    arrays = {name: dataset.variables for name, dataset in found.items()}
    return output.write(
        config.out, "collapse", figure=draw(found, chosen), arrays=arrays, text={"csv": text}
    )


def peaks(sweep: Sweep, stored: Mapping[str, xr.Dataset]) -> xr.Dataset:
    """Peak times (optimiser steps) of a family: `predicted`, measured by theory, and `gamma`,
    measured in the same way on the closed-form curve, which shows the error of measuring."""
    found = {
        "predicted": over_points(sweep, predicted_peak),
        "gamma": over_points(sweep, lambda t: gamma_peak(t, known(t.steps_recorded(sweep.times)))),
    }
    return xr.Dataset(found | {name: measured_peak(ds) for name, ds in stored.items()})


def table(found: Mapping[str, xr.Dataset]) -> str:
    """CSV with one line per family and theory: number of points, those with a peak before the last
    step, and median and worst relative deviation from the closed form, over all points and over
    late peaks."""
    late = f"peak >= {LATE} steps"
    columns = ["family", "theory", "points", "measured", "median_%", "worst_%"]
    lines: list[list[Any]] = [[*columns, f"median_% ({late})", f"worst_% ({late})"]]
    for name, ds in found.items():
        for theory in (*THEORIES, "gamma"):
            error = deviation(ds, theory)
            if "seed" in error.dims:
                error = error.mean("seed")
            error, predicted = xr.broadcast(error, ds.predicted)
            numbers = error.values[np.isfinite(error.values)]
            slow = error.values[np.isfinite(error.values) & (predicted.values >= LATE)]
            row = [f"{value:+.2f}" for part in (numbers, slow) for value in extremes(part)]
            lines.append([name, theory, error.size, numbers.size, *row])
    return output.as_csv(lines)


def deviation(peaks: xr.Dataset, theory: str) -> xr.DataArray:
    """Relative deviation of the measured peak time from the predicted one, in %."""
    return 100 * (peaks[theory] / peaks.predicted - 1)


def extremes(values: np.ndarray) -> tuple[float, float]:
    """Median, and the value of largest magnitude; NaN for an empty array."""
    if not values.size:
        return np.nan, np.nan
    return float(np.median(values)), float(values[np.argmax(np.abs(values))])


def draw(found: Mapping[str, xr.Dataset], families: Mapping[str, Family] = FAMILIES) -> Figure:
    """Draw all families on one line, and a panel of deviations from it for each family."""
    rows = min(len(found), 2)
    width = 1 + -(-len(found) // rows)
    figure = plt.figure(figsize=(3.6 * width, 0.8 + 3.6 * rows), layout="constrained")
    names = [*found, *["."] * ((width - 1) * rows - len(found))]
    grid = figure.subplot_mosaic([["all", *names[row::rows]] for row in range(rows)])
    plot_collapse(found, families, ax=grid["all"])
    for name, ds in found.items():
        plot_deviation(ds, families[name], ax=grid[name])
    runs = {ds.sizes["seed"] for ds in found.values()} - {1}
    several = "mean, s.d.; " if runs else "one run; "
    handles = [
        drawing.key(f"simulation ({several}shifted right for visibility)", marker="o", ls=""),
        drawing.key("exact flow (T, batch = ∞)"),
        drawing.key("exact descent (T, batch = ∞)", ls="", marker="x"),
        drawing.key("closed form, peak found in the same way", color="0.75", lw=4),
    ]
    drawing.below(figure, handles, 2)
    return figure


def plot_collapse(
    found: Mapping[str, xr.Dataset], families: Mapping[str, Family], ax: Axes
) -> Axes:
    """Draw measured against predicted peak times, with a marker for each family."""
    ends = np.array([])
    markers = dict(zip(families, "os^Dv", strict=False))
    colours = {name: drawing.colour(place) for place, name in enumerate(families)}
    for name, ds in found.items():
        mean, predicted = xr.broadcast(ds.simulation.mean("seed"), ds.predicted)
        style: dict[str, Any] = {"color": colours[name], "mfc": "none"}
        style["label"] = families[name].title
        ax.plot(predicted.values.ravel(), mean.values.ravel(), markers[name], ms=6, **style)
        ends = np.r_[ends, predicted.values.min(), predicted.values.max()]
    line = np.array([ends.min() / 1.3, ends.max() * 1.3])
    ax.plot(line, line, color="k", lw=1, zorder=0, label="y = x (theory)")
    for which in "xy":
        drawing.logarithmic(ax, which, line)
    return drawing.finished(
        ax,
        {},
        title=r"peak of $f_n \cdot g_n$, simulation",
        xlabel="closed-form peak (optimiser steps)",
        ylabel="measured peak (optimiser steps)",
    )


def plot_deviation(peaks: xr.Dataset, family: Family, ax: Axes) -> Axes:
    """Draw the relative deviation of the peak time over the predicted time, for each variant."""
    dims = [dim for dim in peaks.predicted.dims if dim != "eta_y"]
    drawing.logarithmic(ax, "x", peaks.predicted.values)
    ax.set_yscale("symlog", linthresh=1)
    sampled = any(name in LIMIT for name in family.axes)
    stacked = peaks.stack(variant=dims, create_index=False)
    colours = drawing.shades(stacked.sizes["variant"])
    for i, colour in enumerate(colours):
        one = stacked.isel(variant=i)
        label = family.label.format(**{name: float(one[name]) for name in family.axes})
        x, error = one.predicted.values, deviation(one, "simulation")
        spread = error.std("seed", ddof=1) if error.sizes["seed"] > 1 else None
        ax.plot(x, deviation(one, "gamma"), color="0.75", lw=4, zorder=0)
        # A curve that is the same for all variants is grey.
        exact = "0.4" if sampled else colour
        ax.plot(x, deviation(one, "symmetric"), "-", color=exact, lw=1)
        ax.plot(x, deviation(one, "symmetric-descent"), "x", color=exact, ms=7)
        style = {"color": colour, "ms": 4, "capsize": 2, "label": label}
        beside = x * 1.03 ** (i + 1)  # so that error bars do not cover one another
        ax.errorbar(beside, error.mean("seed"), spread, fmt="o", **style)
    ax.axhline(0, color="k", lw=0.8, zorder=0)
    ax.margins(y=0.12)
    # Leave room for the legend above the curves.
    ax.set_ylim(top=10 * max(ax.get_ylim()[1], 1))
    ax.yaxis.set_major_formatter("{x:g}")
    narrow: dict[str, Any] = {"handlelength": 1, "handletextpad": 0.5, "columnspacing": 1}
    return drawing.finished(
        ax,
        {"framealpha": 0.6, "loc": "upper center", "ncols": 2, **narrow},
        title=family.title,
        xlabel="closed-form peak (optimiser steps)",
        ylabel="measured / closed form − 1 (%)",
    )
