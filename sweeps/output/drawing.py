"""How pictures look: one palette for all of them, a style of the user's, and their formats."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

from dynsim import checks

Format = Literal["png", "svg", "pdf"]
FORMATS: tuple[Format, ...] = get_args(Format)
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, which colour-blind readers can tell apart, without the yellow, which is hard to
see on white."""
DASHES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
"""Line styles, by which curves differ where they are printed in grey."""
TRAINED: dict[str, Any] = {"lw": 4, "alpha": 0.4}
"""Curves of training, below those of theory."""


def colour(place: int) -> str:
    """Colour of a curve by its place: of the user's style where it has colours of its own, else
    of `PALETTE`, which begins anew at its end."""
    cycle = mpl.rcParams["axes.prop_cycle"]
    own = cycle != mpl.rcParamsDefault["axes.prop_cycle"] and "color" in cycle.keys
    found = cycle.by_key()["color"] if own else PALETTE
    return found[place % len(found)]


def shades(number: int) -> list[str]:
    """Colours of curves whose values have an order, from dark to light."""
    return [to_hex(shade) for shade in plt.get_cmap("viridis")(np.linspace(0, 0.9, number))]


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


def grouped(names: Sequence[str]) -> list[dict[str, Any]]:
    """Styles of many curves that lie apart: those whose names begin alike, up to a hyphen, share a
    colour and differ by their dashes."""
    groups = [name.split("-")[0] for name in names]
    places = list(dict.fromkeys(groups))
    return [
        {"color": colour(places.index(group)), "ls": DASHES[groups[:i].count(group) % len(DASHES)]}
        for i, group in enumerate(groups)
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


def cells(
    ax: Axes, values: np.ndarray, text: Callable[[float], str], dark: float, **style: Any
) -> None:
    """Write `text` of each of the `values` (rows, columns) into its cell, in white above `dark`."""
    for (row, column), value in np.ndenumerate(values):
        colour = "white" if value > dark else "black"
        ax.text(column, row, text(value), ha="center", va="center", color=colour, **style)


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


def finished(
    ax: Axes, legend: Mapping[str, Any] | None = None, heading: str | None = None, **labels: Any
) -> Axes:
    """A panel with its `labels`, as `Axes.set` takes them, a faint grid, a `heading` of medium
    size, and a small legend where there are options for one."""
    ax.set(**labels)
    if heading is not None:
        ax.set_title(heading, fontsize="medium")
    if legend is not None:
        ax.legend(**{"fontsize": "small", **legend})
    ax.grid(alpha=0.25)
    return ax


def key(label: str, **style: Any) -> Line2D:
    """The entry of a legend for lines of a `style`, black unless it says otherwise."""
    return Line2D([], [], label=label, **{"color": "k", **style})


@contextlib.contextmanager
def style(name: str | None, kind: Format | None = None) -> Iterator[None]:
    """Draw in a style of matplotlib, by its name or file, and write pictures of a `kind`.

    If left out, it is that of the style (`savefig.format`), which is png unless it says so.

    Raises:
        ValueError: for a style that does not exist, or a format that is none of `FORMATS`.
    """
    # Letters in a PDF are text, not outlines; the same picture is the same SVG.
    with mpl.rc_context({"pdf.fonttype": 42, "svg.hashsalt": "dynsim"}):
        if name is not None:
            try:
                plt.style.use(name)
            except OSError:
                known = plt.style.available
                raise ValueError(
                    f"style = {name!r}: {checks.hint(name, known)}must be a style of matplotlib, "
                    f"such as {', '.join(known[-4:])}, or a file of one"
                ) from None
        if kind is not None:
            mpl.rcParams["savefig.format"] = kind
        found = mpl.rcParams["savefig.format"]
        if found not in FORMATS:
            raise ValueError(f"format = {found!r}: must be {', '.join(FORMATS)}")
        yield
