"""Measure speed, as ratios within one run, or robustness:

python -m tests.benchmarks fig6 --check
"""

import argparse
import importlib
import importlib.util
from pathlib import Path
from typing import Any

from sweeps import cli

WHAT = {
    "waits": "what a user waits for: commands, sweeps and theories, each in a fresh process",
    "fig6": "the 640 trainings of Fig. 6 against a PyTorch loop and a loop over jitted runs",
    "maps": "1024 x 1024 exact descents, 64 x 64 trainings, 64 x 64 adaptive solves of theory",
    "theories": "theories for large rates, Adam and late times, next to those that they extend",
    "two_stage": "trainings of the default preset against a PyTorch loop and against what the "
    "memory can move, its reduced ODE, a diagram of 625 of them",
    "linear_icl": "1e5 trainings at once, against a PyTorch loop over one",
    "online": "online regression and a committee machine against StatPhys-ML",
    "mlp": "256 trainings of a small network against a vmapped loop with optax",
    "scaling": "runs per second and memory from 1e2 to 1e5 runs",
    "sharpness": "its error, and the cost of recording it",
    "kills": "20 SIGKILLs of a running sweep, each resumed",
    "workers": "sweeps shared by Dask workers, some of which are killed or slow",
}
WITH_TORCH = ("fig6", "two_stage", "linear_icl")


def main() -> None:
    """Print each line of a benchmark as soon as it is available."""
    listed = "\n".join(f"  {name:<12}{about}" for name, about in WHAT.items())
    parser = argparse.ArgumentParser(
        "python -m tests.benchmarks",
        description=f"Measure speed, as ratios within one run, or robustness.\n\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=WHAT)
    parser.add_argument(
        "--check",
        action="store_true",
        help="fig6: also compare the PyTorch loop with the published table (a minute more); "
        "two_stage: with the table of claims (ten minutes more); linear_icl: the final losses",
    )
    parser.add_argument("--old", type=Path, help="waits: another checkout, measured in turns")
    parser.add_argument("--repeat", type=int, default=3, help="waits: processes of each")
    parser.add_argument("--profile", action="store_true", help="waits: two commands by kinds")
    parser.add_argument("--only", nargs="+", default=(), help="waits: rows, by how they begin")
    asked = parser.parse_args()
    # Before the import of libraries that read this environment.
    cli.set_environment()
    from sweeps.runner import cluster

    cluster.use_all_cores()
    if asked.what == "online" and importlib.util.find_spec("statphys") is None:
        print("online: skipped; StatPhys-ML is not installed (tests/benchmarks/online.py says how)")
        return
    if asked.what in WITH_TORCH and importlib.util.find_spec("torch") is None:
        parser.error(f"{asked.what}: compares with PyTorch; make bench installs it")
    options: dict[str, Any] = {"check": asked.check} if asked.what in WITH_TORCH else {}
    if asked.what == "waits":
        options = {"old": asked.old, "repeat": asked.repeat, "only": tuple(asked.only)}
        options["profile"] = asked.profile
    benchmark = importlib.import_module(f"tests.benchmarks.{asked.what}")
    for line in benchmark.report(**options):
        print(line, flush=True)


if __name__ == "__main__":
    main()
