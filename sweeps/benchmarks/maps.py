"""Maps over the plane of learning rates: exact descent, training, and adaptive theory solves."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import sweeps
from sweeps.benchmarks.timing import seconds
from sweeps.runner import tiles
from sweeps.runner.spec import Sweep
from sweeps.systems import registry

Training: Any = registry.system("yz").run

TRAINING = Training(momentum=0.9, steps=100)


def report() -> Iterator[str]:
    """Lines of the report; each map is computed twice, at different rates, and the second is
    quoted, because the first compiles."""
    yield from descent()
    yield from training()
    yield from theory()


def plane(resolution: int, shift: float, seeds: int = 0) -> dict:
    """Axes of a map, its rates scaled by `shift`."""
    values = {"logspace": [0.01 * shift, 100 * shift, resolution]}
    return {"eta_y": values, "eta_z": values} | ({"seed": {"range": seeds}} if seeds else {})


def warm(build: Callable[[float], Sweep], **options: int) -> float:
    """Seconds of the second of two maps, run with these options."""
    run = functools.partial(sweeps.run, **options)
    return [seconds(functools.partial(run, build(shift))) for shift in (1.0, 1.1)][1]


def descent() -> Iterator[str]:
    """1024 x 1024 descents with T and batch infinite."""

    def build(shift: float) -> Sweep:
        record = ("loss", "entropy", "speed")
        return Sweep(plane(1024, shift), TRAINING, "symmetric-descent", record)

    took = warm(build)
    yield (
        f"symmetric descent, Syn-Small, 100 steps, 1024 x 1024: {took:.1f} s warm, "
        f"{2**20 / took:.0f} runs/s"
    )


def training() -> Iterator[str]:
    """64 x 64 x 4 trainings."""

    def build(shift: float) -> Sweep:
        return Sweep(plane(64, shift, 4), TRAINING, record=("loss", "entropy", "speed"))

    took = warm(build)
    yield (
        f"training, Syn-Small, T = 128, batch 128, 100 steps, 64 x 64 x 4 seeds: {took:.1f} s "
        f"warm, {4 * 64**2 / took:.0f} runs/s"
    )


def theory() -> Iterator[str]:
    """64 x 64 adaptive solves of the momentum flow to t = 1000: in sorted buckets, and all in one
    batch."""

    def build(shift: float) -> Sweep:
        training = Training(momentum=0.9, steps=1000)
        return Sweep(plane(64, shift), training, "symmetric", ("entropy",))

    took = warm(build)
    yield f"momentum flow, reduced, t = 1000, 64 x 64: {took:.2f} s warm in sorted buckets"
    batch = warm(build, chunk=64 * 64, tile=64 * 64 // len(tiles.mesh().devices))
    yield f"  one batch per device: {batch:.2f} s, {batch / took:.1f} times as long"
