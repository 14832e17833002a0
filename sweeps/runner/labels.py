"""Names, units and coordinates of what a sweep stores."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from dynsim import Status
from dynsim.yz.observables import RECALL_THRESHOLDS
from sweeps.runner.spec import Sweep
from sweeps.systems.base import Run, num_times
from sweeps.systems.qkv import EmbeddedTraining
from sweeps.systems.transformer.settings import TextTraining
from sweeps.systems.two_stage.settings import TwoStage
from sweeps.systems.yz.settings import Training

MISSING = -1
"""Status of a run that has not been computed."""


class Labels(NamedTuple):
    """What is to be said about the axes and observables of a system.

    Attributes:
        about: long name and unit of what has more to say than its own name.
        inner_dims: names of the axes of an observable that is not a number.
        values: values along such an axis, where it has some.
    """

    about: Mapping[str, tuple[str, str]]
    inner_dims: Mapping[str, tuple[str, ...]]
    values: Mapping[str, np.ndarray]


COMMON = {
    "time": ("time", "step"),
    "first_bad_step": ("first step of the invalid end of a run, -1 if none", "step"),
}
"""`Labels.about` of every system."""
CLASS, TOKEN = ("class",), ("class", "token")
YZ_LABELS = Labels(
    about={
        "eta_y": ("learning rate of Y", "1/step"),
        "eta_z": ("learning rate of Z", "1/step"),
        "ratio": ("eta_y / eta_z", "1"),
        "length": ("sequence length T", "tokens"),
        "steps": ("optimiser steps", "step"),
        "loss": ("population cross entropy", "nat"),
        "batch_loss": ("cross entropy of the next batch", "nat"),
        "relative_loss": ("mean loss of the last 20 steps over that of the first", "1"),
        "entropy": ("entropy of attention on distinct tokens", "nat"),
    },
    inner_dims={
        **dict.fromkeys(("z_top_distinct", "z_top_common", "speed", "xi", "B"), CLASS),
        **dict.fromkeys(("attention", "normalised_attention", "z"), TOKEN),
        "overlap": ("class", "other_class"),
        "recall": ("threshold",),
    },
    values={"threshold": RECALL_THRESHOLDS},
)
"""Of the attention layer, in Y and Z or in ordinary parameters."""
LABELS: dict[type[Run], Labels] = {
    Training: YZ_LABELS,
    EmbeddedTraining: YZ_LABELS,
    TwoStage: Labels(
        about={
            "eta_time": ("sum of the learning rates so far", "1"),
            "K1": ("logistic loss of component P", "nat"),
            "K2": ("logistic loss of component Q", "nat"),
            "J": ("logistic loss of the sum of the components", "nat"),
            "auc_Q": ("area under the ROC curve of component Q", "1"),
            "W_trace": ("trace of the signal part of W", "1"),
            "V_trace": ("trace of the signal part of V", "1"),
            "tau": ("stationary noise of a weight at eta_1", "1"),
            "r": ("shift of the negative class of component Q", "1"),
            "decay": ("weight decay", "1/eta-time"),
        },
        inner_dims={
            "W_singular": ("rank",),
            "V_singular": ("rank",),
            "W_signal": ("row", "column"),
            "V_signal": ("row", "column"),
            "state": ("reduced",),
        },
        values={},
    ),
    TextTraining: Labels(
        about={
            "eta": ("learning rate", "1/step"),
            "length": ("tokens of a window", "tokens"),
            "steps": ("optimiser steps", "step"),
            "clip": ("largest norm of the gradient", "nat"),
            "loss": ("cross entropy on held-out text", "nat"),
            "batch_loss": ("cross entropy of the next batch", "nat"),
            "entropy": ("entropy of attention on held-out text", "nat"),
            "layer_entropy": ("entropy of attention on held-out text by layer", "nat"),
            "top": ("largest weight of a row of attention", "1"),
            "change": ("attention that moved since the record before", "1"),
        },
        inner_dims={
            **dict.fromkeys(("layer_entropy", "layer_top", "layer_change"), ("layer",)),
            "attention": ("prompt", "layer", "head", "query", "key"),
        },
        values={},
    ),
}


def coordinates(sweep: Sweep) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """Values of the axes, of those of observables, and of the recorded times where they are known
    beforehand, with the dimensions that they lie on."""
    found = {
        name: ((dim.name,), np.asarray(values))
        for dim in sweep.dims
        for name, values in dim.axes.items()
    }
    labels = LABELS[sweep.rules.system]
    for name in sweep.record:
        for inner in labels.inner_dims.get(name, ()):
            if inner in labels.values:
                found[inner] = ((inner,), labels.values[inner])
    times = next(sweep.trainings()).steps_recorded(sweep.times)
    steps = next((dim for dim in sweep.dims if "steps" in dim.axes), None)
    if isinstance(times, int):
        # Each run records its own.
        return found
    if steps is None:
        several = len(times) > 1
        values = np.asarray(times, np.float64)
        found["time"] = (("time",), values) if several else ((), values[0])
        return found
    rows = [sweep.training({"steps": n}).steps_recorded(sweep.times) for n in steps.axes["steps"]]
    padded = np.full((len(rows), max(map(len, rows))), np.nan)
    for row, times in zip(padded, rows, strict=True):
        row[: len(times)] = times
    several = padded.shape[1] > 1
    found["time"] = ((steps.name, "record"), padded) if several else ((steps.name,), padded[:, 0])
    return found


def inner_dims(sweep: Sweep, name: str, ndim: int) -> tuple[str, ...]:
    """Names of the axes of a recorded array behind those of the sweep. That of the recorded times
    is `time`, or `record` where runs have their own."""
    if name in ("status", "first_bad_step"):
        return ()
    front: tuple[str, ...] = ()
    times = next(sweep.trainings()).steps_recorded(sweep.times)
    if num_times(times) > 1:
        own = isinstance(times, int) or "steps" in sweep.fields
        front = ("record",) if own else ("time",)
    named = LABELS[sweep.rules.system].inner_dims.get(name, ())
    if len(front) + len(named) != ndim:
        named = tuple(f"{name}_{i}" for i in range(ndim - len(front)))
    return (*front, *named)


def about(system: type[Run], name: str) -> dict[str, Any]:
    """Attributes of an array: long name, unit, and the meaning of status codes."""
    if name == "status":
        codes = {"NOT_COMPUTED": MISSING} | {s.name: int(s) for s in Status}
        return {
            "long_name": "how the run ended",
            "flag_values": list(codes.values()),
            "flag_meanings": " ".join(codes),
        }
    known = {**COMMON, **LABELS[system].about}
    return dict(zip(("long_name", "units"), known[name], strict=True)) if name in known else {}


def label(array: xr.DataArray) -> str:
    """Name and unit of a quantity, for an axis of a picture."""
    text = array.attrs.get("long_name", str(array.name))
    unit = array.attrs.get("units", "1")
    return text if unit == "1" else f"{text} ({unit})"
