"""Cost of the theories for large rates, Adam and late times, relative to those they extend."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

import dynsim
from odes import spread, symmetric
from tests.benchmarks.timing import seconds

STEPS, LENGTH, BATCH, DRAWS = 100, 128, 128, 256
RECORD = ["loss", "entropy", "z_top_distinct", "z_top_common"]


def report() -> Iterator[str]:
    for title, members in groups().items():
        yield f"{title}:"
        base = None
        for name, work in members.items():
            cold, warm = timed(work)
            base = base or warm
            yield f"  {name:<34} first {cold:6.2f} s, later {warm:7.4f} s, {warm / base:7.2f}"


def groups() -> dict[str, dict[str, Callable[[], Any]]]:
    """Return by title a theory and those that extend it."""
    task, key = dynsim.SynSmall().build(), jax.random.key(0)
    reduced = symmetric.symmetric_task(task)
    sgd, adam = dynsim.sgd(1.0, 0.1), dynsim.adam(0.01, 0.01)
    finite: dict[str, Any] = {"length": LENGTH, "record": RECORD}
    scatter = functools.partial(spread.solve, task, times=[STEPS], batch=BATCH, **finite)
    flow = functools.partial(symmetric.solve, reduced, times=[STEPS])
    descent = functools.partial(symmetric.descend, reduced, sgd, steps=STEPS, **finite)
    tie = functools.partial(symmetric.instability, reduced, sgd, steps=STEPS, length=LENGTH)
    huge = symmetric.symmetric_profiles(reduced.p, reduced.rho, 10**5, 10**6, 10**5)
    late = np.r_[0, np.geomspace(1, 1e8, 30)]
    return {
        "symmetric flow, SGD": {
            "flow at finite T": functools.partial(flow, sgd, **finite),
            "tails": functools.partial(flow, sgd, tails=True, **finite),
            "instability of ties": functools.partial(tie, batch=BATCH),
        },
        "symmetric flow, SGD, to t = 1e8": {
            "K = 1e5, M = 1e6": functools.partial(symmetric.solve, huge, dynsim.sgd(1.0, 1.0), late)
        },
        "symmetric flow, Adam": {
            "matched-adam": functools.partial(flow, adam, flow="matched-adam"),
            "corrected-adam": functools.partial(flow, adam, flow="corrected-adam"),
        },
        "symmetric descent, SGD": {
            "descent at finite T": descent,
            "tails": functools.partial(descent, tails=True),
            "noise of batches": functools.partial(descent, batch=BATCH, key=key),
        },
        "spread, SGD": {
            "linear noise": functools.partial(scatter, sgd),
            "tails": functools.partial(scatter, sgd, tails=True),
            "second order, 256 draws": functools.partial(scatter, sgd, draws=DRAWS, key=key),
        },
        "spread, Adam": {
            "linear noise": functools.partial(scatter, adam),
            "noise in the denominator": functools.partial(scatter, adam, squares=True),
        },
    }


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    again = lambda: jax.block_until_ready(work())
    return seconds(again), min(seconds(again) for _ in range(3))
