"""Maps over the plane of learning rates: exact descent, training, and adaptive theory solves."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import sweeps
from sweeps.runner import tiles
from sweeps.runner.spec import Sweep
from sweeps.systems.experiment import experiment
from tests.benchmarks.timing import cold_and_warm

TRAINING = experiment(momentum=0.9, steps=100)
RECORD = ("loss", "entropy", "speed")


def report() -> Iterator[str]:
    """Yield the times of descents with T and batch infinite, of trainings, and of adaptive solves
    of the momentum flow to t = 1000, in sorted buckets and in one batch."""
    took = warm(functools.partial(descent, 1024))
    yield (
        f"symmetric descent, Syn-Small, 100 steps, 1024 x 1024: {took:.1f} s warm, "
        f"{2**20 / took:.0f} runs/s"
    )
    took = warm(functools.partial(training, 64))
    yield (
        f"training, Syn-Small, T = 128, batch 128, 100 steps, 64 x 64 x 4 seeds: {took:.1f} s "
        f"warm, {4 * 64**2 / took:.0f} runs/s"
    )
    took = warm(functools.partial(flow, 64))
    yield f"momentum flow, reduced, t = 1000, 64 x 64: {took:.2f} s warm in sorted buckets"
    batch = warm(
        functools.partial(flow, 64), chunk=64 * 64, tile=64 * 64 // len(tiles.mesh().devices)
    )
    yield f"  one batch per device: {batch:.2f} s, {batch / took:.1f} times as long"


def descent(side: int, shift: float) -> Sweep:
    return Sweep(TRAINING, plane(side, shift), "symmetric-descent", RECORD)


def training(side: int, shift: float) -> Sweep:
    return Sweep(TRAINING, plane(side, shift, 4), record=RECORD)


def flow(side: int, shift: float) -> Sweep:
    return Sweep(TRAINING.at({"steps": 1000}), plane(side, shift), "symmetric", ("entropy",))


def plane(resolution: int, shift: float, seeds: int = 0) -> dict[str, Any]:
    values = {"logspace": [0.01 * shift, 100 * shift, resolution]}
    return {"eta_y": values, "eta_z": values} | ({"seed": {"range": seeds}} if seeds else {})


def warm(build: Callable[[float], Sweep], **options: Any) -> float:
    return cold_and_warm(lambda shift: sweeps.run(build(shift), **options))[1]
