"""The figure of `dynsim compare`: for each observable, runs and theories over time, and below them
the distance of each theory from the mean of the runs."""

import math
import textwrap

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

NUM_MARKERS = 15
"""Approximate number of markers on a curve of the mean."""
LABEL_WIDTH = 24
"""Characters per line of a vertical label, as high as a panel."""
MAX_CURVES = 6
"""Maximum number of entries of a vector or a matrix to draw."""
LOG_LOSS = 100
"""Ratio of the largest to the smallest mean loss above which its axis is logarithmic."""
FEW_TIMES: drawing.Keywords = {"ls": "", "marker": "s", "ms": 4}
"""Style of a theory that records fewer times than the runs; its standard deviations are bars."""
MIN_DISTANCE = 1e-5
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
    # The last row may have fewer observables.
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
    times = runs["time"].values
    # (R, S, entries), and (S, entries) of means and standard deviations.
    every = runs.values.reshape(*runs.shape[:2], math.prod(runs.shape[2:]))
    mean, deviation = average(every), spread(every)
    curves = []
    styles = drawing.nested(len(result.predictions))
    for theory, style in zip(result.predictions, styles, strict=True):
        predicted, scatter = result.means[theory][name], result.scatter(theory, name)
        arrays = [predicted.values]
        if scatter:
            arrays += [scatter.predicted, scatter.predicted_error]
        arrays = [values.reshape(len(values), -1) for values in arrays]
        about = result.theories[theory].title or theory
        curves.append((about, style, predicted["time"].values, *arrays))

    # Markers on some points only, so that theories show between them.
    step = max(times.size // NUM_MARKERS, 1)
    markers = {"ls": "", "marker": "o", "ms": 5, "mfc": "none", "color": "black"}
    entries = np.sort(np.argsort(-np.ptp(mean, axis=0), kind="stable")[:MAX_CURVES])
    for entry in entries:
        # The legend lists each curve once.
        is_first = entry == entries[0]
        middle, half = mean[:, entry], deviation[:, entry]
        ax.fill_between(times, middle - half, middle + half, color="0.82", lw=0)
        for about, style, at, *arrays in curves:
            # A reduced task may have one entry for all classes.
            curve, *scatter = (values[:, min(entry, values.shape[1] - 1)] for values in arrays)
            label = about if is_first else None
            if at.size < times.size:
                bars = {"color": style["color"], "yerr": scatter[0] if scatter else None}
                ax.errorbar(at, curve, label=label, zorder=3, **FEW_TIMES, **bars)
                continue
            ax.plot(at, curve, label=label, **style)
            if scatter:
                std, error = scatter
                for edge in (curve - std, curve + std):
                    ax.plot(at, edge, color=style["color"], lw=0.8, ls=":")
                    band = {"color": style["color"], "alpha": 0.15, "lw": 0}
                    ax.fill_between(at, edge - error, edge + error, **band)
        label = f"simulation, {count(len(every), 'run')}: mean, sd as band" if is_first else None
        ax.plot(times[::step], mean[::step, entry], label=label, **markers)
    ax.set_xscale("symlog", linthresh=1)
    if name == "loss" and 0 < LOG_LOSS * mean.min() < mean.max():
        # The loss of a flow may decrease further, by many decades.
        ax.set(yscale="log", ylim=(mean.min() / 10, None))
    if len(entries) < mean.shape[1]:
        title = f"{len(entries)} of {mean.shape[1]} entries, those that change most"
        ax.set_title(title, fontsize="medium")

    attributes = labels.about(registry.system_of(result.run), name)
    text = labels.label(xr.DataArray(attrs=attributes, name=name))
    if attributes["long_name"] != name.replace("_", " "):
        text = f"{text}, {name}"
    ylabel = textwrap.fill(text, LABEL_WIDTH)
    return drawing.finished(ax, xlabel="optimiser steps", ylabel=ylabel)


def plot_distance(result: Comparison, name: str, ax: Axes) -> Axes:
    """Plot |theory - mean of the runs| over time, as a share of the largest mean; root mean square
    over entries. Theories whose curves coincide differ here. What lies in the grey area is within
    the standard error of that mean."""
    runs = result.runs(TRAINING, name)
    # Relative to the largest mean, as a relative error diverges where a curve passes zero.
    largest = np.max(_rms(average(runs.values)), initial=0) or 1.0
    error = _rms(spread(runs.values)) / max(len(runs), 1) ** 0.5 / largest
    error = np.maximum(error, MIN_DISTANCE)
    ax.fill_between(runs["time"], MIN_DISTANCE, error, color="0.85", lw=0)
    styles = drawing.nested(len(result.predictions))
    for theory, style in zip(result.predictions, styles, strict=True):
        predicted = result.means[theory][name]
        mean = average(result.runs(TRAINING, name, of=theory).values)
        if predicted["time"].size < runs["time"].size:
            style = FEW_TIMES | {"color": style["color"]}
        ax.plot(predicted["time"], _rms(predicted.values - mean) / largest, **style)
    ax.set_xscale("symlog", linthresh=1)
    limits = {"yscale": "log", "ylim": (MIN_DISTANCE, 2), "xlabel": "optimiser steps"}
    return drawing.finished(ax, ylabel="distance", **limits)


def _rms(values: np.ndarray) -> np.ndarray:
    """Return the root mean square over entries, (S,) from (S, ...)."""
    return np.sqrt(np.mean(values.reshape(len(values), -1) ** 2, axis=1))
