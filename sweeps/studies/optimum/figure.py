"""`dynsim figure optimum`: the best learning rate against another setting, rule by rule."""

import dataclasses
import functools
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import xarray as xr
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.patches import Patch

from sweeps.figures import Figure, Picture
from sweeps.output import drawing
from sweeps.output.cells import scale_of
from sweeps.runner.labels import WIDTH, label, shown, valid, wrapped
from sweeps.runner.spec import Sweep
from sweeps.studies.optimum.best import AT_END, FEWEST_VALUES, BestLocation, at_end, best, transfer
from sweeps.studies.options import AxisWord, Several, Style, axis, run_title
from sweeps.systems import registry
from sweeps.systems.experiment import Experiment, experiment

LIMITS = ("descent-finite-t", "descent")
"""Theories of infinite batch, of which the first that applies is drawn. Flows, which never diverge,
often have their best rate at the end of the axis."""
VALUES, RATES = 6, 23
"""Default numbers of values of the axes."""
MOMENTUM = 0.9
"""Momentum of the rules that have one, unless the run sets another."""
END_NAMES = {BestLocation.LOWER_END: "lower", BestLocation.UPPER_END: "upper"}
THEORY_STYLE: Style = {"color": "k", "ls": "--", "lw": 1.2}
DIVERGED_STYLE: Style = {"fc": "0.93", "ec": "0.7", "hatch": "////", "lw": 0}
NEAR_ALPHA, ERROR_ALPHA = 0.18, 0.45
"""Opacity of the range near the best, and of the standard error."""


class Optimum(Figure):
    """Find the best learning rate of several update rules against another setting: with its error
    over seeds, the range that is nearly as good, the edge of divergence and a power law.

    Attributes:
        run: the run whose settings each point changes.
        along: the other setting, NAME:FIRST:LAST or NAME:FIRST:LAST:NUMBER; logarithmic, or linear
            with :lin at the end.
        rate: learning rates to try, in the same form.
        rules: update rules, one panel each; momentum and nesterov are sgd with momentum.
        observable: quantity to minimise, or to maximise if it is an accuracy.
        seeds: number of runs at each point.
    """

    NAME = "optimum"
    # Starting weights are large, so that training leaves the first plateau early for any seed.
    RUN: ClassVar[Any] = {"problem": "linear_icl", "steps": 200, "scale": 0.5, "heads": 8}

    run: Experiment = dataclasses.field(default_factory=lambda: experiment(**Optimum.RUN))
    along: AxisWord = "batch:4:128"
    rate: AxisWord = "eta:1e-3:30"
    rules: tuple[str, ...] = ("sgd", "momentum", "adam")
    observable: str = "loss"
    seeds: Several = 4

    def axes(self) -> dict[str, tuple[float, ...]]:
        """Values of the other setting and of the rate, by name; `ValueError` for bad ones."""
        axes = {}
        for option, number in (("along", VALUES), ("rate", RATES)):
            word = getattr(self, option)
            name, values = axis(word, number, self.run)
            if len(values) < FEWEST_VALUES:
                raise ValueError(
                    f"{option} = {word!r}: has {len(values)} values; needs {FEWEST_VALUES} or more"
                )
            if name in axes:
                raise ValueError(f"along = {self.along!r}: is also the axis of the rate")
            axes[name] = values
        return axes

    def sweep(self, theory: str, rules: tuple[str, ...]) -> Sweep:
        """Return the runs of some rules by training or a theory."""
        momentum = getattr(self.run.rule, "momentum", None) or MOMENTUM
        heavy = {
            rule: {"kind": "sgd", "momentum": momentum, "nesterov": rule == "nesterov"}
            for rule in ("momentum", "nesterov")
        }
        # Rules without a word of their own, by the name of their panel.
        by_panel = {rule: heavy.get(rule, rule) for rule in rules}
        axes: dict[str, object] = {"rule": by_panel, **self.axes(), "seed": {"range": self.seeds}}
        if theory in LIMITS:
            # Theory assumes an infinite batch.
            axes.pop("batch", None)
        return Sweep(self.run, axes, theory, (self.observable,))

    @functools.cached_property
    def theories(self) -> tuple[dict[str, Sweep], dict[str, str]]:
        """Sweeps of the theory by rule, and the reason for each rule without one."""
        known = registry.theories(registry.system_of(self.run))
        sweeps: dict[str, Sweep] = {}
        reasons: dict[str, str] = {}
        for rule in self.rules:
            # The first theory that applies; if none does, the reason is that of the first.
            for name in (limit for limit in LIMITS if limit in known and rule not in sweeps):
                try:
                    sweep = self.sweep(name, (rule,))
                    sweep.check()
                    sweeps[rule] = sweep
                except ValueError as error:
                    reasons.setdefault(rule, str(error))
        return sweeps, {rule: why for rule, why in reasons.items() if rule not in sweeps}

    def sweeps(self) -> dict[str, Sweep]:
        """Training, and theory by rule."""
        training = self.sweep("simulation", self.rules)
        training.check()
        return {"training": training, **{f"theory/{r}": s for r, s in self.theories[0].items()}}

    def draw(self, data: Mapping[str, xr.Dataset]) -> Picture:
        """Draw the best rates, and list them with their power laws."""
        along, over = self.axes()
        theories, reasons = self.theories
        trained = best(data["training"], over)
        predicted = {rule: best(data[f"theory/{rule}"], over) for rule in theories}
        laws = transfer(trained, along)
        lines = [*describe_laws(trained, predicted, laws, along)]
        lines += [f"{rule}: no theory; {why}" for rule, why in reasons.items()]

        rows = trained[["best", "error", "lower", "upper", "edge", "value"]]
        rows["theory"] = rows["best"] * np.nan
        if predicted:
            theory = xr.concat([optimum["best"] for optimum in predicted.values()], "rule")
            rows["theory"] = theory.broadcast_like(rows["best"])
        table = rows.reset_coords(drop=True).to_dataframe(dim_order=["rule", along])
        places = trained["place"].transpose("rule", along).values.ravel()
        table["place"] = [BestLocation(code).name.lower().replace("_", " ") for code in places]
        rates = table.to_string(float_format="{:.3g}".format, na_rep="-")

        names = dict.fromkeys(s.method.title or s.theory_name for s in theories.values())
        figure = draw_rates(data["training"], trained, predicted, laws, ", ".join(names))
        about = f"{run_title(self.run, ('rule', along, over))}, mean of {self.seeds} seeds"
        figure.suptitle(textwrap.fill(about, 100))
        arrays: dict[str, Any] = {"training": trained, "law": laws.drop_vars("verdict")}
        arrays |= {f"theory/{rule}": optimum for rule, optimum in predicted.items()}
        arrays |= {name: data["training"][name] for name in (along, over)}
        return Picture(figure, arrays, "\n".join([rates, "", *lines]), report={"lines": lines})


def describe_laws(
    trained: xr.Dataset, predicted: Mapping[str, xr.Dataset], laws: xr.Dataset, along: str
) -> Iterator[str]:
    """Describe the power law of each rule's best rate, in training and by theory, and list the
    values where only a bound is known."""
    over = trained.attrs["over"]
    for rule in trained["rule"].values.tolist():
        law, own = laws.sel(rule=rule), trained.sel(rule=rule)
        off = f" (points up to {100 * float(law.off):.0f} % off)" if law.points else ""
        yield f"{rule}: {law.verdict.item()}{off}"
        sides = {rule: own}
        if rule in predicted:
            theory = sides[f"{rule}, theory"] = predicted[rule].sel(rule=rule)
            if along in theory.dims:
                yield f"{rule}, theory: {transfer(theory, along).verdict.item()}"
        # The larger part of an error that adds in squares.
        if coarse := int((2 * own["shape"] ** 2 > own["error"] ** 2).sum()):
            yield (
                f"{rule}: at {coarse} of {own.sizes[along]} values of {along}, most of the "
                f"error is that of the shape: try more values of {over}"
            )
        for name, side in sides.items():
            of = side["place"].size
            for code, end in END_NAMES.items():
                if number := int((side["place"] == code).sum()):
                    where = f" at {number} of {of} values of {along}" if of > 1 else ""
                    yield f"{name}: the best {over} lies at the {end} end of its axis{where}"


def draw_rates(
    training: xr.Dataset,
    trained: xr.Dataset,
    predicted: Mapping[str, xr.Dataset],
    laws: xr.Dataset,
    theory: str,
) -> Drawing:
    """Draw for each rule the best rates, `trained` and `predicted` by a `theory`, with their power
    law, and the observable over the rate."""
    along, over = str(laws.attrs["along"]), trained.attrs["over"]
    rules = [str(rule) for rule in trained["rule"].values]
    figure, axes = drawing.panels(2, len(rules), width=2.9, height=2.9, sharey="row")
    limits = []
    for column, (rule, (upper, lower)) in enumerate(zip(rules, axes.T, strict=True)):
        own, law = trained.sel(rule=rule), laws.sel(rule=rule)
        plot_best(own, training[along], drawing.colour(column), ax=upper)
        if rule in predicted:
            # A level line where theory does not depend on the other axis.
            known = predicted[rule].sel(rule=rule)
            known = known["best"].where(~known["place"].isin(AT_END))
            upper.plot(own[along], known.broadcast_like(own[along]), **THEORY_STYLE)
        legend = None
        if np.isfinite(law["exponent"]):
            x, exponent = own[along].values, float(law.exponent)
            power = f"^{{{exponent:.2f} \\pm {float(law.error):.2f}}}"
            words = f"$\\propto \\mathrm{{{along}}}{power}$".replace("_", r"\_")
            upper.plot(x, float(law.prefactor) * x**exponent, "k:", lw=1.2, label=words)
            legend = {"loc": "best", "frameon": False}
        drawing.finished(upper, legend, title=rule, xlabel=wrapped(training[along]))
        plot_observable(training.sel(rule=rule), own, along, ax=lower)
        drawing.finished(lower, xlabel=wrapped(training[over]))
        limits.append(lower.get_ylim())
    # The panels share an axis but have each set its limits.
    axes[1, 0].set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    axes[0, 0].set_ylabel(textwrap.fill(f"best {label(training[over])}", WIDTH))
    axes[1, 0].set_ylabel(wrapped(training[trained.attrs["observable"]]))
    near = f"within {100 * trained.attrs['within']:g} % of the best"
    keys: list[Artist] = [
        drawing.key("training", marker="o", ms=4, lw=1, color="0.4"),
        Patch(color="0.4", alpha=ERROR_ALPHA, lw=0, label="standard error"),
        Patch(color="0.4", alpha=NEAR_ALPHA, lw=0, label=near),
        Patch(label="most runs diverge", **DIVERGED_STYLE),
    ]
    if trained["place"].isin(AT_END).any():
        style = {"marker": "o", "ms": 5, "ls": "none", "mfc": "white", "color": "0.4"}
        keys.append(drawing.key("end of the rates tried", **style))
    if theory:
        keys.append(drawing.key(textwrap.fill(theory, 24), **THEORY_STYLE))
    right_of_panel: Style = {"loc": "upper left", "bbox_to_anchor": (1.02, 1), "frameon": False}
    first = axes[0, -1].get_legend()
    axes[0, -1].legend(handles=keys, **right_of_panel)
    if first is not None:
        # The second legend replaces the first one.
        axes[0, -1].add_artist(first)
    axes[1, -1].legend(title=along, **right_of_panel)
    return figure


def plot_best(optimum: xr.Dataset, along: xr.DataArray, colour: str, ax: Axes) -> None:
    """Draw best rates with their errors, the nearly optimal range, and where runs diverge."""
    x, best = along.values, optimum["best"].values
    first, last = optimum.attrs["ends"]
    low, high = first / 1.3, last * 1.3
    # NaN where most runs diverge at the smallest rate already. Nothing is hatched beyond an axis
    # on which most never do.
    edge = optimum["edge"].fillna(low)
    ax.fill_between(x, edge.where(edge < last), high, **DIVERGED_STYLE)
    filled: Style = {"color": colour, "lw": 0}
    ax.fill_between(x, optimum["lower"], optimum["upper"], alpha=NEAR_ALPHA, **filled)
    # The error is that of the logarithm.
    factor = np.exp(np.nan_to_num(optimum["error"].values))
    ax.fill_between(x, best / factor, best * factor, alpha=ERROR_ALPHA, **filled)
    ax.plot(x, best, color=colour, marker="o", ms=4, lw=1)
    # A bound: the best value lies beyond it.
    ends = optimum["place"].isin(AT_END).values
    ax.plot(x[ends], best[ends], "o", mfc="white", mec=colour, ms=5)
    ax.set(xscale=scale_of(x), yscale="log", ylim=(low, high))
    drawing.ticks(ax.xaxis, x if len(x) <= VALUES else x[:: -(-len(x) // 4)])


def plot_observable(dataset: xr.Dataset, optimum: xr.Dataset, along: str, ax: Axes) -> None:
    """Draw the observable over the rate, with a curve and its best point for each value of the
    other axis. Values above those at the smallest rate are cut off."""
    over, name = optimum.attrs["over"], optimum.attrs["observable"]
    values = at_end(valid(dataset[[name, "status"]]), name)
    mean = values.mean("seed", skipna=False).sortby(over).transpose(over, along)
    colours = drawing.shades(mean.sizes[along])
    for value, colour in zip(mean[along].values, colours, strict=True):
        curve, point = mean.sel({along: value}), optimum.sel({along: value})
        ax.plot(curve[over], curve, color=colour, lw=1.2, label=shown(value))
        ax.plot(point["best"], point["value"], "o", color=colour, ms=4)
    # Show all rates, also those that diverge, so that the panels can be compared.
    first, last = mean[over].values[[0, -1]]
    margin = (last / first) ** 0.05
    yscale = "log" if float(mean.min()) > 0 else "linear"
    ax.set(xscale="log", yscale=yscale, xlim=(first / margin, last * margin))
    # Curves that rise far above their start near the edge would flatten all valleys.
    low, high = float(mean.min()), float(mean.isel({over: 0}).max())
    if optimum.attrs["pick"] == "lowest" and 0 < low < high:
        ax.set_ylim(low / (high / low) ** 0.1, high * (high / low) ** 0.1)
