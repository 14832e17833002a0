"""The figure of `dynsim compare`: curves, speed coefficient, attention over time."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sweeps.compare.comparison import TRAINING, valid
from sweeps.compare.layer import DESCENT, DESCENTS, SPREAD, LayerComparison
from sweeps.compare.picture import plot
from sweeps.compare.scatter import average, spread
from sweeps.output import drawing

CURVES = {
    "loss": "population loss (nat)",
    "entropy": "entropy on distinct tokens (nat)",
    "z_top_distinct": "attention logit $z$",
}


def draw(result: LayerComparison) -> Figure:
    """The whole figure: three observables, the speed coefficient and two heat maps."""
    figure, axes = drawing.panels(2, 3, height=3.4)
    plot_curves(result, "loss", ax=axes[0, 0]).set_yscale("log")
    plot_curves(result, "entropy", ax=axes[0, 1])
    ax = plot_curves(result, "z_top_distinct", ax=axes[0, 2])
    plot_curves(result, "z_top_common", ax=ax).set_ylabel(CURVES["z_top_distinct"])
    ax.set_title("top distinct (up) and common token (down)", fontsize="medium")
    plot_speed(result, ax=axes[1, 0])
    best = next((name for name in result.predictions if name not in DESCENTS), DESCENT)
    shown = (TRAINING, best)
    largest = max(float(np.nanmax(_attention(result, name), initial=0)) for name in shown)
    for ax, name in zip(axes[1, 1:], shown, strict=True):
        plot_attention(result, name, largest or 1.0, ax=ax)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(title(result))
    return figure


def title(result: LayerComparison) -> str:
    """Task, optimiser, length and batch in a line."""
    run = result.config.run
    return f"{run.about}, {run.rule.build()}, T = {result.task.length}, batch = {run.batch}"


def plot_curves(result: LayerComparison, name: str, ax: Axes) -> Axes:
    """An observable over time, averaged over classes: mean and standard deviation of the runs as
    circles and a band, theories as lines."""
    times, mean = _series(result, TRAINING, name)
    around = _over_classes(spread(result.measured(name)))[1:]
    runs = len(result.measured(name))
    predicted = lambda theory: _series(result, theory, name)[1]  # noqa: E731
    plot(result, times, mean, around, predicted, runs, ax=ax)
    if (scattered := result.scatter(name)) is not None:
        when = result.extra[SPREAD]["time"].values[1:]
        middle = _over_classes(average(valid(result.extra[SPREAD], name)))[1:]
        band = _over_classes(scattered.predicted)[1:]
        label = "predicted mean ± sd"
        bars = {"ls": "", "color": "0.35", "lw": 1, "capsize": 3, "zorder": 3}
        ax.errorbar(when, middle, band, label=label, **bars)
    ax.set(xscale="log", xlim=(times[0], times[-1] if times.size > 1 else times[0] + 1))
    return drawing.finished(ax, xlabel="optimiser steps", ylabel=CURVES.get(name, name))


def plot_speed(result: LayerComparison, ax: Axes) -> Axes:
    """Measured f.g and predicted gamma(t), with the predicted peak and transition times."""
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


def plot_attention(result: LayerComparison, source: str, largest: float, ax: Axes) -> Axes:
    """Heat map over time of the attention of class 0 on its contextual tokens."""
    times = result.times[1:]
    values = _attention(result, source)
    tokens = np.arange(values.shape[1] + 1)
    middle = np.sqrt(times[1:] * times[:-1])
    edges = np.r_[times[0], middle, times[-1]] if times.size > 1 else [times[0], times[0] + 1]
    mesh = ax.pcolormesh(edges, tokens, values.T, vmin=0, vmax=largest, rasterized=True)
    common = int(np.sum(np.asarray(result.task.common())[0][_support(result)]))
    if 0 < common < tokens[-1]:
        ax.axhline(common, color="white", lw=1, ls="--")
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(xscale="log", xlabel="optimiser steps", ylabel="token: common, then distinct")
    theory = source not in (TRAINING, *DESCENTS)
    name = result.about(source)[0] if theory else source
    ax.set_title(f"attention $c_{{0l}}$: {name}", fontsize="medium")
    ax.figure.colorbar(mesh, ax=ax)
    return ax


def _support(result: LayerComparison) -> np.ndarray:
    """Contextual tokens of class 0, common ones first."""
    present = np.flatnonzero(np.asarray(result.task.probs)[0] > 0)
    is_common = np.asarray(result.task.common())[0][present]
    return np.r_[present[is_common], present[~is_common]]


def _attention(result: LayerComparison, source: str) -> np.ndarray:
    side = result.simulation if source == TRAINING else result.predictions[source]
    return average(valid(side, "attention"))[1:, 0][:, _support(result)]


def _over_classes(values: np.ndarray) -> np.ndarray:
    return values if values.ndim == 1 else values.mean(1)


def _series(result: LayerComparison, source: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Times and class mean, without step 0, which a logarithmic axis cannot show."""
    return result.times[1:], _over_classes(result.means[source][name].values)[1:]
