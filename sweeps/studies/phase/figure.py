"""Drawing phase diagrams: observable and region maps, with the closed form's lines."""

import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator

from sweeps import output
from sweeps.output import drawing
from sweeps.runner.labels import label
from sweeps.runner.progress import count
from sweeps.runner.run import run as run_sweep
from sweeps.studies.computing import computed as compute
from sweeps.studies.options import heat_map, scale_of
from sweeps.studies.phase import diagram
from sweeps.studies.phase.diagram import DESCENT, Phase
from sweeps.studies.phase.plane import Plane, at_end, region_map
from sweeps.studies.phase.regions import DIVERGED_COLOUR, Rule
from sweeps.systems import registry
from sweeps.systems.settings import settings_class

__all__ = ["Phase", "compute", "run"]

LINES = {
    "rise_end": (r"steps = $t_0'$", ":"),
    "peak": (r"steps = $t_{peak}$ of $\gamma$", "-"),
    "snap": (r"steps = $t_0$", "--"),
}
"""Transition lines: where a stage of the closed form ends just at the last step."""
MANY_DECADES = 1e3
"""Ratio of the largest to the smallest value from which on colours are logarithmic."""
MOST_TICKS = 8
"""Of an axis of whole numbers."""
NOISE_COLOUR = "#c2185b"
TITLES = {
    "simulation": "training",
    DESCENT: "descent, T and batch infinite",
    "symmetric": "exact flow",
    "symmetric-finite-t": "flow at finite T",
}


def command(name: str) -> tuple[type[Plane], Callable[[Plane], list[Path]]]:
    """Settings of `dynsim phase NAME`, and what runs them; `ValueError` for an unknown system."""
    system = registry.system(name)
    if name == Phase.SYSTEM:
        return Phase, run
    title = f"Draw a phase diagram of {name}: the outcome of its runs over a plane of two settings."
    return settings_class("Phase", system, Plane, title), run


def run(config: Plane, rule: Rule | None = None) -> list[Path]:
    """Compute or resume, draw and write a diagram; `rule` replaces that of the settings."""
    begin = time.perf_counter()
    rule = rule or config.rule()
    found = compute(config)
    runs = sum(int(dataset.status.size) for dataset in found.values())
    print(
        f"{count(runs, 'run')} in {time.perf_counter() - begin:.1f} s, those found in "
        f"{config.out} included"
    )
    scatter = config.scatter()
    noise = None
    if scatter is not None:
        scatter.check()
        tokens = diagram.most_distinct(scatter.run)
        predicted = run_sweep(scatter, config.out / "spread").load()
        noise = diagram.noise(predicted, diagram.winning_spread(tokens))
    closed = config.lines()
    figure = draw(config, found, rule, closed, noise)
    arrays: dict[str, Any] = {"closed_form": closed, **config.axes()}
    for name, dataset in found.items():
        arrays[f"{name}/{config.observable}"] = at_end(dataset, config.observable)
        arrays[f"{name}/region"] = region_map(dataset, rule)
    if noise is not None:
        arrays |= {"noise": noise, **{f"noise/{dim}": noise[dim] for dim in noise.dims}}
    return output.write(config.out, "phase", figure=figure, arrays=arrays)


def draw(
    config: Plane,
    found: Mapping[str, xr.Dataset],
    rule: Rule,
    closed: Mapping[str, np.ndarray],
    noise: xr.DataArray | None,
) -> Figure:
    """The observable above, the regions below: a column for each engine, and for two of them a
    third one for the difference."""
    maps = {name: at_end(ds, config.observable) for name, ds in found.items()}
    areas = {name: region_map(ds, rule) for name, ds in found.items()}
    compared = len(maps) == 2
    columns = 3 if compared else 1
    figure, axes = drawing.panels(2, columns, width=3.6 if compared else 5, height=3.6)
    norm = colours_of(np.concatenate([each.values.ravel() for each in maps.values()]))
    for column, (name, values) in enumerate(maps.items()):
        mesh = plot_map(values, norm, ax=axes[0, column])
        axes[0, column].set_title(TITLES.get(name, name))
        plot_regions(areas[name], rule, ax=axes[1, column])
    drawn = next(iter(found.values()))[config.observable]
    figure.colorbar(mesh, ax=axes[0, : len(maps)], label=textwrap.fill(label(drawn), 30))
    if compared:
        (first, one), (second, other) = maps.items()
        decades = isinstance(norm, LogNorm)
        difference = xr.apply_ufunc(np.log10, one / other) if decades else one - other
        span = float(np.nanmax(np.abs(difference))) or 1.0
        mesh = plot_map(difference, Normalize(-span, span), ax=axes[0, 2], cmap="RdBu")
        what = "decades between" if decades else "difference in"
        figure.colorbar(mesh, ax=axes[0, 2], label=f"{what} {config.observable}")
        axes[0, 2].set_title("left over middle" if decades else "left minus middle")
        same = plot_agreement(areas[first], areas[second], ax=axes[1, 2])
        said = f"same region: {100 * same:.1f} % of the plane"
        if noise is not None:
            with_noise = diagram.with_noise(areas[second], noise)
            said += f"; {100 * float((areas[first] == with_noise).mean()):.1f} % with noise"
        print(said)
        axes[1, 2].set_title(said.replace("; ", "\n"), fontsize="medium")
    own = rule.lines(next(iter(found.values()))) if rule.lines else {}
    for ax in axes.flat:
        plot_lines(config, closed, ax=ax, bound=ax in axes[0, : len(maps)])
        plot_own(own, *map(str, next(iter(areas.values())).dims), ax=ax)
        if noise is not None:
            plot_noise(noise, ax=ax)
    codes = np.unique(np.concatenate([each.values.ravel() for each in areas.values()]))
    figure.legend(
        handles=legend(rule, closed, noise, codes, own),
        loc="outside lower center",
        ncols=4 if compared else 2,
        frameon=False,
    )
    figure.suptitle(textwrap.fill(config.title(), 34 * columns + 10))
    return figure


def colours_of(values: np.ndarray) -> Normalize:
    """The scale of colours for all of these values: logarithmic if they span decades."""
    finite = values[np.isfinite(values)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    return LogNorm(low, high) if 0 < low * MANY_DECADES < high else Normalize(low, high)


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
