"""What every training requires of its rule, and of the times at which it records."""

from typing import Any

import numpy as np

from dynsim import checks
from dynsim.training.course import Checkpoint
from dynsim.training.recording import RELATIVE_LOSS, Recording
from dynsim.trajectory import Times, log_times


def checked_times(
    times: Times | None, steps: int | None, record: Recording, checkpoint: Checkpoint | None = None
) -> Times:
    """The steps at which a run of `steps` steps records, `log_times(steps)` if None are given; of
    one that goes on from a checkpoint, those after it. Without `steps` the last one is the end.

    Raises:
        ValueError: as `check_step_times`; for `steps` or `times` that do not lie after the
            checkpoint; and where `record` has the relative loss, which is known at the end alone,
            and `times` leave out the end, or the run is to go on.
    """
    begin = 0 if checkpoint is None else checkpoint.step
    if steps is None:
        traced = times is None or checks.is_traced(times)
        steps = 0 if traced else int(np.max(np.asarray(times), initial=0))
    if checkpoint is not None and steps <= begin:
        raise ValueError(f"steps = {steps}: must be larger than step {begin} of the checkpoint")
    if times is None:
        times = log_times(steps)
        times = times[times > begin] if begin else times
    check_step_times(times, steps)
    if begin and not checks.is_traced(times) and np.asarray(times)[0] <= begin:
        raise ValueError(f"times = {times!r}: must be after step {begin} of the checkpoint")
    if record.relative and checkpoint is not None:
        raise ValueError(
            f"record = {RELATIVE_LOSS!r}: is measured over the last steps of a run, which "
            "change when the run resumes; omit it or the checkpoint"
        )
    if record.relative and not checks.is_traced(times) and np.asarray(times)[-1] != steps:
        raise ValueError(
            f"record = {RELATIVE_LOSS!r}: is known at the end of a run, so times must include "
            f"steps = {steps}; they end at {np.asarray(times)[-1]}"
        )
    return times


def whole_steps(times: Times) -> tuple[int, ...]:
    """Concrete times as integers, for what has to know its steps when it is traced.

    Raises:
        ValueError: for traced times, and unless they are whole steps that increase from >= 0.
    """
    if checks.is_traced(times):
        raise ValueError("times: must be concrete, because they determine the computation")
    steps = np.asarray(times)
    check_step_times(times, int(steps[-1]) if steps.ndim == 1 and steps.size else 0)
    return tuple(int(step) for step in steps)


def check_step_times(times: Times, steps: int) -> None:
    """Raise `ValueError` unless `times` are whole steps that increase within [0, steps]."""
    if checks.is_traced(times):
        return
    array = np.asarray(times)
    if array.ndim != 1 or array.size == 0 or not (array == np.floor(array)).all():
        raise ValueError(f"times = {times!r}: must be a non-empty list of whole steps")
    if array[0] < 0 or array[-1] > steps or (np.diff(array) <= 0).any():
        raise ValueError(f"times = {times!r}: must increase within [0, steps = {steps}]")


def check_rule(rule: Any, steps: int, resumable: bool) -> None:
    """Raise `ValueError` for a schedule that ends after the run, unless that can be resumed."""
    for group, each in rule.schedules.items():
        length = each.length
        if resumable or checks.is_traced(length) or np.max(length) <= steps:
            continue
        name = f"eta[{group!r}]" if group else "eta"
        raise ValueError(
            f"{name}: its schedule has {np.max(length):g} steps, but the run has steps = {steps}; "
            "shorten it, or set checkpoint = True for a run that is to be resumed"
        )
