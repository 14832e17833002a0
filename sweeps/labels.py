"""Names, units and coordinates of what a sweep stores."""

from typing import Any

import numpy as np

from dynsim import Status
from dynsim.observables import RECALL_THRESHOLDS
from sweeps.spec import Sweep

MISSING = -1
"""Status of a run that has not been computed."""
ABOUT = {
    "eta_y": ("learning rate of Y", "1/step"),
    "eta_z": ("learning rate of Z", "1/step"),
    "ratio": ("eta_y / eta_z", "1"),
    "length": ("sequence length T", "tokens"),
    "steps": ("optimiser steps", "step"),
    "time": ("time", "step"),
    "first_bad_step": ("first step of the invalid end of a run, -1 if none", "step"),
    "loss": ("population cross entropy", "nat"),
    "batch_loss": ("cross entropy of the next batch", "nat"),
    "relative_loss": ("mean loss of the last 20 steps over that of the first", "1"),
    "entropy": ("entropy of attention on distinct tokens", "nat"),
}
"""Long name and unit of what has more to say than its own name."""
CLASS, TOKEN = ("class",), ("class", "token")
INNER_DIMS = {
    **dict.fromkeys(("z_top_distinct", "z_top_common", "speed", "xi", "B"), CLASS),
    **dict.fromkeys(("attention", "normalised_attention", "z"), TOKEN),
    "overlap": ("class", "other_class"),
    "recall": ("threshold",),
}
"""Names of the axes of an observable that is not a number."""


def coordinates(sweep: Sweep) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """Values of the axes, and of the recorded times, with the dimensions that they lie on."""
    found = {
        name: ((dim.name,), np.asarray(values))
        for dim in sweep.dims
        for name, values in dim.axes.items()
    }
    if "recall" in sweep.record:
        found["threshold"] = (("threshold",), RECALL_THRESHOLDS)
    steps = next((dim for dim in sweep.dims if "steps" in dim.axes), None)
    if steps is None:
        times = np.asarray(sweep.steps_recorded(sweep.run), np.float64)
        several = len(times) > 1
        found["time"] = (("time",), times) if several else ((), times[0])
    else:
        rows = [sweep.steps_recorded(sweep.training({"steps": n})) for n in steps.axes["steps"]]
        padded = np.full((len(rows), max(map(len, rows))), np.nan)
        for row, times in zip(padded, rows, strict=True):
            row[: len(times)] = times
        several = padded.shape[1] > 1
        found["time"] = (
            ((steps.name, "record"), padded) if several else ((steps.name,), padded[:, 0])
        )
    return found


def inner_dims(sweep: Sweep, name: str, ndim: int) -> tuple[str, ...]:
    """Names of the axes of a recorded array behind those of the sweep."""
    if name in ("status", "first_bad_step"):
        return ()
    front: tuple[str, ...] = ()
    if len(sweep.steps_recorded(sweep.run)) > 1:
        front = ("record",) if "steps" in sweep.fields else ("time",)
    named = INNER_DIMS.get(name, ())
    if len(front) + len(named) != ndim:
        named = tuple(f"{name}_{i}" for i in range(ndim - len(front)))
    return (*front, *named)


def about(name: str) -> dict[str, Any]:
    """Attributes of an array: long name, unit, and the meaning of status codes."""
    if name == "status":
        codes = {"NOT_COMPUTED": MISSING} | {s.name: int(s) for s in Status}
        return {
            "long_name": "how the run ended",
            "flag_values": list(codes.values()),
            "flag_meanings": " ".join(codes),
        }
    return dict(zip(("long_name", "units"), ABOUT[name], strict=True)) if name in ABOUT else {}
