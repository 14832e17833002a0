"""`dynsim figure optimum`: the best learning rate against another setting, rule by rule."""

import dataclasses
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from dynsim import checks
from dynsim.decoding import Positive
from sweeps import output
from sweeps.output import drawing
from sweeps.output.cells import scale_of
from sweeps.runner.labels import WIDTH, label, shown, valid, wrapped
from sweeps.runner.spec import Sweep
from sweeps.studies import computed
from sweeps.studies.optimum.best import AT_END, FEWEST, Place, at_end, best, transfer
from sweeps.studies.options import AxisWord, Several, axis, described
from sweeps.systems import registry
from sweeps.systems.experiment import Experiment, experiment

LIMITS = ("descent-finite-t", "descent")
"""Theories that "auto" tries, the first that applies: descent at infinite batch. Flows, which never
diverge, often have their best rate at the end of the axis."""
VALUES, RATES = 6, 23
"""Default numbers of values of the axes."""
MOMENTUM = 0.9
"""Momentum of the rules that have one, unless the run sets another."""
BOUNDS = {Place.LOWER_END: ("<", "lower"), Place.UPPER_END: (">", "upper")}
"""Sign and name of the bound known for a best value at an end of its axis."""
MOST_TICKS = 6
"""Largest number of ticks across; with more values, only every second or fewer get one."""
THEORY: dict[str, Any] = {"color": "k", "ls": "--", "lw": 1.2}
DIVERGED: dict[str, Any] = {"fc": "0.93", "ec": "0.7", "hatch": "////", "lw": 0}
NEAR, ERROR = 0.18, 0.45
"""Opacity of the range near the best, and of the standard error."""


@dataclasses.dataclass(frozen=True)
class Optimum:
    """Find the best learning rate of several update rules against another setting: with its error
    over seeds, the range that is nearly as good, the edge of divergence and a power law.

    Attributes:
        run: the run whose settings each point changes.
        along: the other setting, NAME:FIRST:LAST or NAME:FIRST:LAST:NUMBER; logarithmic, or linear
            with :lin at the end.
        rate: learning rates to try, in the same form.
        rules: update rules, one panel each; momentum and nesterov are sgd with momentum.
        observable: quantity to minimise, or to maximise if it is an accuracy.
        theory: what to draw next to training; auto for descent at infinite batch, best for the
            most exact theory of each rule, or none.
        seeds: number of runs at each point.
        within: largest excess over the best in the shaded range, as a share of the best.
        out: folder for the figure, optimum.npz and .json, and the stored sweeps, from which the
            command resumes.
    """

    # Starting weights are large, so that training leaves the first plateau early for any seed.
    RUN: ClassVar[Mapping[str, Any]] = {
        "problem": "linear_icl",
        "steps": 200,
        "scale": 0.5,
        "heads": 8,
    }

    run: Experiment = dataclasses.field(default_factory=lambda: experiment(**Optimum.RUN))
    along: AxisWord = "batch:4:128"
    rate: AxisWord = "eta:1e-3:30"
    rules: tuple[str, ...] = ("sgd", "momentum", "adam")
    observable: str = "loss"
    theory: str = "auto"
    seeds: Several = 4
    within: Positive = 0.01
    out: Path = Path("out/optimum")

    def axes(self) -> dict[str, tuple[float, ...]]:
        """Values of the other setting and of the rate, by name; `ValueError` for bad ones."""
        found = {}
        for option, number in (("along", VALUES), ("rate", RATES)):
            word = getattr(self, option)
            name, values = axis(word, number, self.run)
            if len(values) < FEWEST:
                raise ValueError(
                    f"{option} = {word!r}: has {len(values)} values; needs {FEWEST} or more"
                )
            if name in found:
                raise ValueError(f"along = {self.along!r}: is also the axis of the rate")
            found[name] = values
        return found

    def sweep(self, theory: str, rules: tuple[str, ...], without: str = "") -> Sweep:
        """Return the runs of some rules by training or a theory, `without` one of the axes."""
        momentum = getattr(self.run.rule, "momentum", None) or MOMENTUM
        heavy = {
            rule: {"kind": "sgd", "momentum": momentum, "nesterov": rule == "nesterov"}
            for rule in ("momentum", "nesterov")
        }
        named = {rule: heavy.get(rule, rule) for rule in rules}
        axes: Any = {"rule": named, **self.axes(), "seed": {"range": self.seeds}}
        axes = {name: values for name, values in axes.items() if name != without}
        return Sweep(self.run, axes, theory, (self.observable,))

    def theories(self) -> tuple[dict[str, Sweep], dict[str, str]]:
        """Return sweeps of the theory by rule, and the reason for each rule without one."""
        known = tuple(registry.theories(registry.system_of(self.run)))
        if self.theory not in ("auto", "best", "none"):
            checks.choice("theory", self.theory, ("auto", "best", "none", *known))
        limits = tuple(name for name in LIMITS if name in known)
        names = {"auto": limits, "none": ()}.get(self.theory, (self.theory,))
        found, refused = {}, {}
        for rule in self.rules:
            for name in names:
                try:
                    # Theory assumes an infinite batch.
                    made = self.sweep(name, (rule,), "batch")
                    made.check()
                except ValueError as error:
                    refused.setdefault(rule, str(error))
                    continue
                found[rule] = made
                refused.pop(rule, None)
                break
        return found, refused

    def sweeps(self) -> dict[str, Sweep]:
        """Training, and theory by rule."""
        training = self.sweep("simulation", self.rules)
        training.check()
        theories, _ = self.theories()
        return {"training": training, **{f"theory/{rule}": s for rule, s in theories.items()}}


@dataclasses.dataclass(frozen=True)
class OptimumOfLayer(Optimum):
    """Find the best learning rate of the attention layer in Y and Z, at a fixed ratio of its two
    rates, on short sequences. Longer sequences reveal their class, so that every rate above some
    value trains to a loss of 0.

    Attributes:
        observable: quantity to minimise, or to maximise if it is an accuracy; relative_loss is the
            loss of the last 20 steps over that of the first.
    """

    RUN: ClassVar[Mapping[str, Any]] = {
        "problem": "yz",
        "eta": {"kind": "ratio", "ratio": 1.0},
        "steps": 100,
        "length": 4,
    }

    run: Experiment = dataclasses.field(default_factory=lambda: experiment(**OptimumOfLayer.RUN))
    rate: AxisWord = "eta_z:0.03:1000"
    observable: str = "relative_loss"


def run(config: Optimum) -> list[Path]:
    """Run or resume the sweeps, print the best rates and their power laws, and write the figure."""
    found = computed(config)
    along, over = config.axes()
    theories, refused = config.theories()
    options: dict[str, Any] = {"over": over, "within": config.within}
    trained = best(found["training"], **options)
    predicted = {rule: best(found[f"theory/{rule}"], **options) for rule in theories}
    laws = transfer(trained, along)
    lines = [*table(trained, predicted, along), "", *verdicts(trained, predicted, laws, along)]
    lines += [f"{rule}: no theory; {why}" for rule, why in refused.items()]
    print("\n".join(lines))
    names = dict.fromkeys(each.method.title or each.theory_name for each in theories.values())
    title = f"{described(config.run, ('rule', along, over))}, mean of {config.seeds} seeds"
    figure = draw(found["training"], trained, predicted, laws, ", ".join(names), title)
    arrays: dict[str, Any] = {"training": trained, "law": laws.drop_vars("verdict")}
    arrays |= {f"theory/{rule}": each for rule, each in predicted.items()}
    arrays |= {name: found["training"][name] for name in (along, over)}
    return output.write(
        config.out, "optimum", figure=figure, arrays=arrays, report={"lines": lines}
    )


def table(trained: xr.Dataset, predicted: Mapping[str, xr.Dataset], along: str) -> list[str]:
    """Tabulate the best rate of each rule and its errors at each value of an axis."""

    def rate(point: xr.Dataset) -> str:
        sign, _ = BOUNDS.get(Place(int(point.place)), ("", ""))
        return f"{sign}{float(point.best):.3g}"

    over, near = trained.attrs["over"], f"within {100 * trained.attrs['within']:g} %"
    rows = [("rule", along, f"best {over}", "error", near, "edge", "theory", "reached")]
    for rule in trained["rule"].values.tolist():
        for value in trained[along].values:
            point = trained.sel({"rule": rule, along: value})
            theory = "-"
            if rule in predicted:
                solved = predicted[rule].sel(rule=rule)
                theory = rate(solved.sel({along: value}) if along in solved.dims else solved)
            stable = float(point.edge) == trained.attrs["ends"][1]
            row = (
                rule,
                shown(value),
                rate(point),
                f"{100 * float(point.error):.3g} %" if np.isfinite(point.error) else "-",
                f"{float(point.lower):.3g} to {float(point.upper):.3g}",
                "none" if stable else f"{float(point.edge):.3g}",
                theory,
                f"{float(point.value):.4g}",
            )
            rows.append(row)
    return output.aligned(rows, 10, 12, 14, 8, 22, 10)


def verdicts(
    trained: xr.Dataset, predicted: Mapping[str, xr.Dataset], laws: xr.Dataset, along: str
) -> list[str]:
    """Describe the power law of each rule's best rate, in training and by theory, and list the
    values where only a bound is known."""
    lines, over = [], trained.attrs["over"]
    for rule in trained["rule"].values.tolist():
        law, own = laws.sel(rule=rule), trained.sel(rule=rule)
        off = f" (points up to {100 * float(law.off):.0f} % off)" if law.points else ""
        lines.append(f"{rule}: {law.verdict.item()}{off}")
        sides = {rule: own}
        if rule in predicted:
            theory = sides[f"{rule}, theory"] = predicted[rule].sel(rule=rule)
            if along in theory.dims:
                lines.append(f"{rule}, theory: {transfer(theory, along).verdict.item()}")
        if coarse := int((2 * own["shape"] ** 2 > own["error"] ** 2).sum()):
            lines.append(
                f"{rule}: at {coarse} of {own.sizes[along]} values of {along}, most of the "
                f"error is that of the shape: try more values of {over}"
            )
        for name, side in sides.items():
            of = side["place"].size
            for code, (_, end) in BOUNDS.items():
                if number := int((side["place"] == code).sum()):
                    where = f" at {number} of {of} values of {along}" if of > 1 else ""
                    lines.append(
                        f"{name}: the best {over} lies at the {end} end of its axis{where}"
                    )
    return lines


def draw(
    dataset: xr.Dataset,
    trained: xr.Dataset,
    predicted: Mapping[str, xr.Dataset],
    laws: xr.Dataset,
    theory: str,
    title: str,
) -> Figure:
    """Draw for each rule the best rate over the other axis, and the observable over the rate.

    `dataset` is training, `trained` its best rates and `laws` their power laws; `predicted` are
    those of the `theory` by rule, which need not depend on the other axis.
    """
    along, over = str(laws.attrs["along"]), trained.attrs["over"]
    rules = [str(rule) for rule in trained["rule"].values]
    figure, axes = drawing.panels(2, len(rules), width=2.9, height=2.9, sharey="row")
    limits = []
    for place, (rule, (upper, lower)) in enumerate(zip(rules, axes.T, strict=True)):
        own, law = trained.sel(rule=rule), laws.sel(rule=rule)
        plot_best(own, dataset[along], drawing.colour(place), ax=upper)
        if rule in predicted:
            # A level line where theory does not depend on the other axis.
            solved = predicted[rule].sel(rule=rule)
            known = solved["best"].where(~solved["place"].isin(AT_END))
            upper.plot(own[along], known.broadcast_like(own[along]), **THEORY)
        legend = None
        if np.isfinite(law["exponent"]):
            x, exponent = own[along].values, float(law.exponent)
            power = f"^{{{exponent:.2f} \\pm {float(law.error):.2f}}}"
            words = f"$\\propto \\mathrm{{{along}}}{power}$".replace("_", r"\_")
            upper.plot(x, float(law.prefactor) * x**exponent, "k:", lw=1.2, label=words)
            legend = {"loc": "best", "frameon": False}
        drawing.finished(upper, legend, title=rule, xlabel=wrapped(dataset[along]))
        plot_curves(dataset.sel(rule=rule), own, along, ax=lower)
        drawing.finished(lower, xlabel=wrapped(dataset[over]))
        limits.append(lower.get_ylim())
    # The panels share an axis but have each set its limits.
    axes[1, 0].set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    figure.suptitle(textwrap.fill(title, 100))
    axes[0, 0].set_ylabel(textwrap.fill(f"best {label(dataset[over])}", WIDTH))
    axes[1, 0].set_ylabel(wrapped(dataset[trained.attrs["observable"]]))
    near = f"within {100 * trained.attrs['within']:g} % of the best"
    keys: list[Any] = [
        drawing.key("training", marker="o", ms=4, lw=1, color="0.4"),
        Patch(color="0.4", alpha=ERROR, lw=0, label="standard error"),
        Patch(color="0.4", alpha=NEAR, lw=0, label=near),
        Patch(label="most runs diverge", **DIVERGED),
    ]
    if trained["place"].isin(AT_END).any():
        style = {"marker": "o", "ms": 5, "ls": "none", "mfc": "white", "color": "0.4"}
        keys.append(drawing.key("end of the rates tried", **style))
    if theory:
        keys.append(drawing.key(textwrap.fill(theory, 24), **THEORY))
    beside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.02, 1), "frameon": False}
    first = axes[0, -1].get_legend()
    axes[0, -1].legend(handles=keys, **beside)
    if first is not None:
        # The second legend replaces the first one.
        axes[0, -1].add_artist(first)
    axes[1, -1].legend(title=along, **beside)
    return figure


def plot_best(found: xr.Dataset, along: xr.DataArray, colour: str, ax: Axes) -> Axes:
    """Draw best rates with their errors, the nearly optimal range, and where runs diverge."""
    x, best = along.values, found["best"].values
    first, last = found.attrs["ends"]
    low, high = first / 1.3, last * 1.3
    edge = found["edge"].fillna(low)
    ax.fill_between(x, edge.where(edge < last), high, **DIVERGED)
    filled: dict[str, Any] = {"color": colour, "lw": 0}
    ax.fill_between(x, found["lower"], found["upper"], alpha=NEAR, **filled)
    factor = np.exp(np.nan_to_num(found["error"].values))
    ax.fill_between(x, best / factor, best * factor, alpha=ERROR, **filled)
    ax.plot(x, best, color=colour, marker="o", ms=4, lw=1)
    # A bound: the best value lies beyond it.
    ends = found["place"].isin(AT_END).values
    ax.plot(x[ends], best[ends], "o", mfc="white", mec=colour, ms=5)
    ax.set(xscale=scale_of(x), yscale="log", ylim=(low, high))
    drawing.ticks(ax.xaxis, x if len(x) <= MOST_TICKS else x[:: -(-len(x) // 4)])
    return ax


def plot_curves(dataset: xr.Dataset, found: xr.Dataset, along: str, ax: Axes) -> Axes:
    """Draw the observable over the rate, with a curve and its best point for each value of the
    other axis. Values above those at the smallest rate are cut off."""
    over, name = found.attrs["over"], found.attrs["observable"]
    values = at_end(valid(dataset[[name, "status"]]), name)
    mean = values.mean("seed", skipna=False).sortby(over).transpose(over, along)
    colours = drawing.shades(mean.sizes[along])
    for value, colour in zip(mean[along].values, colours, strict=True):
        curve, point = mean.sel({along: value}), found.sel({along: value})
        ax.plot(curve[over], curve, color=colour, lw=1.2, label=shown(value))
        ax.plot(point["best"], point["value"], "o", color=colour, ms=4)
    # Show all rates, also those that diverge, so that the panels can be compared.
    first, last = mean[over].values[[0, -1]]
    margin = (last / first) ** 0.05
    yscale = "log" if float(mean.min()) > 0 else "linear"
    ax.set(xscale="log", yscale=yscale, xlim=(first / margin, last * margin))
    low, high = float(mean.min()), float(mean.isel({over: 0}).max())
    if found.attrs["pick"] == "lowest" and 0 < low < high:
        ax.set_ylim(low / (high / low) ** 0.1, high * (high / low) ** 0.1)
    return ax
