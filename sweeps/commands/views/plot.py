"""`dynsim plot`: curves of a stored sweep, or its map over two axes with contours of theories."""

import dataclasses
import math
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patheffects import AbstractPathEffect, withStroke
from matplotlib.typing import LineStyleType

from dynsim import checks
from sweeps import output
from sweeps.commands.views.content import check_systems
from sweeps.language.fields import normalise
from sweeps.language.values import find_value
from sweeps.output import drawing
from sweeps.output.cells import cell_edges, colour_range, scale_of
from sweeps.runner import progress
from sweeps.runner.labels import aligned_with, label, select, shown, valid, worded
from sweeps.runner.run import open_sweep
from sweeps.systems import budget

LOG_COLOURS = 1e2
"""Ratio of the largest to the smallest value above which colours are logarithmic."""
NUM_CONTOURS = 5
"""Number of contours per theory."""
FAILED = {"hatch": "////", "lw": 0, "ec": "0.5", "cmap": ListedColormap(["none"])}
HALO: list[AbstractPathEffect] = [withStroke(linewidth=3, foreground="white")]
"""White edge of contours, which lie on dark and light colours."""
MOST_PANELS, MOST_LINES, MOST_POINTS = 24, 256, 2**22
LONGEST_LEGEND = 10
"""Maximum number of legend entries; with more lines, a colour bar shows the values."""


@dataclasses.dataclass(frozen=True)
class Plot:
    """Plot a recorded quantity of a stored sweep against an axis: the mean over seeds with the
    standard deviation as a band, and one panel for each value of a remaining axis. Several sweeps
    of one system, such as runs and their theories, are drawn together. With `--view heatmap`, the
    mean over two axes is drawn as colours, and further sweeps as contours over it.

    Attributes:
        path: folder of the sweep, or its address in a bucket.
        x: horizontal axis: an axis of the sweep, or time. By default the longest axis, one of
            numbers if there is one, or time if seed is the only axis.
        observable: recorded quantity to plot. By default entropy, else loss, else the first one
            recorded.
        hue: axis to draw as separate lines, one for each value.
        where: fixed values of other axes, for instance eta_z=1 or rule=adam. Time is the last
            recorded one unless given.
        out: image file; its suffix selects the format. By default out/plot/NAME.png, with the name
            of the sweep.
        more: further sweeps of the same system, such as its theories.
        view: lines, or a heat map over x and y.
        y: vertical axis of a heat map. By default the longest axis besides x.
        error: also draw the standard error of the mean over seeds, in a second panel of a heat map.
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("path", "more")

    path: str
    x: str | None = None
    observable: str | None = None
    hue: str | None = None
    where: tuple[str, ...] = ()
    out: Path | None = None
    more: tuple[str, ...] = ()
    view: Literal["lines", "heatmap"] = "lines"
    y: str | None = None
    error: bool = False

    def __post_init__(self) -> None:
        if self.out is None:
            name = Path(self.path).name or Path(self.path).resolve().name
            object.__setattr__(self, "out", Path("out/plot") / f"{name}.png")


def run(config: Plot) -> list[Path]:
    """Draw the figure and save it, with the plotted numbers next to it."""
    out = config.out
    assert out is not None
    suffix = out.suffix[1:]
    if suffix not in drawing.FORMATS:
        raise ValueError(f"out = {out}: must end in .{', .'.join(drawing.FORMATS)}")
    if config.error and config.view != "heatmap":
        raise ValueError("error = True: lines show bands; must be False, or view = 'heatmap'")
    sweeps = {path: open_sweep(path, progress.say) for path in (config.path, *config.more)}
    check_systems(sweeps)

    runs = sweeps.pop(config.path)
    config = with_defaults(config, runs)
    data = array_to_draw(runs, config)
    theories = {
        path: array_to_draw(aligned_with(runs, sweep), config, is_theory=True)
        for path, sweep in sweeps.items()
    }
    figure = draw(config, data, theories)
    arrays = {}
    for number, array in enumerate((data, *theories.values()), start=1):
        prefix = "" if number == 1 else f"sweep{number}/"
        arrays[f"{prefix}{array.name}"] = array.values
        arrays |= {f"{prefix}{dim}": array[dim].values for dim in array.dims}
    # The first format is that of the default `out`, where the user's style may set another.
    kind = mpl.rcParams["savefig.format"] if suffix == drawing.FORMATS[0] else suffix
    with mpl.rc_context({"savefig.format": kind}):
        return output.write(out.parent, out.stem, figure=figure, arrays=arrays)


def with_defaults(config: Plot, dataset: xr.Dataset) -> Plot:
    """Fill in missing settings from the sweep, and name axes as it does."""
    # An axis has several spellings, such as eta.W0 and eta_W0.
    names = {normalise(str(dim)): str(dim) for dim in dataset.dims}
    x, y, hue = (
        name and names.get(normalise(name), name) for name in (config.x, config.y, config.hue)
    )
    entries = [entry.partition("=") for entry in config.where]
    entries = [(names.get(normalise(name), name), sign, value) for name, sign, value in entries]
    recorded = [str(name) for name in dataset.data_vars if name != "status"]
    usual = next((name for name in ("entropy", "loss") if name in recorded), recorded[0])
    fixed = [name for name, _, _ in entries]
    axes = [str(dim) for dim in dataset["status"].dims if dim not in ("seed", hue, *fixed)]
    # The longest first, but words after numbers.
    axes.sort(key=lambda dim: (not worded(dataset, dim), dataset.sizes[dim]), reverse=True)
    x = x or next((dim for dim in axes if dim != y), "time")
    if config.view == "heatmap":
        y = y or next((dim for dim in axes if dim != x), "time")
    return dataclasses.replace(
        config,
        observable=config.observable or usual,
        x=x,
        y=y,
        hue=hue,
        where=tuple(map("".join, entries)),
    )


def array_to_draw(dataset: xr.Dataset, config: Plot, is_theory: bool = False) -> xr.DataArray:
    """Return the observable as a function of axes alone, NaN for invalid runs. A theory may lack
    axes at which `where` selects runs."""
    recorded = [str(name) for name in dataset.data_vars if name != "status"]
    observable = checks.choice("observable", str(config.observable), recorded)
    dims = [str(dim) for dim in dataset[observable].dims if dim != "seed"]
    axes = {"x": config.x, "y": config.y, "hue": config.hue}
    for setting, axis in axes.items():
        if axis is not None:
            checks.choice(setting, axis, dims)
    if config.hue == config.x:
        raise ValueError(f"hue = {config.hue!r}: must differ from x")
    where = [
        entry for entry in config.where if not is_theory or entry.partition("=")[0] in dataset.dims
    ]
    unread = select(dataset[[observable, "status"]], where)
    # The end of training, unless time is an axis of the figure.
    if "time" in unread.dims and "time" not in axes.values():
        unread = unread.isel(time=-1)

    # Limits hold before anything is read: a stored sweep may be larger than the memory.
    averaged = {"class"} - {*axes.values()}
    sizes = {dim: size for dim, size in unread.sizes.items() if dim not in averaged}
    panels = math.prod(size for dim, size in sizes.items() if dim not in (*axes.values(), "seed"))
    for what, number, limit in (
        ("panels", panels, MOST_PANELS),
        ("lines", sizes[config.hue] if config.hue else 1, MOST_LINES),
        ("points", math.prod(sizes.values()), MOST_POINTS),
    ):
        if number > limit:
            raise ValueError(
                f"where: would draw {number} {what}, at most {limit} fit; choose values with "
                "--where NAME=VALUE"
            )
    budget.check_read("where", unread[observable].nbytes)
    data = valid(unread)[observable].load()
    return data.mean("class") if averaged & {*data.dims} else data


def draw(config: Plot, data: xr.DataArray, theories: Mapping[str, xr.DataArray]) -> Figure:
    """Draw a panel for each value of the remaining axis, or a heat map."""
    if config.view == "heatmap":
        return draw_heatmap(config, data, theories)
    x, hue = str(config.x), config.hue
    others = [dim for dim in data.dims if dim not in (x, hue, "seed")]
    if len(others) > 1:
        raise ValueError(
            f"where: {', '.join(map(str, others))} remain, but only one of them can become panels; "
            "choose values with --where NAME=VALUE"
        )
    panels = data[others[0]].values if others else [None]
    width = 4.8 if len(panels) == 1 else max(3.0, 6 / len(panels))
    figure, (axes,) = drawing.panels(1, len(panels), width=width, height=3.6, sharey=True)
    # About 12 characters fit in an inch.
    figure.suptitle(textwrap.fill(title(config, data), int(12 * width * len(panels))))
    for ax, value in zip(axes, panels, strict=True):
        draw_lines(data if value is None else data.sel({others[0]: value}), x, hue, ax)
        for number, theory in enumerate(theories.values(), start=1):
            if value is not None and others[0] in theory.dims:
                values = theory[others[0]].values
                index = find_value(f"{others[0]} of a theory", values, value)
                theory = theory.isel({others[0]: index})
            draw_lines(theory, x, hue, ax, number)
        if value is not None:
            ax.set_title(f"{others[0]} = {shown(value)}")
    axes[0].set_ylabel(textwrap.fill(label(data), 36))

    finite = data.values[np.isfinite(data.values)]
    low, high = np.quantile(finite, (0.05, 0.95)) if finite.size else (0.0, 0.0)
    if colour_range(data.values, LOG_COLOURS).logarithmic:
        axes[0].set_yscale("log")
    elif high > low and np.ptp(finite) > LOG_COLOURS * (high - low):
        # A few runs that have left all others must not hide how these differ.
        axes[0].set_ylim(low - (high - low), high + (high - low))

    if hue and data.sizes[hue] > LONGEST_LEGEND:
        # A segment of the bar for each line, with ticks at some of their centres.
        values, number = data[hue].values, data.sizes[hue]
        colours = ListedColormap(drawing.shades(number))
        lines = ScalarMappable(BoundaryNorm(np.arange(number + 1) - 0.5, number), colours)
        bar = figure.colorbar(lines, ax=figure.axes, label=label(data[hue]))
        ticks = np.unique(np.linspace(0, number - 1, 6).round().astype(int))
        words = [v if isinstance(v, str) else f"{v:.3g}" for v in values[ticks]]
        bar.set_ticks(ticks.tolist(), labels=words)
        bar.minorticks_off()
    elif hue:
        axes[-1].legend(title=hue, fontsize="small")
    if theories:
        keys = []
        for number, path in enumerate((config.path, *theories)):
            colour = "k" if hue else drawing.colour(number)
            keys.append(drawing.key(Path(path).name, color=colour, ls=dashes(number)))
        figure.legend(handles=keys, loc="outside lower center", ncols=2, fontsize="small")
    return figure


def title(config: Plot, data: xr.DataArray) -> str:
    """Return a title with the name of the sweep, the selection, and the averaged axes."""
    words = [
        f"{'step' if name == 'time' else name} = {shown(coordinate.item())}"
        for name, coordinate in data.coords.items()
        if coordinate.ndim == 0
    ]
    if "seed" in data.dims:
        average = "mean" if config.view == "heatmap" else "mean ± sd"
        words.append(f"{average} of {data.sizes['seed']} seeds")
    failed = data.isnull().all([dim for dim in ("time", "record") if dim in data.dims])
    if failed.any():
        words.append(f"{int(failed.sum())} of {failed.size} runs did not end well")
    return ", ".join([Path(config.path).name, *words])


def draw_lines(data: xr.DataArray, x: str, hue: str | None, ax: Axes, number: int = 0) -> None:
    """Draw the mean over seeds against the axis `x`, with a line for each value of `hue`. If `x` is
    a list of words, draw points with the standard deviation as error bars instead. Sweeps differ by
    their `number` in dashes and, without a `hue`, in colours."""
    at = data[x].values
    values = [None] if hue is None else data[hue].values
    colours = drawing.shades(len(values)) if hue else [drawing.colour(number)]
    for value, colour in zip(values, colours, strict=True):
        line = data if value is None else data.sel({hue: value})
        # The legend lists each value once, whatever the number of sweeps.
        name = None if value is None or number else shown(value)
        style: drawing.Keywords = {"marker": "" if number else "o", "ms": 3, "color": colour}
        style |= {"label": name, "ls": dashes(number)}
        if worded(data, x):
            seeds = line if "seed" in line.dims else line.expand_dims("seed")
            # Zero for a single run, rather than NaN.
            spread = seeds.std("seed", ddof=min(1, seeds.sizes["seed"] - 1))
            style |= {"ls": "none", "marker": "s" if number else "o"}
            ax.errorbar(at, seeds.mean("seed"), spread, capsize=3, **style)
        elif "seed" in line.dims:
            drawing.band(ax, at, line, style)
        else:
            ax.plot(at, line, **style)
    if at.size > 2 and not worded(data, x):
        if at.min() > 0 and at[-1] / at[0] >= 10:
            ax.set_xscale("log")
        elif x == "time" and at[-1] >= 10 * at[1] > 0 and scale_of(at[1:]) == "log":
            # Logarithmically spaced steps, after step 0.
            ax.set_xscale("symlog", linthresh=at[1])
    drawing.finished(ax, xlabel=textwrap.fill(label(data[x]), 44))


def dashes(number: int) -> LineStyleType:
    return drawing.DASHES[number % len(drawing.DASHES)]


def draw_heatmap(config: Plot, data: xr.DataArray, theories: Mapping[str, xr.DataArray]) -> Figure:
    """Draw the mean over seeds as colours over two axes, hatched where a run did not end well, with
    contours of theories on the same scale.

    Raises:
        ValueError: if a theory has fewer than two values of an axis, so that contours are
            undefined, or if the standard error is requested and no cell has two valid runs.
    """
    x, y = str(config.x), str(config.y)
    if y == x:
        raise ValueError(f"y = {y!r}: must differ from x")
    for array in (data, *theories.values()):
        checks.choice("y", y, [str(dim) for dim in array.dims if dim != "seed"])
        if others := [str(dim) for dim in array.dims if dim not in (x, y, "seed")]:
            raise ValueError(
                f"where: {', '.join(others)} have no place in a heat map; choose values with "
                "--where NAME=VALUE"
            )

    def mean(array: xr.DataArray) -> xr.DataArray:
        array = array.mean("seed", keep_attrs=True) if "seed" in array.dims else array
        return array.transpose(y, x)

    def centres(array: xr.DataArray, axis: str) -> np.ndarray:
        return np.arange(array.sizes[axis]) if worded(array, axis) else array[axis].values

    maps = [mean(data)]
    if config.error:
        maps.append(standard_error(data).transpose(y, x))
    failed = data.isnull()
    failed = (failed.any("seed") if "seed" in failed.dims else failed).transpose(y, x).values
    scales = {}
    for axis in (x, y):
        # Logarithmic from a factor of ten on, as in line figures.
        at = centres(data, axis)
        wide = len(at) > 2 and at.min() > 0 and at.max() / at.min() >= 10
        scales[axis] = "log" if wide else "linear"
    edges = [cell_edges(centres(data, axis), scales[axis]) for axis in (x, y)]
    figure, (axes,) = drawing.panels(1, len(maps), width=5.6, height=4.2)
    norms = []
    for ax, values in zip(axes, maps, strict=True):
        if not np.isfinite(values).any():
            raise ValueError("view = 'heatmap': none of these runs ended well")
        low, high, logarithmic = colour_range(values.values, LOG_COLOURS)
        norms.append(LogNorm(low, high) if logarithmic else Normalize(low, high))
        mesh = ax.pcolormesh(*edges, values, cmap="viridis", norm=norms[-1])
        figure.colorbar(mesh, ax=ax, label=label(values))
        # Over the colour, which is the mean of the runs that ended well.
        if failed.any():
            ax.pcolor(*edges, np.ma.masked_where(~failed, failed), **FAILED)
        ax.set(xscale=scales[x], yscale=scales[y], xlabel=label(data[x]), ylabel=label(data[y]))
        for axis, ticks in ((x, ax.set_xticks), (y, ax.set_yticks)):
            if worded(data, axis):
                ticks(range(data.sizes[axis]), [shown(value) for value in data[axis].values])

    # Labels of contours reserve space when they are drawn: after the scales are set.
    levels = norms[0].inverse(np.linspace(0, 1, NUM_CONTOURS + 2)[1:-1])
    by_name = {Path(path).name: mean(theory) for path, theory in theories.items()}
    for number, (name, theory) in enumerate(by_name.items()):
        if min(theory.shape) < 2:
            raise ValueError(
                f"view = 'heatmap': a theory needs at least two values of {x} and of {y}"
            )
        lines = axes[0].contour(
            centres(theory, x),
            centres(theory, y),
            theory,
            levels=levels,
            colors="black",
            linestyles=[dashes(number)],
        )
        lines.set_path_effects(HALO)
        for text in axes[0].clabel(lines, fmt=lambda value: f"{value:.3g}", fontsize="small"):
            text.set_path_effects(HALO)
        # Contours have no entry of the legend.
        axes[0].plot([], [], "k", ls=dashes(number), label=name)
    if theories:
        figure.legend(title="contours", loc="outside lower center", ncols=2, fontsize="small")
    figure.suptitle(textwrap.fill(title(config, data), 56 * (1 + config.error)))
    return figure


def standard_error(data: xr.DataArray) -> xr.DataArray:
    """Return the standard error of the mean over valid runs, NaN for fewer than two. Raises
    `ValueError` if no cell has two."""
    number = data.notnull().sum("seed") if "seed" in data.dims else xr.zeros_like(data)
    number = number.where(number > 1)
    if not number.notnull().any():
        raise ValueError(
            "error = True: no cell has two runs that ended well; needs an axis of seeds with two "
            "or more"
        )
    variance = ((data - data.mean("seed")) ** 2).sum("seed") / (number - 1)
    about = {**data.attrs, "long_name": "standard error of the mean"}
    return ((variance / number) ** 0.5).assign_attrs(about)
