"""`dynsim plot`: a quick look at a stored sweep."""

import dataclasses
import math
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import tyro
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dynsim import checks
from sweeps import output
from sweeps.output import drawing
from sweeps.runner import progress
from sweeps.runner.labels import label, select, shown, worded
from sweeps.runner.run import open_sweep, valid

MOST_PANELS, MOST_LINES, MOST_POINTS = 24, 256, 2**22


@dataclasses.dataclass(frozen=True)
class Plot:
    """Plot a recorded quantity of a stored sweep against an axis: the mean over seeds with the
    standard deviation as a band, and one panel for each value of a remaining axis.

    Attributes:
        path: folder of the sweep, or its address in a bucket.
        x: horizontal axis: an axis of the sweep, or time. By default the longest axis, one of
            numbers if there is one, or time if seed is the only axis.
        observable: recorded quantity to plot. By default entropy, else loss, else the first one
            recorded.
        hue: axis to draw as separate lines, one for each value.
        where: fixed values of other axes, for instance eta_z=1 or optimizer=adam. Time is the last
            recorded one unless given.
        out: image file; its suffix selects the format. By default out/plot/NAME.png, with the name
            of the sweep.
    """

    path: tyro.conf.Positional[str]
    x: str | None = None
    observable: str | None = None
    hue: str | None = None
    where: tuple[str, ...] = ()
    out: Path | None = None

    def __post_init__(self) -> None:
        if self.out is None:
            name = Path(self.path).name or Path(self.path).resolve().name
            object.__setattr__(self, "out", Path("out/plot") / f"{name}.png")


def run(config: Plot) -> list[Path]:
    """Draw the figure and write it, with the plotted numbers next to it."""
    out = config.out
    assert out is not None
    suffix = out.suffix[1:]
    if suffix not in drawing.FORMATS:
        raise ValueError(f"out = {out}: must end in .{', .'.join(drawing.FORMATS)}")
    dataset = open_sweep(config.path, progress.say)
    config = completed(config, dataset)
    data = chosen(dataset, config)
    figure = draw(config, data)
    arrays = {str(data.name): data.values, **{str(d): data[d].values for d in data.dims}}
    # What is called after the usual format has that which was asked for.
    kind = mpl.rcParams["savefig.format"] if suffix == drawing.FORMATS[0] else suffix
    with mpl.rc_context({"savefig.format": kind}):
        return output.write(out.parent, out.stem, figure=figure, arrays=arrays)


def completed(config: Plot, dataset: xr.Dataset) -> Plot:
    """The settings with what was not given taken from the sweep."""
    recorded = [str(name) for name in dataset.data_vars if name not in ("status",)]
    usual = next((name for name in ("entropy", "loss") if name in recorded), recorded[0])
    axes = [dim for dim in dataset["status"].dims if dim not in ("seed", config.hue)]
    longest = max(axes, key=lambda d: (not worded(dataset, d), dataset.sizes[d]), default="time")
    return dataclasses.replace(
        config, observable=config.observable or usual, x=config.x or str(longest)
    )


def draw(config: Plot, data: xr.DataArray) -> Figure:
    """A panel for each value of the axis that is left."""
    left = [d for d in data.dims if d not in (config.x, config.hue, "seed")]
    if len(left) > 1:
        raise ValueError(
            f"where: {', '.join(map(str, left))} are left and only one of them can become panels; "
            "choose values with --where NAME=VALUE"
        )
    panels = data[left[0]].values if left else [None]
    width = 4.8 if len(panels) == 1 else max(3.0, 6 / len(panels))
    figure, axes = drawing.panels(1, len(panels), width=width, height=3.6, sharey=True)
    figure.suptitle(textwrap.fill(title(config, data), int(12 * width * len(panels))))
    for ax, value in zip(axes[0], panels, strict=True):
        panel = data if value is None else data.sel({left[0]: value})
        plot_lines(panel, str(config.x), config.hue, ax=ax)
        if value is not None:
            ax.set_title(f"{left[0]} = {shown(value)}")
    axes[0, 0].set_ylabel(label(data))
    if config.hue:
        axes[0, -1].legend(title=config.hue, fontsize="small")
    return figure


def title(config: Plot, data: xr.DataArray) -> str:
    """Name of the sweep, what was chosen of it, and what is averaged over."""
    chosen = {str(name): value for name, value in data.coords.items() if value.ndim == 0}
    words = [f"{name} = {shown(value.item())}" for name, value in chosen.items()]
    if "seed" in data.dims:
        words.append(f"mean ± sd of {data.sizes['seed']} seeds")
    return ", ".join([Path(config.path).name, *words])


def plot_lines(data: xr.DataArray, x: str, hue: str | None, ax: Axes) -> Axes:
    """Mean over seeds against the axis `x`, a line for each value of `hue`; of words along `x`,
    between which there is nothing, points with the standard deviation as a bar."""
    lines = [None] if hue is None else data[hue].values
    colours = drawing.shades(len(lines))
    for value, colour in zip(lines, colours, strict=True):
        line = data if value is None else data.sel({hue: value})
        at, named = line[x].values, None if value is None else shown(value)
        style = {"marker": "o", "ms": 3, "color": colour, "label": named}
        if worded(data, x):
            seeds = line if "seed" in line.dims else line.expand_dims("seed")
            spread = seeds.std("seed", ddof=min(1, seeds.sizes["seed"] - 1))
            ax.errorbar(at, seeds.mean("seed"), spread, ls="none", capsize=3, **style)
        elif "seed" in line.dims:
            drawing.band(ax, at, line, style)
        else:
            ax.plot(at, line, **style)
    if at.size > 2 and not worded(data, x) and at.min() > 0 and at[-1] / at[0] >= 10:
        ax.set_xscale("log")
    return drawing.finished(ax, xlabel=label(data[x]))


def chosen(dataset: xr.Dataset, config: Plot) -> xr.DataArray:
    """The array to be drawn, as a function of axes alone, NaN where a run is not valid."""
    recorded = [str(name) for name in dataset.data_vars if name not in ("status",)]
    observable = checks.choice("observable", str(config.observable), recorded)
    dims = [str(dim) for dim in dataset[observable].dims if dim != "seed"]
    for name, value in (("x", config.x), ("hue", config.hue)):
        if value is not None:
            checks.choice(name, value, dims)
    if config.hue == config.x:
        raise ValueError(f"hue = {config.hue!r}: is the axis x already")
    data = valid(dataset[[observable, "status"]])[observable]
    data = select(data, config.where)
    if "time" in data.dims and "time" not in (config.x, config.hue):
        data = data.isel(time=-1)
    if "class" in data.dims and "class" not in (config.x, config.hue):
        data = data.mean("class")
    check_drawable(data.sizes, config)
    return data.load()


def check_drawable(sizes: Mapping[Any, int], config: Plot) -> None:
    """Raise `ValueError` for a picture that nobody could read, before its data are."""
    panels = math.prod(n for dim, n in sizes.items() if dim not in (config.x, config.hue, "seed"))
    lines = sizes[config.hue] if config.hue else 1
    most = (("panels", panels, MOST_PANELS), ("lines", lines, MOST_LINES))
    for what, number, limit in (*most, ("points", math.prod(sizes.values()), MOST_POINTS)):
        if number > limit:
            raise ValueError(
                f"where: would draw {number} {what}, at most {limit} can be; choose values with "
                "--where NAME=VALUE"
            )
