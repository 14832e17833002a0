"""`dynsim plot`: curves of a stored sweep, or its map over two axes with contours of theories."""

import dataclasses
import math
import textwrap
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patheffects import AbstractPathEffect, withStroke

from dynsim import checks
from sweeps import output
from sweeps.commands.views.content import check_systems
from sweeps.language.fields import fold
from sweeps.language.values import find_value
from sweeps.output import drawing
from sweeps.output.cells import cell_edges, colour_range, scale_of
from sweeps.runner import progress
from sweeps.runner.labels import aligned_with, label, select, shown, valid, worded
from sweeps.runner.run import open_sweep
from sweeps.systems import budget

FAR = 1e2
"""Ratio of the largest to the smallest value above which colours are logarithmic."""
LEVELS = 5
"""Number of contours per theory."""
FAILED = {"hatch": "////", "lw": 0, "ec": "0.5", "cmap": ListedColormap(["none"])}
HALO: list[AbstractPathEffect] = [withStroke(linewidth=3, foreground="white")]
"""White edge of contours, which lie on dark and light colours."""


def draw_heatmap(
    data: xr.DataArray,
    x: str,
    y: str,
    theories: Mapping[str, xr.DataArray],
    error: bool = False,
) -> Figure:
    """Draw the mean over seeds as colours over two axes, with hatching where a run did not end
    well, and contours of theories on the same scale, from dark to light like the colours.

    Args:
        data: along `x`, `y` and possibly `seed`; NaN where a run did not end well.
        x, y: horizontal and vertical axis.
        theories: the same quantity in theories, by legend name.
        error: whether to add a panel with the standard error of the mean.

    Raises:
        ValueError: if a theory has fewer than two values of an axis, so that contours are
            undefined, or if `error` is set and no cell has two valid runs.
    """
    maps = [_mean(data).transpose(y, x)]
    if error:
        maps.append(standard_error(data).transpose(y, x))
    figure, (axes,) = drawing.panels(1, len(maps), width=5.6, height=4.2)
    failed = data.isnull()
    failed = (failed.any("seed") if "seed" in failed.dims else failed).transpose(y, x).values
    borders = [
        cell_edges(_places(data, name), "log" if _is_log(data, name) else "linear")
        for name in (x, y)
    ]
    norms = [_norm(each.values) for each in maps]
    for ax, values, norm in zip(axes, maps, norms, strict=True):
        mesh = ax.pcolormesh(*borders, values, cmap="viridis", norm=norm)
        figure.colorbar(mesh, ax=ax, label=label(values))
        if failed.any():
            ax.pcolor(*borders, np.ma.masked_where(~failed, failed), **FAILED)
        for name, axis in ((x, "x"), (y, "y")):
            if _is_log(data, name):
                ax.set(**{f"{axis}scale": "log"})
            if worded(data, name):
                ticks = [shown(value) for value in data[name].values]
                ax.set(**{f"{axis}ticks": range(len(ticks)), f"{axis}ticklabels": ticks})
        ax.set(xlabel=label(data[x]), ylabel=label(data[y]))
    # Contour labels reserve space when drawn, so draw them after setting the scales.
    for place, (name, theory) in enumerate(theories.items()):
        contours(_mean(theory).transpose(y, x), norms[0], place, ax=axes[0])
        axes[0].plot([], [], "k", ls=drawing.DASHES[place % len(drawing.DASHES)], label=name)
    if theories:
        figure.legend(title="contours", loc="outside lower center", ncols=2, fontsize="small")
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


def contours(theory: xr.DataArray, norm: Normalize, place: int, ax: Axes) -> Axes:
    """Draw labelled contours of a theory at values that divide the range of the colours."""
    y, x = map(str, theory.dims)
    if min(theory.shape) < 2:
        raise ValueError(f"view = 'heatmap': a theory needs at least two values of {x} and of {y}")
    levels = norm.inverse(np.linspace(0, 1, LEVELS + 2)[1:-1])
    found = ax.contour(
        _places(theory, x),
        _places(theory, y),
        theory,
        levels=levels,
        colors="black",
        linestyles=[drawing.DASHES[place % len(drawing.DASHES)]],
    )
    found.set_path_effects(HALO)
    for text in ax.clabel(found, fmt=lambda value: f"{value:.3g}", fontsize="small"):
        text.set_path_effects(HALO)
    return ax


def _mean(data: xr.DataArray) -> xr.DataArray:
    return data.mean("seed", keep_attrs=True) if "seed" in data.dims else data


def _places(data: xr.DataArray, name: str) -> np.ndarray:
    return np.arange(data.sizes[name]) if worded(data, name) else data[name].values


def _is_log(data: xr.DataArray, name: str) -> bool:
    """Return whether an axis spans a factor of ten, as in line figures."""
    values = _places(data, name)
    return bool(len(values) > 2 and values.min() > 0 and values.max() / values.min() >= 10)


def _norm(values: np.ndarray) -> Normalize:
    """Return the colour scale."""
    if not np.isfinite(values).any():
        raise ValueError("view = 'heatmap': none of these runs ended well")
    low, high, logarithmic = colour_range(values, FAR)
    return LogNorm(low, high) if logarithmic else Normalize(low, high)


MOST_PANELS, MOST_LINES, MOST_POINTS = 24, 256, 2**22
MOST_ENTRIES = 10
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
    sweeps = {path: aligned_with(sweeps[config.path], sweep) for path, sweep in sweeps.items()}
    config = completed(config, sweeps[config.path])
    data = chosen(sweeps[config.path], config)
    given = {entry.partition("=")[0] for entry in config.where}
    others = [
        chosen(sweep, config, [name for name in given if name not in sweep.dims])
        for path, sweep in sweeps.items()
        if path != config.path
    ]
    theories = dict(zip([path for path in sweeps if path != config.path], others, strict=True))
    figure = draw(config, data, theories)
    arrays = {str(data.name): data.values, **{str(d): data[d].values for d in data.dims}}
    for place, theory in enumerate(others, start=2):
        arrays |= {f"sweep{place}/{name}": each.values for name, each in _named(theory).items()}
    # Without a format in its suffix, the file has the requested format.
    kind = mpl.rcParams["savefig.format"] if suffix == drawing.FORMATS[0] else suffix
    with mpl.rc_context({"savefig.format": kind}):
        return output.write(out.parent, out.stem, figure=figure, arrays=arrays)


def completed(config: Plot, dataset: xr.Dataset) -> Plot:
    """Fill in missing settings from the sweep, and name axes as it does."""
    names = {fold(str(dim)): str(dim) for dim in dataset.dims}
    x, y, hue = (n and names.get(fold(n), n) for n in (config.x, config.y, config.hue))
    pairs = (entry.partition("=") for entry in config.where)
    where = tuple(f"{names.get(fold(n), n)}{sign}{value}" for n, sign, value in pairs)
    config = dataclasses.replace(config, x=x, y=y, hue=hue, where=where)
    recorded = [str(name) for name in dataset.data_vars if name not in ("status",)]
    usual = next((name for name in ("entropy", "loss") if name in recorded), recorded[0])
    given = {entry.partition("=")[0] for entry in config.where}
    axes = [dim for dim in dataset["status"].dims if dim not in ("seed", config.hue, *given)]

    def longest(others: Sequence[Hashable], default: str) -> str:
        found = [(not worded(dataset, dim), dataset.sizes[dim], str(dim)) for dim in others]
        return max(found, key=lambda each: each[:2], default=(True, 0, default))[2]

    x = config.x or longest([dim for dim in axes if dim != config.y], "time")
    y = config.y
    if config.view == "heatmap":
        y = y or longest([dim for dim in axes if dim != x], "time")
    return dataclasses.replace(config, observable=config.observable or usual, x=x, y=y)


def draw(
    config: Plot, data: xr.DataArray, theories: Mapping[str, xr.DataArray] | None = None
) -> Figure:
    """Draw a panel for each value of the remaining axis, or a heat map."""
    theories = theories or {}
    if config.view == "heatmap":
        return _heatmap(config, data, theories)
    left = [d for d in data.dims if d not in (config.x, config.hue, "seed")]
    if len(left) > 1:
        raise ValueError(
            f"where: {', '.join(map(str, left))} remain, but only one of them can become panels; "
            "choose values with --where NAME=VALUE"
        )
    panels = data[left[0]].values if left else [None]
    width = 4.8 if len(panels) == 1 else max(3.0, 6 / len(panels))
    figure, axes = drawing.panels(1, len(panels), width=width, height=3.6, sharey=True)
    figure.suptitle(textwrap.fill(title(config, data), int(12 * width * len(panels))))
    for ax, value in zip(axes[0], panels, strict=True):
        panel = data if value is None else data.sel({left[0]: value})
        plot_lines(panel, str(config.x), config.hue, ax=ax)
        for place, theory in enumerate(theories.values(), start=1):
            own = theory
            if value is not None and left[0] in theory.dims:
                name = f"{left[0]} of a theory"
                own = theory.isel({left[0]: find_value(name, theory[left[0]].values, value)})
            plot_lines(own, str(config.x), config.hue, ax=ax, place=place)
        if value is not None:
            ax.set_title(f"{left[0]} = {shown(value)}")
    axes[0, 0].set_ylabel(textwrap.fill(label(data), 36))
    _scale(data.values, axes[0, 0])
    _explain(figure, axes[0, -1], config, data, theories)
    return figure


def _scale(values: np.ndarray, ax: Axes) -> None:
    """Make the axis of values logarithmic if they span decades; otherwise a few runs that have left
    all others must not hide how these differ."""
    if colour_range(values, FAR).logarithmic:
        ax.set_yscale("log")
        return
    finite = values[np.isfinite(values)]
    low, high = np.quantile(finite, (0.05, 0.95)) if finite.size else (0.0, 0.0)
    if high > low and np.ptp(finite) > FAR * (high - low):
        ax.set_ylim(low - (high - low), high + (high - low))


def _explain(
    figure: Figure,
    ax: Axes,
    config: Plot,
    data: xr.DataArray,
    theories: Mapping[str, xr.DataArray],
) -> None:
    """Add a legend of the lines, or a colour bar for many, and a legend of several sweeps."""
    hue = config.hue
    if hue and data.sizes[hue] > MOST_ENTRIES:
        values, number = data[hue].values, data.sizes[hue]
        colours = ListedColormap(drawing.shades(number))
        lines = ScalarMappable(BoundaryNorm(np.arange(number + 1) - 0.5, number), colours)
        bar = figure.colorbar(lines, ax=figure.axes, label=label(data[hue]))
        ticks = np.unique(np.linspace(0, number - 1, 6).round().astype(int))
        words = [v if isinstance(v, str) else f"{v:.3g}" for v in values[ticks]]
        bar.set_ticks(ticks.tolist(), labels=words)
        bar.minorticks_off()
    elif hue:
        ax.legend(title=hue, fontsize="small")
    if theories:
        names = [config.path, *theories]
        colours = ["k" if hue else drawing.colour(place) for place in range(len(names))]
        keys = [
            drawing.key(Path(name).name, color=colour, ls=_dash(place))
            for place, (name, colour) in enumerate(zip(names, colours, strict=True))
        ]
        figure.legend(handles=keys, loc="outside lower center", ncols=2, fontsize="small")


def _heatmap(config: Plot, data: xr.DataArray, theories: Mapping[str, xr.DataArray]) -> Figure:
    x, y = str(config.x), str(config.y)
    if y == x:
        raise ValueError(f"y = {y!r}: must differ from x")
    for each in (data, *theories.values()):
        checks.choice("y", y, [str(dim) for dim in each.dims if dim != "seed"])
        if left := [str(dim) for dim in each.dims if dim not in (x, y, "seed")]:
            raise ValueError(
                f"where: {', '.join(left)} have no place in a heat map; choose values with "
                "--where NAME=VALUE"
            )
    named = {Path(name).name: theory for name, theory in theories.items()}
    figure = draw_heatmap(data, x, y, named, config.error)
    figure.suptitle(textwrap.fill(title(config, data), 56 * (1 + config.error)))
    return figure


def _dash(place: int) -> Any:
    return drawing.DASHES[place % len(drawing.DASHES)]


def _named(data: xr.DataArray) -> dict[str, xr.DataArray]:
    return {str(data.name): data, **{str(dim): data[dim] for dim in data.dims}}


def title(config: Plot, data: xr.DataArray) -> str:
    """Return a title with the name of the sweep, the selection, and the averaged axes."""
    chosen = {str(name): value for name, value in data.coords.items() if value.ndim == 0}
    words = [
        f"{'step' if name == 'time' else name} = {shown(value.item())}"
        for name, value in chosen.items()
    ]
    if "seed" in data.dims:
        what = "mean" if config.view == "heatmap" else "mean ± sd"
        words.append(f"{what} of {data.sizes['seed']} seeds")
    over = [dim for dim in ("time", "record") if dim in data.dims]
    failed = data.isnull().all(over)
    if failed.any():
        words.append(f"{int(failed.sum())} of {failed.size} runs did not end well")
    return ", ".join([Path(config.path).name, *words])


def plot_lines(data: xr.DataArray, x: str, hue: str | None, ax: Axes, place: int = 0) -> Axes:
    """Draw the mean over seeds against the axis `x`, with a line for each value of `hue`. If `x` is
    a list of words, draw points with the standard deviation as error bars instead. Sweeps differ by
    `place` in their dashes and, without a `hue`, in their colours."""
    lines = [None] if hue is None else data[hue].values
    colours = drawing.shades(len(lines)) if hue else [drawing.colour(place)]
    for value, colour in zip(lines, colours, strict=True):
        line = data if value is None else data.sel({hue: value})
        # The legend lists each value once, whatever the number of sweeps.
        at, named = line[x].values, None if value is None or place else shown(value)
        style = {"marker": "" if place else "o", "ms": 3, "color": colour, "label": named}
        style["ls"] = _dash(place)
        if worded(data, x):
            seeds = line if "seed" in line.dims else line.expand_dims("seed")
            spread = seeds.std("seed", ddof=min(1, seeds.sizes["seed"] - 1))
            points = {**style, "ls": "none", "marker": "s" if place else "o"}
            ax.errorbar(at, seeds.mean("seed"), spread, capsize=3, **points)
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
    return drawing.finished(ax, xlabel=textwrap.fill(label(data[x]), 44))


def chosen(dataset: xr.Dataset, config: Plot, lacking: Sequence[str] = ()) -> xr.DataArray:
    """Return the array to draw as a function of axes alone, NaN for invalid runs. Selections along
    axes that are `lacking` are ignored."""
    recorded = [str(name) for name in dataset.data_vars if name not in ("status",)]
    observable = checks.choice("observable", str(config.observable), recorded)
    dims = [str(dim) for dim in dataset[observable].dims if dim != "seed"]
    for name, value in (("x", config.x), ("y", config.y), ("hue", config.hue)):
        if value is not None:
            checks.choice(name, value, dims)
    if config.hue == config.x:
        raise ValueError(f"hue = {config.hue!r}: must differ from x")
    unread = select(
        dataset[[observable, "status"]],
        [each for each in config.where if each.partition("=")[0] not in lacking],
    )
    kept = (config.x, config.y, config.hue)
    if "time" in unread.dims and "time" not in kept:
        unread = unread.isel(time=-1)
    averaged = {"class"} - {*kept}
    check_drawable({n: size for n, size in unread.sizes.items() if n not in averaged}, config)
    budget.check_read("where", unread[observable].nbytes)
    data = valid(unread)[observable].load()
    return data.mean("class") if averaged & {*data.dims} else data


def check_drawable(sizes: Mapping[Any, int], config: Plot) -> None:
    """Raise `ValueError` for an unreadable figure before its data are read."""
    along = (config.x, config.y, config.hue, "seed")
    panels = math.prod(n for dim, n in sizes.items() if dim not in along)
    lines = sizes[config.hue] if config.hue else 1
    most = (("panels", panels, MOST_PANELS), ("lines", lines, MOST_LINES))
    for what, number, limit in (*most, ("points", math.prod(sizes.values()), MOST_POINTS)):
        if number > limit:
            raise ValueError(
                f"where: would draw {number} {what}, at most {limit} fit; choose values with "
                "--where NAME=VALUE"
            )
