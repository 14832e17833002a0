"""Every theory against simulation, for one task: `dynsim figure theories`."""

import dataclasses
import math
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
"""Share of the largest value below which a distance is not drawn."""
PANELS = ("loss", "entropy", "z_top_distinct", "z_top_common", "speed", "xi")
TITLES = {
    "loss": "population loss",
    "entropy": "entropy on distinct tokens",
    "z_top_distinct": "logit $z$ of the top distinct token",
    "z_top_common": "logit $z$ of the top common token",
    "speed": r"speed coefficient $f_n \cdot g_n$",
    "xi": r"$\xi_n$",
}
SHORT = ("loss", "entropy", "$z$, distinct", "$z$, common", "$f_n \\cdot g_n$", r"$\xi_n$")


@dataclasses.dataclass(frozen=True)
class Theories(CompareOptions):
    """Draw every theory that applies, its variants included, against simulation.

    Attributes:
        out: directory for the picture, theories.json and theories.npz.
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
    """The errors of every theory in six observables, over time and in a table."""
    below = 0.8 + 0.2 * len(result.predictions)
    figure = plt.figure(figsize=(10.5, 6.6 + below), layout="constrained")
    # Apart from each other, so that the names beside the table take no room from the panels.
    (upper,), (lower,) = figure.subfigures(2, 1, squeeze=False, height_ratios=[6.6, below])
    axes = upper.subplots(2, 3, sharex=True, sharey=True)
    for name, ax in zip(PANELS, axes.flat, strict=True):
        plot_deviation(result, name, ax=ax)
    drawing.outer(axes, "optimiser steps", "distance from the runs' mean")
    plot_errors(result, ax=lower.subplots())
    handles, labels = axes[0, 0].get_legend_handles_labels()
    upper.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(title(result))
    return figure


def plot_deviation(result: LayerComparison, name: str, ax: Axes) -> Axes:
    """|theory - mean of the runs| over time, as a share of the largest mean; root mean square over
    classes. Curves of theories that lie on those of the runs come apart in it. Below the grey area
    is what as many runs cannot tell from nothing."""
    times = result.times[1:]
    runs = result.measured(name)
    largest = float(np.max(_size(result.means[TRAINING][name].values)))
    error = _size(spread(runs))[1:] / math.sqrt(max(len(runs), 1)) / largest
    ax.fill_between(times, LEAST, error, color="0.85", lw=0, label="error of the runs' mean")
    styles = drawing.grouped(tuple(result.predictions))
    for theory, style in zip(result.predictions, styles, strict=True):
        apart = _size(result.apart(theory, name))[1:] / largest
        ax.plot(times, apart, label=result.about(theory)[0], **style)
    ax.set(xscale="log", yscale="log", xlim=(times[0], times[-1]))
    ax.set_ylim(LEAST, 1.5)
    ax.set_title(TITLES[name], fontsize="medium")
    ax.grid(alpha=0.25)
    return ax


def _size(values: np.ndarray) -> np.ndarray:
    """(S,) of (S, ...): root mean square over classes."""
    return np.sqrt(np.mean(values.reshape(len(values), -1) ** 2, axis=1))


def plot_errors(result: LayerComparison, ax: Axes) -> Axes:
    """Table of relative errors over time in %, theory by observable, coloured by size."""
    theories = result.report["theories"]
    values = np.array(
        [
            [theory["relative_error"][name]["over_time"] for name in PANELS]
            for theory in theories.values()
        ],
        dtype=float,
    )
    percent = 100 * values
    ax.imshow(np.clip(percent, 0.1, 100), cmap="cividis_r", norm=LogNorm(0.1, 100), aspect="auto")
    drawing.cells(ax, percent, "{:.3g}".format, dark=2)
    ax.set_xticks(range(len(PANELS)), SHORT)
    ax.set_yticks(range(len(theories)), [result.about(name)[0] for name in theories])
    ax.set_title("relative error over time against the mean of the runs (%)", fontsize="medium")
    return ax
