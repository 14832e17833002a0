"""The figure of a phase diagram: maps of an observable and of regions, and the lines on them."""

import textwrap
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator

from sweeps.output import drawing
from sweeps.output.cells import colour_range, scale_of
from sweeps.runner.labels import wrapped
from sweeps.studies.options import described, heat_map
from sweeps.studies.phase.plane import Plane
from sweeps.studies.phase.regions import DIVERGED_COLOUR, Agreement, Rule
from sweeps.systems import registry

TITLES = {
    "simulation": "training",
    "symmetric-descent": "descent, T and batch infinite",
    "symmetric": "exact flow",
    "symmetric-finite-t": "flow at finite T",
    "symmetric-noise": "descent with noise",
}
LINES = {
    "rise_end": (r"steps = $t_0'$", ":"),
    "peak": (r"steps = $t_{peak}$ of $\gamma$", "-"),
    "snap": (r"steps = $t_0$", "--"),
}
"""Transition lines, on which a stage of the closed form ends at the last step."""
MOST_TICKS = 8
"""Largest number of ticks on an axis of integers."""
NOISE = r"noise: $\sigma(z) = \max(|z|, \sigma_1)$"
NOISE_COLOUR = "#c2185b"
BOUND: dict[str, Any] = {"colors": "k", "linewidths": 0.8}
BOUNDARY_COLOUR = "#D55E00"
DIFFERENT = "0.4"
"""Colour of points where both maps are in different regions."""
BOUNDARY: tuple[tuple[str, dict[str, Any]], ...] = (
    ("50 % of the seeds", {"color": BOUNDARY_COLOUR, "ls": "-", "lw": 2.0}),
    ("10 and 90 % of the seeds", {"color": BOUNDARY_COLOUR, "ls": "-", "lw": 0.8}),
    ("95 % confidence interval of the 50 %", {"color": BOUNDARY_COLOUR, "ls": ":", "lw": 1.4}),
)
"""Curves of a boundary: their labels in the legend, and their style."""


class Line(NamedTuple):
    """A line of theory: its name, its label in the legend, values over the plane that are zero on
    the line, and its colour, dashes and width."""

    name: str
    text: str
    values: xr.DataArray
    style: tuple[str, str, float]


class Prediction(NamedTuple):
    """A prediction of the regions: its name, its text, its agreement with training, and the line of
    theory behind it, if any."""

    name: str
    text: str
    agreement: Agreement
    line: Line | None = None


def draw(
    config: Plane,
    found: Mapping[str, xr.Dataset],
    rule: Rule,
    closed: Mapping[str, np.ndarray],
    told: Sequence[Prediction],
    seeded: Mapping[str, xr.Dataset],
) -> Figure:
    """Draw the observable above the regions, in a column for each map of `found` and, for two maps,
    one for their difference. `seeded` has the boundaries of maps with several seeds."""
    maps = {name: each["drawn"] for name, each in found.items()}
    areas = {name: each["region"] for name, each in found.items()}
    compared = len(maps) == 2
    columns = 3 if compared else 1
    figure, axes = drawing.panels(2, columns, width=3.6 if compared else 5, height=3.6)
    norm = colours_of(np.concatenate([each.values.ravel() for each in maps.values()]))
    codes = list(rule.legend)
    colours: dict[str, Any] = {
        "cmap": ListedColormap([colour for _, colour in rule.legend.values()]),
        "norm": BoundaryNorm(np.arange(len(codes) + 1) - 0.5, len(codes)),
    }
    theories = registry.theories(registry.system_of(config.run))
    bound = closed.get("bound")
    bound = None if bound is None or not np.isfinite(bound).all() else bound
    for (name, values), (upper, lower) in zip(maps.items(), axes.T, strict=False):
        mesh = plot_map(values, norm, ax=upper)
        upper.set_title(TITLES.get(name) or theories[name].title or name)
        area = areas[name]
        plot_cells(area.copy(data=np.searchsorted(codes, area.values)), ax=lower, **colours)
        if bound is not None:
            levels = np.unique(np.round(np.quantile(bound, [0.2, 0.5, 0.8]), 2))
            places = (area[dim] for dim in area.dims)
            lines = upper.contour(*places, bound, levels, linestyles="-", **BOUND)
            lines.set(path_effects=drawing.cased(BOUND["linewidths"]))
            for text in upper.clabel(lines, fmt="B = %.2g", fontsize="small"):
                text.set(path_effects=drawing.cased())
    shown = next(iter(found.values()))[config.observable]
    figure.colorbar(mesh, ax=axes[0, : len(maps)], label=wrapped(shown))
    if compared:
        (one, other), (upper, lower) = maps.values(), axes[:, 2]
        decades = isinstance(norm, LogNorm)
        difference = xr.apply_ufunc(np.log10, one / other) if decades else one - other
        span = float(np.nanmax(np.abs(difference))) or 1.0
        mesh = plot_map(difference, Normalize(-span, span), ax=upper, cmap="RdBu")
        text = "ratio of {} (decades)" if decades else "difference in {}"
        figure.colorbar(mesh, ax=upper, label=text.format(config.observable))
        trained = next(iter(maps)) == "simulation"
        left, middle = ("training", "theory") if trained else ("left", "middle")
        upper.set_title(f"{left} / {middle}" if decades else f"{left} − {middle}")
        one, other = areas.values()
        same = one.copy(data=one.values == other.values)
        plot_cells(same, ax=lower, cmap=ListedColormap([DIFFERENT, "#f0f0f0"]), vmin=0, vmax=1)
        words = [f"{each.text}: {each.agreement}" for each in told if each.line is None]
        lower.set_title("\n".join(words))
    for ax in axes.flat:
        plot_lines([each.line for each in told if each.line], ax=ax)
    for name, table in seeded.items():
        for ax, panel in zip_longest(axes[1], maps):
            plot_boundary(table, ax=ax, whole=panel == name)
    keys: list[Any] = []
    for each in told:
        if each.line:
            color, ls, lw = each.line.style
            text = f"{each.line.text} ({100 * each.agreement.right:.0f} %)"
            keys.append(drawing.key(text, color=color, ls=ls, lw=lw))
    if bound is not None:
        keys.append(drawing.key("iso-lines of Theorem 4's B", color="k", lw=0.8))
    keys += [drawing.key(text, **style) for text, style in BOUNDARY] if seeded else []
    there = np.unique(np.concatenate([each.values.ravel() for each in areas.values()]))
    keys += [Patch(fc=fc, ec="0.5", label=n) for c, (n, fc) in rule.legend.items() if c in there]
    if compared:
        keys.append(Patch(fc=DIFFERENT, ec="0.5", label="regions differ"))
    drawing.below(figure, keys, 4 if compared else 2)
    title = described(config.run, config.axes())
    figure.suptitle(textwrap.fill(title, 34 * columns + 10))
    return figure


def colours_of(values: np.ndarray) -> Normalize:
    """Return a colour scale for all the values, logarithmic if they span decades."""
    low, high, logarithmic = colour_range(values)
    return (LogNorm if logarithmic else Normalize)(low, high)


def plot_map(values: xr.DataArray, norm: Normalize, ax: Axes, cmap: str = "viridis") -> Any:
    """Draw a heat map over the plane, grey where no run is valid; return its mesh."""
    colours = plt.get_cmap(cmap).with_extremes(bad=DIVERGED_COLOUR)
    ax.set_facecolor(DIVERGED_COLOUR)
    return plot_cells(values, ax, cmap=colours, norm=norm)


def plot_cells(values: xr.DataArray, ax: Axes, **options: Any) -> Any:
    """Draw values over the plane as coloured cells, on labelled axes; return the mesh."""
    mesh = heat_map(ax, values, **options)
    decorate(ax, *(values[dim] for dim in values.dims))
    return mesh


def lines_of(
    closed: Mapping[str, np.ndarray],
    noise: xr.DataArray | None,
    own: Mapping[str, xr.DataArray],
    region: xr.DataArray,
) -> list[Line]:
    """Return the lines that cross the plane of a map of regions: those of the closed forms, the one
    beyond which noise decides (`sweeps.studies.phase.diagram.noise`), and a rule's own."""
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
    """Draw the lines of theory."""
    for _, _, values, (colour, dashes, width) in lines:
        places = (values[dim] for dim in reversed(values.dims))
        style = {"colors": colour, "linestyles": dashes, "linewidths": width}
        ax.contour(*places, values, [0.0], **style).set(path_effects=drawing.cased(width))


def plot_boundary(table: xr.Dataset, ax: Axes, whole: bool) -> None:
    """Draw all curves of `maps.boundary` if `whole`, else only those of 50 %."""
    for _, piece in table.groupby("piece"):
        level, of = piece["level"].values[0], piece["of"].values[0]
        style = BOUNDARY[2 if of != "share" else 0 if level == 0.5 else 1][1]
        if whole or style is BOUNDARY[0][1]:
            ax.plot(piece["x"], piece["y"], path_effects=drawing.cased(style["lw"]), **style)


def decorate(ax: Axes, x: xr.DataArray, y: xr.DataArray) -> None:
    """Label both axes, logarithmic unless evenly spaced; integers get integer ticks."""
    ax.set(xscale=scale_of(x), yscale=scale_of(y), xlabel=wrapped(x), ylabel=wrapped(y))
    for line, values in ((ax.xaxis, x.values), (ax.yaxis, y.values)):
        if values.dtype.kind in "iu":
            shown = values[:: -(-len(values) // MOST_TICKS)]
            line.set_major_locator(FixedLocator(shown.tolist()))
            line.set_major_formatter("{x:.0f}")
            line.set_minor_locator(NullLocator())
