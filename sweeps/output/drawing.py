"""The appearance of figures: a common style sheet, the user's own style, and formats.

Lines and text have a contrast of at least 3 to the white background; sizes are in points. In dark
mode the site shows figures on a white card: captions describe bright and dark areas of maps, which
inverted colours would contradict.

Example:
    >>> figure, axes = sweeps.drawing.panels(1, 2, sharey=True)
    >>> for place, ax in enumerate(axes[0]):
    ...     line = ax.plot([0, 1], [1, 0], color=sweeps.drawing.colour(place), label="loss")
    ...     ax = sweeps.drawing.finished(ax, {}, xlabel="step", title=f"run {place}")
    >>> axes.shape
    (1, 2)
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from cycler import cycler
from jaxtyping import Float
from matplotlib import patheffects
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm, to_hex, to_rgba_array
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator
from matplotlib.typing import ColorType, LineStyleType
from numpy.typing import ArrayLike

from dynsim import checks
from sweeps.output.cells import scale_of

Keywords = dict[str, Any]
"""Keyword arguments of a function of Matplotlib."""
Format = Literal["png", "svg", "pdf"]
FORMATS: tuple[Format, ...] = get_args(Format)
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#5C4B00", "#332288", "#000000")
"""Okabe and Ito's blue, vermilion, green and purple, which are distinguishable with colour
blindness. Replaces their orange, sky blue and yellow, which are hard to see on white."""
SHEET: dict[Any, Any] = {
    "font.size": 10.0,
    "figure.titlesize": "medium",
    "axes.titlesize": "medium",
    "xtick.labelsize": "small",
    "ytick.labelsize": "small",
    "legend.fontsize": "small",
    "legend.title_fontsize": "small",
    "axes.prop_cycle": cycler(color=PALETTE),
    # Store text in a PDF as text, not outlines; make SVG output reproducible.
    "pdf.fonttype": 42,
    "svg.hashsalt": "dynsim",
}
"""Style sheet, which the user's own style overrides. Text has 10 points; other sizes are relative
to it, so that a style with larger text scales all of them."""
DASHES: tuple[LineStyleType, ...] = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
"""Line styles, which distinguish curves in greyscale print."""
ERRORS: Keywords = {
    "norm": LogNorm(1e-3, 1),
    "cmap": plt.get_cmap("cividis_r").with_extremes(bad="#b0b0b0"),
}
"""Colours of relative errors from 0.1 to 100 %; grey where there is none."""
TRAINED: Keywords = {"lw": 4}
"""Style of training curves, drawn below thin ones of theory."""


def colour(place: int) -> str:
    """Return the colour of the curve at a position: from the user's style if it defines colours,
    else from `PALETTE`, cyclically."""
    cycle = mpl.rcParams["axes.prop_cycle"]
    # The default cycle of Matplotlib is not the choice of a user.
    own = cycle != mpl.rcParamsDefault["axes.prop_cycle"] and "color" in cycle.keys
    colours = cycle.by_key()["color"] if own else PALETTE
    return colours[place % len(colours)]


def shades(number: int) -> list[str]:
    """Return colours for curves with ordered values, from dark to light; the lightest still has a
    contrast of 3 to white."""
    return [to_hex(shade) for shade in plt.get_cmap("inferno")(np.linspace(0, 0.66, number))]


def scale(number: int) -> list[str]:
    """Return the colours of maps, from low to high values."""
    return [to_hex(shade) for shade in plt.get_cmap("viridis")(np.linspace(0, 0.9, number))]


def luminance(colours: Sequence[ColorType] | np.ndarray) -> Float[np.ndarray, " C"]:
    """Return the relative luminance of colours on white by WCAG 2, from 0 (black) to 1 (white). The
    contrast of two colours is the ratio of their luminances, each plus 0.05."""
    rgba = to_rgba_array(colours)
    # As seen on white, and then as linear light.
    rgb = 1 - rgba[:, 3:] * (1 - rgba[:, :3])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return linear @ np.array([0.2126, 0.7152, 0.0722])


def cased(width: float = 1.5) -> list[patheffects.AbstractPathEffect]:
    """Return a white edge for dark text, or for a line of a `width`, on a map; it is solid even if
    the line is dashed."""
    # By default, the edge has the dashes of its line.
    solid = {"dash_offset": 0, "dash_list": None}
    return [patheffects.withStroke(linewidth=width + 2, foreground="white", dashes=solid)]


def nested(number: int) -> list[Keywords]:
    """Return styles for curves that may coincide: each is thinner than the one before it."""
    return [
        {
            "color": colour(i),
            "ls": DASHES[i % len(DASHES)],
            # A curve below more than five others would be a band.
            "lw": 1.3 + 0.8 * min(number - 1 - i, 5),
        }
        for i in range(number)
    ]


def panels(
    rows: int, columns: int, width: float = 3.5, height: float = 3.0, **options: Any
) -> tuple[Figure, np.ndarray]:
    """Make a figure of panels of `width` x `height` inches each, with (rows, columns) axes. Three
    panels side by side are legible at page width."""
    size = (width * columns, height * rows)
    return plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False, **options)


def band(
    ax: Axes, x: ArrayLike, runs: xr.DataArray, style: Mapping[str, Any], ddof: int = 1
) -> None:
    """Plot the mean over the seeds of `runs` against `x` as a line of a `style`, with a band of one
    standard deviation to each side, which has zero width for a single run."""
    mean = runs.mean("seed")
    spread = runs.std("seed", ddof=min(ddof, runs.sizes["seed"] - 1))
    ax.plot(x, mean, **style)
    ax.fill_between(x, mean - spread, mean + spread, color=style["color"], alpha=0.2, lw=0)


def table(
    ax: Axes,
    values: Float[np.ndarray, "R C"],
    text: Callable[[float], str],
    across: Sequence[str],
    up: Sequence[str],
    **colours: Any,
) -> QuadMesh:
    """Draw values as coloured cells of equal size with names along both axes. The `text` of each is
    black or white, whichever has more contrast. Returns the mesh, for a colour bar."""
    edges = (np.arange(size + 1) - 0.5 for size in values.T.shape)
    mesh = ax.pcolormesh(*edges, values, rasterized=True, **colours)
    # The luminance at which the contrasts to black and to white are equal.
    dark = luminance(mesh.to_rgba(values.ravel())) < 0.05 * (21**0.5 - 1)
    for ((row, column), value), white in zip(np.ndenumerate(values), dark, strict=True):
        style: Keywords = {"color": "white" if white else "black", "fontsize": "small"}
        ax.text(column, row, text(value), ha="center", va="center", **style)
    ax.set_xticks(range(len(across)), across)
    ax.set_yticks(range(len(up)), up)
    return mesh


def error_map(ax: Axes, error: xr.DataArray, levels: Mapping[float, str]) -> QuadMesh:
    """Draw relative errors over a plane (across, up) in the colours `ERRORS`, with contours at the
    `levels` in their line styles. Returns the mesh, for a colour bar."""
    x, y = error.dims
    scales = {"xscale": scale_of(error[x]), "yscale": scale_of(error[y])}
    style = {"rasterized": True, "add_colorbar": False, **scales, **ERRORS}
    mesh = error.clip(min=ERRORS["norm"].vmin).plot.pcolormesh(x=x, ax=ax, **style)
    # Matplotlib warns of contours outside the range of the data.
    if float(error.min()) < max(levels) and float(error.max()) > min(levels):
        lines = {"colors": "k", "linestyles": [*levels.values()], "linewidths": 1.2}
        error.plot.contour(x=x, ax=ax, levels=[*levels], **lines).set(path_effects=cased())
    ax.set(xlabel="", ylabel="", title="")
    return mesh


def below(figure: Figure | SubFigure, handles: Sequence[Artist], ncols: int) -> None:
    """Add a legend below all panels, where it covers nothing."""
    figure.legend(handles=handles, loc="outside lower center", ncols=ncols, frameon=False)


def ticks(axis: Axis, values: Iterable[float], **style: Any) -> None:
    """Set ticks at exactly these values, with plain labels."""
    at = list(values)
    axis.set_ticks(at, [f"{value:g}" for value in at], **style)
    axis.set_minor_locator(NullLocator())


def logarithmic(ax: Axes, which: str, values: Float[np.ndarray, " V"]) -> None:
    """Make the axis x or y logarithmic, unless there are no values. If they span little more than a
    decade, ticks are plain numbers: matplotlib would label one of them, or all nine."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return
    ax.set(**{f"{which}scale": "log"})
    axis = getattr(ax, f"{which}axis")
    if finite.max() < 30 * finite.min():
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())


def outer(axes: np.ndarray, xlabel: str, ylabel: str) -> None:
    """Label a grid (rows, columns) of panels with shared axes, below and on the left."""
    for ax in axes[-1]:
        ax.set_xlabel(xlabel)
    for ax in axes[:, 0]:
        ax.set_ylabel(ylabel)


def finished(ax: Axes, legend: Mapping[str, Any] | None = None, **labels: Any) -> Axes:
    """Finish a panel: set `labels` as in `Axes.set`, a faint grid, and a legend if options for one
    are given."""
    ax.set(**labels)
    if legend is not None:
        ax.legend(**legend)
    ax.grid(alpha=0.25)
    return ax


def power(ax: Axes, first: float, last: float, end: float, name: str, exponent: int) -> None:
    """Draw a grey guide `name`^-`exponent` from `first` to `last`, where it has the value `end`."""
    x = np.array([first, last], float)
    ax.plot(x, end * (x / last) ** -exponent, color="0.5", lw=1)
    # The middle of logarithmic axes.
    middle = (first * last) ** 0.5
    at = middle, end * (middle / last) ** -exponent
    text = f"$\\propto {name}^{{-{exponent}}}$"
    style = {"textcoords": "offset points", "color": "0.3", "path_effects": cased()}
    ax.annotate(text, at, (3, 2), **style)


def key(label: str, **style: Any) -> Line2D:
    """Return a legend entry for lines of a `style`, black by default."""
    return Line2D([], [], label=label, **{"color": "k", **style})


@contextlib.contextmanager
def style(name: str | None, kind: Format | None = None) -> Iterator[None]:
    """Context that draws in a matplotlib style, given by name or file, and sets the figure format.

    The default `kind` is the style's own (`savefig.format`), which is png unless it sets another.

    Raises:
        ValueError: for an unknown style, or a format that is not in `FORMATS`.
    """
    with mpl.rc_context(SHEET):
        if name is not None:
            try:
                plt.style.use(name)
            except OSError:
                available = plt.style.available
                raise ValueError(
                    f"style = {name!r}: {checks.hint(name, available)}must be a Matplotlib style, "
                    f"such as {', '.join(available[-4:])}, or a style file"
                ) from None
        if kind is not None:
            mpl.rcParams["savefig.format"] = kind
        # The style may set a format that dynsim does not write.
        suffix = mpl.rcParams["savefig.format"]
        if suffix not in FORMATS:
            raise ValueError(f"format = {suffix!r}: must be {', '.join(FORMATS)}")
        yield
