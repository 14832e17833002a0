"""Runs per second and peak memory as a sweep grows from 1e2 to 1e5 runs."""

import functools
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

import sweeps
from sweeps.runner.spec import Sweep
from sweeps.systems.experiment import Experiment, experiment
from tests.benchmarks.timing import seconds

SIZES = (100, 1_000, 10_000, 100_000)


def report() -> Iterator[str]:
    """Yield a line for each size, in increasing order because a process's peak memory never falls:
    if it equals that of the line before, the larger sweep needed no more memory."""
    training = experiment(steps=20, length=32, batch=32, start="uniform", momentum=0.9)
    yield "Syn-Small, 20 steps, T = 32, batch 32, ten seeds at each learning rate, stored on disk"
    yield f"{'runs':>8} {'seconds':>9} {'runs/s':>9} {'peak MiB':>9}"
    with tempfile.TemporaryDirectory() as folder:
        sweeps.run(sized(SIZES[0], training, root=1))  # compiles what all sizes share
        for runs in SIZES:
            out = Path(folder) / str(runs)
            took = seconds(functools.partial(sweeps.run, sized(runs, training), out))
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            yield f"{runs:>8} {took:>9.2f} {runs / took:>9.0f} {peak:>9.0f}"


def sized(runs: int, training: Experiment, root: int = 0) -> Sweep:
    axes = {"eta_y": {"logspace": [0.1, 10, runs // 10]}, "seed": {"range": 10}}
    return Sweep(training, axes, record=("entropy", "loss"), root=root)
