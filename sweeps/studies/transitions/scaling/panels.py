"""The picture of `dynsim figure scaling`: six panels, a colour for each size."""

import math
import textwrap
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sweeps.output import drawing
from sweeps.runner.labels import WIDTH, label, shown, wrapped
from sweeps.studies.transitions.scaling.analysis import Scaling
from sweeps.studies.transitions.scaling.master import NEAR

LINE: dict[str, Any] = {"color": "k", "ls": ":", "lw": 1.2}
SHOWN = 3 * NEAR
"""How much of each curve the collapse shows, in widths of its step."""


def draw(found: Scaling, values: xr.DataArray, linear: bool, title: str) -> Figure:
    """The three moments over the rate above; width and place over the size, and the collapse.

    Args:
        found: the scaling.
        values: order parameter over size, rate and seed.
        linear: whether x is the rate, not its logarithm.
        title: title of the figure.
    """
    size, rate = (str(dim) for dim in values.dims[:2])
    figure, axes = drawing.panels(2, 3, width=3.2, height=2.9)
    across, across_name = values[rate].values, wrapped(values[rate])
    names = (
        wrapped(values),
        f"susceptibility, {size} × variance",
        "Binder cumulant",
    )
    style: dict[str, Any] = {"xlabel": across_name, "xlim": across[[0, -1]]}
    for ax, name, mean, error in zip(axes[0], names, found.moments, found.errors, strict=True):
        for i, colour in enumerate(drawing.shades(values.sizes[size])):
            ax.plot(across, mean[i], color=colour, lw=1.2, label=shown(values[size].values[i]))
            ends = (mean[i] + sign * error[i] for sign in (-1, 1))
            ax.fill_between(across, *ends, color=colour, alpha=0.2, lw=0)
        drawing.finished(ax, ylabel=name, **style)
        if not linear:
            drawing.logarithmic(ax, "x", across)
    # A rare value has a cumulant of minus its inverse probability, which would hide all others.
    axes[0, 2].set_ylim(max(axes[0, 2].get_ylim()[0], -1.5), 0.8)
    beside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.02, 1), "frameon": False}
    axes[0, 2].legend(title=size, **beside)
    plot_width(found, values[size], ax=axes[1, 0])
    plot_place(found, values[size], label(values[rate]), linear, ax=axes[1, 1])
    plot_collapse(found, values, linear, ax=axes[1, 2])
    figure.suptitle(textwrap.fill(title, 100))
    return figure


def plot_width(found: Scaling, sizes: xr.DataArray, ax: Axes) -> Axes:
    """Widths of the step with their power law."""
    ax.errorbar(sizes, found.widths, found.width_errors, fmt="o", ms=4, color=drawing.colour(0))
    law = found.width
    size = str(sizes.name)
    if np.isfinite(law.exponent):
        ax.set_title(f"$\\propto {size}^{{-a}}$, $a = {uncertain(-law.exponent, law.error)}$")
        ax.plot(sizes, law.prefactor * sizes.values**law.exponent, **LINE)
    drawing.logarithmic(ax, "y", found.widths)
    _sizes(ax, sizes)
    return drawing.finished(ax, ylabel="width of the step", xlabel=wrapped(sizes))


def plot_place(found: Scaling, sizes: xr.DataArray, rate: str, linear: bool, ax: Axes) -> Axes:
    """Places of the step, with their approach to a limit."""
    back = np.asarray if linear else np.exp
    at = back(found.places)
    ends = np.abs(back(found.places + np.outer([-1, 1], found.place_errors)) - at)
    ax.errorbar(sizes, at, ends, fmt="o", ms=4, color=drawing.colour(0))
    fit = found.place
    if np.isfinite(fit.place):
        x = np.geomspace(*sizes.values[[0, -1]].astype(float))
        ax.plot(x, back(fit.at(x)), **LINE)
    if not linear:
        drawing.logarithmic(ax, "y", at)
    _sizes(ax, sizes)
    return drawing.finished(
        ax, ylabel=textwrap.fill(f"step at {rate}", WIDTH), xlabel=wrapped(sizes)
    )


def plot_collapse(found: Scaling, values: xr.DataArray, linear: bool, ax: Axes) -> Axes:
    """The order parameter of all sizes, scaled."""
    size, rate = (str(dim) for dim in values.dims[:2])
    fit = found.collapse
    if fit is None:
        ax.text(0.5, 0.5, "no collapse: too few steps", ha="center", transform=ax.transAxes)
        return drawing.finished(ax)
    x = values[rate].values if linear else np.log(values[rate].values)
    for i, colour in enumerate(drawing.shades(values.sizes[size])):
        near = np.abs(x - found.places[i]) <= SHOWN * found.widths[i]
        L = float(values[size].values[i])
        moved = np.nan_to_num(found.place.drift) * np.log(L)
        scaled: Float[np.ndarray, " P"] = (x - moved - fit.x_c) * L**fit.inverse_nu
        m = found.moments.mean[i] * L**fit.beta_nu
        ax.plot(scaled[near], m[near], "o-", color=colour, ms=3, lw=0.8)
    # The letters stand on the axes, their values and errors above them.
    drift = np.nan_to_num(found.place.drift)
    moving = f" - {drift:.2f} \\ln {size}" * bool(drift)
    variable = rf"\mathrm{{{rate}}}" if linear else rf"\ln\,\mathrm{{{rate}}}"
    exponents = (
        (r"1/\nu", fit.inverse_nu, fit.errors[1]),
        (r"\beta/\nu", fit.beta_nu, fit.errors[2]),
    )
    values_of = ", ".join(f"${name} = {uncertain(*numbers)}$" for name, *numbers in exponents)
    known = fit.inverse_nu > 2 * fit.errors[1]
    place = f"$x_c = {uncertain(fit.x_c, fit.errors[0])}$" if known else "no critical point"
    return drawing.finished(
        ax,
        xlabel=rf"$({variable}{moving} - x_c)\, {size}^{{1/\nu}}$",
        ylabel=rf"order parameter $\times\, {size}^{{\beta/\nu}}$",
        title=f"{values_of},\n{place}",
    )


def uncertain(value: float, error: float) -> str:
    """A value and its standard error to the first digit of the error that is not 0; without a known
    error, to three digits."""
    if not (np.isfinite(error) and error > 0):
        return f"{value:.3g}"
    digits = max(0, -math.floor(math.log10(float(f"{error:.1g}"))))
    return rf"{round(value, digits) + 0.0:.{digits}f} \pm {error:.{digits}f}"


def _sizes(ax: Axes, sizes: xr.DataArray) -> None:
    """A logarithmic axis with ticks at the sizes, or at some of many."""
    values = sizes.values
    ax.set_xscale("log")
    drawing.ticks(ax.xaxis, values if len(values) <= 6 else values[:: -(-len(values) // 4)])
