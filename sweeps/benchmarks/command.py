"""The command `dynsim bench`."""

import dataclasses
import importlib
import importlib.util
from pathlib import Path
from typing import Any, ClassVar, Literal

from sweeps.runner.cluster import hosts

What = Literal[
    "fig6",
    "maps",
    "theories",
    "two_stage",
    "linear_icl",
    "scaling",
    "sharpness",
    "kills",
    "workers",
    "device",
]
WITH_TORCH = ("fig6", "two_stage", "linear_icl")
MODULES = {"kills": "workers.kills", "workers": "workers.shared"}


@dataclasses.dataclass(frozen=True)
class Bench:
    """Measure speed, as ratios within one run, or robustness.

    Attributes:
        what: fig6: the 640 trainings of Fig. 6 against a PyTorch loop and a loop over jitted runs;
            maps: 1024 x 1024 exact descents, 64 x 64 trainings, 64 x 64 adaptive solves of theory;
            theories: seconds of those for large rates, Adam and late times, next to those that
            they extend;
            two_stage: trainings of the default preset against a PyTorch loop and against what the
            memory can move, its reduced ODE, a diagram of 625 of them;
            linear_icl: 1e5 trainings at once, against a PyTorch loop over one;
            scaling: runs per second and memory from 1e2 to 1e5 runs; sharpness: its error, and
            the cost of recording it; kills: 20 SIGKILLs of a
            running sweep, each resumed; workers: sweeps shared by Dask workers, some of which are
            killed or slow; device: what the devices of this machine compute correctly, and how
            fast, in one file.
        check: for fig6: also compare the PyTorch loop with the published table (a minute more); for
            two_stage: also with the table of claims (ten minutes more); for linear_icl: also the
            losses that both end with.
        small: for device: sizes for a CPU.
        out: for device: directory of device.json.
    """

    POSITIONAL: ClassVar = ("what",)

    what: What
    check: bool = False
    small: bool = False
    out: Path = Path("out/bench")


def run(config: Bench) -> None:
    """Run the benchmark, printing each line as soon as it is known."""
    hosts.use_all_cores()
    # PyTorch, which some of them compare with, need not be there for the others.
    compares = config.what in WITH_TORCH
    if compares and importlib.util.find_spec("torch") is None:
        raise ValueError(
            f"bench {config.what}: compares with PyTorch, which is not installed; make bench "
            "installs it"
        )
    name = MODULES.get(config.what, config.what)
    benchmark = importlib.import_module(f"sweeps.benchmarks.{name}")
    options: dict[str, Any] = {"check": config.check} if compares else {}
    if config.what == "device":
        options = {"small": config.small, "out": config.out}
    for line in benchmark.report(**options):
        print(line, flush=True)
