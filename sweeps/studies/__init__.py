"""Figures and tables that each answer one question, and functions to run the sweeps behind them."""

import dataclasses
from pathlib import Path
from typing import Protocol

import xarray as xr

from dynsim import Task, checks
from sweeps.runner.run import run as run_sweep
from sweeps.runner.spec import Sweep
from sweeps.studies.options import begin, unreduced


class Study(Protocol):
    """Settings of a figure made from sweeps. `sweeps` returns them by the name of their folder in
    `out`."""

    @property
    def out(self) -> Path: ...
    def sweeps(self) -> dict[str, Sweep]: ...


def computed(config: Study) -> dict[str, xr.Dataset]:
    """Run or resume the sweeps of a figure, each in its own folder, after checking all of them.

    Raises:
        ValueError: naming the setting, its value and what is allowed, before anything runs.
    """
    begin(config)
    wanted = config.sweeps()
    for each in wanted.values():
        each.check()
    return {name: run_sweep(each, config.out / name).load() for name, each in wanted.items()}


def by_theory(sweep: Sweep, theory: str) -> Sweep:
    """Return the same runs without their seeds, computed by a deterministic theory."""
    axes = {axis: values for axis, values in sweep.axes.items() if axis != "seed"}
    return dataclasses.replace(sweep, axes=axes, theory=theory)


def on_task(sweep: Sweep, task: Task | None) -> Sweep:
    """Return the sweep on `task`, or unchanged for None; `ValueError` for anything else."""
    if task is None:
        return sweep
    checks.kind("task", task, Task)
    return unreduced(dataclasses.replace(sweep, run=sweep.first.at({"task": task})))
