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
from sweeps.studies.options import AxisWord, Several, SizesWord, Style, axis, is_linear, run_title
from sweeps.studies.scaling import FEWEST_POINTS, FEWEST_SIZES, LEVEL, Scaling, scaling
from sweeps.studies.scaling.laws import NEAR
from sweeps.systems.experiment import Experiment, experiment

LARGEST_MISFIT = 3.0
"""Largest misfit at which curves are reported to collapse."""
DIVERGED_SHARE = "diverged"
"""Observable of every system: 1 for a run that diverged, else 0."""
FIT: Style = {"color": "k", "ls": ":", "lw": 1.2}


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
    observable: str = DIVERGED_SHARE
    origin: Real = 0.0
    level: Annotated[float, Gt(0), Lt(0.5)] = LEVEL
    theory: str = "simulation"
    seeds: Several = 128

    def axes(self) -> dict[str, tuple[float, ...]]:
        """Values of the size and of the rate, increasing, by name; `ValueError` for bad ones."""
        size, rate = axis(self.size, 5, self.run), axis(self.rate, 41, self.run)
        for option, (_, values), fewest in (
            ("size", size, FEWEST_SIZES),
            ("rate", rate, FEWEST_POINTS),
        ):
            if len(set(values)) < max(fewest, len(values)):
                word = getattr(self, option)
                raise ValueError(f"{option} = {word!r}: needs {fewest} or more different values")
        if size[0] == rate[0]:
            raise ValueError(f"rate = {self.rate!r}: is also the axis of the size")
        return {name: tuple(sorted(values)) for name, values in (size, rate)}

    def sweeps(self) -> dict[str, Sweep]:
        """The sweep of all runs; `ValueError` for invalid settings."""
        axes = {**self.axes(), "seed": {"range": self.seeds}}
        record = None if self.observable == DIVERGED_SHARE else (self.observable,)
        return {"runs": Sweep(self.run, axes, self.theory, record)}

    def draw(self, data: Mapping[str, xr.Dataset]) -> Picture:
        """Draw the three moments over the rate; below, width and place over the size, and the
        collapse."""
        size, rate = self.axes()
        # The order parameter at the end of each run, averaged over its entries, if it has several.
        runs = data["runs"]
        if self.observable == DIVERGED_SHARE:
            about = {"long_name": "share of runs that diverge", "units": "1"}
            values = (runs["status"] != Status.OK).astype(float).assign_attrs(about)
        else:
            values = at_end(valid(runs[[self.observable, "status"]]), self.observable)
            entries = [dim for dim in values.dims if dim not in runs["status"].dims]
            values = values.mean(entries, skipna=False).assign_attrs(runs[self.observable].attrs)
        values = values.transpose(size, rate, "seed")
        linear, across, lengths = is_linear(self.rate), values[rate], values[size]
        # On a logarithmic axis a step moves and narrows in ratios of the rate.
        x, back = (across.values, np.asarray) if linear else (np.log(across.values), np.exp)
        result = scaling(x, lengths.values, values.values, origin=self.origin, level=self.level)

        figure, axes = drawing.panels(2, 3, width=3.2, height=2.9)
        names = (wrapped(values), f"susceptibility, {size} × variance", "Binder cumulant")
        for ax, name, mean, error in zip(
            axes[0], names, result.moments, result.errors, strict=True
        ):
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
        points: Style = {"fmt": "o", "ms": 4, "color": drawing.colour(0)}
        left.errorbar(lengths, *result.widths, **points)
        drawing.logarithmic(left, "y", result.widths.value)
        exponent = result.width.exponent
        if np.isfinite(exponent.value):
            a = f"{exponent._replace(value=-exponent.value)}".replace("±", r"\pm")
            left.set_title(f"$\\propto {size}^{{-a}}$, $a = {a}$")
            left.plot(lengths, result.width.prefactor * lengths.values**exponent.value, **FIT)
        at, off = result.places
        # Errors of x are not symmetric in the rate.
        ends = np.abs(back(at + np.outer([-1, 1], off)) - back(at))
        middle.errorbar(lengths, back(at), ends, **points)
        if np.isfinite(result.place.place.value):
            between = np.geomspace(*lengths.values[[0, -1]].astype(float))
            middle.plot(between, back(result.place.at(between)), **FIT)
        if not linear:
            drawing.logarithmic(middle, "y", back(at))
        width = "width of the step" + "\n(in ln of the rate)" * (not linear)
        texts = width, textwrap.fill(f"step at {label(across)}", WIDTH)
        few = lengths.values if len(lengths) <= 6 else lengths.values[:: -(-len(lengths) // 4)]
        for ax, text in zip((left, middle), texts, strict=True):
            drawing.finished(ax, ylabel=text, xlabel=wrapped(lengths), xscale="log")
            drawing.ticks(ax.xaxis, few)
        plot_collapse(result, x, lengths, rate if linear else f"ln {rate}", ax=right)
        title = f"{run_title(self.run, (size, rate))}, {self.seeds} seeds. "
        figure.suptitle(textwrap.fill(title + str(result.verdict).capitalize(), 100))

        lines = [*describe_scaling(result, values, linear)]
        report = {n: getattr(v, "_asdict", lambda v=v: v)() for n, v in result._asdict().items()}
        moments = {name: report.pop(name) for name in ("moments", "errors")}
        arrays = {"x": x, size: lengths, rate: across, "values": values.values, **moments}
        return Picture(figure, arrays, "\n".join(lines), report=report | {"lines": lines})


def describe_scaling(result: Scaling, values: xr.DataArray, linear: bool) -> Iterator[str]:
    """Describe the step of each size, its power laws, and the verdict. On a logarithmic axis,
    widths and errors of places refer to the natural logarithm of the rate."""
    size, rate = (str(dim) for dim in values.dims[:2])
    x, back = (rate, np.asarray) if linear else (f"ln {rate}", np.exp)
    columns = {
        size: values[size].values,
        rate: back(result.places.value),
        f"error of {x}": result.places.error,
        f"width in {x}": result.widths.value,
        "error": result.widths.error,
        "chi": np.fmax.reduce(result.moments.susceptibility, axis=-1),
        "Binder crossing": back(np.append(np.nan, result.crossings.value)),
    }
    table = pd.DataFrame(columns).to_string(index=False, na_rep="-", float_format="{:.3g}".format)
    yield f"{table}\n"
    yield f"largest chi ~ {size}^({result.peak.exponent})"
    # As many facts as the data support: a step that keeps moving has no limit.
    place, fit, moving = result.place.place, result.collapse, result.place.drift
    if moving.value:
        yield f"the step keeps moving: {x} = {place.value:.3g} + s ln {size}, s = {moving}"
    elif np.isfinite(place.error):
        at = float(back(place.value))
        yield f"{rate} of the step for infinite {size}: {at:.3g}, {x} ± {place.error:.2g}"
    if fit is not None:
        of = f" of {x} - s ln {size}" * bool(moving.value)
        critical = f"x_c = {fit.x_c.value:.3g} ± {fit.x_c.error:.2g}, " * fit.has_place
        poor = "" if fit.has_place else "; one curve fits without a critical point"
        poor = "; curves do not collapse" if fit.misfit > LARGEST_MISFIT else poor
        yield (
            f"collapse{of}: {critical}1/nu = {fit.inverse_nu}, beta/nu = {fit.beta_nu}, "
            f"misfit {fit.misfit:.2g}{poor}"
        )
    yield f"{result.verdict}: with L = {size}, {result.why}"


def plot_collapse(result: Scaling, x: np.ndarray, sizes: xr.DataArray, name: str, ax: Axes) -> None:
    """Draw the order parameter of all sizes in scaled variables, up to three times the part that
    was fitted. `name` is that of x."""
    fit, size, drift = result.collapse, sizes.name, np.nan_to_num(result.place.drift.value)
    if fit is None:
        ax.text(0.5, 0.5, "no collapse: too few steps", ha="center", transform=ax.transAxes)
        drawing.finished(ax)
        return
    for i, colour in enumerate(drawing.shades(len(sizes))):
        near = np.abs(x - result.places.value[i]) <= 3 * NEAR * result.widths.value[i]
        L = float(sizes.values[i])
        scaled = (x - drift * np.log(L) - fit.x_c.value) * L**fit.inverse_nu.value
        m = result.moments.mean[i] * L**fit.beta_nu.value
        ax.plot(scaled[near], m[near], "o-", color=colour, ms=3, lw=0.8)
    # Symbols are on the axes, their values and errors above the panel. Names as TeX: "ln eta" is
    # \ln \eta, "batch" an upright word.
    moving = f" - {drift:.2f} \\ln {size}" * bool(drift)
    before, rate = name.rpartition(" ")[::2]
    symbol = rf"\{before}\," * bool(before) + (r"\eta" if rate == "eta" else rf"\mathrm{{{rate}}}")
    x_c, nu, beta = (f"{estimate}".replace("±", r"\pm") for estimate in fit[:3])
    place = f"$x_c = {x_c}$" if fit.has_place else "no critical point"
    drawing.finished(
        ax,
        xlabel=rf"$({symbol}{moving} - x_c)\, {size}^{{1/\nu}}$",
        ylabel=rf"order parameter $\times\, {size}^{{\beta/\nu}}$",
        title=rf"$1/\nu = {nu}$, $\beta/\nu = {beta}$," + f"\n{place}",
    )
