"""`dynsim figure scaling`: transition or crossover, from the step of an observable. Prints the
evidence and draws six panels, with a colour for each size."""

import dataclasses
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import xarray as xr
from annotated_types import Gt, Lt
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dynsim import Status, checks
from sweeps import output
from sweeps.output import drawing
from sweeps.runner.labels import WIDTH, label, shown, valid, wrapped
from sweeps.runner.spec import Sweep
from sweeps.studies import computed
from sweeps.studies.optimum.best import at_end
from sweeps.studies.options import (
    AxisWord,
    Several,
    SizesWord,
    axis,
    described,
    is_linear,
    is_whole,
)
from sweeps.studies.transitions.scaling.analysis import (
    FEWEST,
    FEWEST_SIZES,
    LEVEL,
    Scaling,
    scaling,
)
from sweeps.studies.transitions.scaling.laws import NEAR
from sweeps.systems.experiment import Experiment, experiment

GOOD = 3.0
"""Largest misfit at which curves are reported to collapse."""


def in_words(found: Scaling, values: xr.DataArray, linear: bool) -> list[str]:
    """Describe the step of each size, its power laws, and the verdict.

    Places are in the unit of the rate. On a logarithmic axis, their errors and the widths refer to
    the natural logarithm of the rate.
    """
    size, rate = (str(dim) for dim in values.dims[:2])
    x, back = (rate, np.asarray) if linear else (f"ln {rate}", np.exp)
    rows: list[Sequence[str]] = [
        (size, rate, "error", f"width in {x}", "error", "chi", "Binder crossing")
    ]
    chi = np.fmax.reduce(found.moments.susceptibility, axis=-1)
    columns = (
        back(found.places),
        found.place_errors,
        found.widths,
        found.width_errors,
        chi,
        back(np.append(np.nan, found.crossings)),
    )
    for value, *numbers in zip(values[size].values, *columns, strict=True):
        rows.append((shown(value), *map(_number, numbers)))
    said = [*output.aligned(rows, 10, 12, 10, 12 + len(x), 10, 10, 18), ""]
    said.append(f"largest chi ~ {size}^({_sure(found.peak.exponent, found.peak.error)})")
    place = found.place
    if place.drift:
        said.append(
            f"the step keeps moving: {x} = {place.place:.3g} + s ln {size}, s = "
            f"{_sure(place.drift, place.drift_error)}"
        )
    elif np.isfinite(place.error):
        at = _number(float(back(place.place)))
        said.append(f"{rate} of the step for infinite {size}: {at}, {x} ± {place.error:.2g}")
    if found.collapse is not None:
        c = found.collapse
        moving = f" of {x} - s ln {size}" * bool(place.drift)
        known = c.inverse_nu > 2 * c.errors[1]
        critical = f"x_c = {c.x_c:.3g} ± {c.errors[0]:.2g}, " * bool(known)
        poor = "" if known else "; one curve fits without a critical point"
        poor = "; curves do not collapse" if c.misfit > GOOD else poor
        said.append(
            f"collapse{moving}: {critical}1/nu = {_sure(c.inverse_nu, c.errors[1])}, "
            f"beta/nu = {_sure(c.beta_nu, c.errors[2])}, misfit {c.misfit:.2g}{poor}"
        )
    return [*said, f"{found.verdict}: with L = {size}, {found.why}"]


def plain(found: Scaling) -> dict[str, Any]:
    """Return all results except the moments as dicts, for JSON."""
    named = found._asdict()
    del named["moments"], named["errors"]
    return {n: v._asdict() if hasattr(v, "_asdict") else v for n, v in named.items()}


def _number(value: float) -> str:
    return f"{value:.3g}" if np.isfinite(value) else "-"


def _sure(value: float, error: float) -> str:
    return f"{value:.2f} ± {error:.2f}"


LINE: dict[str, Any] = {"color": "k", "ls": ":", "lw": 1.2}
SHOWN = 3 * NEAR
"""Part of each curve shown in the collapse, in widths of its step."""


def draw(found: Scaling, values: xr.DataArray, linear: bool, title: str) -> Figure:
    """Draw the three moments over the rate; below, width and place over the size, and the collapse.

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
    # Rare values make the cumulant strongly negative, which would hide all other curves.
    axes[0, 2].set_ylim(max(axes[0, 2].get_ylim()[0], -1.5), 0.8)
    beside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.02, 1), "frameon": False}
    axes[0, 2].legend(title=size, **beside)
    plot_width(found, values[size], linear, ax=axes[1, 0])
    plot_place(found, values[size], label(values[rate]), linear, ax=axes[1, 1])
    plot_collapse(found, values, linear, ax=axes[1, 2])
    figure.suptitle(textwrap.fill(title, 100))
    return figure


def plot_width(found: Scaling, sizes: xr.DataArray, linear: bool, ax: Axes) -> Axes:
    """Draw the widths of the step with their power law."""
    ax.errorbar(sizes, found.widths, found.width_errors, fmt="o", ms=4, color=drawing.colour(0))
    law = found.width
    size = str(sizes.name)
    if np.isfinite(law.exponent):
        ax.set_title(f"$\\propto {size}^{{-a}}$, $a = {uncertain(-law.exponent, law.error)}$")
        ax.plot(sizes, law.prefactor * sizes.values**law.exponent, **LINE)
    drawing.logarithmic(ax, "y", found.widths)
    _sizes(ax, sizes)
    width = "width of the step" + "\n(in ln of the rate)" * (not linear)
    return drawing.finished(ax, ylabel=width, xlabel=wrapped(sizes))


def plot_place(found: Scaling, sizes: xr.DataArray, rate: str, linear: bool, ax: Axes) -> Axes:
    """Draw the location of the step against size, with its approach to a limit."""
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
    """Draw the order parameter of all sizes in scaled variables."""
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
    # Symbols are on the axes, their values and errors above the panel.
    drift = np.nan_to_num(found.place.drift)
    moving = f" - {drift:.2f} \\ln {size}" * bool(drift)
    symbol = r"\eta" if rate == "eta" else rf"\mathrm{{{rate}}}"
    variable = symbol if linear else rf"\ln\,{symbol}"
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
    """Format a value and its standard error to the first nonzero digit of the error, or the value
    to three digits if the error is not known."""
    if not (np.isfinite(error) and error > 0):
        return f"{value:.3g}"
    digits = max(0, -math.floor(math.log10(float(f"{error:.1g}"))))
    return rf"{round(value, digits) + 0.0:.{digits}f} \pm {error:.{digits}f}"


def _sizes(ax: Axes, sizes: xr.DataArray) -> None:
    """Set a logarithmic axis with ticks at the sizes, or at some of them if there are many."""
    values = sizes.values
    ax.set_xscale("log")
    drawing.ticks(ax.xaxis, values if len(values) <= 6 else values[:: -(-len(values) // 4)])


POINTS, SIZES = 41, 5
"""Default numbers of values of the axes."""
Level = Annotated[float, Gt(0), Lt(0.5)]
"""Level of significance."""
DIVERGED = "diverged"
"""Observable of every system: 1 for a run that diverged, else 0."""


@dataclasses.dataclass(frozen=True)
class ScalingFigure:
    """Decide whether an observable changes by a transition or a crossover along an axis: its step
    for several sizes, susceptibility, Binder cumulant, widths and a scaling collapse.

    Attributes:
        run: the run whose settings each point changes.
        rate: the axis across the step, NAME:FIRST:LAST or NAME:FIRST:LAST:NUMBER; logarithmic, or
            linear with :lin at the end.
        size: the setting that counts as size, NAME:V1,V2,... or in the form of the rate; any
            setting with numeric values.
        observable: order parameter, at the last step, averaged over its entries; or diverged, which
            is 1 for a run that diverged, else 0.
        origin: value of the observable in the disordered phase.
        level: largest probability of each false verdict: a transition where the width stays the
            same, at least among the larger sizes, a crossover where it falls as size^(-1/4). A
            smaller one leaves more undecided, as do few seeds.
        theory: simulation, or a theory that starts from the weights of a seed.
        seeds: number of runs at each point.
        out: folder for the figure, scaling.npz and .json, and the stored sweep, from which the
            command resumes.
    """

    RUN: ClassVar[Mapping[str, Any]] = {"problem": "linear_icl", "steps": 50, "D": 4}

    run: Experiment = dataclasses.field(default_factory=lambda: experiment(**ScalingFigure.RUN))
    rate: AxisWord = "eta:1:12"
    size: SizesWord = "N:4:64"
    observable: str = DIVERGED
    origin: float = 0.0
    level: Level = LEVEL
    theory: str = "simulation"
    seeds: Several = 128
    out: Path = Path("out/scaling")

    def axes(self) -> dict[str, tuple[float, ...]]:
        """Values of the size and of the rate, increasing, by name; `ValueError` for bad ones."""
        found: dict[str, tuple[float, ...]] = {}
        for option, word, read, fewest in (
            ("size", self.size, sizes(self.size, self.run), FEWEST_SIZES),
            ("rate", self.rate, axis(self.rate, POINTS, self.run), FEWEST),
        ):
            name, values = read
            if len(set(values)) < max(fewest, len(values)):
                raise ValueError(f"{option} = {word!r}: needs {fewest} or more different values")
            if name in found:
                raise ValueError(f"rate = {self.rate!r}: is also the axis of the size")
            found[name] = tuple(sorted(values))
        return found

    def sweeps(self) -> dict[str, Sweep]:
        """The sweep of all runs; `ValueError` for invalid settings."""
        if not math.isfinite(self.origin):
            raise ValueError(f"origin = {self.origin}: must be finite")
        asked: dict[str, Any] = {}
        if self.observable != DIVERGED:
            asked["record"] = (self.observable,)
        axes = {**self.axes(), "seed": {"range": self.seeds}}
        return {"runs": Sweep(self.run, axes, self.theory, **asked)}


@dataclasses.dataclass(frozen=True)
class ScalingOfLayer(ScalingFigure):
    """Decide whether the attention of the layer in Y and Z snaps by a transition or a crossover,
    from its entropy at several sequence lengths."""

    RUN: ClassVar[Mapping[str, Any]] = {"problem": "yz", "steps": 100}

    run: Experiment = dataclasses.field(default_factory=lambda: experiment(**ScalingOfLayer.RUN))
    rate: AxisWord = "eta_z:30:80"
    size: SizesWord = "length:32:128:4"
    observable: str = "entropy"


def sizes(word: str, run: Experiment) -> tuple[str, tuple[float, ...]]:
    """Parse sizes such as "K:2,4,8" or "K:2:8:3"; `ValueError` for text that cannot be parsed."""
    name, _, listed = word.partition(":")
    if "," not in listed:
        return axis(word, SIZES, run)
    whole = is_whole(word, run)
    try:
        values = [float(each) for each in listed.split(",")]
    except ValueError:
        raise ValueError(f"size = {word!r}: must be NAME:V1,V2,... or NAME:FIRST:LAST") from None
    checks.real(f"size {name}", values, 0, open_minimum=True)
    # Values that are not whole are left for the sweep to reject.
    return name, tuple(int(v) if whole and v == int(v) else v for v in values)


def order_parameter(dataset: xr.Dataset, name: str) -> xr.DataArray:
    """Average an observable over its entries at the end of each run."""
    if name == DIVERGED:
        label = {"long_name": "share of runs that diverge", "units": "1"}
        return (dataset["status"] != Status.OK).astype(float).assign_attrs(label)
    values = at_end(valid(dataset[[name, "status"]]), name)
    own = [dim for dim in values.dims if dim not in dataset["status"].dims]
    return values.mean(own, skipna=False).assign_attrs(dataset[name].attrs)


def run(config: ScalingFigure) -> list[Path]:
    """Run or resume the sweep, print the verdict and its evidence, and write the figure."""
    dataset = computed(config)["runs"]
    size, rate = config.axes()
    values = order_parameter(dataset, config.observable).transpose(size, rate, "seed")
    linear = is_linear(config.rate)
    x = values[rate].values if linear else np.log(values[rate].values)
    found = scaling(x, values[size].values, values.values, origin=config.origin, level=config.level)
    lines = in_words(found, values, linear)
    print("\n".join(lines))
    title = f"{described(config.run, (size, rate))}, {config.seeds} seeds. "
    figure = draw(found, values, linear, title + str(found.verdict).capitalize())
    kept = plain(found)
    arrays = {"x": x, size: values[size].values, rate: values[rate].values, "values": values.values}
    arrays |= {"moments": found.moments, "errors": found.errors}
    return output.write(
        config.out, "scaling", figure=figure, arrays=arrays, report={**kept, "lines": lines}
    )
