"""`dynsim figure finite-size`: the order of theory in 1/T, and its spread against that of runs."""

import dataclasses
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

import dynsim
from dynsim.decoding import Count
from sweeps import output
from sweeps.output import drawing
from sweeps.runner.run import valid
from sweeps.runner.spec import Sweep
from sweeps.studies.computing import computed
from sweeps.studies.finite_size import order
from sweeps.studies.options import Several
from sweeps.systems import registry
from sweeps.systems.yz.scatter import STD

Training: Any = registry.system("yz").run

LENGTHS = (8, 16, 32, 64, 128, 256, 512, 1024)
SAMPLED_LENGTHS = (20, 24, 32, 64, 128, 256)
SAMPLES = 4000
"""Count vectors of each class in a sampled quadrature."""
STEPS = {"small": 30, "syn-small": 200}
"""Optimiser steps after which errors are measured, by task."""
BATCHES = (32, 128)
OBSERVABLES = ("loss", "entropy", "z_top_distinct", "z_top_common")


class Rule(NamedTuple):
    """An update rule, its momentum if it reads one, the ratio eta_Y / eta_Z, and three rates
    eta_Z."""

    optimizer: Literal["sgd", "adam"]
    momentum: float | None
    ratio: float
    rates: tuple[float, float, float]


RULES = {
    "sgd": Rule("sgd", 0.0, 10.0, (0.1, 0.3, 1.0)),
    "momentum": Rule("sgd", 0.9, 1.0, (0.1, 0.3, 1.0)),
    "adam": Rule("adam", None, 1.0, (0.003, 0.01, 0.03)),
}


@dataclasses.dataclass(frozen=True)
class FiniteSize:
    """Measure where the theory of finite T and batch holds.

    Attributes:
        seeds: number of runs of each rule, rate and batch whose spread is measured.
        steps: optimiser steps of these runs.
        length: their sequence length T.
        samples: count vectors of each class in the quadratures for syn-small.
        out: directory for the picture, finite-size.json, .npz and the stored sweeps, which resume.
    """

    seeds: Several = 256
    steps: int = 100
    length: int = 128
    samples: Count = SAMPLES
    out: Path = Path("out/finite-size")

    def sweeps(self) -> dict[str, Sweep]:
        """Training and theory by rule."""
        found = {}
        for name, rule in RULES.items():
            training = Training(
                optimizer=rule.optimizer,
                momentum=rule.momentum,
                ratio=rule.ratio,
                steps=self.steps,
                length=self.length,
            )
            axes = {"eta_z": rule.rates, "batch": BATCHES}
            seeds = {**axes, "seed": {"range": self.seeds}}
            record = tuple(name + end for end in ("", STD) for name in OBSERVABLES)
            trained = Sweep(seeds, training, "simulation", OBSERVABLES, "end")
            found[f"{name}/simulation"] = trained
            engine = "spread-squares" if rule.optimizer == "adam" else "spread"
            found[f"{name}/spread"] = Sweep(axes, training, engine, record, "end")
        return found


def run(config: FiniteSize) -> list[Path]:
    """Compute or resume, print the tables, draw and write."""
    found = computed(config)
    small = order.against_enumeration(dynsim.sgd(1.0, 1.0), LENGTHS, STEPS["small"])
    syn = order.against_samples(
        dynsim.syn_small(),
        dynsim.sgd(1.0, 0.1),
        SAMPLED_LENGTHS,
        STEPS["syn-small"],
        config.samples,
    )
    ratios = {name: ratio(found[f"{name}/simulation"], found[f"{name}/spread"]) for name in RULES}
    slopes = {
        name: {
            kind: order.slope(LENGTHS, getattr(small, kind)[:, place])
            for kind in ("infinite", "finite")
        }
        for place, name in enumerate(order.RECORD)
    }
    print("\n".join([*order_lines(slopes, syn), "", *ratio_lines(ratios)]))
    arrays = {"small": small, "syn-small": syn, **ratios}
    arrays |= {"small/length": LENGTHS, "syn-small/length": SAMPLED_LENGTHS}
    report = {"slopes": slopes, "ratios": {name: found.to_dict() for name, found in ratios.items()}}
    figure = draw(small, syn, ratios)
    return output.write(config.out, "finite-size", figure=figure, arrays=arrays, report=report)


def draw(small: order.Errors, syn: order.Errors, ratios: dict[str, xr.Dataset]) -> Figure:
    """The order in 1/T on two tasks, and the spread."""
    figure, (axes,) = drawing.panels(1, 3, height=4)
    plot_order(LENGTHS, small, ax=axes[0])
    axes[0].set_title("three tokens a class, enumerated", fontsize="medium")
    plot_order(SAMPLED_LENGTHS, syn, ax=axes[1])
    axes[1].set_title("Syn-Small, sampled quadratures", fontsize="medium")
    plot_ratios(ratios, ax=axes[2])
    return figure


def ratio(trained: xr.Dataset, theory: xr.Dataset) -> xr.Dataset:
    """Predicted over measured standard deviation, and its sampling error, by observable: root mean
    square over classes of both."""
    runs = valid(trained)
    predicted = valid(theory)
    found = {}
    for name in OBSERVABLES:
        variance, expected = runs[name].var("seed", ddof=1), predicted[name + STD] ** 2
        if "class" in variance.dims:
            variance, expected = variance.mean("class"), expected.mean("class")
        found[name] = (expected / variance) ** 0.5
        number = runs[name].notnull().any([d for d in runs[name].dims if d == "class"]).sum("seed")
        found[name + "_error"] = found[name] / (2 * (number - 1)) ** 0.5
    return xr.Dataset(found)


def order_lines(slopes: dict[str, dict[str, float]], syn: order.Errors) -> list[str]:
    """Exponents on the small task, and errors on Syn-Small, as text."""
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


def ratio_lines(ratios: dict[str, xr.Dataset]) -> list[str]:
    """Predicted over measured standard deviation as text."""
    rows: list[tuple[str, ...]] = [("", "eta_Y", "eta_Z", "batch", *OBSERVABLES)]
    for rule, found in ratios.items():
        for batch in BATCHES:
            for eta_z in RULES[rule].rates:
                at = found.sel(eta_z=eta_z, batch=batch)
                cells = (
                    f"{float(at[name]):.3f} ± {float(at[name + '_error']):.3f}"
                    for name in OBSERVABLES
                )
                rates = (f"{eta_z * RULES[rule].ratio:g}", f"{eta_z:g}")
                rows.append((rule, *rates, str(batch), *cells))
    heading = "Predicted over measured standard deviation over seeds."
    return [heading, "", *output.aligned(rows, 10, 8, 8, 7, 18)]


def plot_order(lengths: tuple[int, ...], errors: order.Errors, ax: Axes) -> Axes:
    """Relative errors of both rungs over T, with the slopes -1 and -2."""
    for place, name in enumerate(order.RECORD):
        colour = drawing.colour(place)
        ax.plot(lengths, errors.infinite[:, place], "o:", color=colour, label=f"{name}, T infinite")
        ax.plot(lengths, errors.finite[:, place], "s-", color=colour, label=f"{name}, first order")
        if errors.reference.any():
            ax.plot(lengths, errors.reference[:, place], color=colour, lw=0.8, ls=(0, (1, 3)))
    far = np.array(lengths[-3:], float)
    for power, kind in ((1, errors.infinite), (2, errors.finite)):
        guide = kind[-1].max() * 2 * (far / far[-1]) ** -power
        ax.plot(far, guide, color="0.5", lw=1)
        ax.annotate(f"$T^{{-{power}}}$", (far[-1], guide[-1]), color="0.4", ha="right", va="bottom")
    ax.set(xscale="log", yscale="log")
    named = [
        str(T) if 1.3 * before < T else ""
        for before, T in zip((1, *lengths), lengths, strict=False)
    ]
    ax.set_xticks(lengths, named, fontsize="small")
    ax.xaxis.set_minor_locator(NullLocator())
    # The legend goes where no curve is: all of them fall.
    place = {"loc": "lower left"}
    return drawing.finished(ax, place, xlabel="sequence length T", ylabel="relative error")


def plot_ratios(ratios: dict[str, xr.Dataset], ax: Axes) -> Axes:
    """Predicted over measured standard deviation, a mark for each rate and batch."""
    ax.axhline(1, color="k", lw=1)
    for column, found in enumerate(ratios.values()):
        for row, name in enumerate(OBSERVABLES):
            values, errors = found[name].values.ravel(), found[name + "_error"].values.ravel()
            at = column + 0.2 * (row - 1.5) + np.linspace(-0.07, 0.07, values.size)
            label = name if column == 0 else None
            style = {"fmt": "os^D"[row], "ms": 3, "color": drawing.colour(row)}
            ax.errorbar(at, values, errors, label=label, **style)
    ax.set_xticks(range(len(ratios)), list(ratios))
    ax.set_ylabel("predicted / measured")
    ax.set_title("standard deviation over seeds", fontsize="medium")
    ax.set_yscale("log")
    drawing.ticks(ax.yaxis, (0.1, 0.2, 0.5, 1, 2, 5))
    ax.grid(alpha=0.25, axis="y")
    ax.legend(fontsize="small")
    return ax
