"""dynsim: training dynamics of attention, theory and simulation side by side.

`dynsim` is the numeric side: tasks, models and gradient descent on them. `odes` holds the
theories and `sweeps` runs many of both and compares them.
"""

from dynsim.models import YZ, Examples
from dynsim.optim import Clock, Optimizer, adam, momentum, sgd
from dynsim.simulate import initial_weights, simulate
from dynsim.tasks import (
    SequenceClasses,
    load_task,
    overlapping,
    sequence_classes,
    syn,
    syn_medium,
    syn_small,
)
from dynsim.trajectory import Status, Trajectory, log_times

__all__ = [
    "YZ",
    "Clock",
    "Examples",
    "Optimizer",
    "SequenceClasses",
    "Status",
    "Trajectory",
    "adam",
    "initial_weights",
    "load_task",
    "log_times",
    "momentum",
    "overlapping",
    "sequence_classes",
    "sgd",
    "simulate",
    "syn",
    "syn_medium",
    "syn_small",
]
