"""`dynsim compare` of any problem: "simulation" against every other engine that applies."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from dynsim import Trajectory, checks
from dynsim.training.recording import PRECONDITIONED, SHARPNESS
from dynsim.training.stability import check_threshold
from dynsim.trajectory import counts
from odes.central import THEORY
from odes.theory import refusal
from sweeps.compare import comparison, curves, edge
from sweeps.compare.settings import CompareOptions
from sweeps.output import drawing
from sweeps.runner import progress
from sweeps.runner.cluster import hosts
from sweeps.runner.run import run as run_sweep
from sweeps.runner.spec import Sweep
from sweeps.systems import registry
from sweeps.systems.base import Engine

TRAINING = "simulation"


@dataclasses.dataclass(frozen=True)
class Comparison(comparison.Comparison):
    """The outcome: trajectories with a leading axis of seeds, and the engines of the theories."""

    config: CompareOptions
    simulation: Trajectory
    predictions: dict[str, Trajectory]
    engines: Mapping[str, Engine]
    names: tuple[str, ...]

    def about(self, theory: str) -> tuple[str, str]:
        """Title of a theory and what it assumes."""
        return self.engines[theory].title or theory, self.engines[theory].assumes

    def facts(self) -> dict[str, Any]:
        """How the runs ended."""
        found = {"simulation": {"status": counts(self.simulation.status)}}
        return found | ({"edge": dataclasses.asdict(self.held)} if self.held else {})

    @property
    def held(self) -> edge.Held | None:
        """The edge of stability next to that of the central flow, where both are compared."""
        if THEORY.name not in self.predictions or PRECONDITIONED not in self.names:
            return None
        return edge.held(self.simulation, self.predictions[THEORY.name])


def compare(config: CompareOptions) -> Comparison:
    """Train `config.seeds` runs, and compute each theory from the same starts at the same times.

    Raises:
        ValueError: naming the setting, its value and what is allowed, before anything runs.
    """
    config.check()
    system, seeds = registry.system_of(config.run), {"seed": {"range": config.seeds}}
    engines = _applicable(config)
    measurable = registry.engines(system)[TRAINING].observables.names()
    # What takes a Hessian is compared for theories that are asked for by name, and for rules whose
    # stability is known.
    curved = config.theories and refusal(check_threshold, config.run.rule.build()) is None
    names = tuple(
        name
        for name in (measurable if engines else Sweep(config.run, seeds).names)
        if all(name in engine.observables.names() for engine in engines.values())
        and (curved or name not in (SHARPNESS, PRECONDITIONED))
    )
    if not names:
        raise ValueError(
            f"theories = {tuple(engines)}: none of what they predict is measured in training"
        )
    sweeps = {
        name: Sweep(config.run, seeds, name, names, config.times, root=config.root)
        for name in (TRAINING, *engines)
    }
    for sweep in sweeps.values():
        sweep.check()
    hosts.use_all_cores()
    found = {name: _trajectory(run_sweep(sweep), name, names) for name, sweep in sweeps.items()}
    simulation = found.pop(TRAINING)
    return Comparison(config, simulation, found, engines, names)


def run(config: CompareOptions) -> list[Path] | None:
    """Compare, write the files, and print the table, or the report as JSON."""
    result = compare(config)
    ended = comparison.counted(result.report["simulation"]["status"])
    about = [config.run.about, f"{progress.count(config.seeds, 'run')}: {ended}"]
    if not result.predictions:
        about.append("No theory describes this problem: training alone.")
    found = comparison.lines(result.report, result.names, about)
    text = "\n".join([*found, "", str(result.held)] if result.held else found)
    return comparison.deliver(result, draw(result), text)


def draw(result: Comparison) -> Figure:
    """A panel for each observable, averaged over its inner axes: mean and standard deviation of
    the runs, theories as lines on top."""
    columns = min(len(result.names), 3)
    rows = -(-len(result.names) // columns)
    figure, axes = drawing.panels(rows, columns)
    times = np.asarray(result.simulation.times)[0]
    for ax, name in zip(axes.flat, result.names, strict=False):
        runs = _curves(result.measured(name))
        predicted = lambda theory, name=name: comparison.average(  # noqa: E731
            _curves(result.predicted(theory, name))
        )
        mean, around = comparison.average(runs), comparison.spread(runs)
        curves.plot(result, times, mean, around, predicted, len(runs), ax=ax)
        ax.set_xscale("symlog", linthresh=1)
        drawing.finished(ax, xlabel="optimiser steps", ylabel=name)
    for ax in axes.flat[len(result.names) :]:
        ax.set_axis_off()
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _applicable(config: CompareOptions) -> dict[str, Engine]:
    """The engines of the theories that are asked for, or that describe the runs; none where the
    system has none."""
    system = registry.system_of(config.run)
    theories = {n: engine for n, engine in registry.engines(system).items() if not engine.trains}
    if not theories:
        if config.theories:
            raise ValueError(f"theories = {config.theories[0]!r}: {system.name} has none")
        return {}
    found, refused = comparison.judged(config.run)
    names = comparison.chosen(config.theories, tuple(found))
    if not names:
        why = next(iter(refused.values()))
        raise ValueError(
            f"theories = (): none of the system's theories describes these runs; {why}"
        )
    for name in names:
        theories[checks.choice("theories", name, tuple(theories))].check_run(config.run)
    return {name: theories[name] for name in names}


def _trajectory(dataset: xr.Dataset, source: str, names: tuple[str, ...]) -> Trajectory:
    """The runs of a sweep over seeds."""
    dataset = dataset.load()
    status = dataset["status"].values
    times = np.broadcast_to(dataset["time"].values, (len(status), dataset["time"].shape[-1]))
    observables = {name: dataset[name].values for name in names}
    first_bad = dataset["first_bad_step"].values
    return jax.tree.map(np.asarray, Trajectory(times, observables, None, status, first_bad, source))


def _curves(runs: np.ndarray) -> np.ndarray:
    return runs.reshape(*runs.shape[:2], -1).mean(-1)
