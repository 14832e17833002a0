"""The runs of the study of finite size, and what it prints of them."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import xarray as xr

import dynsim
from sweeps import output
from sweeps.studies.finite_size import order

SAMPLED_LENGTHS = (20, 24, 32, 64, 128, 256)
BATCHES = (32, 128)
OBSERVABLES = ("loss", "entropy", "z_top_distinct", "z_top_common")


class Rule(NamedTuple):
    """An update rule, its numbers, the ratio eta_Y / eta_Z, and rates eta_Z."""

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


def ratio_lines(ratios: dict[str, xr.Dataset], which: str) -> list[str]:
    """Predicted over measured standard deviation as text."""

    def cells(at: xr.Dataset) -> list[str]:
        return [f"{float(at[name]):.3f} ± {float(at[name + '_error']):.3f}" for name in OBSERVABLES]

    heading = f"Predicted over measured standard deviation across seeds, {which} order in 1/B."
    return [heading, "", *_by_rule(ratios, OBSERVABLES, cells)]


def mean_lines(means: dict[str, xr.Dataset]) -> list[str]:
    """Distances of the mean loss as text."""
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
    """A row for each rule, rate and batch."""
    rows: list[tuple[str, ...]] = [("", "eta_Y", "eta_Z", "batch", *names)]
    for rule, dataset in found.items():
        for batch in BATCHES:
            for eta_z in dataset["eta_z"].values:
                rates = (f"{eta_z * RULES[rule].ratio:g}", f"{eta_z:g}")
                at = dataset.sel(eta_z=eta_z, batch=batch)
                rows.append((rule, *rates, str(batch), *cells(at)))
    return list(output.aligned(rows, 10, 8, 8, 7, 18))
