"""The sweeps behind figures: checked first, then run or resumed."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import xarray as xr

from sweeps.runner.run import run as run_sweep
from sweeps.runner.spec import Sweep, load
from sweeps.studies.options import begin, queries


class Study(Protocol):
    """Settings of a figure that is made of sweeps, by the folder of `out` that keeps each."""

    @property
    def out(self) -> Path: ...
    def sweeps(self) -> dict[str, Sweep]: ...


def computed(config: Study) -> dict[str, xr.Dataset]:
    """Run or resume the sweeps of a figure, each in the folder of its name, once all are checked.

    Raises:
        ValueError: naming the setting, its value and what is allowed, before anything runs.
    """
    begin(config)
    wanted = config.sweeps()
    for each in wanted.values():
        each.check()
    return {name: run_sweep(each, config.out / name).load() for name, each in wanted.items()}


def by_theory(sweep: Sweep, engine: str) -> Sweep:
    """The same runs by a theory that knows no seeds."""
    axes = {axis: values for axis, values in sweep.axes.items() if axis != "seed"}
    return dataclasses.replace(sweep, axes=axes, engine=engine)


def fig6(num_queries: Sequence[str], seeds: int) -> Sweep:
    """The built-in sweep of Fig. 6 over so many seeds, at `num_queries` as `queries` takes them."""
    numbers = f"axes.num_queries = {queries(num_queries)}"
    return load("fig6", [numbers, f"axes.seed = {{ range = {seeds} }}"])
