"""Two-stage training over eta-time, with runs as bands and theory as lines: six panels that include
the controls and the joint loss."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from dynsim import Prompts
from dynsim.decoding import Count
from dynsim.two_stage.annealing import Control
from odes.two_stage import THEORIES
from odes.two_stage.loss import JENSEN_FLOOR
from sweeps import output
from sweeps.output import drawing
from sweeps.runner.progress import count
from sweeps.runner.run import run as run_sweep
from sweeps.runner.spec import Sweep
from sweeps.studies.options import begin
from sweeps.studies.two_stage import claims
from sweeps.studies.two_stage.claims import (
    RECORD,
    Runs,
    Times,
    ode,
    settings,
    theory_mean,
)
from sweeps.systems.experiment import Experiment, experiment

P, Q, BEST, AUC, JOINT = range(5)
"""Indices of colours: of components, of other measures of Q, and of the joint loss."""
CONTROLS: dict[Control, tuple[int, str]] = {
    "forever": (0, "large rate throughout"),
    "small": (2, "small rate throughout"),
    "smallinit": (3, "the same from smaller weights"),
}
"""Colour index and label of each control."""


@dataclasses.dataclass(frozen=True)
class FigureTwoStage:
    """Two-stage training against the reduced ODE, its controls, and the claims one by one.

    Attributes:
        run: the run trained in two stages and, for comparison, under each control.
        seeds: number of these runs, and of those of two_stage-joint.
        control_seeds: number of runs of each control.
        times: number of recorded times, a third of them in the first stage.
        out: folder for the figure, two_stage.npz, .json with the claims, and the stored sweeps,
            from which the command resumes.
    """

    RUN: ClassVar[Mapping[str, Any]] = {"problem": "two_stage"}

    run: Experiment
    seeds: Count = 6
    control_seeds: Count = 2
    times: Times = 128
    out: Path = Path("out/two_stage")


def run(config: FigureTwoStage) -> list[Path]:
    """Run or resume the experiments, draw them, and test the claims."""
    begin(config)
    settings(config.run)
    experiments = {"preset": config.run, "joint": experiment("two_stage-joint")}
    experiments |= {control: config.run.at({"control": control}) for control in CONTROLS}
    for training in experiments.values():
        training.check()
    found = {}
    for name, training in experiments.items():
        seeds = config.control_seeds if name in CONTROLS else config.seeds
        found[name] = runs(training, seeds, config.times, config.out / name)
    predicted = {name: run_sweep(ode(r)) for name, r in found.items()}
    verdicts = claims.tested(found, predicted)
    for title, tested_claims in verdicts.items():
        print(f"{title}: {count(found[title].count, 'run')}\n{claims.table(tested_claims)}\n")
    arrays = {name: {**r.values, "time": r.eta_time} for name, r in found.items()}
    for name, theory in predicted.items():
        arrays |= {f"{name}/ode/{o}": theory[o].values[0] for o in Prompts.COMPARED}
    report = {name: claims.as_records(found) for name, found in verdicts.items()}
    figure = draw(found, predicted)
    return output.write(config.out, "two_stage", figure=figure, arrays=arrays, report=report)


def runs(training: Experiment, seeds: int, times: int, out: Path | None = None) -> Runs:
    """Train `seeds` runs of an experiment, recording everything, or read them from `out`."""
    sweep = Sweep(training, {"seed": {"range": seeds}}, "simulation", RECORD, times)
    return claims.from_dataset(training, run_sweep(sweep, out))


def draw(found: Mapping[str, Runs], predicted: Mapping[str, xr.Dataset]) -> Figure:
    """Draw six panels from experiments by name and the reduced ODE's prediction for each."""
    figure, axes = drawing.panels(2, 3, height=3.8)
    key(figure)
    main, theory = found["preset"], predicted["preset"]
    plot_losses(main, theory, ax=axes[0, 0]).set_title("component losses")
    plot_accuracies(main, ax=axes[0, 1]).set_title("accuracies")
    plot_traces(main, theory, ax=axes[0, 2]).set_title("traces of the signal")
    plot_norms(main, theory, ax=axes[1, 0]).set_title("norms")
    plot_controls(found, predicted, ax=axes[1, 1]).set_title("$K^2$ of the controls")
    plot_losses(found["joint"], predicted["joint"], ax=axes[1, 2], joint=True)
    joint = settings(found["joint"].training)[0]
    axes[1, 2].set_title(f"joint loss: r = {joint.r:g}, c = {joint.coupling:g}")
    figure.suptitle(
        f"{main.training.about}, {count(main.count, 'run')}: mean (wide lines) ± sd\n"
        f"{about(main.training)}"
    )
    return figure


def plot_controls(found: Mapping[str, Runs], predicted: Mapping[str, xr.Dataset], ax: Axes) -> Axes:
    """Draw K2 with the two-stage schedule and with each control, and the reduced ODE."""
    for name, (place, label) in {"preset": (Q, "two stages"), **CONTROLS}.items():
        band(ax, found[name], "K2", place, label)
        lines(ax, found[name], predicted[name], {"K2": place})
    ax.set_ylim(0.3, 0.9)
    return finish(ax, found["preset"], "$K^2$ (nat)")


def band(ax: Axes, runs: Runs, name: str, place: int, label: str, style: str = "-") -> None:
    """Draw the runs' mean as a wide line and their standard deviation as a band, without time 0,
    which a logarithmic axis cannot show; `place` is the index of the colour."""
    colour = drawing.colour(place)
    times, mean, spread = runs.eta_time[1:], runs.mean(name)[1:], runs.spread(name)[1:]
    ax.fill_between(times, mean - spread, mean + spread, color=colour, alpha=0.2, lw=0)
    ax.plot(times, mean, color=colour, ls=style, label=label, **drawing.TRAINED)


def lines(ax: Axes, runs: Runs, prediction: xr.Dataset, places: Mapping[str, int]) -> None:
    """Draw the observables of the theory in the colours of their `places`, with a white edge to be
    visible on the wide lines of training."""
    style = {"ls": "-", "lw": 1.3, "path_effects": drawing.cased(0.6)}
    for name, place in places.items():
        values = theory_mean(prediction, name)[1:]
        ax.plot(runs.eta_time[1:], values, color=drawing.colour(place), **style)


def key(figure: Figure) -> None:
    """Draw the legend shared by all panels: training, theory, and the end of stage 1."""
    title = next(each.title for each in THEORIES if each.name == "ode")
    handles = [drawing.key("training, mean ± sd", **drawing.TRAINED)]
    handles += [drawing.key(title, ls="-", lw=1.3)]
    handles += [drawing.key("end of stage 1", lw=0.8, ls=(0, (1, 4)))]
    drawing.below(figure, handles, 3)


def finish(ax: Axes, runs: Runs, ylabel: str, **legend: Any) -> Axes:
    """Add axis labels, a legend, and a line at the end of the first stage."""
    time, switch = runs.eta_time, runs.eta_time[runs.switch]
    ax.axvline(switch, color="k", lw=0.8, ls=(0, (1, 4)))
    columns = 1 if len(ax.get_legend_handles_labels()[0]) < 5 else 2
    style = {"framealpha": 0.7, "ncols": columns, "columnspacing": 1, "handlelength": 1.6}
    labels = {"xlabel": r"$\eta$-time", "ylabel": ylabel, "xlim": (time[1], time[-1])}
    return drawing.finished(ax, style | legend, xscale="log", **labels)


def about(training: Experiment) -> str:
    """Describe an experiment in two lines: the task and the batch, then the rule."""
    (prompts, rule), batch = settings(training), training.batch
    return (
        f"d = {prompts.d}, L = {prompts.length}, $\\gamma_0$ = {prompts.gamma0:g}, $s_1$ = "
        f"{prompts.s1:g}, $s_2$ = {prompts.s2:g}, r = {prompts.r:g}, c = {prompts.coupling:g}, "
        f"batch {batch}\n$\\eta_1$ = {rule.eta_1:g}, $\\eta_2$ = {rule.eta_2:g}, $\\lambda$ = "
        f"{rule.decay:g}, $\\tau$ = {rule.tau:g}, stage 2 of {rule.stage_2:g}/$\\lambda$"
    )


def plot_losses(runs: Runs, prediction: xr.Dataset, ax: Axes, *, joint: bool = False) -> Axes:
    """Draw K1 and K2, with J if `joint`, and the floor of K2."""
    places = {"K1": P, "K2": Q} | ({"J": JOINT} if joint else {})
    for name, label in zip(places, ("$K^1$", "$K^2$", "$J$"), strict=False):
        band(ax, runs, name, places[name], label)
    lines(ax, runs, prediction, places)
    for text, at, dashes in (("log 2", np.log(2), "-"), ("log(2)/2", JENSEN_FLOOR, "-.")):
        ax.axhline(at, color="grey", lw=0.8, ls=dashes)
        place = (0.99, at + 0.01)
        ax.annotate(text, place, xycoords=("axes fraction", "data"), ha="right", va="bottom")
    ax.set_ylim(0, 0.9)
    # Random weights start with a loss above this range.
    return finish(ax, runs, "logistic loss (nat)", loc="lower left")


def plot_accuracies(runs: Runs, ax: Axes) -> Axes:
    """Draw the sign accuracies, and the accuracy of the best threshold on N_V."""
    band(ax, runs, "accuracy_P", P, "P, sign")
    band(ax, runs, "accuracy_Q", Q, "Q, sign")
    band(ax, runs, "best_accuracy_Q", BEST, "Q, best threshold")
    band(ax, runs, "auc_Q", AUC, "Q, AUC", "--")
    ax.axhline(0.75, color="grey", lw=0.8)
    # The legend lies below chance, where no curve is.
    ax.set_ylim(0.2, 1.03)
    return finish(ax, runs, "accuracy, AUC", loc="lower right", ncols=2)


def plot_traces(runs: Runs, prediction: xr.Dataset, ax: Axes) -> Axes:
    """Draw the traces of the signal weights, with theory's a and b."""
    band(ax, runs, "W_trace", P, r"Tr $\overline{W}$")
    band(ax, runs, "V_trace_abs", Q, r"|Tr $\overline{V}$|")
    lines(ax, runs, prediction, {"W_trace": P, "V_trace_abs": Q})
    return finish(ax, runs, "trace of the signal")


def plot_norms(runs: Runs, prediction: xr.Dataset, ax: Axes) -> Axes:
    """Draw the Frobenius norms of the weights and of their signal and noise parts."""
    for block, place in (("W", P), ("V", Q)):
        band(ax, runs, f"{block}_norm", place, rf"$\|{block}\|_F$")
        for part, style, name in (("signal", "--", "overline"), ("noise", ":", "widetilde")):
            how = {"color": drawing.colour(place), "ls": style, "lw": 2.5}
            how["label"] = rf"$\|\{name}{{{block}}}\|_F$"
            ax.plot(runs.eta_time[1:], runs.mean(f"{block}_{part}_norm")[1:], **how)
    lines(ax, runs, prediction, {"W_norm": P, "V_norm": Q})
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    ax.yaxis.set_minor_formatter("{x:g}")
    return finish(ax, runs, "Frobenius norm")
