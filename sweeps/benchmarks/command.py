"""The command `dynsim bench`."""

import dataclasses
import importlib
from typing import Literal

import tyro

from sweeps.runner import hosts

What = Literal["fig6", "maps", "two_stage", "scaling", "kills"]


@dataclasses.dataclass(frozen=True)
class Bench:
    """Measure speed, as ratios within one run, or robustness.

    Attributes:
        what: fig6: the 640 trainings of Fig. 6 against a PyTorch loop and a loop over jitted runs;
            maps: 1024 x 1024 exact descents, 64 x 64 trainings, 64 x 64 adaptive solves of theory;
            two_stage: trainings of the default preset, its reduced ODE, a diagram of 625 of them;
            scaling: runs per second and memory from 1e2 to 1e5 runs; kills: 20 SIGKILLs of a
            running sweep, each resumed.
        check: for fig6: also compare the PyTorch loop with the published table (a minute more).
    """

    what: tyro.conf.Positional[What]
    check: bool = False


def run(config: Bench) -> None:
    """Run the benchmark, printing each line as soon as it is known."""
    hosts.use_all_cores()
    # PyTorch, which one of them compares with, need not be there for the others.
    benchmark = importlib.import_module(f"sweeps.benchmarks.{config.what}")
    options = {"check": config.check} if config.what == "fig6" else {}
    for line in benchmark.report(**options):
        print(line, flush=True)
