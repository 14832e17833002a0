"""Where each theory holds: its error over learning rates, and over overlap and classes."""

import dataclasses
import math
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from dynsim import checks
from dynsim.decoding import Count
from odes.yz import THEORIES
from sweeps import output
from sweeps.output import drawing
from sweeps.runner.labels import valid
from sweeps.runner.spec import Sweep
from sweeps.studies import by_theory, computed
from sweeps.studies.options import Several, heat_map
from sweeps.systems.experiment import experiment

CONTOURS = (0.05, 0.2)
COLOURS: dict[str, Any] = {
    "norm": LogNorm(1e-3, 1),
    "cmap": plt.get_cmap("cividis_r").with_extremes(bad="#b0b0b0"),
}
NUM_TIMES = 16
QUANTITY = "z_top_distinct"
NOISE = "symmetric-noise"
KNOWN = {theory.name: theory for theory in THEORIES}
TITLES = {NOISE: "descent with noise, reduced"}
PAPER_RATIO = 2.0
"""eta_Y / eta_Z above which the paper reports that its Assumption 1(c) holds."""


@dataclasses.dataclass(frozen=True)
class Validity:
    """Relative error of each theory in the attention logit of the top distinct token.

    Attributes:
        theories: names of theories, and symmetric-noise for descent with batch noise.
        steps: optimiser steps per run.
        seeds: number of runs at each point, whose mean the theories are compared with.
        length: sequence length T of the runs; with inf, the errors of most theories, which describe
            T = inf, do not include the effect of finite T.
        batch: sequences per step.
        resolution: number of values of eta_Y / eta_Z and of eta_Z.
        out: folder for the figure, validity.npz and the stored sweeps.
    """

    theories: tuple[str, ...] = ("plain", "corrected", NOISE, "eq10", "lemma3")
    steps: int = 200
    seeds: Count = 4
    length: int | float = math.inf
    batch: int | float = 128
    resolution: Several = 13
    out: Path = Path("out/validity")

    def sweeps(self) -> dict[str, Sweep]:
        """Return the sweeps by plane and theory: over learning rates on Syn-Small, and over overlap
        and classes at fixed rates."""
        for name in self.theories:
            checks.choice("theories", name, (*KNOWN, NOISE))
        common = {"steps": self.steps, "length": self.length, "batch": self.batch}
        rates = {
            "ratio": {"logspace": [0.1, 100, self.resolution]},
            "eta_z": {"logspace": [0.01, 3, self.resolution]},
        }
        classes = {"K": [2, 5, 10], "overlap": [0.01, 0.03, 0.1, 0.2, 0.3, 0.45, 0.6]}
        runs = {
            "rates": (experiment(eta="ratio", **common), rates),
            "overlap": (experiment(task="overlapping", **common), classes),
        }
        wanted = {}
        for plane, (run, axes) in runs.items():
            axes = {**axes, "seed": {"range": self.seeds}}
            trained = Sweep(run, axes, "simulation", (QUANTITY,), NUM_TIMES)
            wanted[f"{plane}/simulation"] = trained
            for name in self.theories:
                solved = dataclasses.replace(trained, theory=name)
                wanted[f"{plane}/{name}"] = solved if name == NOISE else by_theory(trained, name)
        return wanted


def run(config: Validity) -> list[Path]:
    """Run or resume the sweeps, draw and write the figure, and print the shares of the plane of
    rates within the contours, below and above the paper's ratio."""
    found = computed(config)
    errors = {
        (plane, name): relative_error(found[f"{plane}/simulation"], found[f"{plane}/{name}"])
        for plane in ("rates", "overlap")
        for name in config.theories
    }
    for name in config.theories:
        error = errors["rates", name]
        below = error.where(error.ratio < PAPER_RATIO, drop=True).values
        above = error.where(error.ratio >= PAPER_RATIO, drop=True).values
        shares = [
            f"within {100 * level:g} %: {100 * np.mean(below <= level):.0f} % of the plane at "
            f"eta_Y/eta_Z < {PAPER_RATIO:g}, {100 * np.mean(above <= level):.0f} % above"
            for level in CONTOURS
        ]
        print(f"{name:<14} " + ", ".join(shares))
    arrays = {"/".join(at): error for at, error in errors.items()}
    for error in errors.values():
        arrays |= {str(dim): error[dim] for dim in error.dims}
    return output.write(config.out, "validity", figure=draw(errors), arrays=arrays)


def relative_error(trained: xr.Dataset, solved: xr.Dataset) -> xr.DataArray:
    """Return |theory - mean of the runs| / |mean of the runs|, both in l2 over time and classes;
    NaN where the theory or all runs failed."""
    mean = valid(trained)[QUANTITY].mean("seed")
    theory = valid(solved)[QUANTITY]
    if "seed" in theory.dims:
        # The reduction has the mean over the classes, which are alike.
        theory = theory.mean("seed").isel({"class": 0}, drop=True)
    # Where K is an axis, classes that a task does not have are NaN on both sides.
    exists = mean.notnull().any("time")
    norms = [
        (part**2).where(exists, 0).sum(("time", "class"), skipna=False) ** 0.5
        for part in (theory - mean, mean)
    ]
    return (norms[0] / norms[1]).where(exists.any("class"))


def draw(errors: Mapping[tuple[str, str], xr.DataArray]) -> Figure:
    """Draw a column for each theory and a row for each plane."""
    names = list(dict.fromkeys(name for _, name in errors))
    width = max(6.0, 2.6 * len(names))
    figure, axes = drawing.panels(2, len(names), width=width / len(names), height=3.4)
    for column, name in enumerate(names):
        mesh = plot(errors["rates", name], ax=axes[0, column])
        axes[0, column].axvline(PAPER_RATIO, color="k", ls=":", path_effects=drawing.cased())
        axes[0, column].set(
            title=textwrap.fill(TITLES.get(name) or KNOWN[name].title, 20),
            xlabel=r"$\eta_Y/\eta_Z$",
        )
        plot_cells(errors["overlap", name].transpose("overlap", "K"), ax=axes[1, column])
        axes[1, column].set(xlabel=r"overlap $f_n \cdot f_{n'}$ at the start")
    axes[0, 0].set_ylabel(r"$\eta_Z$ (1/step)")
    axes[1, 0].set_ylabel("number of classes $K$")
    figure.colorbar(mesh, ax=axes, label="relative error of the logit over time", extend="both")
    lines = {"error 5 %": "-", "error 20 %": "--", "ratio of the paper's Assumption 1(c)": ":"}
    handles = [drawing.key(text, ls=ls) for text, ls in lines.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False)
    return figure


def plot(error: xr.DataArray, ax: Axes) -> QuadMesh:
    """Draw the error over a plane (across, up) on a logarithmic colour scale, with contours; points
    where a solve failed are grey. Return the mesh, for a colour bar."""
    x, y = error.dims
    values = error.values.T
    mesh = heat_map(ax, error.clip(min=1e-3), **COLOURS)
    if np.nanmin(values) < CONTOURS[1] and np.nanmax(values) > CONTOURS[0]:
        style = {"colors": "k", "linestyles": ["-", "--"], "linewidths": 1.2}
        lines = ax.contour(error[x], error[y], values, CONTOURS, **style)
        lines.set(path_effects=drawing.cased())
    ax.set(xscale="log", yscale="log")
    return mesh


def percent(error: float) -> str:
    """Format an error in %, short enough for a cell; a dash for NaN."""
    if np.isnan(error):
        return "-"
    if error > 0.995:
        return ">99"
    return f"{100 * error:.0f}" if error >= 0.095 else f"{100 * error:.1g}"


def plot_cells(error: xr.DataArray, ax: Axes) -> QuadMesh:
    """Draw the error over a plane (across, up) with too few values for contours, as equal cells
    labelled in %. Return the mesh."""
    across, up = ([f"{value:g}" for value in error[dim].values] for dim in error.dims)
    mesh = drawing.table(ax, error.values.T, percent, across, up, **COLOURS)
    ax.tick_params(axis="x", rotation=90)
    return mesh
