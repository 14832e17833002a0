"""Families of runs for the collapse of transition times.

They vary what Theorem 1 describes, the numbers of classes and tokens and the rate of Y, and what it
neglects: overlap, momentum, batch and length.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import dynsim
import sweeps
from papers.scan_and_snap import peaks

HORIZON = 2.5
"""Steps of a run relative to the predicted peak at the smallest rate, to include late peaks."""
RATIO = 100
"""eta_Y / eta_Z: attention hardly moves before the decoder's peak (Assumption 1c)."""
RATES = (0.2, 0.5, 1.2, 3.0)
"""Effective eta_Y / (1 - mu)."""


@dataclasses.dataclass(frozen=True)
class Family:
    """Runs that vary the same settings: its title, the run, axes besides rates and seeds, the label
    of a line by the values of these, and the axes that vary K and M, which vary together."""

    title: str
    run: Mapping[str, Any]
    axes: Mapping[str, tuple[float, ...]]
    label: str
    sizes: tuple[str, ...] = ()


# With one class per query there are as many queries as classes.
_ONE_COMMON = {"task": "syn", "classes_per_query": 1, "num_common": 1, "batch": 128, "length": 512}
FAMILIES = {
    "size": Family(
        "classes and vocabulary",
        _ONE_COMMON,
        {"num_queries": (2, 3, 5, 10, 20), "M": (500, 40, 100, 150, 250)},
        "K = {num_queries:g}, M = {M:g}",
        ("num_queries", "M"),
    ),
    "overlap": Family(
        "overlap (K = 5, M = 30)",
        {"task": "overlapping", "K": 5, "batch": 128, "length": 512},
        {"overlap": (0.0, 0.1, 0.3, 0.6)},
        r"$f_n \cdot f_{{n'}}$ = {overlap:g}",
    ),
    "momentum": Family(
        "momentum 0.9 (M = 100)",
        {**_ONE_COMMON, "M": 100, "momentum": 0.9},
        {"num_queries": (2, 5, 8)},
        "K = {num_queries:g}",
        ("num_queries",),
    ),
    "sampling": Family(
        "batch and length (K = 5, M = 100)",
        {**_ONE_COMMON, "num_queries": 5, "M": 100},
        {"batch": (8, 128), "length": (16, 512)},
        "batch {batch:g}, T = {length:g}",
    ),
}


def of_task(task: dynsim.Task) -> Family:
    """Vary batch and sequence length on your own classes."""
    name = sweeps.experiment(task=task).about.partition(": ")[2]
    title = f"batch and length ({name})"
    return dataclasses.replace(FAMILIES["sampling"], title=title, run={"task": task})


def of_family(family: Family, seeds: int) -> dict[str, sweeps.Sweep]:
    """Training, and the exact flow and descent at infinite T and batch."""
    rates = [rate * (1 - family.run.get("momentum", 0)) for rate in RATES]  # to effective ones
    values = zip(*(family.axes[name] for name in family.sizes), strict=True)
    points = [dict(zip(family.sizes, each, strict=True)) for each in values] or [{}]
    slowest = [sweeps.experiment(**{**family.run, **each, "eta_y": rates[0]}) for each in points]
    steps = [math.ceil(HORIZON * peaks.predicted(run)) for run in slowest]
    # Runs of one size have the same number of steps.
    axes: dict[str, Any] = dict(family.axes)
    run = sweeps.experiment(**family.run, steps=steps[0])
    groups: list[tuple[str, ...]] = [("eta_y", "eta_z")]
    if family.sizes:
        axes["steps"] = steps
        groups.append((*family.sizes, "steps"))
    axes |= {"eta_y": rates, "eta_z": [rate / RATIO for rate in rates]}
    infinite = {name: each for name, each in axes.items() if name not in ("batch", "length")}
    double = run.at({"dtype": "float64"})
    options: dict[str, Any] = {"record": ("speed",), "times": 60, "zip": groups}
    plan = {"simulation": sweeps.Sweep(run, {**axes, "seed": {"range": seeds}}, **options)}
    for name, theory in peaks.exact(run).items():
        plan[name] = sweeps.Sweep(double, infinite, theory=theory, **options)
    return plan
