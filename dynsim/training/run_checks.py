"""What `simulate` and the theories require of times, starting weights and recorded data."""

import math

import numpy as np
from jaxtyping import ArrayLike, Int

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.yz import model as yz


def checked_sizes(
    steps: int, length: int | float, batch: int | float, *, sampled: bool
) -> tuple[int, int | float, int | float]:
    """Steps, sequence length and batch of a run; raises `ValueError` for what cannot be, such as
    an infinite batch `sampled` from finite sequences."""
    steps = checks.integer("steps", steps, 1)
    length = checks.count_or_inf("length", length, 2)
    batch = checks.count_or_inf("batch", batch, 1)
    if math.isinf(batch) and not math.isinf(length) and sampled:
        raise ValueError(
            f"batch = inf, length = {length}: an infinite batch needs length = inf as well"
        )
    return steps, length, batch


def check_step_times(times: Int[ArrayLike, " S"], steps: int) -> None:
    """Raise `ValueError` unless `times` are whole steps that increase within [0, steps]."""
    if checks.is_traced(times):
        return
    array = np.asarray(times)
    if array.ndim != 1 or array.size == 0 or not (array == np.floor(array)).all():
        raise ValueError(f"times = {times!r}: must be a non-empty list of whole steps")
    if array[0] < 0 or array[-1] > steps or (np.diff(array) <= 0).any():
        raise ValueError(f"times = {times!r}: must increase within [0, steps = {steps}]")


def check_weights(weights: yz.YZ | None, task: SequenceClasses) -> None:
    """Raise `ValueError` unless starting `weights`, if given, have the shapes of `task`."""
    if weights is None:
        return
    want = {"Y": (task.M, task.M), "Z": (task.num_queries, task.M)}
    for name, shape in want.items():
        got = np.shape(getattr(weights, name))
        if got != shape:
            raise ValueError(f"init.{name}: must have shape {shape} for this task, got {got}")


def check_data(data: yz.Examples | None, task: SequenceClasses, steps: int) -> None:
    """Raise `ValueError` unless recorded `data`, if given, hold `steps` batches of `task`."""
    if data is None:
        return
    shape = np.shape(data.counts)
    if len(shape) != 3 or shape[0] != steps or shape[2] != task.M:
        raise ValueError(
            f"data.counts: must have shape (steps = {steps}, E, M = {task.M}), got {shape}"
        )
    for name in ("classes", "weight"):
        if np.shape(getattr(data, name)) != shape[:2]:
            got = np.shape(getattr(data, name))
            raise ValueError(
                f"data.{name}: must have shape {shape[:2]} like data.counts, got {got}"
            )
