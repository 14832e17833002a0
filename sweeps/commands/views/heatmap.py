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


def draw(
    data: xr.DataArray,
    x: str,
    y: str,
    theories: Mapping[str, xr.DataArray],
    error: bool = False,
) -> Figure:
    """The mean over seeds over two axes as colours, hatched where a run did not end well, with
    contours of the same quantity of theories, from dark to light as the colours are.

    Args:
        data: along `x`, `y` and possibly `seed`; NaN where a run did not end well.
        x, y: horizontal and vertical axis.
        theories: the same of theories, by the names that the legend shows.
        error: whether a second panel has the standard error of the mean.

    Raises:
        ValueError: for theories without two values of each axis, between which a contour can lie,
            or an error of cells with fewer than two runs that ended well.
    """
    maps = [_mean(data).transpose(y, x)]
    if error:
        maps.append(standard_error(data).transpose(y, x))
    figure, (axes,) = drawing.panels(1, len(maps), width=5.6, height=4.2)
    failed = data.isnull()
    failed = (failed.any("seed") if "seed" in failed.dims else failed).transpose(y, x).values
    borders = [edges(_places(data, name), _is_log(data, name)) for name in (x, y)]
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
    # Room for the values on contours is made where they appear, so after the scales.
    for place, (name, theory) in enumerate(theories.items()):
        contours(_mean(theory).transpose(y, x), norms[0], place, ax=axes[0])
        axes[0].plot([], [], "k", ls=drawing.DASHES[place % len(drawing.DASHES)], label=name)
    if theories:
        figure.legend(title="contours", loc="outside lower center", ncols=2, fontsize="small")
    return figure


def standard_error(data: xr.DataArray) -> xr.DataArray:
    """Of the mean over the runs that ended well, NaN where there are fewer than two; `ValueError`
    where no cell has more."""
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
