"""The panels of a phase diagram: maps of an observable and of regions, and the lines on them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap, LogNorm, Normalize
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator

from sweeps.output import drawing
from sweeps.runner.labels import wrapped
from sweeps.studies.options import colour_range, heat_map, scale_of
from sweeps.studies.phase.regions import DIVERGED_COLOUR, Agreement, Rule

LINES = {
    "rise_end": (r"steps = $t_0'$", ":"),
    "peak": (r"steps = $t_{peak}$ of $\gamma$", "-"),
    "snap": (r"steps = $t_0$", "--"),
}
"""Transition lines: where a stage of the closed form ends just at the last step."""
MOST_TICKS = 8
"""Of an axis of whole numbers."""
NOISE = r"noise: $\sigma(z) = \max(|z|, \sigma_1)$"
NOISE_COLOUR = "#c2185b"
BOUND: dict[str, Any] = {"colors": "0.35", "linewidths": 0.8}
BOUNDARY: tuple[tuple[str, dict[str, Any]], ...] = (
    ("50 % of the seeds", {"color": "#E69F00", "ls": "-", "lw": 2.0}),
    ("10 and 90 % of the seeds", {"color": "#E69F00", "ls": "-", "lw": 0.8}),
    ("95 % confidence of the 50 %", {"color": "#E69F00", "ls": ":", "lw": 1.4}),
)
"""Curves of a boundary: what the legend calls them, and their style."""


class Line(NamedTuple):
    """A line of theory: its name, what the legend calls it, values over the plane that are zero on
    the line, and its colour, dashes and width."""

    name: str
    text: str
    values: xr.DataArray
    style: tuple[str, str, float]


class Told(NamedTuple):
    """What a theory says of the regions, and how far that is what training does; for a line of
    theory, that line as well."""

    name: str
    text: str
    agreement: Agreement
    line: Line | None = None


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


def plot_agreement(one: xr.DataArray, other: xr.DataArray, ax: Axes) -> None:
    """Where two region maps agree."""
    same = one.copy(data=one.values == other.values)
    heat_map(ax, same, cmap=ListedColormap(["#d95f02", "#f0f0f0"]), vmin=0, vmax=1)
    decorate(ax, *(one[dim] for dim in one.dims))


def lines_of(
    closed: Mapping[str, np.ndarray],
    noise: xr.DataArray | None,
    own: Mapping[str, xr.DataArray],
    region: xr.DataArray,
) -> list[Line]:
    """The lines that lie within the plane of a map of regions: those of the closed forms, the one
    beyond which noise rules, as `sweeps.studies.phase.diagram.noise` tells, and a rule's own."""
    x, y = region.dims
    places = {dim: region[dim] for dim in (y, x)}
    found = [
        Line(name, text, xr.DataArray(np.log(closed[name]), places, (y, x)), ("k", style, 1.4))
        for name, (text, style) in LINES.items()
        if name in closed
    ]
    if noise is not None:
        found.append(Line("noise", NOISE, noise, (NOISE_COLOUR, "-", 1.4)))
    found += [
        Line(name, name, values, (f"C{i}", "-", 1.6))
        for i, (name, values) in enumerate(own.items())
    ]
    return [
        line._replace(values=line.values.transpose(y, x))
        for line in found
        if np.isfinite(line.values).all() and line.values.min() < 0 < line.values.max()
    ]


def plot_lines(lines: Sequence[Line], ax: Axes) -> None:
    """The lines of theory."""
    for _, _, values, (colour, dashes, width) in lines:
        places = (values[dim] for dim in reversed(values.dims))
        ax.contour(*places, values, [0.0], colors=colour, linestyles=dashes, linewidths=width)


def plot_bound(closed: Mapping[str, np.ndarray], region: xr.DataArray, ax: Axes) -> None:
    """Iso-lines of Theorem 4's B, where it has a value everywhere."""
    if has_bound(closed):
        levels = np.unique(np.round(np.quantile(closed["bound"], [0.2, 0.5, 0.8]), 2))
        places = (region[dim] for dim in region.dims)
        drawn = ax.contour(*places, closed["bound"], levels, linestyles="-", **BOUND)
        ax.clabel(drawn, fmt="B = %.2g", fontsize="small")


def has_bound(closed: Mapping[str, np.ndarray]) -> bool:
    """Whether there are iso-lines of B to draw."""
    return "bound" in closed and bool(np.isfinite(closed["bound"]).all())


def plot_boundary(table: xr.Dataset, ax: Axes, whole: bool) -> None:
    """The curves of `bands.boundary`, or the 50 % alone."""
    for _, piece in table.groupby("piece"):
        level, of = piece["level"].values[0], piece["of"].values[0]
        style = BOUNDARY[2 if of != "share" else 0 if level == 0.5 else 1][1]
        if whole or style is BOUNDARY[0][1]:
            ax.plot(piece["x"], piece["y"], **style)


def decorate(ax: Axes, x: xr.DataArray, y: xr.DataArray) -> None:
    """Axes with names and units, logarithmic unless the values are evenly spaced; whole numbers
    have whole numbers as ticks."""
    ax.set(xscale=scale_of(x), yscale=scale_of(y), xlabel=wrapped(x), ylabel=wrapped(y))
    for line, values in ((ax.xaxis, x.values), (ax.yaxis, y.values)):
        if values.dtype.kind in "iu":
            shown = values[:: -(-len(values) // MOST_TICKS)]
            line.set_major_locator(FixedLocator(shown.tolist()))
            line.set_major_formatter("{x:.0f}")
            line.set_minor_locator(NullLocator())


def legend(
    rule: Rule,
    closed: Mapping[str, np.ndarray],
    told: Sequence[Told],
    codes: np.ndarray,
    seeds: bool,
) -> list:
    """What the lines that are drawn are, with the share of the plane where they are right, and the
    colours of the regions that there are. With `seeds`, there are boundaries."""
    handles: list = []
    for each in told:
        if each.line:
            color, ls, lw = each.line.style
            text = f"{each.line.text} ({100 * each.agreement.right:.0f} %)"
            handles.append(drawing.key(text, color=color, ls=ls, lw=lw))
    if has_bound(closed):
        handles.append(drawing.key("iso-lines of Theorem 4's B", color="0.35", lw=0.8))
    handles += [drawing.key(text, **style) for text, style in BOUNDARY] if seeds else []
    there = [rule.legend[code] for code in rule.legend if code in codes]
    return handles + [Patch(fc=fc, ec="0.5", label=name) for name, fc in there]
