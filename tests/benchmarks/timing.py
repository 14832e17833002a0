"""Wall and CPU time."""

import statistics
import time
from collections.abc import Callable, Sequence


def seconds(work: Callable[[], object]) -> float:
    return cost(work)[0]


def cost(work: Callable[[], object]) -> list[float]:
    """Wall and CPU seconds of `work`."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return [time.perf_counter() - wall, time.process_time() - cpu]


def medians(costs: Sequence[list[float]]) -> list[float]:
    return [statistics.median(each) for each in zip(*costs, strict=True)]


def cold_and_warm(work: Callable[[float], object], other: float = 1.1) -> tuple[float, float]:
    """Wall times of `work` at 1, which compiles, and at an `other` value, which does not."""
    return seconds(lambda: work(1.0)), seconds(lambda: work(other))
