"""The figure of `dynsim compare`: for each observable, runs and theories over time, and below them
the distance of each theory from the mean of the runs."""

import math
import textwrap
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sweeps.comparison.errors import TRAINING, Comparison
from sweeps.comparison.scatter import average, spread
from sweeps.output import drawing
from sweeps.runner import labels
from sweeps.runner.progress import count
from sweeps.systems import registry

MARKS = 15
"""Approximate number of markers on a curve of the mean."""
HEIGHT = 24
"""Characters per line of a vertical label, as high as a panel."""
MOST_ENTRIES = 6
"""Maximum number of entries of a vector or a matrix to draw."""
DECADES = 100
"""Ratio of the largest to the smallest mean loss above which its axis is logarithmic."""
FEW: dict[str, Any] = {"ls": "", "marker": "s", "ms": 4}
"""Style of a theory that records fewer times than the runs; its standard deviations are bars."""
LEAST = 1e-5
"""Minimum distance to draw, as a share of the largest value."""


def draw(result: Comparison) -> Figure:
    """Draw the whole figure. Without theories there are no distances."""
    # Four panels in rows of three would leave two gaps.
    columns = 2 if len(result.names) == 4 else min(len(result.names), 3)
    rows = -(-len(result.names) // columns)
    parts = [3.0, 1.3] if result.predictions else [3.0]
    figure, axes = plt.subplots(
        len(parts) * rows,
        columns,
        figsize=(3.5 * columns, sum(parts) * rows),
        layout="constrained",
        squeeze=False,
        height_ratios=parts * rows,
    )
    for i, name in enumerate(result.names):
        upper, *below = axes[len(parts) * (i // columns) :, i % columns][: len(parts)]
        plot_entries(result, name, ax=upper)
        for ax in below:
            upper.set(xlabel="", xticklabels=[])
            plot_distance(result, name, ax=ax).set_xlim(upper.get_xlim())
            if i % columns:
                ax.set_ylabel("")
    for ax in axes.flat:
        ax.set_visible(ax.has_data())
    handles, texts = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def plot_entries(result: Comparison, name: str, ax: Axes) -> Axes:
    """Plot the entries of an observable; if there are many, those whose mean changes most over the
    run. The mean of the runs is drawn as circles in a band of their standard deviation, theories as
    lines. Predicted standard deviations across seeds are dotted lines around the predicted means,
    in bands of their standard errors."""
    runs = result.runs(TRAINING, name)
    # (R, S, entries), and (S, entries) of means and standard deviations.
    every = runs.values.reshape(*runs.shape[:2], math.prod(runs.shape[2:]))
    times, mean = runs["time"].values, average(every)
    flat = lambda values: values.reshape(len(values), -1)  # noqa: E731
    solved = []
    styles = drawing.nested(len(result.predictions))
    for theory, style in zip(result.predictions, styles, strict=True):
        curve, found = result.means[theory][name], result.scatter(theory, name)
        std, error = (flat(found.predicted), flat(found.predicted_error)) if found else (None, None)
        solved.append((theory, style, curve["time"].values, flat(curve.values), std, error))
    chosen = np.sort(np.argsort(-np.ptp(mean, axis=0), kind="stable")[:MOST_ENTRIES])
    step = max(times.size // MARKS, 1)
    marks = {"ls": "", "marker": "o", "ms": 5, "mfc": "none", "color": "black"}
    for place, entry in enumerate(chosen):

        def label(text: str, place: int = place) -> str | None:
            return None if place else text

        around = spread(every[..., entry])
        low, high = mean[:, entry] - around, mean[:, entry] + around
        ax.fill_between(times, low, high, color="0.82", lw=0)
        for theory, style, when, curves, std, error in solved:
            # A reduced task may have one entry for all classes.
            at = min(entry, curves.shape[1] - 1)
            curve, about = curves[:, at], label(result.theories[theory].title or theory)
            if when.size < times.size:
                bar = None if std is None else std[:, at]
                bars = {"color": style["color"], "yerr": bar, "zorder": 3}
                ax.errorbar(when, curve, label=about, **FEW, **bars)
                continue
            ax.plot(when, curve, label=about, **style)
            if std is not None:
                for edge in (curve - std[:, at], curve + std[:, at]):
                    ax.plot(when, edge, color=style["color"], lw=0.8, ls=":")
                    band = {"color": style["color"], "alpha": 0.15, "lw": 0}
                    ax.fill_between(when, edge - error[:, at], edge + error[:, at], **band)
        about = label(f"simulation, {count(len(every), 'run')}: mean, sd as band")
        ax.plot(times[::step], mean[::step, entry], label=about, **marks)
    ax.set_xscale("symlog", linthresh=1)
    if name == "loss" and 0 < DECADES * mean.min() < mean.max():
        # A flow may fall on by many decades.
        ax.set(yscale="log", ylim=(mean.min() / 10, None))
    if len(chosen) < mean.shape[1]:
        title = f"{len(chosen)} of {mean.shape[1]} entries, those that change most"
        ax.set_title(title, fontsize="medium")
    return drawing.finished(ax, xlabel="optimiser steps", ylabel=_label(result, name))


def plot_distance(result: Comparison, name: str, ax: Axes) -> Axes:
    """Plot |theory - mean of the runs| over time, as a share of the largest mean; root mean square
    over entries. Theories whose curves coincide differ here. What lies in the grey area is within
    the standard error of that mean."""
    runs = result.runs(TRAINING, name)
    largest = np.max(_size(average(runs.values)), initial=0) or 1.0
    error = _size(spread(runs.values)) / max(len(runs), 1) ** 0.5 / largest
    ax.fill_between(runs["time"], LEAST, np.maximum(error, LEAST), color="0.85", lw=0)
    styles = drawing.nested(len(result.predictions))
    for theory, style in zip(result.predictions, styles, strict=True):
        predicted = result.means[theory][name]
        mean = average(result.runs(TRAINING, name, of=theory).values)
        if predicted["time"].size < runs["time"].size:
            style = FEW | {"color": style["color"]}
        ax.plot(predicted["time"], _size(predicted.values - mean) / largest, **style)
    ax.set_xscale("symlog", linthresh=1)
    limits = {"yscale": "log", "ylim": (LEAST, 2), "xlabel": "optimiser steps"}
    return drawing.finished(ax, ylabel="distance", **limits)


def _label(result: Comparison, name: str) -> str:
    """Return the description, unit and name of an observable, broken to the height of a panel."""
    about = labels.about(registry.system_of(result.run), name)
    text = labels.label(xr.DataArray(attrs=about, name=name))
    known = about["long_name"] == name.replace("_", " ")
    return textwrap.fill(text if known else f"{text}, {name}", HEIGHT)


def _size(values: np.ndarray) -> np.ndarray:
    """Return the root mean square over entries, (S,) from (S, ...)."""
    return np.sqrt(np.mean(values.reshape(len(values), -1) ** 2, axis=1))
