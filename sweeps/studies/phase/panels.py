"""The figure of a phase diagram: maps of an observable and of regions, and the lines on them."""

import textwrap
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import BoundaryNorm, ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator

from sweeps.output import drawing
from sweeps.output.cells import colour_range, contour, scale_of
from sweeps.runner.labels import wrapped
from sweeps.studies.options import Style, heat_map, run_title
from sweeps.studies.phase.plane import Phase
from sweeps.studies.phase.regions import DIVERGED_COLOUR, RegionPrediction
from sweeps.systems.diagrams import Line, Regions

MOST_TICKS = 8
"""Largest number of ticks on an axis of integers."""
ISOLINES: Style = {"colors": "k", "linewidths": 0.8}
DIFFERENT = "0.4"
"""Colour of points where both maps are in different regions."""
BOUNDARY: tuple[tuple[str, Style], ...] = (
    ("50 % of the seeds", {"color": "#D55E00", "ls": "-", "lw": 2.0}),
    ("10 and 90 % of the seeds", {"color": "#D55E00", "ls": "-", "lw": 0.8}),
    ("95 % confidence interval of the 50 %", {"color": "#D55E00", "ls": ":", "lw": 1.4}),
)
"""Curves of a boundary: their labels in the legend, and their style."""
MOST_KEYS = 6
"""Largest number of entries of the key below a single panel."""


def draw_one(
    config: Phase,
    maps: Mapping[str, xr.Dataset],
    regions: Regions,
    predictions: Sequence[RegionPrediction],
    boundaries: Mapping[str, xr.Dataset],
) -> Figure:
    """Draw the regions of the first of `maps`, and on them the region boundaries of the other one
    and the lines of theory. `boundaries` has those of maps with several seeds."""
    figure, ((ax,),) = drawing.panels(1, 1, width=5.6, height=4.4)
    (_, first), *others = maps.items()
    plot_regions(first["region"], regions, ax)
    keys: list[Artist] = [*region_keys([first["region"]], regions)]
    for name, other in others:
        region, style = other["region"], {"color": "k", "lw": 1.6}
        codes = np.unique(region)
        # Each boundary separates two regions, so the outlines of all but one draw all of them.
        for code in codes[1:]:
            inside = (region == code).astype(float).transpose(*reversed(region.dims))
            for x, y in contour(inside, 0.5):
                ax.plot(x, y, scalex=False, scaley=False, **style, path_effects=drawing.cased(1.6))
        if len(codes) > 1:
            keys.append(drawing.key(f"boundary: {config.title(name)}", **style))
    if "share" in first and "simulation" in boundaries:
        plot_boundary(boundaries["simulation"], ax, BOUNDARY[1:2])
        keys.append(drawing.key(BOUNDARY[1][0], **BOUNDARY[1][1]))

    lines = [(p.line, p.agreement.right) for p in predictions if p.line]
    # The edge of stability comes last. Whoever requests it wants it before closed forms.
    lines = (lines[::-1] if config.edge else lines)[: MOST_KEYS - len(keys)]
    plot_theory_lines([line for line, _ in lines], ax)
    keys += [line_key(line, right) for line, right in lines]

    # The first predictions are the maps of the other theories, in the same order.
    rated = [(config.title(p.name), p.agreement.right) for p in predictions[: len(others)]]
    rated = rated or [(line.text, right) for line, right in lines[:1]]
    words = [f"{name}: right at {100 * right:.1f} %" for name, right in rated]
    if words:
        # A theory has to do better than a guess of the same region everywhere.
        alone = np.unique(first["region"], return_counts=True)[1].max() / first["region"].size
        words.append(f"the most common region alone: {100 * alone:.1f} %")
    text = textwrap.fill("; ".join(words), 80)
    figure.legend(handles=keys, loc="outside lower center", ncols=2, frameon=False, title=text)
    # Without a break inside of "batch = 128".
    title = run_title(config.run, config.axes()).replace(" = ", "\u00a0=\u00a0")
    ax.set_title(textwrap.fill(title, 54))
    return figure


def draw_all(
    config: Phase,
    maps: Mapping[str, xr.Dataset],
    regions: Regions,
    levels: tuple[str, str, xr.DataArray] | None,
    predictions: Sequence[RegionPrediction],
    boundaries: Mapping[str, xr.Dataset],
) -> Figure:
    """Draw the observable above the regions, in a column for each of `maps` and, for two maps, one
    for their difference. `levels` are those of `Predictions`, and `boundaries` has those of maps
    with several seeds."""
    shown = {name: dataset["drawn"] for name, dataset in maps.items()}
    areas = {name: dataset["region"] for name, dataset in maps.items()}
    two = len(maps) == 2
    columns = 3 if two else 1
    figure, axes = drawing.panels(2, columns, width=3.6 if two else 5, height=3.6)

    # One colour range for all maps, so that colours can be compared.
    low, high, decades = colour_range(np.concatenate([v.values.ravel() for v in shown.values()]))
    norm = (LogNorm if decades else Normalize)(low, high)
    if levels is not None and not np.isfinite(levels[2]).all():
        levels = None
    for (name, values), (upper, lower) in zip(shown.items(), axes.T, strict=False):
        mesh = plot_map(values, norm, upper)
        upper.set_title(config.title(name))
        area = areas[name]
        plot_regions(area, regions, lower)
        if levels is not None:
            _, form, bound = levels
            # Lines through the middle of the plane, at values short enough to be read on them.
            steps = np.unique(np.round(np.quantile(bound, [0.2, 0.5, 0.8]), 2))
            x, y = (area[dim] for dim in area.dims)
            isolines = upper.contour(x, y, bound.T, steps, linestyles="-", **ISOLINES)
            isolines.set(path_effects=drawing.cased(ISOLINES["linewidths"]))
            for text in upper.clabel(isolines, fmt=form, fontsize="small"):
                text.set(path_effects=drawing.cased())
    observable = next(iter(maps.values()))[config.shown]
    figure.colorbar(mesh, ax=axes[0, : len(maps)], label=wrapped(observable))

    if two:
        (one, other), (upper, lower) = shown.values(), axes[:, 2]
        difference = xr.apply_ufunc(np.log10, one / other) if decades else one - other
        # A range about 0 makes agreement white; equal maps have none of their own.
        span = float(np.nanmax(np.abs(difference))) or 1.0
        mesh = plot_map(difference, Normalize(-span, span), upper, cmap="RdBu")
        text = "ratio of {} (decades)" if decades else "difference in {}"
        figure.colorbar(mesh, ax=upper, label=text.format(config.shown))
        trained = next(iter(maps)) == "simulation"
        left, middle = ("training", "theory") if trained else ("left", "middle")
        upper.set_title(f"{left} / {middle}" if decades else f"{left} − {middle}")
        one, other = areas.values()
        same = one.copy(data=one.values == other.values)
        plot_cells(same, lower, cmap=ListedColormap([DIFFERENT, "#f0f0f0"]), vmin=0, vmax=1)
        lower.set_title("\n".join(f"{p.text}: {p.agreement}" for p in predictions if not p.line))

    lines = [(p.line, p.agreement.right) for p in predictions if p.line]
    for ax in axes.flat:
        plot_theory_lines([line for line, _ in lines], ax)
    for name, table in boundaries.items():
        # Only the 50 % curve is also drawn on the other map and on the difference.
        for ax, panel in zip_longest(axes[1], maps):
            plot_boundary(table, ax, BOUNDARY if panel == name else BOUNDARY[:1])
    keys: list[Artist] = [line_key(line, right) for line, right in lines]
    if levels is not None:
        keys.append(drawing.key(levels[0], color="k", lw=0.8))
    keys += [drawing.key(text, **style) for text, style in BOUNDARY] if boundaries else []
    keys += region_keys([*areas.values()], regions)
    if two:
        keys.append(Patch(fc=DIFFERENT, ec="0.5", label="regions differ"))
    drawing.below(figure, keys, 4 if two else 2)
    title = run_title(config.run, config.axes())
    figure.suptitle(textwrap.fill(title, 34 * columns + 10))
    return figure


def plot_map(values: xr.DataArray, norm: Normalize, ax: Axes, cmap: str = "viridis") -> QuadMesh:
    """Draw a heat map over the plane, grey where no run is valid; return its mesh."""
    colours = plt.get_cmap(cmap).with_extremes(bad=DIVERGED_COLOUR)
    ax.set_facecolor(DIVERGED_COLOUR)
    return plot_cells(values, ax, cmap=colours, norm=norm)


def plot_regions(area: xr.DataArray, regions: Regions, ax: Axes) -> None:
    """Draw codes of regions over the plane, in the colours of the legend."""
    # Codes may have gaps; their positions in the legend have none.
    codes = list(regions.legend)
    colours = ListedColormap([colour for _, colour in regions.legend.values()])
    norm = BoundaryNorm(np.arange(len(codes) + 1) - 0.5, len(codes))
    plot_cells(area.copy(data=np.searchsorted(codes, area.values)), ax, cmap=colours, norm=norm)


def plot_cells(values: xr.DataArray, ax: Axes, **options: Any) -> QuadMesh:
    """Draw values over the plane as coloured cells, on labelled axes; return the mesh."""
    mesh = heat_map(ax, values, **options)
    x, y = (values[dim] for dim in values.dims)
    ax.set(xscale=scale_of(x), yscale=scale_of(y), xlabel=wrapped(x), ylabel=wrapped(y))
    for line, numbers in ((ax.xaxis, x.values), (ax.yaxis, y.values)):
        if numbers.dtype.kind in "iu":
            # A logarithmic axis of integers would get ticks between them.
            ticks = numbers[:: -(-len(numbers) // MOST_TICKS)]
            line.set_major_locator(FixedLocator(ticks.tolist()))
            line.set_major_formatter("{x:.0f}")
            line.set_minor_locator(NullLocator())
    return mesh


def plot_theory_lines(lines: Sequence[Line], ax: Axes) -> None:
    """Draw the lines of theory."""
    for _, _, values, (color, ls, lw) in lines:
        for x, y in contour(values):
            style = {"color": color, "ls": ls, "lw": lw, "path_effects": drawing.cased(lw)}
            ax.plot(x, y, scalex=False, scaley=False, **style)


def plot_boundary(table: xr.Dataset, ax: Axes, kinds: Sequence[tuple[str, Style]]) -> None:
    """Draw the curves of `maps.boundary` that are of some of the kinds of `BOUNDARY`."""
    for _, piece in table.groupby("piece"):
        level, of = piece["level"].values[0], piece["of"].values[0]
        kind = BOUNDARY[2 if of != "share" else 0 if level == 0.5 else 1]
        if kind in kinds:
            style = kind[1]
            cased = drawing.cased(style["lw"])
            ax.plot(piece["x"], piece["y"], scalex=False, scaley=False, path_effects=cased, **style)


def region_keys(areas: Sequence[xr.DataArray], regions: Regions) -> list[Patch]:
    """Return legend entries of the regions that occur in any of the maps."""
    codes = np.unique(np.concatenate([area.values.ravel() for area in areas]))
    return [
        Patch(fc=colour, ec="0.5", label=name)
        for code, (name, colour) in regions.legend.items()
        if code in codes
    ]


def line_key(line: Line, right: float) -> Line2D:
    """Return the legend entry of a line that predicts the region on a share of the plane."""
    color, ls, lw = line.style
    return drawing.key(f"{line.text} ({100 * right:.0f} %)", color=color, ls=ls, lw=lw)
