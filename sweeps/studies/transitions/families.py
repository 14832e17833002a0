"""The families of runs of `dynsim figure collapse`: each leaves one assumption of Theorem 1."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dynsim import Task
from sweeps.language.tree import encode
from sweeps.runner.spec import Sweep
from sweeps.studies.options import unreduced
from sweeps.studies.transitions.peaks import over_points, predicted_peak
from sweeps.systems.experiment import about, experiment
from sweeps.systems.kinds import language

HORIZON = 2.5
"""Steps of a run over the predicted peak at the smallest rate: room for a peak that is late."""
RATIO = 100
"""eta_Y / eta_Z: the attention hardly moves before the decoder's peak (Assumption 1c)."""
RATES = (0.2, 0.5, 1.2, 3.0)
"""Effective eta_Y / (1 - mu)."""
NUM_TIMES = 60


class Family(NamedTuple):
    """Runs that share what they vary.

    Attributes:
        title: title of its panel.
        run: settings of a run.
        axes: its axes besides eta_Y, eta_Z and seeds.
        zipped: axes among them that vary together.
        label: label of a line, formatted with the values of the axes.
    """

    title: str
    run: Mapping[str, Any]
    axes: Mapping[str, tuple[float, ...]]
    label: str
    zipped: tuple[str, ...] = ()


# With one class per query there are as many queries as classes.
_ONE_COMMON = {"task": "syn", "classes_per_query": 1, "num_common": 1, "batch": 128, "length": 512}
FAMILIES = {
    "size": Family(
        "classes and vocabulary",
        _ONE_COMMON,
        {"num_queries": (2, 3, 5, 10, 20), "M": (500, 40, 100, 150, 250)},
        "K = {num_queries:g}, M = {M:g}",
        zipped=("num_queries", "M"),
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
    ),
    "sampling": Family(
        "batch and length (K = 5, M = 100)",
        {**_ONE_COMMON, "num_queries": 5, "M": 100},
        {"batch": (8, 128), "length": (16, 512)},
        "batch {batch:g}, T = {length:g}",
    ),
}
ENGINES = ("simulation", "symmetric", "symmetric-descent")
LIMIT = ("batch", "length")
"""Axes that are infinite to the symmetric engines."""


def of_task(task: Task) -> Family:
    """Batch and length of the sequences of a task."""
    sampled, title = FAMILIES["sampling"], about(encode(language(), task))
    return sampled._replace(title=f"batch and length ({title})", run={"task": task})


def variants(family: Family, seeds: int) -> dict[str, Sweep]:
    """The sweeps of a family: training, and by both symmetric engines T and batch infinite."""
    rates = tuple(rate * (1 - family.run.get("momentum", 0)) for rate in RATES)
    rate_axes = {"eta_y": rates, "eta_z": tuple(rate / RATIO for rate in rates)}
    zipped = (("eta_y", "eta_z"),)
    # The runs of one size share their steps; sizes that vary together have their own.
    probe = Sweep(
        experiment(**family.run),
        {**family.axes, **rate_axes},
        zip=(*zipped, family.zipped) if family.zipped else zipped,
    )
    latest = over_points(probe, predicted_peak).max("eta_y")
    by_size = [dim for dim in latest.dims if dim in ("num_queries", "M")]
    latest = latest.max([dim for dim in latest.dims if dim not in by_size])
    steps = np.ceil(HORIZON * latest.values).astype(int)
    run, axes = dict(family.run), dict(family.axes)
    if by_size:
        axes["steps"] = tuple(steps.tolist())
        zipped = (*zipped, (*(family.zipped or by_size), "steps"))
    else:
        run["steps"] = int(steps)
    simulation = Sweep(
        experiment(**run),
        {**axes, **rate_axes, "seed": {"range": seeds}},
        record=("speed",),
        times=NUM_TIMES,
        zip=zipped,
    )
    exact = {field: values for field, values in axes.items() if field not in LIMIT}
    run["dtype"] = "float64"
    return {"simulation": simulation} | {
        engine: unreduced(
            dataclasses.replace(
                simulation, axes={**exact, **rate_axes}, run=experiment(**run), engine=engine
            )
        )
        for engine in ENGINES[1:]
    }
