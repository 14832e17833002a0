"""Two-stage training over eta-time, runs as bands and theory as lines on top: the panels of a
comparison, and six of them with the controls and the joint loss."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from dynsim.decoding import Count
from dynsim.two_stage.annealing import Control
from odes.two_stage import THEORIES
from odes.two_stage.loss import JENSEN_FLOOR
from sweeps import output
from sweeps.output import drawing
from sweeps.runner.progress import count
from sweeps.runner.run import run as run_sweep
from sweeps.studies.options import begin
from sweeps.studies.two_stage import claims
from sweeps.studies.two_stage.runs import (
    COMPARED,
    Runs,
    Times,
    from_dataset,
    ode,
    settings,
    sweep,
    theory_mean,
)
from sweeps.systems.experiment import Experiment, experiment

P, Q, BEST, AUC, JOINT = range(5)
"""Places of colours: of components, of other measures of Q, and of the joint loss."""
STYLES = {"ode": "-", "infinite": ":", "anchored": "-.", "sde": (0, (5, 1, 1, 1))}
"""Line of each theory; its colour is that of the component."""
OBSERVABLES = {"K1": P, "K2": Q, "J": JOINT, **{f"W_{n}": P for n in ("trace", "norm")}}
OBSERVABLES |= {f"V_{n}": Q for n in ("trace", "norm")}
Predictions = Mapping[str, xr.Dataset]
CONTROLS: dict[Control, int] = {
    "forever": 0,
    "small": 2,
    "smallinit": 3,
}
"""Places of their colours."""


class Compared(Protocol):
    """Of a comparison, the runs and what each theory predicts of them."""

    @property
    def runs(self) -> Runs: ...
    @property
    def predictions(self) -> Predictions: ...


@dataclasses.dataclass(frozen=True)
class FigureTwoStage:
    """Two-stage training against the reduced ODE, its controls, and the claims one by one.

    Attributes:
        run: the run trained in two stages and, for comparison, as each control says.
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
    experiments = {
        "preset": (config.run, config.seeds),
        "joint": (experiment("two_stage-joint"), config.seeds),
    }
    settings(config.run)
    experiments |= {
        control: (config.run.at({"control": control}), config.control_seeds) for control in CONTROLS
    }
    for training, _ in experiments.values():
        training.check()
    found = {
        name: runs(training, seeds, config.times, config.out / name)
        for name, (training, seeds) in experiments.items()
    }
    predicted = {name: run_sweep(ode(r)) for name, r in found.items()}
    verdicts = claims.tested(found, predicted)
    for title, tested_claims in verdicts.items():
        print(f"{title}: {count(found[title].count, 'run')}\n{claims.table(tested_claims)}\n")
    arrays = {name: {**r.values, "time": r.eta_time} for name, r in found.items()}
    for name, theory in predicted.items():
        arrays |= {f"{name}/ode/{o}": theory[o].values[0] for o in COMPARED}
    report = {name: claims.as_records(found) for name, found in verdicts.items()}
    figure = draw(found, predicted)
    return output.write(config.out, "two_stage", figure=figure, arrays=arrays, report=report)


def runs(
    training: Experiment, seeds: int, times: int, out: Path | None = None, root: int = 0
) -> Runs:
    """Run the experiment, or read what `out` holds of it."""
    return from_dataset(training, run_sweep(sweep(training, seeds, times, root), out))


def draw(
    found: Mapping[str, Runs],
    predicted: Mapping[str, xr.Dataset],
) -> Figure:
    """Six panels, of experiments by name and what the reduced ODE says of each."""
    figure, axes = drawing.panels(2, 3, height=3.8)
    key(figure, ("ode",))
    main, theory = found["preset"], {"ode": predicted["preset"]}
    plot_losses(main, theory, ax=axes[0, 0]).set_title("component losses")
    plot_accuracies(main, ax=axes[0, 1]).set_title("accuracies")
    plot_traces(main, theory, ax=axes[0, 2]).set_title("traces of the signal")
    plot_norms(main, theory, ax=axes[1, 0]).set_title("norms")
    plot_controls(found, predicted, ax=axes[1, 1]).set_title("$K^2$ of the controls")
    plot_losses(found["joint"], {"ode": predicted["joint"]}, ax=axes[1, 2], joint=True)
    joint = settings(found["joint"].training)[0]
    axes[1, 2].set_title(f"joint loss: r = {joint.r:g}, c = {joint.coupling:g}")
    figure.suptitle(
        f"{main.training.about}, {count(main.count, 'run')}: mean (wide lines) ± sd\n"
        f"{about(main.training)}"
    )
    return figure


def plot_controls(
    found: Mapping[str, Runs],
    predicted: Mapping[str, xr.Dataset],
    ax: Axes,
) -> Axes:
    """K2 with the two-stage schedule and with each control, the reduced ODE dashed."""
    for name, place in {"preset": Q, **CONTROLS}.items():
        label = "two stages" if name == "preset" else name
        band(ax, found[name], "K2", place, label)
        theory = theory_mean(predicted[name], "K2")
        style = {"color": drawing.colour(place), "lw": 1.3, "path_effects": drawing.cased(0.6)}
        ax.plot(found[name].eta_time[1:], theory[1:], **style)
    ax.set_ylim(0.3, 0.9)
    return finish(ax, found["preset"], "$K^2$ (nat)")


def band(ax: Axes, runs: Runs, name: str, place: int, label: str, style: str = "-") -> None:
    """Mean of the runs as a wide line and their standard deviation as a band, without time 0,
    which a logarithmic axis cannot show; `place` is that of the colour."""
    colour = drawing.colour(place)
    times, mean, spread = runs.eta_time[1:], runs.mean(name)[1:], runs.spread(name)[1:]
    ax.fill_between(times, mean - spread, mean + spread, color=colour, alpha=0.2, lw=0)
    ax.plot(times, mean, color=colour, ls=style, label=label, **drawing.TRAINED)


def lines(ax: Axes, runs: Runs, predictions: Predictions, names: Sequence[str]) -> None:
    """What the theories say of the observables `names`, in the colours of the components, with a
    white edge on the wide lines of training."""
    for theory, prediction in predictions.items():
        style = {"ls": STYLES.get(theory, "--"), "lw": 1.3, "path_effects": drawing.cased(0.6)}
        for name in names:
            values = theory_mean(prediction, name)[1:]
            colour = drawing.colour(OBSERVABLES[name])
            ax.plot(runs.eta_time[1:], values, color=colour, **style)


def key(figure: Figure, theories: Sequence[str]) -> None:
    """Legend of what all panels share: training, the theories, and where the first stage ends."""
    handles = [drawing.key("training, mean ± sd", **drawing.TRAINED)]
    for name in theories:
        title = next(each.title for each in THEORIES if each.name == name)
        handles.append(drawing.key(title, ls=STYLES.get(name, "--"), lw=1.3))
    handles.append(drawing.key("end of stage 1", lw=0.8, ls=(0, (1, 4))))
    drawing.below(figure, handles, 3)


def finish(ax: Axes, runs: Runs, ylabel: str) -> Axes:
    """Axis labels, and the end of the first stage."""
    ax.axvline(runs.eta_time[runs.switch], color="k", lw=0.8, ls=(0, (1, 4)))
    ax.set(xscale="log", xlabel=r"$\eta$-time", ylabel=ylabel)
    ax.set_xlim(runs.eta_time[1], runs.eta_time[-1])
    ax.grid(alpha=0.25)
    handles, _ = ax.get_legend_handles_labels()
    columns = 1 if len(handles) < 5 else 2
    ax.legend(framealpha=0.7, ncols=columns, columnspacing=1, handlelength=1.6)
    return ax


def about(training: Experiment) -> str:
    """The numbers of an experiment in lines: the task, then the training."""
    prompts, rule = settings(training)
    task = (
        f"d = {prompts.d}, L = {prompts.length}, $\\gamma_0$ = {prompts.gamma0:g}, "
        f"$s_1$ = {prompts.s1:g}, $s_2$ = {prompts.s2:g}, r = {prompts.r:g}, "
        f"c = {prompts.coupling:g}, batch {training.batch}"
    )
    rates = (
        f"$\\eta_1$ = {rule.eta_1:g}, $\\eta_2$ = {rule.eta_2:g}, "
        f"$\\lambda$ = {rule.decay:g}, $\\tau$ = {rule.tau:g}, "
        f"stage 2 of {rule.stage_2:g}/$\\lambda$"
    )
    return f"{task}\n{rates}"


def plot_losses(runs: Runs, predictions: Predictions, ax: Axes, *, joint: bool = False) -> Axes:
    """K1 and K2, with J if `joint`, and the floor of K2."""
    band(ax, runs, "K1", P, "$K^1$")
    band(ax, runs, "K2", Q, "$K^2$")
    names = ["K1", "K2"]
    if joint:
        band(ax, runs, "J", JOINT, "$J$")
        names.append("J")
    lines(ax, runs, predictions, names)
    ax.axhline(np.log(2), color="grey", lw=0.8)
    ax.axhline(JENSEN_FLOOR, color="grey", lw=0.8, ls="-.")
    for text, at in (("log 2", np.log(2)), ("log(2)/2", JENSEN_FLOOR)):
        place = (0.99, at + 0.01)
        ax.annotate(text, place, xycoords=("axes fraction", "data"), ha="right", va="bottom")
    ax.set_ylim(0, 0.9)
    finish(ax, runs, "logistic loss (nat)")
    # Random weights start with a loss beyond what is of interest; below it is what is learned.
    ax.legend(framealpha=0.7, loc="lower left", handlelength=1.6)
    return ax


def plot_accuracies(runs: Runs, ax: Axes) -> Axes:
    """Sign accuracies, and how well the best threshold on N_V would do."""
    band(ax, runs, "accuracy_P", P, "P, sign")
    band(ax, runs, "accuracy_Q", Q, "Q, sign")
    band(ax, runs, "best_accuracy_Q", BEST, "Q, best threshold")
    band(ax, runs, "auc_Q", AUC, "Q, AUC", "--")
    ax.axhline(0.75, color="grey", lw=0.8)
    # The legend lies below chance, where no curve is.
    ax.set_ylim(0.2, 1.03)
    finish(ax, runs, "accuracy, AUC")
    ax.legend(framealpha=0.7, loc="lower right", ncols=2, columnspacing=1, handlelength=1.6)
    return ax


def plot_traces(runs: Runs, predictions: Predictions, ax: Axes) -> Axes:
    """Traces of the signal weights, with a and b."""
    band(ax, runs, "W_trace", P, r"Tr $\overline{W}$")
    band(ax, runs, "V_trace", Q, r"|Tr $\overline{V}$|")
    lines(ax, runs, predictions, ("W_trace", "V_trace"))
    return finish(ax, runs, "trace of the signal")


def plot_norms(runs: Runs, predictions: Predictions, ax: Axes) -> Axes:
    """Frobenius norms of the weights and of their signal and noise parts."""
    for block, place in (("W", P), ("V", Q)):
        band(ax, runs, f"{block}_norm", place, rf"$\|{block}\|_F$")
        for part, style, name in (("signal", "--", "overline"), ("noise", ":", "widetilde")):
            how = {"color": drawing.colour(place), "ls": style, "lw": 2.5}
            how["label"] = rf"$\|\{name}{{{block}}}\|_F$"
            ax.plot(runs.eta_time[1:], runs.mean(f"{block}_{part}_norm")[1:], **how)
    lines(ax, runs, predictions, ("W_norm", "V_norm"))
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    ax.yaxis.set_minor_formatter("{x:g}")
    return finish(ax, runs, "Frobenius norm")


def draw_comparison(result: Compared) -> Figure:
    """Losses, accuracies, traces and norms."""
    runs = result.runs
    figure, axes = drawing.panels(2, 2, width=4.6, height=3.9)
    key(figure, tuple(result.predictions))
    coupled = settings(runs.training)[0].coupling > 0
    plot_losses(runs, result.predictions, ax=axes[0, 0], joint=coupled)
    plot_accuracies(runs, ax=axes[0, 1])
    plot_traces(runs, result.predictions, ax=axes[1, 0])
    plot_norms(runs, result.predictions, ax=axes[1, 1])
    figure.suptitle(f"{count(runs.count, 'run')}: mean (wide lines) ± sd\n{about(runs.training)}")
    return figure
