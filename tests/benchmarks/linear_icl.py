"""In-context regression: 1e5 training runs at once, and a single one in a PyTorch loop."""

import functools
import math
from collections.abc import Iterator

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  (comes with the extra bench)

import dynsim
import sweeps
from sweeps.runner.spec import Sweep
from sweeps.systems.experiment import Experiment, experiment
from tests.benchmarks.peers.torch_linear_icl import trained
from tests.benchmarks.timing import cold_and_warm, seconds

POINTS, SEEDS, STEPS = 10_000, 10, 2000
FIXED = 5000
"""Sequences of the training set, as in the official code for merged attention."""
LOOP = (20, 120)
"""Steps of two runs of the PyTorch loop; the difference of their times is measured."""


def report(check: bool = False) -> Iterator[str]:
    """Yield the lines of the report."""
    on_fixed = experiment("linear_icl", steps=STEPS, batch=FIXED, data="fixed")
    for name, training in (
        ("population loss", experiment("linear_icl", steps=STEPS, batch=math.inf)),
        (f"{FIXED} fixed sequences", on_fixed),
    ):
        cold, warm = cold_and_warm(functools.partial(run, training))
        number = POINTS * SEEDS
        yield (
            f"{name}, D = 4, 5 heads, {number} runs of {STEPS} steps: {cold:.1f} s cold, "
            f"{warm:.1f} s warm, {number / warm:.0f} runs/s, {number * STEPS / warm / 1e6:.2f} "
            "million steps/s"
        )
    task = dynsim.Regression()
    loops = ((functools.partial(trained, task, seed, steps) for seed in range(3)) for steps in LOOP)
    few, many = (np.median([seconds(loop) for loop in same]) for same in loops)
    step = (many - few) / (LOOP[1] - LOOP[0])
    yield (
        f"PyTorch loop on {FIXED} fixed sequences, {torch.get_num_threads()} threads: "
        f"{1e3 * step:.2f} ms a step, {step * STEPS:.1f} s a run"
    )
    if check:
        found = run(on_fixed, 10, points=2)
        theirs = trained(task, 0, STEPS, scale=0.3)
        yield f"batch loss at the end: {found:.4f}; PyTorch {theirs:.4f}"


def run(training: Experiment, shift: float, points: int = POINTS) -> float:
    axes = {
        "scale": {"logspace": [0.02 * shift, 0.05 * shift, points]},
        "seed": {"range": SEEDS},
    }
    found = sweeps.run(Sweep(training, axes, "simulation", ("loss", "stage", "batch_loss"))).load()
    return float(found["batch_loss"].mean())
