"""Maps of a stored sweep over two of its axes, with contours of its theories."""

from collections.abc import Mapping

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patheffects import AbstractPathEffect, withStroke

from sweeps.output import drawing
from sweeps.runner.labels import label, shown, worded

LEVELS = 5
"""Contours of a theory."""
DECADES = 2
"""Powers of ten from which on colours are logarithmic."""
FAILED = {"hatch": "////", "lw": 0, "ec": "0.5", "cmap": ListedColormap(["none"])}
HALO: list[AbstractPathEffect] = [withStroke(linewidth=3, foreground="white")]
"""Around contours, which lie on dark colours and on light ones."""


def draw(data: xr.DataArray, x: str, y: str, theories: Mapping[str, xr.DataArray]) -> Figure:
    """The mean over seeds over two axes as colours, hatched where a run did not end well, with
    contours of the same quantity of theories, from dark to light as the colours are.

    Args:
        data: along `x`, `y` and possibly `seed`; NaN where a run did not end well.
        x, y: horizontal and vertical axis.
        theories: the same of theories, by the names that the legend shows.

    Raises:
        ValueError: for theories without two values of each axis, between which a contour can lie.
    """
    figure, ((ax,),) = drawing.panels(1, 1, width=5.6, height=4.2)
    mean = _mean(data).transpose(y, x)
    norm = _norm(mean.values)
    borders = [edges(_places(mean, name), _is_log(mean, name)) for name in (x, y)]
    mesh = ax.pcolormesh(*borders, mean, cmap="viridis", norm=norm)
    figure.colorbar(mesh, ax=ax, label=label(data))
    failed = data.isnull()
    failed = (failed.any("seed") if "seed" in failed.dims else failed).transpose(y, x).values
    if failed.any():
        ax.pcolor(*borders, np.ma.masked_where(~failed, failed), **FAILED)
    for name, axis in ((x, "x"), (y, "y")):
        if _is_log(mean, name):
            ax.set(**{f"{axis}scale": "log"})
        if worded(mean, name):
            ticks = [shown(value) for value in mean[name].values]
            ax.set(**{f"{axis}ticks": range(len(ticks)), f"{axis}ticklabels": ticks})
    # Room for the values on contours is made where they appear, so after the scales.
    for place, (name, theory) in enumerate(theories.items()):
        contours(_mean(theory).transpose(y, x), norm, place, ax=ax)
        ax.plot([], [], "k", ls=drawing.DASHES[place % len(drawing.DASHES)], label=name)
    ax.set(xlabel=label(data[x]), ylabel=label(data[y]))
    if theories:
        figure.legend(title="contours", loc="outside lower center", ncols=2, fontsize="small")
    return figure


def contours(theory: xr.DataArray, norm: Normalize, place: int, ax: Axes) -> Axes:
    """Contours of a theory at values that divide the range of the colours, with the values."""
    y, x = map(str, theory.dims)
    if min(theory.shape) < 2:
        raise ValueError(f"view = 'heatmap': a theory needs two values of {x} and of {y}")
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


def edges(places: np.ndarray, log: bool) -> np.ndarray:
    """Borders of cells around places, (n + 1,) of (n,): in the middle between two of them, of their
    logarithms where the axis is logarithmic."""
    inside = np.log(places) if log else np.asarray(places, float)
    if len(inside) == 1:
        found = inside[0] + np.array([-0.5, 0.5])
    else:
        middle = (inside[1:] + inside[:-1]) / 2
        found = np.concatenate(([2 * inside[0] - middle[0]], middle, [2 * inside[-1] - middle[-1]]))
    return np.exp(found) if log else found


def _mean(data: xr.DataArray) -> xr.DataArray:
    return data.mean("seed", keep_attrs=True) if "seed" in data.dims else data


def _places(data: xr.DataArray, name: str) -> np.ndarray:
    return np.arange(data.sizes[name]) if worded(data, name) else data[name].values


def _is_log(data: xr.DataArray, name: str) -> bool:
    """Whether an axis spans a factor of ten, as in figures of lines."""
    values = _places(data, name)
    return bool(len(values) > 2 and values.min() > 0 and values.max() / values.min() >= 10)


def _norm(values: np.ndarray) -> Normalize:
    """Of the colours: logarithmic where the values span `DECADES`."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        raise ValueError("view = 'heatmap': no run of these ended well")
    low, high = float(finite.min()), float(finite.max())
    far = low > 0 and high / low >= 10**DECADES
    return LogNorm(low, high) if far else Normalize(low, high)
