"""`dynsim figure finite-size`: theory's order in 1/T, and its standard deviation across seeds."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import xarray as xr
from annotated_types import Ge
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import dynsim
from dynsim.decoding import Count, Rate
from odes.batch_noise import STD
from sweeps import output
from sweeps.output import drawing
from sweeps.runner.labels import valid
from sweeps.runner.spec import Sweep
from sweeps.studies import computed
from sweeps.studies.finite_size import order
from sweeps.studies.finite_size.order import DRAWN, GROUPS, second_order
from sweeps.studies.options import Several
from sweeps.systems.experiment import experiment

SAMPLED_LENGTHS = (20, 24, 32, 64, 128, 256)
BATCHES = (32, 128)
OBSERVABLES = ("loss", "entropy", "z_top_distinct", "z_top_common")


class Rule(NamedTuple):
    """An update rule: its constructor, its settings, the ratio eta_Y / eta_Z, and rates eta_Z."""

    make: Callable[..., dynsim.Rule]
    numbers: Mapping[str, float]
    ratio: float
    rates: tuple[float, ...]

    def at(self, eta_z: float) -> dynsim.Rule:
        """The update rule at one of the rates."""
        return self.make(dynsim.Ratio(eta_z, self.ratio), **self.numbers)


RULES = {
    "sgd": Rule(dynsim.sgd, {"momentum": 0.0}, 10.0, (0.1, 0.3, 1.0)),
    "momentum": Rule(dynsim.sgd, {"momentum": 0.9}, 1.0, (0.1, 0.3, 1.0)),
    "adam": Rule(dynsim.adam, {}, 1.0, (0.003, 0.01, 0.03)),
}


def order_lines(slopes: dict[str, dict[str, float]], syn: order.Errors) -> list[str]:
    """Report the exponents on the small task and the errors on Syn-Small."""
    lines = [
        f"{name}: error falls like T^{kinds['infinite']:.2f} with T infinite, like "
        f"T^{kinds['finite']:.2f} to first order in 1/T"
        for name, kinds in slopes.items()
    ]
    rows: list[tuple[str, ...]] = [("", "T", *(f"{name} inf / 1st (ref)" for name in order.RECORD))]
    for T, *errors in zip(SAMPLED_LENGTHS, *(100 * each for each in syn), strict=True):
        cells = (f"{a:.3g} % / {b:.3g} % ({c:.2g} %)" for a, b, c in zip(*errors, strict=True))
        rows.append(("", str(T), *cells))
    return [*lines, "", *output.aligned(rows, 0, 6, 34)]


def ratio_lines(ratios: dict[str, xr.Dataset], which: str) -> list[str]:
    """Tabulate the predicted over the measured standard deviation."""

    def cells(at: xr.Dataset) -> list[str]:
        return [f"{float(at[name]):.3f} ± {float(at[name + '_error']):.3f}" for name in OBSERVABLES]

    heading = f"Predicted over measured standard deviation across seeds, {which} order in 1/B."
    return [heading, "", *_by_rule(ratios, OBSERVABLES, cells)]


def mean_lines(means: dict[str, xr.Dataset]) -> list[str]:
    """Tabulate the relative distances of predicted mean losses."""
    names = "first", "second", "error"

    def cells(at: xr.Dataset) -> list[str]:
        return [f"{100 * float(at[name]):+.2f} %" for name in names]

    heading = "Predicted from measured mean loss, and the standard error of the latter."
    return [heading, "", *_by_rule(means, names, cells)]


def _by_rule(
    found: dict[str, xr.Dataset],
    names: tuple[str, ...],
    cells: Callable[[xr.Dataset], list[str]],
) -> list[str]:
    """Format a row for each rule, rate and batch."""
    rows: list[tuple[str, ...]] = [("", "eta_Y", "eta_Z", "batch", *names)]
    for rule, dataset in found.items():
        for batch in BATCHES:
            for eta_z in dataset["eta_z"].values:
                rates = (f"{eta_z * RULES[rule].ratio:g}", f"{eta_z:g}")
                at = dataset.sel(eta_z=eta_z, batch=batch)
                rows.append((rule, *rates, str(batch), *cells(at)))
    return list(output.aligned(rows, 10, 8, 8, 7, 18))


LENGTHS = (8, 16, 32, 64, 128, 256, 512, 1024)
SAMPLES = 4000
"""Count vectors of each class in a sampled quadrature."""
NAMES = {
    "loss": "loss",
    "entropy": "entropy",
    "z_top_distinct": "top distinct logit",
    "z_top_common": "top common logit",
}
"""Names of the observables in legends."""
STEPS = {"small": 30, "syn-small": 200}
"""Optimiser steps after which errors are measured, by task."""


@dataclasses.dataclass(frozen=True)
class FiniteSize:
    """Measure where the theory of finite T and batch holds.

    Attributes:
        seeds: number of runs for each rule, rate and batch size.
        steps: optimiser steps of these runs.
        length: sequence length T of these runs.
        samples: count vectors of each class in the quadratures for syn-small.
        draws: number of noise paths for the theory of second order in 1/B, in groups of two or
            more.
        rules: update rules whose standard deviation across seeds is measured; all if omitted.
        rates: learning rates eta_Z of these rules; three per rule if omitted.
        out: folder for the figure, finite-size.json, .npz and the stored sweeps, from which the
            command resumes.
    """

    seeds: Several = 256
    steps: int = 100
    length: int = 128
    samples: Count = SAMPLES
    draws: Annotated[int, Ge(2 * GROUPS)] = 512
    rules: tuple[Literal["sgd", "momentum", "adam"], ...] = ()
    rates: tuple[Rate, ...] = ()
    out: Path = Path("out/finite-size")

    @property
    def measured(self) -> dict[str, Rule]:
        """The rules whose standard deviation is measured, at their rates."""
        chosen = {name: RULES[name] for name in self.rules or RULES}
        return {n: rule._replace(rates=self.rates or rule.rates) for n, rule in chosen.items()}

    def sweeps(self) -> dict[str, Sweep]:
        """Sweeps of training and theory by rule."""
        found = {}
        for name, rule in self.measured.items():
            training = experiment(rule=rule.at(rule.rates[0]), steps=self.steps, length=self.length)
            axes = {"eta_z": rule.rates, "batch": BATCHES}
            seeds = {**axes, "seed": {"range": self.seeds}}
            record = tuple(name + end for end in ("", STD) for name in OBSERVABLES)
            trained = Sweep(training, seeds, "simulation", OBSERVABLES, "end")
            found[f"{name}/simulation"] = trained
            theory = "spread-squares" if rule.make is dynsim.adam else "spread"
            found[f"{name}/spread"] = Sweep(training, axes, theory, record, "end")
        return found


def run(config: FiniteSize) -> list[Path]:
    """Run or resume the sweeps, print the tables and write the figure."""
    found = computed(config)
    small = order.against_enumeration(dynsim.sgd(1.0, 1.0), LENGTHS, STEPS["small"])
    syn = order.against_samples(
        dynsim.SynSmall().build(),
        dynsim.sgd(1.0, 0.1),
        SAMPLED_LENGTHS,
        STEPS["syn-small"],
        config.samples,
    )
    rules = config.measured
    ratios = {name: ratio(found[f"{name}/simulation"], found[f"{name}/spread"]) for name in rules}
    second, means = {}, {}
    for name, rule in rules.items():
        runs = found[f"{name}/simulation"]
        theory = second_order(
            {rate: rule.at(rate).build() for rate in rule.rates},
            BATCHES,
            steps=config.steps,
            length=config.length,
            draws=config.draws,
            record=OBSERVABLES,
        )
        second[name] = ratio(runs, theory)
        means[name] = distance(runs, {"first": found[f"{name}/spread"], "second": theory})
    slopes = {
        name: {
            kind: order.slope(LENGTHS, getattr(small, kind)[:, place])
            for kind in ("infinite", "finite")
        }
        for place, name in enumerate(order.RECORD)
    }
    both = ratio_lines(ratios, "first"), ratio_lines(second, "second")
    parts = order_lines(slopes, syn), *both, mean_lines(means)
    print("\n\n".join("\n".join(part) for part in parts))
    arrays = {"small": small, "syn-small": syn, **ratios}
    arrays |= {f"{name}/second": found for name, found in second.items()}
    arrays |= {f"{name}/mean": found for name, found in means.items()}
    arrays |= {"small/length": LENGTHS, "syn-small/length": SAMPLED_LENGTHS}
    numbers = {"slopes": slopes} | {
        kind: {name: part.to_dict() for name, part in parts.items()}
        for kind, parts in (("ratios", ratios), ("second order", second), ("means", means))
    }
    figure = draw(small, syn, ratios, second)
    return output.write(config.out, "finite-size", figure=figure, arrays=arrays, report=numbers)


def draw(
    small: order.Errors,
    syn: order.Errors,
    ratios: dict[str, xr.Dataset],
    second: dict[str, xr.Dataset],
) -> Figure:
    """Draw the order in 1/T on two tasks, and the noise to first and second order in 1/B."""
    figure, (axes,) = drawing.panels(1, 3, height=4.4)
    plot_order(LENGTHS, small, ax=axes[0])
    axes[0].set_title("three tokens per class, enumerated")
    plot_order(SAMPLED_LENGTHS, syn, ax=axes[1])
    axes[1].set_title("Syn-Small, sampled quadratures")
    plot_ratios(ratios, second, ax=axes[2])
    # Legends go below the panels; within them they would hide marks.
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "frameon": False}
    for ax in axes:
        ax.legend(**place)
    return figure


def ratio(trained: xr.Dataset, theory: xr.Dataset) -> xr.Dataset:
    """Predicted over measured standard deviation of each observable, both root mean squares over
    classes, and its error from the number of runs and from the theory's draws."""
    runs = valid(trained)
    predicted = valid(theory)
    found = {}
    for name in OBSERVABLES:
        variance, expected = runs[name].var("seed", ddof=1), predicted[name + STD] ** 2
        if "class" in variance.dims:
            variance, expected = variance.mean("class"), expected.mean("class")
        found[name] = (expected / variance) ** 0.5
        number = runs[name].notnull().any([d for d in runs[name].dims if d == "class"]).sum("seed")
        drawn = predicted[name + DRAWN] if name + DRAWN in predicted else xr.zeros_like(expected)
        if "class" in drawn.dims:
            drawn = drawn.mean("class")
        found[name + "_error"] = found[name] * (1 / (2 * (number - 1)) + drawn**2) ** 0.5
    return xr.Dataset(found)


def distance(trained: xr.Dataset, theories: dict[str, xr.Dataset]) -> xr.Dataset:
    """Relative distance of each predicted mean loss from the runs' mean, and its standard error."""
    losses = valid(trained)["loss"]
    mean = losses.mean("seed")
    found = {name: valid(theory)["loss"] / mean - 1 for name, theory in theories.items()}
    error = losses.std("seed", ddof=1) / losses.notnull().sum("seed") ** 0.5
    return xr.Dataset({**found, "error": error / mean})


def plot_order(lengths: tuple[int, ...], errors: order.Errors, ax: Axes) -> Axes:
    """Draw the relative errors of infinite T and of first order over T, with the reference's
    uncertainty as bars, and lines of slope -1 and, for an exact reference, -2."""
    for place, name in enumerate(order.RECORD):
        unsure = errors.reference[:, place] if errors.reference.any() else None
        for kind, found in (("o:", errors.infinite), ("s-", errors.finite)):
            style = {"fmt": kind, "color": drawing.colour(place), "capsize": 2}
            ax.errorbar(lengths, found[:, place], unsure, label=label(name, kind), **style)
    drawing.power(ax, lengths[-3], lengths[-1], 2 * errors.infinite[-1].max(), "T", 1)
    if not errors.reference.any():
        drawing.power(ax, lengths[-3], lengths[-1], 2 * errors.finite[-1].max(), "T", 2)
    ax.set(xscale="log", yscale="log")
    named = [T for before, T in zip((1, *lengths), lengths, strict=False) if 1.3 * before < T]
    drawing.ticks(ax.xaxis, named)
    return drawing.finished(ax, xlabel="sequence length T", ylabel="relative error")


def label(name: str, kind: str) -> str:
    """Return the legend entry of a curve."""
    return f"{NAMES[name]}, " + ("T infinite" if kind == "o:" else "first order in 1/T")


def plot_ratios(ratios: dict[str, xr.Dataset], second: dict[str, xr.Dataset], ax: Axes) -> Axes:
    """Draw predicted over measured standard deviations, with a mark for each rate and batch: filled
    to first order in 1/B, open to second order."""
    ax.axhline(1, color="k", lw=1)
    for filled, kind in ((True, ratios), (False, second)):
        for column, found in enumerate(kind.values()):
            for row, name in enumerate(OBSERVABLES):
                values, errors = found[name].values.ravel(), found[name + "_error"].values.ravel()
                at = column + 0.2 * (row - 1.5) + np.linspace(-0.07, 0.07, values.size)
                style = {"fmt": "os^D"[row], "ms": 3, "color": drawing.colour(row)}
                if filled:
                    style["label"] = NAMES[name] if column == 0 else None
                else:
                    style |= {"mfc": "w", "ms": 4}
                ax.errorbar(at, values, errors, **style)
    ax.set_xticks(range(len(ratios)), list(ratios))
    ax.set(yscale="log", ylabel="predicted / measured")
    ax.set_title("standard deviation across seeds\nfilled: linear noise, open: second order")
    drawing.ticks(ax.yaxis, (0.1, 0.2, 0.5, 1, 2, 5))
    ax.grid(alpha=0.25, axis="y")
    return ax
