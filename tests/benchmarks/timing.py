"""Wall time."""

import time
from collections.abc import Callable


def seconds(work: Callable[[], object]) -> float:
    """Wall time of `work`."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def cold_and_warm(work: Callable[[float], object], other: float = 1.1) -> tuple[float, float]:
    """Wall times of `work` at 1, which compiles, and at an `other` value, which does not."""
    return seconds(lambda: work(1.0)), seconds(lambda: work(other))
