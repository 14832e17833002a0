"""The figures of `dynsim compare`: one panel per observable, with runs and theories. The attention
layer has other panels: curves, the speed coefficient, and attention over time."""

import textwrap
from collections.abc import Callable

import numpy as np
import xarray as xr
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sweeps.compare.comparison import TRAINING, Comparison, valid
from sweeps.compare.layer import DESCENT, DESCENTS, SPREAD, LayerComparison
from sweeps.compare.scatter import average, spread
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
CURVES = {
    "loss": "population loss (nat)",
    "entropy": "entropy on distinct tokens (nat)",
    "z_top_distinct": "attention logit $z$",
}


def draw(result: Comparison) -> Figure:
    """Draw the whole figure, with one panel per observable."""
    # Four panels in rows of three would leave two gaps.
    columns = 2 if len(result.names) == 4 else min(len(result.names), 3)
    rows = -(-len(result.names) // columns)
    figure, axes = drawing.panels(rows, columns)
    for ax, name in zip(axes.flat, result.names, strict=False):
        plot_entries(result, name, ax=ax)
    for ax in axes.flat[len(result.names) :]:
        ax.set_axis_off()
    handles, texts = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def plot_entries(result: Comparison, name: str, ax: Axes) -> Axes:
    """Plot the entries of an observable; if there are many, those whose mean changes most over the
    run. Predicted standard deviations across seeds are dotted lines around the predicted means, in
    bands of their standard errors."""
    runs = _flat(result.runs_of(TRAINING, name))
    mean = average(runs)
    changes = np.ptp(mean, axis=0)
    chosen = np.sort(np.argsort(-changes, kind="stable")[:MOST_ENTRIES])
    styles = drawing.nested(len(result.predictions))
    for place, entry in enumerate(chosen):

        def predicted(theory: str, entry: int = entry) -> np.ndarray:
            return average(_flat(result.runs_of(theory, name)))[:, entry]

        curves = mean[:, entry], spread(runs[..., entry]), predicted
        plot(result, result.times, *curves, len(runs), ax=ax, labelled=place == 0)
        for theory, style in zip(result.predictions, styles, strict=True):
            if (found := result.scattered(theory, name)) is not None:
                std, error = (
                    _flat(each[None])[0, :, entry]
                    for each in (found.predicted, found.predicted_error)
                )
                for sign in (-1, 1):
                    edge = predicted(theory) + sign * std
                    ax.plot(result.times, edge, color=style["color"], lw=0.8, ls=":")
                    band = {"color": style["color"], "alpha": 0.15, "lw": 0}
                    ax.fill_between(result.times, edge - error, edge + error, **band)
    ax.set_xscale("symlog", linthresh=1)
    if len(chosen) < len(changes):
        title = f"{len(chosen)} of {len(changes)} entries, those that change most"
        ax.set_title(title, fontsize="medium")
    return drawing.finished(ax, xlabel="optimiser steps", ylabel=named(result, name))


def named(result: Comparison, name: str) -> str:
    """Return the description, unit and name of an observable, broken to the height of a panel."""
    about = labels.about(registry.system_of(result.config.run), name)
    text = labels.label(xr.DataArray(attrs=about, name=name))
    known = about["long_name"] == name.replace("_", " ")
    return textwrap.fill(text if known else f"{text}, {name}", HEIGHT)


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
    """Plot the mean of the runs as circles, their standard deviation `around` it as a band, and
    each theory's prediction as a line."""
    ax.fill_between(times, mean - around, mean + around, color="0.82", lw=0)
    styles = drawing.nested(len(result.predictions))
    for theory, style in zip(result.predictions, styles, strict=True):
        label = result.about(theory)[0] if labelled else None
        ax.plot(times, predicted(theory), label=label, **style)
    every = max(times.size // MARKS, 1)
    marks = {"ls": "", "marker": "o", "ms": 5, "mfc": "none", "color": "black"}
    label = f"simulation, {count(runs, 'run')}: mean, sd as band" if labelled else None
    ax.plot(times[::every], mean[::every], label=label, **marks)


def draw_layer(result: LayerComparison) -> Figure:
    """Draw three observables of the attention layer, its speed coefficient, and its attention over
    time as two heat maps."""
    figure, axes = drawing.panels(2, 3, height=3.4)
    plot_curves(result, "loss", ax=axes[0, 0]).set_yscale("log")
    plot_curves(result, "entropy", ax=axes[0, 1])
    ax = plot_curves(result, "z_top_distinct", ax=axes[0, 2])
    plot_curves(result, "z_top_common", ax=ax).set_ylabel(CURVES["z_top_distinct"])
    ax.set_title("top distinct (up) and common token (down)", fontsize="medium")
    plot_speed(result, ax=axes[1, 0])
    best = next((name for name in result.predictions if name not in DESCENTS), DESCENT)
    # Contextual tokens of class 0, common ones first.
    present = np.flatnonzero(np.asarray(result.task.probs)[0] > 0)
    is_common = np.asarray(result.task.common())[0][present]
    tokens = np.r_[present[is_common], present[~is_common]]
    sides = {TRAINING: result.simulation, best: result.predictions[best]}
    maps = {
        name: average(valid(side, "attention"))[1:, 0][:, tokens] for name, side in sides.items()
    }
    largest = max(float(np.nanmax(values, initial=0)) for values in maps.values()) or 1.0
    for ax, (name, values) in zip(axes[1, 1:], maps.items(), strict=True):
        plot_attention(result.times[1:], values, int(is_common.sum()), largest, ax=ax)
        theory = name not in (TRAINING, *DESCENTS)
        about = result.about(name)[0] if theory else name
        ax.set_title(f"attention $c_{{0l}}$: {about}", fontsize="medium")
    handles, texts = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(title(result))
    return figure


def title(result: LayerComparison) -> str:
    """Return a title with task, optimiser, length and batch."""
    run = result.config.run
    return f"{run.about}, {run.rule.build()}, T = {result.task.length}, batch = {run.batch}"


def plot_curves(result: LayerComparison, name: str, ax: Axes) -> Axes:
    """Plot an observable over time, averaged over classes: mean and standard deviation of the runs
    as circles and a band, theories as lines."""

    def mean(side: str) -> np.ndarray:
        # Omits step 0, which a logarithmic axis cannot show.
        return _over_classes(result.means[side][name].values)[1:]

    times, runs = result.times[1:], result.runs_of(TRAINING, name)
    around = _over_classes(spread(runs))[1:]
    plot(result, times, mean(TRAINING), around, mean, len(runs), ax=ax)
    if (scattered := result.scatter(name)) is not None:
        when = result.extra[SPREAD]["time"].values[1:]
        middle = _over_classes(average(valid(result.extra[SPREAD], name)))[1:]
        band, error = (
            _over_classes(each)[1:] for each in (scattered.predicted, scattered.predicted_error)
        )
        label = "predicted mean ± sd"
        bars = {"ls": "", "color": "0.35", "lw": 1, "capsize": 3, "zorder": 3}
        ax.errorbar(when, middle, band, label=label, **bars)
        if error.any():
            # Up to the sd and its standard error, beyond the caps.
            ax.errorbar(when, middle, band + error, **{**bars, "lw": 0.5, "capsize": 0})
    ax.set(xscale="log", xlim=(times[0], times[-1] if times.size > 1 else times[0] + 1))
    return drawing.finished(ax, xlabel="optimiser steps", ylabel=CURVES.get(name, name))


def plot_speed(result: LayerComparison, ax: Axes) -> Axes:
    """Plot measured f.g and predicted gamma(t), with the predicted peak and transition times."""
    ax = plot_curves(result, "speed", ax=ax)
    ax.set_ylabel(r"speed coefficient $f_n \cdot g_n$")
    if result.stages is not None:
        ax.set_ylim(top=1.12 * ax.get_ylim()[1])
        marks = {"peak ": "peak", " $t_0'$": "rise_end", " $t_0$": "snap"}
        for label, field in marks.items():
            t = float(np.mean(getattr(result.stages, field)))
            if np.isfinite(t) and ax.get_xlim()[0] <= t <= ax.get_xlim()[1]:
                at_peak = field == "peak"
                ax.axvline(t, color="grey", lw=1, ls="--" if at_peak else ":")
                side = "right" if at_peak else "left"
                ax.annotate(label, (t, 0.98), xycoords=("data", "axes fraction"), ha=side, va="top")
        ax.set_title("vertical: times of the closed form", fontsize="medium")
    return ax


def plot_attention(
    times: Float[np.ndarray, " S"],
    values: Float[np.ndarray, "S L"],
    common: int,
    largest: float,
    ax: Axes,
) -> None:
    """Draw the attention of class 0 to its contextual tokens over time as a heat map. The first
    `common` of the tokens are common."""
    tokens = np.arange(values.shape[1] + 1)
    middle = np.sqrt(times[1:] * times[:-1])
    edges = np.r_[times[0], middle, times[-1]] if times.size > 1 else [times[0], times[0] + 1]
    mesh = ax.pcolormesh(edges, tokens, values.T, vmin=0, vmax=largest, rasterized=True)
    if 0 < common < tokens[-1]:
        ax.axhline(common, color="white", lw=1, ls="--")
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(xscale="log", xlabel="optimiser steps", ylabel="token: common, then distinct")
    ax.figure.colorbar(mesh, ax=ax)


def _flat(runs: np.ndarray) -> np.ndarray:
    """Flatten (R, S, ...) to (R, S, entries)."""
    return runs.reshape(*runs.shape[:2], int(np.prod(runs.shape[2:])))


def _over_classes(values: np.ndarray) -> np.ndarray:
    return values if values.ndim == 1 else values.mean(1)
