"""`dynsim figure scaling`: transition or crossover, from the step of an observable."""

import dataclasses
import textwrap
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
import pandas as pd
import xarray as xr
from annotated_types import Gt, Lt
from matplotlib.axes import Axes

from dynsim import Status
from dynsim.decoding import Real
from sweeps.figures import Figure, Picture
from sweeps.output import drawing
from sweeps.runner.labels import WIDTH, label, shown, valid, wrapped
from sweeps.runner.spec import Sweep
from sweeps.studies.optimum.best import at_end
from sweeps.studies.options import AxisWord, Several, SizesWord, axis, described, is_linear
from sweeps.studies.scaling import FEWEST, FEWEST_SIZES, LEVEL, Scaling, scaling
from sweeps.studies.scaling.laws import NEAR
from sweeps.systems.experiment import Experiment, experiment

GOOD = 3.0
"""Largest misfit at which curves are reported to collapse."""
DIVERGED = "diverged"
"""Observable of every system: 1 for a run that diverged, else 0."""
LINE: dict[str, Any] = {"color": "k", "ls": ":", "lw": 1.2}


class ScalingFigure(Figure):
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
    """

    NAME = "scaling"
    RUN: ClassVar[Mapping[str, Any]] = {"problem": "linear_icl", "steps": 50, "D": 4}

    run: Experiment = dataclasses.field(default_factory=lambda: experiment(**ScalingFigure.RUN))
    rate: AxisWord = "eta:1:12"
    size: SizesWord = "N:4:64"
    observable: str = DIVERGED
    origin: Real = 0.0
    level: Annotated[float, Gt(0), Lt(0.5)] = LEVEL
    theory: str = "simulation"
    seeds: Several = 128

    def axes(self) -> dict[str, tuple[float, ...]]:
        """Values of the size and of the rate, increasing, by name; `ValueError` for bad ones."""
        size, rate = axis(self.size, 5, self.run), axis(self.rate, 41, self.run)
        for option, (_, values), fewest in (("size", size, FEWEST_SIZES), ("rate", rate, FEWEST)):
            if len(set(values)) < max(fewest, len(values)):
                word = getattr(self, option)
                raise ValueError(f"{option} = {word!r}: needs {fewest} or more different values")
        if size[0] == rate[0]:
            raise ValueError(f"rate = {self.rate!r}: is also the axis of the size")
        return {name: tuple(sorted(values)) for name, values in (size, rate)}

    def sweeps(self) -> dict[str, Sweep]:
        """The sweep of all runs; `ValueError` for invalid settings."""
        axes = {**self.axes(), "seed": {"range": self.seeds}}
        record = None if self.observable == DIVERGED else (self.observable,)
        return {"runs": Sweep(self.run, axes, self.theory, record)}

    def draw(self, data: Mapping[str, xr.Dataset]) -> Picture:
        """Draw the three moments over the rate; below, width and place over the size, and the
        collapse."""
        size, rate = self.axes()
        values = order_parameter(data["runs"], self.observable).transpose(size, rate, "seed")
        linear, across, lengths = is_linear(self.rate), values[rate], values[size]
        x, back = (across.values, np.asarray) if linear else (np.log(across.values), np.exp)
        found = scaling(x, lengths.values, values.values, origin=self.origin, level=self.level)
        figure, axes = drawing.panels(2, 3, width=3.2, height=2.9)
        names = (wrapped(values), f"susceptibility, {size} × variance", "Binder cumulant")
        for ax, name, mean, error in zip(axes[0], names, found.moments, found.errors, strict=True):
            for i, colour in enumerate(drawing.shades(len(lengths))):
                ax.plot(across, mean[i], color=colour, lw=1.2, label=shown(lengths.values[i]))
                ends = (mean[i] + sign * error[i] for sign in (-1, 1))
                ax.fill_between(across, *ends, color=colour, alpha=0.2, lw=0)
            drawing.finished(ax, ylabel=name, xlabel=wrapped(across), xlim=across[[0, -1]])
            if not linear:
                drawing.logarithmic(ax, "x", across.values)
        # Rare values make the cumulant strongly negative, which would hide all other curves.
        axes[0, 2].set_ylim(max(axes[0, 2].get_ylim()[0], -1.5), 0.8)
        axes[0, 2].legend(title=size, loc="upper left", bbox_to_anchor=(1.02, 1), frameon=False)
        left, middle, right = axes[1]
        points: dict[str, Any] = {"fmt": "o", "ms": 4, "color": drawing.colour(0)}
        left.errorbar(lengths, *found.widths, **points)
        drawing.logarithmic(left, "y", found.widths.value)
        exponent = found.width.exponent
        if np.isfinite(exponent.value):
            a = f"{exponent._replace(value=-exponent.value)}".replace("±", r"\pm")
            left.set_title(f"$\\propto {size}^{{-a}}$, $a = {a}$")
            left.plot(lengths, found.width.prefactor * lengths.values**exponent.value, **LINE)
        at, off = found.places
        ends = np.abs(back(at + np.outer([-1, 1], off)) - back(at))
        middle.errorbar(lengths, back(at), ends, **points)
        if np.isfinite(found.place.place.value):
            between = np.geomspace(*lengths.values[[0, -1]].astype(float))
            middle.plot(between, back(found.place.at(between)), **LINE)
        if not linear:
            drawing.logarithmic(middle, "y", back(at))
        width = "width of the step" + "\n(in ln of the rate)" * (not linear)
        texts = width, textwrap.fill(f"step at {label(across)}", WIDTH)
        few = lengths.values if len(lengths) <= 6 else lengths.values[:: -(-len(lengths) // 4)]
        for ax, text in zip((left, middle), texts, strict=True):
            drawing.finished(ax, ylabel=text, xlabel=wrapped(lengths), xscale="log")
            drawing.ticks(ax.xaxis, few)
        plot_collapse(found, x, lengths, rate if linear else f"ln {rate}", ax=right)
        title = f"{described(self.run, (size, rate))}, {self.seeds} seeds. "
        figure.suptitle(textwrap.fill(title + str(found.verdict).capitalize(), 100))
        lines = [*in_words(found, values, linear)]
        report = {n: getattr(v, "_asdict", lambda v=v: v)() for n, v in found._asdict().items()}
        moments = {name: report.pop(name) for name in ("moments", "errors")}
        arrays = {"x": x, size: lengths, rate: across, "values": values.values, **moments}
        return Picture(figure, arrays, "\n".join(lines), report=report | {"lines": lines})


def order_parameter(dataset: xr.Dataset, name: str) -> xr.DataArray:
    """Average an observable over its entries at the end of each run."""
    if name == DIVERGED:
        label = {"long_name": "share of runs that diverge", "units": "1"}
        return (dataset["status"] != Status.OK).astype(float).assign_attrs(label)
    values = at_end(valid(dataset[[name, "status"]]), name)
    own = [dim for dim in values.dims if dim not in dataset["status"].dims]
    return values.mean(own, skipna=False).assign_attrs(dataset[name].attrs)


def in_words(found: Scaling, values: xr.DataArray, linear: bool) -> Iterator[str]:
    """Describe the step of each size, its power laws, and the verdict. On a logarithmic axis,
    widths and errors of places refer to the natural logarithm of the rate."""
    size, rate = (str(dim) for dim in values.dims[:2])
    x, back = (rate, np.asarray) if linear else (f"ln {rate}", np.exp)
    columns = {
        size: values[size].values,
        rate: back(found.places.value),
        f"error of {x}": found.places.error,
        f"width in {x}": found.widths.value,
        "error": found.widths.error,
        "chi": np.fmax.reduce(found.moments.susceptibility, axis=-1),
        "Binder crossing": back(np.append(np.nan, found.crossings.value)),
    }
    table = pd.DataFrame(columns).to_string(index=False, na_rep="-", float_format="{:.3g}".format)
    yield f"{table}\n"
    yield f"largest chi ~ {size}^({found.peak.exponent})"
    place, fit, moving = found.place.place, found.collapse, found.place.drift
    if moving.value:
        yield f"the step keeps moving: {x} = {place.value:.3g} + s ln {size}, s = {moving}"
    elif np.isfinite(place.error):
        at = float(back(place.value))
        yield f"{rate} of the step for infinite {size}: {at:.3g}, {x} ± {place.error:.2g}"
    if fit is not None:
        of = f" of {x} - s ln {size}" * bool(moving.value)
        critical = f"x_c = {fit.x_c.value:.3g} ± {fit.x_c.error:.2g}, " * fit.has_place
        poor = "" if fit.has_place else "; one curve fits without a critical point"
        poor = "; curves do not collapse" if fit.misfit > GOOD else poor
        yield (
            f"collapse{of}: {critical}1/nu = {fit.inverse_nu}, beta/nu = {fit.beta_nu}, "
            f"misfit {fit.misfit:.2g}{poor}"
        )
    yield f"{found.verdict}: with L = {size}, {found.why}"


def plot_collapse(found: Scaling, x: np.ndarray, sizes: xr.DataArray, name: str, ax: Axes) -> None:
    """Draw the order parameter of all sizes in scaled variables, up to three times the part that
    was fitted. `name` is that of x."""
    fit, size, drift = found.collapse, sizes.name, np.nan_to_num(found.place.drift.value)
    if fit is None:
        ax.text(0.5, 0.5, "no collapse: too few steps", ha="center", transform=ax.transAxes)
        drawing.finished(ax)
        return
    for i, colour in enumerate(drawing.shades(len(sizes))):
        near = np.abs(x - found.places.value[i]) <= 3 * NEAR * found.widths.value[i]
        L = float(sizes.values[i])
        scaled = (x - drift * np.log(L) - fit.x_c.value) * L**fit.inverse_nu.value
        m = found.moments.mean[i] * L**fit.beta_nu.value
        ax.plot(scaled[near], m[near], "o-", color=colour, ms=3, lw=0.8)
    # Symbols are on the axes, their values and errors above the panel.
    moving = f" - {drift:.2f} \\ln {size}" * bool(drift)
    before, rate = name.rpartition(" ")[::2]
    symbol = rf"\{before}\," * bool(before) + (r"\eta" if rate == "eta" else rf"\mathrm{{{rate}}}")
    x_c, nu, beta = (f"{each}".replace("±", r"\pm") for each in fit[:3])
    place = f"$x_c = {x_c}$" if fit.has_place else "no critical point"
    drawing.finished(
        ax,
        xlabel=rf"$({symbol}{moving} - x_c)\, {size}^{{1/\nu}}$",
        ylabel=rf"order parameter $\times\, {size}^{{\beta/\nu}}$",
        title=rf"$1/\nu = {nu}$, $\beta/\nu = {beta}$," + f"\n{place}",
    )
