"""The panels of a phase diagram: maps of an observable and of regions, and the lines on them."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap, LogNorm, Normalize
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator

from sweeps.output import drawing
from sweeps.runner.labels import label
from sweeps.studies.options import heat_map, scale_of
from sweeps.studies.phase.plane import Plane, colour_range
from sweeps.studies.phase.regions import DIVERGED_COLOUR, Rule

LINES = {
    "rise_end": (r"steps = $t_0'$", ":"),
    "peak": (r"steps = $t_{peak}$ of $\gamma$", "-"),
    "snap": (r"steps = $t_0$", "--"),
}
"""Transition lines: where a stage of the closed form ends just at the last step."""
MOST_TICKS = 8
"""Of an axis of whole numbers."""
NOISE_COLOUR = "#c2185b"


def colours_of(values: np.ndarray) -> Normalize:
    """The scale of colours for all of these values: logarithmic if they span decades."""
    low, high, logarithmic = colour_range(values)
    return (LogNorm if logarithmic else Normalize)(low, high)


def plot_map(values: xr.DataArray, norm: Normalize, ax: Axes, cmap: str = "viridis"):
    """Heat map over the plane; points without a valid run have a flat colour of their own.
    Returns the mesh, for a colour bar."""
    colours = plt.get_cmap(cmap).with_extremes(bad=DIVERGED_COLOUR)
    ax.set_facecolor(DIVERGED_COLOUR)
    mesh = heat_map(ax, values, cmap=colours, norm=norm)
    decorate(ax, *(values[dim] for dim in values.dims))
    return mesh


def plot_regions(areas: xr.DataArray, rule: Rule, ax: Axes) -> Axes:
    """Map of the regions in the colours of the rule."""
    codes = list(rule.legend)
    colours = ListedColormap([colour for _, colour in rule.legend.values()])
    norm = BoundaryNorm(np.arange(len(codes) + 1) - 0.5, len(codes))
    places = areas.copy(data=np.searchsorted(codes, areas.values))
    heat_map(ax, places, cmap=colours, norm=norm)
    decorate(ax, *(areas[dim] for dim in areas.dims))
    return ax


def plot_agreement(one: xr.DataArray, other: xr.DataArray, ax: Axes) -> float:
    """Where two region maps agree, and the share of the plane that does."""
    same = one.copy(data=one.values == other.values)
    heat_map(ax, same, cmap=ListedColormap(["#d95f02", "#f0f0f0"]), vmin=0, vmax=1)
    decorate(ax, *(one[dim] for dim in one.dims))
    return float(same.mean())


def plot_lines(config: Plane, closed: Mapping[str, np.ndarray], ax: Axes, bound: bool) -> None:
    """The transition lines, and iso-lines of Theorem 4's B where `bound`; nothing where theory
    has no lines."""
    if not closed:
        return
    (_, xs), (_, ys) = config.axes().items()
    for name in crossing(closed):
        ratio, style = np.log(closed[name]), LINES[name][1]
        ax.contour(xs, ys, ratio, [0.0], colors="k", linestyles=style, linewidths=1.4)
    if bound and np.isfinite(closed["bound"]).all():
        levels = np.unique(np.round(np.quantile(closed["bound"], [0.2, 0.5, 0.8]), 2))
        drawn = ax.contour(
            xs, ys, closed["bound"], levels, colors="0.35", linewidths=0.8, linestyles="-"
        )
        ax.clabel(drawn, fmt="B = %.2g", fontsize="small")


def plot_own(own: Mapping[str, xr.DataArray], x: str, y: str, ax: Axes) -> None:
    """Lines of a rule's own, where their values are zero."""
    for i, values in enumerate(own.values()):
        drawn = values.transpose(y, x)
        ax.contour(drawn[x], drawn[y], drawn, [0.0], colors=f"C{i}", linewidths=1.6)


def crossing(closed: Mapping[str, np.ndarray]) -> list[str]:
    """Names of the transition lines that lie within the plane."""
    logs = {name: np.log(closed[name]) for name in LINES if name in closed}
    return [n for n, v in logs.items() if np.isfinite(v).all() and v.min() < 0 < v.max()]


def plot_noise(noise: xr.DataArray, ax: Axes) -> None:
    """The line beyond which noise rules, as `sweeps.studies.phase.diagram.noise` tells."""
    x, y = noise.dims
    if noise.min() < 0 < noise.max():
        ax.contour(noise[x], noise[y], noise.T, [0.0], colors=NOISE_COLOUR, linewidths=1.4)


def decorate(ax: Axes, x: xr.DataArray, y: xr.DataArray) -> None:
    """Axes with names and units, logarithmic unless the values are evenly spaced; whole numbers
    have whole numbers as ticks."""
    ax.set(xscale=scale_of(x), yscale=scale_of(y), xlabel=label(x), ylabel=label(y))
    for line, values in ((ax.xaxis, x.values), (ax.yaxis, y.values)):
        if values.dtype.kind in "iu":
            shown = values[:: -(-len(values) // MOST_TICKS)]
            line.set_major_locator(FixedLocator(shown.tolist()))
            line.set_major_formatter("{x:.0f}")
            line.set_minor_locator(NullLocator())


def legend(
    rule: Rule,
    closed: Mapping[str, np.ndarray],
    noise: xr.DataArray | None,
    codes: np.ndarray,
    own: Mapping[str, xr.DataArray],
) -> list:
    """What the lines that are drawn are, and the colours of the regions that there are."""
    handles: list = [drawing.key(LINES[name][0], ls=LINES[name][1]) for name in crossing(closed)]
    if closed and np.isfinite(closed["bound"]).all():
        handles.append(drawing.key("iso-lines of Theorem 4's B", color="0.35", lw=0.8))
    if noise is not None and noise.min() < 0 < noise.max():
        text = r"noise: $\sigma(z) = \max(|z|, \sigma_1)$"
        handles.append(drawing.key(text, color=NOISE_COLOUR))
    handles += [drawing.key(name, color=f"C{i}", lw=1.6) for i, name in enumerate(own)]
    there = [rule.legend[code] for code in rule.legend if code in codes]
    return handles + [Patch(fc=fc, ec="0.5", label=name) for name, fc in there]
