"""`dynsim figure theories`: all theories against simulation, for one task."""

import dataclasses
import math
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from dynsim import Layer
from dynsim.decoding import Count
from odes.hierarchy import applicable
from sweeps.compare.command import compare
from sweeps.compare.comparison import TRAINING, chosen, deliver
from sweeps.compare.layer import LayerComparison
from sweeps.compare.picture import title
from sweeps.compare.scatter import spread
from sweeps.compare.settings import CompareOptions, Times
from sweeps.output import drawing

LEAST = 1e-5
"""Minimum distance to draw, as a share of the largest value."""
TITLES = {
    "loss": "loss",
    "entropy": "entropy",
    "z_top_distinct": "top distinct logit",
    "z_top_common": "top common logit",
    "speed": r"speed $f_n \cdot g_n$",
    "xi": r"$\xi_n$",
}
PANELS = tuple(TITLES)


@dataclasses.dataclass(frozen=True)
class Theories(CompareOptions):
    """Draw every theory that applies, its variants included, against simulation.

    Attributes:
        out: folder for the figure, theories.json and theories.npz.
    """

    RUN: ClassVar[Mapping[str, Any]] = {"problem": "yz", "steps": 300}

    seeds: Count = 4
    times: Times = 40
    out: Path = Path("out/figures")


def run(config: Theories) -> list[Path] | None:
    """Compute, draw and write the figure, and print its error table, or its report as JSON."""
    config.check()
    task, rule = config.run.built
    if not isinstance(task, Layer):
        raise ValueError(f"problem = {config.run.about}: must be the attention layer, yz")
    known = [
        name for name in applicable(task, rule, variants=True) if name not in ("central", "flow")
    ]
    names = chosen(config.theories, known)
    result = compare(dataclasses.replace(config, theories=names))
    assert isinstance(result, LayerComparison)
    return deliver(result, draw(result), "theories")


def draw(result: LayerComparison) -> Figure:
    """Draw the errors of every theory in six observables: over time, with a row of panels for each
    group of similar theories, and in a table."""
    groups: dict[str, list[str]] = {}
    for name in result.predictions:
        groups.setdefault(name.split("-")[0], []).append(name)
    above, below = 0.8 + 1.1 * len(groups), 0.8 + 0.22 * len(result.predictions)
    figure = plt.figure(figsize=(10.5, above + below), layout="constrained")
    # Separate subfigures, so that the long names beside the table do not shrink the panels.
    (upper,), (lower,) = figure.subfigures(2, 1, squeeze=False, height_ratios=[above, below])
    shape = len(groups), len(PANELS)
    axes = upper.subplots(*shape, sharex=True, sharey=True, squeeze=False)
    for row, names in zip(axes, groups.values(), strict=True):
        for ax, name in zip(row, PANELS, strict=True):
            plot_deviation(result, name, names, ax=ax)
        keys = row[0].get_legend_handles_labels()[0]
        beside = {"loc": "center left", "bbox_to_anchor": (1.02, 0.5), "frameon": False}
        row[-1].legend(handles=keys, **beside)
    for ax, text in zip(axes[0], TITLES.values(), strict=True):
        ax.set_title(text)
    upper.supxlabel("optimiser steps", fontsize="medium")
    apart = "distance from the mean of the runs\n(grey: standard error of the mean)"
    upper.supylabel(apart, fontsize="medium")
    plot_errors(result, ax=lower.subplots())
    figure.suptitle(title(result))
    return figure


def plot_deviation(result: LayerComparison, name: str, theories: list[str], ax: Axes) -> Axes:
    """Plot |theory - mean of the runs| over time, as a share of the largest mean; root mean square
    over classes. It separates theories whose curves coincide with the runs. Values in the grey area
    are within the sampling error of the runs."""
    times = result.times[1:]
    runs = result.runs_of(TRAINING, name)
    largest = float(np.max(_size(result.means[TRAINING][name].values)))
    error = _size(spread(runs))[1:] / math.sqrt(max(len(runs), 1)) / largest
    ax.fill_between(times, LEAST, error, color="0.85", lw=0)
    for theory, style in zip(theories, drawing.nested(len(theories)), strict=True):
        apart = _size(result.apart(theory, name))[1:] / largest
        ax.plot(times, apart, label=textwrap.fill(result.about(theory)[0], 24), **style)
    limits = {"xlim": (times[0], times[-1]), "ylim": (LEAST, 1.5)}
    return drawing.finished(ax, xscale="log", yscale="log", **limits)


def _size(values: np.ndarray) -> np.ndarray:
    """Return the root mean square over classes, (S,) from (S, ...)."""
    return np.sqrt(np.mean(values.reshape(len(values), -1) ** 2, axis=1))


def plot_errors(result: LayerComparison, ax: Axes) -> Axes:
    """Draw a table of relative errors over time in %, theory by observable, coloured by size."""
    theories = result.report["theories"]
    rows = [
        [theory["relative_error"][name]["over_time"] for name in PANELS]
        for theory in theories.values()
    ]
    colours = {"cmap": "cividis_r", "norm": LogNorm(0.1, 100)}
    names = [result.about(name)[0] for name in theories]
    drawing.table(
        ax, 100 * np.array(rows, float), "{:.3g}".format, tuple(TITLES.values()), names, **colours
    )
    ax.invert_yaxis()
    ax.set_title("relative error over time against the mean of the runs (%)")
    return ax
