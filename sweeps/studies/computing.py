"""The sweeps behind figures: checked first, then run or resumed."""

import dataclasses
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Protocol

import xarray as xr

from dynsim import decoding
from sweeps import output
from sweeps.runner.cluster import hosts
from sweeps.runner.files import load
from sweeps.runner.run import run as run_sweep
from sweeps.runner.spec import Sweep
from sweeps.studies.options import queries


class Study(Protocol):
    """Settings of a figure that is made of sweeps, by the folder of `out` that keeps each."""

    @property
    def out(self) -> Path: ...
    def sweeps(self) -> dict[str, Sweep]: ...


def begin(config: Any) -> None:
    """Check the settings of a figure against their annotations, and `out`; then use all cores.

    Raises:
        ValueError: naming the setting, its value and what is allowed.
    """
    decoding.check(config)
    output.check_directory(config.out)
    hosts.use_all_cores()


def checked(config: Study) -> dict[str, Sweep]:
    """The sweeps of a figure, once all are checked."""
    wanted = config.sweeps()
    for each in wanted.values():
        each.check()
    return wanted


def computed(config: Study, executor: Executor | None = None) -> dict[str, xr.Dataset]:
    """Run or resume the sweeps of a figure, each in the folder of its name, once all are checked;
    by an executor's workers, if there is one.

    Raises:
        ValueError: naming the setting, its value and what is allowed, before anything runs.
    """
    begin(config)
    return {
        name: run_sweep(each, config.out / name, executor=executor).load()
        for name, each in checked(config).items()
    }


def by_theory(sweep: Sweep, engine: str) -> Sweep:
    """The same runs by a theory that knows no seeds."""
    axes = {axis: values for axis, values in sweep.axes.items() if axis != "seed"}
    return dataclasses.replace(sweep, axes=axes, engine=engine)


def fig6(num_queries: Sequence[str], seeds: int) -> Sweep:
    """The built-in sweep of Fig. 6 over so many seeds, at `num_queries` as `queries` takes them."""
    numbers = f"axes.num_queries = {queries(num_queries)}"
    return load("fig6", [numbers, f"axes.seed = {{ range = {seeds} }}"])
