"""The figure of a phase diagram: maps of an observable and of regions, and the lines on them."""

import textwrap
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator

from sweeps.output import drawing
from sweeps.output.cells import colour_range, contour, scale_of
from sweeps.runner.labels import wrapped
from sweeps.studies.options import described, heat_map
from sweeps.studies.phase.plane import Phase
from sweeps.studies.phase.regions import DIVERGED_COLOUR, Prediction
from sweeps.systems.diagrams import Line, Regions

MOST_TICKS = 8
"""Largest number of ticks on an axis of integers."""
LEVELS: dict[str, Any] = {"colors": "k", "linewidths": 0.8}
DIFFERENT = "0.4"
"""Colour of points where both maps are in different regions."""
BOUNDARY: tuple[tuple[str, dict[str, Any]], ...] = (
    ("50 % of the seeds", {"color": "#D55E00", "ls": "-", "lw": 2.0}),
    ("10 and 90 % of the seeds", {"color": "#D55E00", "ls": "-", "lw": 0.8}),
    ("95 % confidence interval of the 50 %", {"color": "#D55E00", "ls": ":", "lw": 1.4}),
)
"""Curves of a boundary: their labels in the legend, and their style."""


MOST_KEYS = 6
"""Largest number of entries of the key below a single panel."""


def draw(
    config: Phase,
    found: Mapping[str, xr.Dataset],
    regions: Regions,
    levels: tuple[str, str, xr.DataArray] | None,
    told: Sequence[Prediction],
    seeded: Mapping[str, xr.Dataset],
) -> Figure:
    """Draw the regions of training, with what theory predicts of them; or with `panels = "all"` the
    observable above the regions, in a column for each map of `found` and, for two maps, one for
    their difference. `levels` are those of `Predictions`, and `seeded` has the boundaries of maps
    with several seeds."""
    if config.panels == "all":
        return _all(config, found, regions, levels, told, seeded)
    figure, ((ax,),) = drawing.panels(1, 1, width=5.6, height=4.4)
    (_, first), *others = found.items()
    _plot_regions(first["region"], regions, ax)
    keys: list[Any] = _patches([first["region"]], regions)
    for name, other in others:
        # The outlines of all regions but one are all boundaries.
        region, style = other["region"], {"color": "k", "lw": 1.6}
        for code in np.unique(region)[1:]:
            inside = (region == code).astype(float).transpose(*reversed(region.dims))
            for x, y in contour(inside, 0.5):
                ax.plot(x, y, scalex=False, scaley=False, **style, path_effects=drawing.cased(1.6))
        if len(np.unique(region)) > 1:
            keys.append(drawing.key(f"boundary: {config.title(name)}", **style))
    if "share" in first and (table := seeded.get("simulation")) is not None:
        plot_boundary(table, ax, BOUNDARY[1:2])
        keys.append(drawing.key(BOUNDARY[1][0], **BOUNDARY[1][1]))
    # The edge, which is requested and comes last, has priority over closed forms.
    lines = [each for each in told if each.line]
    shown = (lines[::-1] if config.edge else lines)[: MOST_KEYS - len(keys)]
    plot_lines([each.line for each in shown if each.line], ax=ax)
    keys += [_line_key(each) for each in shown]
    alone = np.unique(first["region"], return_counts=True)[1].max() / first["region"].size
    percent = lambda share: f"{100 * share:.1f} %"  # noqa: E731
    words = [
        f"{config.title(each.name)}: right at {percent(each.agreement.right)}"
        for each in told[: len(others)]
    ] or [
        f"{each.line.text}: right at {percent(each.agreement.right)}"
        for each in shown[:1]
        if each.line
    ]
    words += [f"the most common region alone: {percent(alone)}"] if words else []
    text = textwrap.fill("; ".join(words), 80)
    figure.legend(handles=keys, loc="outside lower center", ncols=2, frameon=False, title=text)
    # Without a break inside of "batch = 128".
    title = described(config.run, config.axes()).replace(" = ", "\u00a0=\u00a0")
    ax.set_title(textwrap.fill(title, 54))
    return figure


def _plot_regions(area: xr.DataArray, regions: Regions, ax: Axes) -> None:
    codes = list(regions.legend)
    colours: dict[str, Any] = {
        "cmap": ListedColormap([colour for _, colour in regions.legend.values()]),
        "norm": BoundaryNorm(np.arange(len(codes) + 1) - 0.5, len(codes)),
    }
    plot_cells(area.copy(data=np.searchsorted(codes, area.values)), ax=ax, **colours)


def _patches(areas: Sequence[xr.DataArray], regions: Regions) -> list[Any]:
    there = np.unique(np.concatenate([each.values.ravel() for each in areas]))
    return [Patch(fc=fc, ec="0.5", label=n) for c, (n, fc) in regions.legend.items() if c in there]


def _line_key(each: Prediction) -> Any:
    assert each.line is not None
    color, ls, lw = each.line.style
    text = f"{each.line.text} ({100 * each.agreement.right:.0f} %)"
    return drawing.key(text, color=color, ls=ls, lw=lw)


def _all(
    config: Phase,
    found: Mapping[str, xr.Dataset],
    regions: Regions,
    levels: tuple[str, str, xr.DataArray] | None,
    told: Sequence[Prediction],
    seeded: Mapping[str, xr.Dataset],
) -> Figure:
    maps = {name: each["drawn"] for name, each in found.items()}
    areas = {name: each["region"] for name, each in found.items()}
    compared = len(maps) == 2
    columns = 3 if compared else 1
    figure, axes = drawing.panels(2, columns, width=3.6 if compared else 5, height=3.6)
    low, high, decades = colour_range(
        np.concatenate([each.values.ravel() for each in maps.values()])
    )
    norm = (LogNorm if decades else Normalize)(low, high)
    if levels is not None and not np.isfinite(levels[2]).all():
        levels = None
    for (name, values), (upper, lower) in zip(maps.items(), axes.T, strict=False):
        mesh = plot_map(values, norm, ax=upper)
        upper.set_title(config.title(name))
        area = areas[name]
        _plot_regions(area, regions, lower)
        if levels is not None:
            _, form, bound = levels
            steps = np.unique(np.round(np.quantile(bound, [0.2, 0.5, 0.8]), 2))
            places = (area[dim] for dim in area.dims)
            lines = upper.contour(*places, bound.T, steps, linestyles="-", **LEVELS)
            lines.set(path_effects=drawing.cased(LEVELS["linewidths"]))
            for text in upper.clabel(lines, fmt=form, fontsize="small"):
                text.set(path_effects=drawing.cased())
    shown = next(iter(found.values()))[config.shown]
    figure.colorbar(mesh, ax=axes[0, : len(maps)], label=wrapped(shown))
    if compared:
        (one, other), (upper, lower) = maps.values(), axes[:, 2]
        difference = xr.apply_ufunc(np.log10, one / other) if decades else one - other
        span = float(np.nanmax(np.abs(difference))) or 1.0
        mesh = plot_map(difference, Normalize(-span, span), ax=upper, cmap="RdBu")
        text = "ratio of {} (decades)" if decades else "difference in {}"
        figure.colorbar(mesh, ax=upper, label=text.format(config.shown))
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
            plot_boundary(table, ax, BOUNDARY if panel == name else BOUNDARY[:1])
    keys = [_line_key(each) for each in told if each.line]
    if levels is not None:
        keys.append(drawing.key(levels[0], color="k", lw=0.8))
    keys += [drawing.key(text, **style) for text, style in BOUNDARY] if seeded else []
    keys += _patches([*areas.values()], regions)
    if compared:
        keys.append(Patch(fc=DIFFERENT, ec="0.5", label="regions differ"))
    drawing.below(figure, keys, 4 if compared else 2)
    title = described(config.run, config.axes())
    figure.suptitle(textwrap.fill(title, 34 * columns + 10))
    return figure


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


def plot_lines(lines: Sequence[Line], ax: Axes) -> None:
    """Draw the lines of theory."""
    for _, _, values, (color, ls, lw) in lines:
        for x, y in contour(values):
            style = {"color": color, "ls": ls, "lw": lw, "path_effects": drawing.cased(lw)}
            ax.plot(x, y, scalex=False, scaley=False, **style)


def plot_boundary(table: xr.Dataset, ax: Axes, kinds: Sequence[tuple[str, Any]]) -> None:
    """Draw the curves of `maps.boundary` that are of some of the kinds of `BOUNDARY`."""
    for _, piece in table.groupby("piece"):
        level, of = piece["level"].values[0], piece["of"].values[0]
        kind = BOUNDARY[2 if of != "share" else 0 if level == 0.5 else 1]
        if kind in kinds:
            style = kind[1]
            cased = drawing.cased(style["lw"])
            ax.plot(piece["x"], piece["y"], scalex=False, scaley=False, path_effects=cased, **style)


def decorate(ax: Axes, x: xr.DataArray, y: xr.DataArray) -> None:
    """Label both axes, logarithmic unless evenly spaced; integers get integer ticks."""
    ax.set(xscale=scale_of(x), yscale=scale_of(y), xlabel=wrapped(x), ylabel=wrapped(y))
    for line, values in ((ax.xaxis, x.values), (ax.yaxis, y.values)):
        if values.dtype.kind in "iu":
            shown = values[:: -(-len(values) // MOST_TICKS)]
            line.set_major_locator(FixedLocator(shown.tolist()))
            line.set_major_formatter("{x:.0f}")
            line.set_minor_locator(NullLocator())
