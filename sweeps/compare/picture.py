"""The figure of `dynsim compare`: a panel for each observable, runs and theories in it."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sweeps.compare.comparison import Comparison
from sweeps.compare.scatter import average, spread
from sweeps.output import drawing
from sweeps.runner.progress import count

MARKS = 15
"""Marks of the mean of the runs on a curve, about."""
MOST_ENTRIES = 6
"""Entries of a vector or a matrix that are drawn."""


def draw(result: Comparison) -> Figure:
    """The whole figure, a panel for each observable."""
    # Four in rows of three would leave two gaps.
    columns = 2 if len(result.names) == 4 else min(len(result.names), 3)
    rows = -(-len(result.names) // columns)
    figure, axes = drawing.panels(rows, columns)
    for ax, name in zip(axes.flat, result.names, strict=False):
        plot_entries(result, name, ax=ax)
    for ax in axes.flat[len(result.names) :]:
        ax.set_axis_off()
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def plot_entries(result: Comparison, name: str, ax: Axes) -> Axes:
    """The entries of an observable one by one; of many, those whose mean changes most over the
    run."""
    runs = _flat(result.measured(name))
    mean = average(runs)
    changes = np.ptp(mean, axis=0)
    chosen = np.sort(np.argsort(-changes, kind="stable")[:MOST_ENTRIES])
    for place, entry in enumerate(chosen):
        own = runs[..., entry]

        def predicted(theory: str, entry: int = entry) -> np.ndarray:
            return average(_flat(result.predicted(theory, name)))[:, entry]

        curves = mean[:, entry], spread(own), predicted
        plot(result, result.times, *curves, len(runs), ax=ax, labelled=place == 0)
        _plot_band(result, name, entry, ax=ax)
    ax.set_xscale("symlog", linthresh=1)
    if len(chosen) < len(changes):
        title = f"{len(chosen)} of {len(changes)} entries, those that change most"
        ax.set_title(title, fontsize="medium")
    return drawing.finished(ax, xlabel="optimiser steps", ylabel=name)


def plot(
    result: Comparison,
    times: Float[np.ndarray, " S"],
    mean: Float[np.ndarray, " S"],
    around: Float[np.ndarray, " S"],
    predicted: Callable[[str], Float[np.ndarray, " S"]],
    runs: int,
    ax: Axes,
    *,
    labelled: bool = True,
) -> None:
    """Mean of the runs as circles, their standard deviation `around` it as a band, and what each
    theory predicted as a line."""
    ax.fill_between(times, mean - around, mean + around, color="0.82", lw=0)
    styles = drawing.nested(len(result.predictions))
    for theory, style in zip(result.predictions, styles, strict=True):
        label = result.about(theory)[0] if labelled else None
        ax.plot(times, predicted(theory), label=label, **style)
    every = max(times.size // MARKS, 1)
    marks = {"ls": "", "marker": "o", "ms": 5, "mfc": "none", "color": "black"}
    label = f"simulation, {count(runs, 'run')}: mean, sd as band" if labelled else None
    ax.plot(times[::every], mean[::every], label=label, **marks)


def _plot_band(result: Comparison, name: str, entry: int, ax: Axes) -> None:
    """Predicted standard deviations across seeds around the predicted means, as thin lines."""
    styles = drawing.nested(len(result.predictions))
    for theory, style in zip(result.predictions, styles, strict=True):
        if (found := result.scattered(theory, name)) is not None:
            mean, std = (
                _flat(each)[0, :, entry]
                for each in (average(result.predicted(theory, name))[None], found.predicted[None])
            )
            for edge in (mean - std, mean + std):
                ax.plot(result.times, edge, color=style["color"], lw=0.8, ls=":")


def _flat(runs: np.ndarray) -> np.ndarray:
    """(R, S, entries) of (R, S, ...)."""
    return runs.reshape(*runs.shape[:2], int(np.prod(runs.shape[2:])))
