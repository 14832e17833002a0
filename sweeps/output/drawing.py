"""How pictures look: one style sheet for all of them, a style of the user's, and their formats.

Lines and letters are at least three times as bright or dark as the white that they are drawn on,
and sizes are in points. In the dark the site shows pictures on a white card: captions name what is
bright and what is dark in a map, which inverted colours would make false.
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
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_hex, to_rgba_array
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

from dynsim import checks

Format = Literal["png", "svg", "pdf"]
FORMATS: tuple[Format, ...] = get_args(Format)
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#5C4B00", "#332288", "#000000")
"""Okabe and Ito's blue, vermilion, green and purple, which colour-blind readers can tell apart.
Their orange, sky blue and yellow are hard to see on white: others stand for these."""
SHEET: dict[Any, Any] = {
    "font.size": 10.0,
    "figure.titlesize": "medium",
    "axes.titlesize": "medium",
    "xtick.labelsize": "small",
    "ytick.labelsize": "small",
    "legend.fontsize": "small",
    "legend.title_fontsize": "small",
    "axes.prop_cycle": cycler(color=PALETTE),
    # Letters in a PDF are text, not outlines; the same picture is the same SVG.
    "pdf.fonttype": 42,
    "svg.hashsalt": "dynsim",
}
"""The style sheet, below the user's own style. Letters have 10 points; the size of the others is
relative to that, so that a style with larger letters enlarges all of them."""
DASHES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
"""Line styles, by which curves differ where they are printed in grey."""
TRAINED: dict[str, Any] = {"lw": 4}
"""Curves of training, below thin ones of theory."""


def colour(place: int) -> str:
    """Colour of a curve by its place: of the user's style where it has colours of its own, else
    of `PALETTE`, which begins anew at its end."""
    cycle = mpl.rcParams["axes.prop_cycle"]
    own = cycle != mpl.rcParamsDefault["axes.prop_cycle"] and "color" in cycle.keys
    found = cycle.by_key()["color"] if own else PALETTE
    return found[place % len(found)]


def shades(number: int) -> list[str]:
    """Colours of curves whose values have an order, from dark to light; the lightest still has the
    contrast 3 to white."""
    return [to_hex(shade) for shade in plt.get_cmap("inferno")(np.linspace(0, 0.66, number))]


def scale(number: int) -> list[str]:
    """Colours of maps, from low to high values."""
    return [to_hex(shade) for shade in plt.get_cmap("viridis")(np.linspace(0, 0.9, number))]


def luminance(colours: Any) -> Float[np.ndarray, " C"]:
    """Relative luminance of colours on white by WCAG 2, from 0 for black to 1 for white. The
    contrast of two is the ratio of their luminances, each plus 0.05."""
    rgba = to_rgba_array(colours)
    rgb = 1 - rgba[:, 3:] * (1 - rgba[:, :3])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return linear @ np.array([0.2126, 0.7152, 0.0722])


def cased(width: float = 1.5) -> list[patheffects.AbstractPathEffect]:
    """A white edge for dark letters, or for a line of a `width`, on a map; solid where the line has
    dashes."""
    solid = {"dash_offset": 0, "dash_list": None}
    return [patheffects.withStroke(linewidth=width + 2, foreground="white", dashes=solid)]


def nested(number: int) -> list[dict[str, Any]]:
    """Styles of curves that may lie on each other: each is thinner than the one before, whose
    edges show below it."""
    return [
        {
            "color": colour(place),
            "ls": DASHES[place % len(DASHES)] if place else "-",
            "lw": 1.3 + 0.8 * min(number - 1 - place, 5),
        }
        for place in range(number)
    ]


def panels(
    rows: int, columns: int, width: float = 3.5, height: float = 3.0, **options: Any
) -> tuple[Figure, np.ndarray]:
    """A figure of panels of `width` x `height` inches each, (rows, columns) axes. Three of these
    side by side stay legible at the width of a page."""
    size = (width * columns, height * rows)
    return plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False, **options)


def band(ax: Axes, x: Any, runs: xr.DataArray, style: Mapping[str, Any], ddof: int = 1) -> None:
    """Mean over the seeds of `runs` against `x` as a line of a `style`, and as a band one standard
    deviation on either side, without width for a single run."""
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
    """Values as coloured cells of one size, each with its `text` in black or in white, whichever is
    seen better, and their names along both axes. Returns the mesh, for a colour bar."""
    edges = (np.arange(size + 1) - 0.5 for size in values.T.shape)
    mesh = ax.pcolormesh(*edges, values, rasterized=True, **colours)
    # Where the contrast to black is that to white.
    dark = luminance(mesh.to_rgba(values.ravel())) < 0.05 * (21**0.5 - 1)
    for ((row, column), value), white in zip(np.ndenumerate(values), dark, strict=True):
        shown, colour = text(value), "white" if white else "black"
        ax.text(column, row, shown, ha="center", va="center", color=colour, fontsize="small")
    ax.set_xticks(range(len(across)), across)
    ax.set_yticks(range(len(up)), up)
    return mesh


def below(figure: Figure | SubFigure, handles: Sequence[Any], ncols: int) -> None:
    """A legend below all panels, where it hides nothing."""
    figure.legend(handles=handles, loc="outside lower center", ncols=ncols, frameon=False)


def ticks(axis: Axis, values: Iterable[float], **style: Any) -> None:
    """Ticks at these values alone, which are written as they are."""
    shown = list(values)
    axis.set_ticks(shown, [f"{value:g}" for value in shown], **style)
    axis.set_minor_locator(NullLocator())


def logarithmic(ax: Axes, which: str, values: Float[np.ndarray, " V"]) -> None:
    """Make the axis x or y logarithmic, unless nothing is known. Where its values span little more
    than a decade its ticks are plain numbers: matplotlib labels one of these, or all nine."""
    known = values[np.isfinite(values)]
    if not known.size:
        return
    ax.set(**{f"{which}scale": "log"})
    axis = getattr(ax, f"{which}axis")
    if known.max() < 30 * known.min():
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())


def outer(axes: np.ndarray, xlabel: str, ylabel: str) -> None:
    """Label a grid (rows, columns) of panels with shared axes: below, and on the left."""
    for ax in axes[-1]:
        ax.set_xlabel(xlabel)
    for ax in axes[:, 0]:
        ax.set_ylabel(ylabel)


def finished(ax: Axes, legend: Mapping[str, Any] | None = None, **labels: Any) -> Axes:
    """A panel with its `labels`, as `Axes.set` takes them, a faint grid, and a legend where there
    are options for one."""
    ax.set(**labels)
    if legend is not None:
        ax.legend(**legend)
    ax.grid(alpha=0.25)
    return ax


def power(ax: Axes, first: float, last: float, end: float, name: str, exponent: int) -> None:
    """A grey guide that falls like `name` to the minus `exponent` from `first` on, to the value
    `end` at `last`."""
    x = np.array([first, last], float)
    ax.plot(x, end * (x / last) ** -exponent, color="0.5", lw=1)
    middle = (first * last) ** 0.5
    at = middle, end * (middle / last) ** -exponent
    text = f"$\\propto {name}^{{-{exponent}}}$"
    style = {"textcoords": "offset points", "color": "0.3", "path_effects": cased()}
    ax.annotate(text, at, (3, 2), **style)


def key(label: str, **style: Any) -> Line2D:
    """The entry of a legend for lines of a `style`, black unless it says otherwise."""
    return Line2D([], [], label=label, **{"color": "k", **style})


@contextlib.contextmanager
def style(name: str | None, kind: Format | None = None) -> Iterator[None]:
    """Draw in a style of matplotlib, by its name or file, and write pictures of a `kind`.

    If left out, it is that of the style (`savefig.format`), which is png unless it says so.

    Raises:
        ValueError: for a style that does not exist, or a format that is not in `FORMATS`.
    """
    with mpl.rc_context(SHEET):
        if name is not None:
            try:
                plt.style.use(name)
            except OSError:
                known = plt.style.available
                raise ValueError(
                    f"style = {name!r}: {checks.hint(name, known)}must be a Matplotlib style, "
                    f"such as {', '.join(known[-4:])}, or a style file"
                ) from None
        if kind is not None:
            mpl.rcParams["savefig.format"] = kind
        found = mpl.rcParams["savefig.format"]
        if found not in FORMATS:
            raise ValueError(f"format = {found!r}: must be {', '.join(FORMATS)}")
        yield
