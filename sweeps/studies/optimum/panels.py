"""The picture of `dynsim figure optimum`: best rates above, what they rest on below."""

import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from sweeps.output import drawing
from sweeps.runner.labels import WIDTH, label, shown, valid, wrapped
from sweeps.studies.optimum.best import AT_END
from sweeps.studies.optimum.runs import at_end
from sweeps.studies.options import scale_of

MOST_TICKS = 6
"""Of the axis across; of more values every second has one, or fewer."""
THEORY: dict[str, Any] = {"color": "k", "ls": "--", "lw": 1.2}
DIVERGED: dict[str, Any] = {"fc": "0.93", "ec": "0.7", "hatch": "////", "lw": 0}
NEAR, ERROR = 0.18, 0.45
"""How dark the range near the best and the standard error are."""


def draw(
    dataset: xr.Dataset,
    trained: xr.Dataset,
    predicted: Mapping[str, xr.Dataset],
    laws: xr.Dataset,
    theory: str,
    title: str,
) -> Figure:
    """A column for each rule: the best rate over the other axis, and the observable over the rate.

    Args:
        dataset: training, over the rule, the other axis, the rate and seeds.
        trained: its best rates.
        predicted: those of theory by rule, which need not depend on the other axis.
        laws: the power laws of those of training.
        theory: what it is called.
        title: of the figure.
    """
    along, over = str(laws.attrs["along"]), trained.attrs["over"]
    rules = [str(rule) for rule in trained["rule"].values]
    figure, axes = drawing.panels(2, len(rules), width=2.9, height=2.9, sharey="row")
    ends = []
    for place, (rule, (upper, lower)) in enumerate(zip(rules, axes.T, strict=True)):
        own = trained.sel(rule=rule)
        plot_best(own, dataset[along], drawing.colour(place), ax=upper)
        if rule in predicted:
            plot_theory(predicted[rule].sel(rule=rule), own[along], ax=upper)
        plot_law(own, laws.sel(rule=rule), along, ax=upper)
        fitted = bool(np.isfinite(laws["exponent"].sel(rule=rule)))
        legend = {"loc": "best", "frameon": False} if fitted else None
        drawing.finished(upper, legend, heading=rule, xlabel=wrapped(dataset[along]))
        plot_curves(dataset.sel(rule=rule), own, along, ax=lower)
        drawing.finished(lower, xlabel=wrapped(dataset[over]))
        ends.append(lower.get_ylim())
    # Panels share the axis, of which each has set its own part.
    axes[1, 0].set_ylim(min(low for low, _ in ends), max(high for _, high in ends))
    figure.suptitle(textwrap.fill(title, 100), fontsize="medium")
    axes[0, 0].set_ylabel(textwrap.fill(f"best {label(dataset[over])}", WIDTH))
    axes[1, 0].set_ylabel(wrapped(dataset[trained.attrs["observable"]]))
    beside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.02, 1), "frameon": False}
    law = axes[0, -1].get_legend()
    axes[0, -1].legend(handles=styles(trained, theory), fontsize="small", **beside)
    if law is not None:
        # A second legend takes the place of the first one.
        axes[0, -1].add_artist(law)
    axes[1, -1].legend(title=along, fontsize="small", **beside)
    return figure


def styles(trained: xr.Dataset, theory: str) -> list[Any]:
    """What colours and lines of the upper row mean."""
    near = f"within {100 * trained.attrs['within']:g} % of the best"
    found = [
        drawing.key("training", marker="o", ms=4, lw=1, color="0.4"),
        Patch(color="0.4", alpha=ERROR, lw=0, label="standard error"),
        Patch(color="0.4", alpha=NEAR, lw=0, label=near),
        Patch(label="most runs diverge", **DIVERGED),
    ]
    if trained["place"].isin(AT_END).any():
        label = "end of the rates tried"
        found.append(drawing.key(label, marker="o", ms=5, ls="none", mfc="white", color="0.4"))
    if theory:
        found.append(drawing.key(textwrap.fill(theory, 24), **THEORY))
    return found


def plot_best(found: xr.Dataset, along: xr.DataArray, colour: str, ax: Axes) -> Axes:
    """Best rates with their errors, the range that is nearly as good, and where runs diverge."""
    x, best = along.values, found["best"].values
    first, last = found.attrs["ends"]
    low, high = first / 1.3, last * 1.3
    edge = found["edge"].fillna(low)
    ax.fill_between(x, edge.where(edge < last), high, **DIVERGED)
    filled: dict[str, Any] = {"color": colour, "lw": 0}
    ax.fill_between(x, found["lower"], found["upper"], alpha=NEAR, **filled)
    factor = np.exp(np.nan_to_num(found["error"].values))
    ax.fill_between(x, best / factor, best * factor, alpha=ERROR, **filled)
    ax.plot(x, best, color=colour, marker="o", ms=4, lw=1)
    # A bound: the best lies beyond it.
    ends = found["place"].isin(AT_END).values
    ax.plot(x[ends], best[ends], "o", mfc="white", mec=colour, ms=5)
    ax.set(xscale=scale_of(x), yscale="log", ylim=(low, high))
    drawing.ticks(ax.xaxis, x if len(x) <= MOST_TICKS else x[:: -(-len(x) // 4)])
    return ax


def plot_law(found: xr.Dataset, law: xr.Dataset, along: str, ax: Axes) -> Axes:
    """The power law, where there is one, with its exponent."""
    if np.isfinite(law["exponent"]):
        x = found[along].values
        power = f"^{{{float(law.exponent):.2f} \\pm {float(law.error):.2f}}}"
        words = f"$\\propto \\mathrm{{{along}}}{power}$".replace("_", r"\_")
        ax.plot(x, float(law.prefactor) * x ** float(law.exponent), "k:", lw=1.2, label=words)
    return ax


def plot_theory(found: xr.Dataset, along: xr.DataArray, ax: Axes) -> Axes:
    """Best rates by theory, a level line where they do not depend on the other axis; nothing where
    only a bound is known."""
    best = found["best"].where(~found["place"].isin(AT_END))
    ax.plot(along, best.broadcast_like(along), **THEORY)
    return ax


def plot_curves(dataset: xr.Dataset, found: xr.Dataset, along: str, ax: Axes) -> Axes:
    """The observable over the rate, a curve for each value of the other axis, with its best; above
    what the smallest rate reaches it is cut off."""
    over, name = found.attrs["over"], found.attrs["observable"]
    values = at_end(valid(dataset[[name, "status"]]), name)
    mean = values.mean("seed", skipna=False).sortby(over).transpose(over, along)
    colours = drawing.shades(mean.sizes[along])
    for value, colour in zip(mean[along].values, colours, strict=True):
        curve, point = mean.sel({along: value}), found.sel({along: value})
        ax.plot(curve[over], curve, color=colour, lw=1.2, label=shown(value))
        ax.plot(point["best"], point["value"], "o", color=colour, ms=4)
    ax.set(xscale="log", yscale="log" if float(mean.min()) > 0 else "linear")
    low, high = float(mean.min()), float(mean.isel({over: 0}).max())
    if found.attrs["pick"] == "lowest" and 0 < low < high:
        ax.set_ylim(low / (high / low) ** 0.1, high * (high / low) ** 0.1)
    return ax
