"""Panels over eta-time of a two-stage experiment: runs as bands, theory as lines on top."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from dynsim import Trajectory
from odes.two_stage import ladder
from odes.two_stage.maps import JENSEN_FLOOR
from sweeps.studies.two_stage import theory as two_stage_theory
from sweeps.studies.two_stage.runs import Runs

P_COLOUR, Q_COLOUR = "tab:blue", "tab:red"
STYLES = {
    "ode": ("--", "black"),
    "infinite": (":", "black"),
    "anchored": ("-.", "tab:purple"),
    "sde": ((0, (5, 1, 1, 1)), "tab:green"),
}
Predictions = Mapping[str, Trajectory]


def band(ax: Axes, runs: Runs, name: str, colour: str, label: str, style: str = "-") -> None:
    """Mean of the runs as a line and their standard deviation as a band, without time 0, which
    a logarithmic axis cannot show."""
    times, mean, spread = runs.eta_time[1:], runs.mean(name)[1:], runs.spread(name)[1:]
    ax.fill_between(times, mean - spread, mean + spread, color=colour, alpha=0.2, lw=0)
    ax.plot(times, mean, color=colour, ls=style, lw=2, label=label)


def lines(ax: Axes, runs: Runs, predictions: Predictions, names: Sequence[str]) -> None:
    """What the theories say of the observables `names`."""
    for theory, prediction in predictions.items():
        dashes, colour = STYLES.get(theory, ("--", "tab:red"))
        for i, name in enumerate(names):
            ax.plot(
                runs.eta_time[1:],
                two_stage_theory.mean(prediction, name)[1:],
                color=colour,
                ls=dashes,
                lw=1.2,
                label=None if i else ladder.theories()[theory].title,
            )


def finish(ax: Axes, runs: Runs, ylabel: str) -> Axes:
    """Axis labels, and the end of the first stage."""
    ax.axvline(runs.eta_time[runs.switch], color="grey", lw=1, ls=":")
    ax.set(xscale="log", xlabel=r"$\eta$-time", ylabel=ylabel)
    ax.set_xlim(runs.eta_time[1], runs.eta_time[-1])
    ax.grid(alpha=0.25)
    ax.legend(fontsize="small")
    return ax


def plot_losses(
    runs: Runs, predictions: Predictions, ax: Axes | None = None, *, joint: bool = False
) -> Axes:
    """K1 and K2, with J if `joint`, and the floor of K2."""
    ax = ax or plt.gca()
    band(ax, runs, "K1", P_COLOUR, "$K^1$")
    band(ax, runs, "K2", Q_COLOUR, "$K^2$")
    names = ["K1", "K2"]
    if joint:
        band(ax, runs, "J", "tab:olive", "$J$")
        names.append("J")
    lines(ax, runs, predictions, names)
    ax.axhline(np.log(2), color="grey", lw=0.8)
    ax.axhline(JENSEN_FLOOR, color="grey", lw=0.8, ls="-.")
    for text, at, side in (("log 2", np.log(2), "bottom"), ("log(2)/2", JENSEN_FLOOR, "top")):
        place = (0.99, at)
        ax.annotate(text, place, xycoords=("axes fraction", "data"), ha="right", va=side)
    # Random weights start with a loss beyond what is of interest.
    ax.set_ylim(0, 0.9)
    return finish(ax, runs, "logistic loss (nat)")


def plot_accuracies(runs: Runs, ax: Axes | None = None) -> Axes:
    """Sign accuracies, and how well the best threshold on N_V would do."""
    ax = ax or plt.gca()
    band(ax, runs, "accuracy_P", P_COLOUR, "P, sign")
    band(ax, runs, "accuracy_Q", Q_COLOUR, "Q, sign")
    band(ax, runs, "best_accuracy_Q", "tab:orange", "Q, best threshold")
    band(ax, runs, "auc_Q", "tab:green", "Q, AUC", "--")
    ax.axhline(0.75, color="grey", lw=0.8)
    ax.set_ylim(0.4, 1.03)
    return finish(ax, runs, "accuracy, AUC")


def plot_traces(runs: Runs, predictions: Predictions, ax: Axes | None = None) -> Axes:
    """Traces of the signal weights, with a and b."""
    ax = ax or plt.gca()
    band(ax, runs, "W_trace", P_COLOUR, r"Tr $\overline{W}$")
    band(ax, runs, "V_trace", Q_COLOUR, r"|Tr $\overline{V}$|")
    lines(ax, runs, predictions, ("W_trace", "V_trace"))
    return finish(ax, runs, "trace of the signal")


def plot_norms(runs: Runs, predictions: Predictions, ax: Axes | None = None) -> Axes:
    """Frobenius norms of the weights and of their signal and noise parts."""
    ax = ax or plt.gca()
    for block, colour in (("W", P_COLOUR), ("V", Q_COLOUR)):
        band(ax, runs, f"{block}_norm", colour, rf"$\|{block}\|_F$")
        for part, style, name in (("signal", "-.", "overline"), ("noise", ":", "widetilde")):
            label = rf"$\|\{name}{{{block}}}\|_F$"
            ax.plot(
                runs.eta_time[1:],
                runs.mean(f"{block}_{part}_norm")[1:],
                color=colour,
                ls=style,
                label=label,
            )
    lines(ax, runs, predictions, ("W_norm", "V_norm"))
    ax.set_yscale("log")
    finish(ax, runs, "Frobenius norm").legend(fontsize="x-small", ncols=2)
    return ax
