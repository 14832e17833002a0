"""Wall time."""

import time
from collections.abc import Callable


def seconds(work: Callable[[], object]) -> float:
    """Wall time of `work`."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
