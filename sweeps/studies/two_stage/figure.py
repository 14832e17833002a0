"""The two stages in six panels: theory on top of training, the controls, the joint loss."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dynsim.decoding import Count
from dynsim.two_stage.annealing import Control
from sweeps import output
from sweeps.output import drawing
from sweeps.runner.progress import count
from sweeps.runner.run import run as computed
from sweeps.studies.computing import begin
from sweeps.studies.two_stage import claims, panels
from sweeps.studies.two_stage import theory as two_stage_theory
from sweeps.studies.two_stage.experiment import runs
from sweeps.studies.two_stage.runs import Runs, Times, settings
from sweeps.systems.experiment import Experiment, experiment

CONTROLS: dict[Control, int] = {
    "forever": 0,
    "small": 2,
    "smallinit": 3,
}
"""Places of their colours."""


@dataclasses.dataclass(frozen=True)
class FigureTwoStage:
    """Two-stage training against the reduced ODE, its controls, and the claims one by one.

    Attributes:
        run: what is trained in two stages, and as the controls say.
        seeds: number of runs of it, and of two_stage-joint.
        control_seeds: number of runs of each control.
        times: number of times to record, a third of them in the first stage.
        out: directory for the picture, two_stage.npz, .json with the claims, and the stored sweeps,
            which resume.
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
    predicted = {name: computed(two_stage_theory.ode(r)) for name, r in found.items()}
    verdicts = claims.tested(found, predicted)
    for title, tested_claims in verdicts.items():
        print(f"{title}: {count(found[title].count, 'run')}\n{claims.table(tested_claims)}\n")
    arrays = {name: {**r.values, "time": r.eta_time} for name, r in found.items()}
    for name, theory in predicted.items():
        arrays |= {f"{name}/ode/{o}": theory[o].values[0] for o in two_stage_theory.RECORD}
    report = {name: claims.as_records(found) for name, found in verdicts.items()}
    figure = draw(found, predicted)
    return output.write(config.out, "two_stage", figure=figure, arrays=arrays, report=report)


def draw(
    found: Mapping[str, Runs],
    predicted: Mapping[str, xr.Dataset],
) -> Figure:
    """Six panels, of experiments by name and what the reduced ODE says of each."""
    figure, axes = drawing.panels(2, 3, height=3.8)
    panels.key(figure, ("ode",))
    main, theory = found["preset"], {"ode": predicted["preset"]}
    panels.plot_losses(main, theory, ax=axes[0, 0]).set_title("component losses")
    panels.plot_accuracies(main, ax=axes[0, 1]).set_title("accuracies")
    panels.plot_traces(main, theory, ax=axes[0, 2]).set_title("traces of the signal")
    panels.plot_norms(main, theory, ax=axes[1, 0]).set_title("norms")
    plot_controls(found, predicted, ax=axes[1, 1]).set_title("$K^2$ of the controls")
    panels.plot_losses(found["joint"], {"ode": predicted["joint"]}, ax=axes[1, 2], joint=True)
    joint = settings(found["joint"].training)[0]
    axes[1, 2].set_title(f"joint loss: r = {joint.r:g}, c = {joint.coupling:g}")
    figure.suptitle(
        f"{main.training.about}, {count(main.count, 'run')}: mean (wide lines) ± sd\n"
        f"{panels.about(main.training)}",
        fontsize="medium",
    )
    return figure


def plot_controls(
    found: Mapping[str, Runs],
    predicted: Mapping[str, xr.Dataset],
    ax: Axes,
) -> Axes:
    """K2 with the two-stage schedule and with each control, the reduced ODE dashed."""
    for name, place in {"preset": panels.Q, **CONTROLS}.items():
        label = "two stages" if name == "preset" else name
        panels.band(ax, found[name], "K2", place, label)
        theory = two_stage_theory.mean(predicted[name], "K2")
        ax.plot(found[name].eta_time[1:], theory[1:], color=drawing.colour(place), lw=1.3)
    ax.set_ylim(0.3, 0.9)
    return panels.finish(ax, found["preset"], "$K^2$ (nat)")
