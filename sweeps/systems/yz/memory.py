"""Estimates of the memory that runs of the attention layer need."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import dynsim
from odes.symmetric.state import SymmetricTask
from sweeps.systems.base import Settings
from sweeps.systems.yz.settings import Fixed

STATE_COPIES = {"sgd": 2, "momentum": 3, "nesterov": 3, "sign": 3, "rmsprop": 3, "adam": 4}
"""Arrays of the size of the parameters that a step holds: weights, gradient, moments."""
SOLVER_STAGES = 9
"""Sets of such arrays that an adaptive solver holds."""


def bytes_of(
    parameters: Callable[[Any], int],
    examples: Callable[[Any, Fixed], float],
    stages: int = 1,
) -> Callable[[Any, Settings[Fixed]], int]:
    """An estimate of bytes: weights, gradient and moments, in each stage of an adaptive solver;
    the forward and the backward pass over the examples of a step, which keep a few arrays of
    (examples, M); and what is recorded."""

    def bytes_per_run(task: Any, settings: Settings[Fixed]) -> int:
        copies = STATE_COPIES[settings.fixed.kind] * stages
        passes = 4 * int(examples(task, settings.fixed)) * int(task.M)
        numbers = copies * parameters(task) + passes + _recorded(task, settings)
        return settings.width * numbers

    return bytes_per_run


def bytes_by_class(arrays: int) -> Callable[[Any, Settings[Fixed]], int]:
    """An estimate of bytes for theories that hold so many arrays of the shape (K, M), and none of
    all weights."""

    def bytes_per_run(task: Any, settings: Settings[Fixed]) -> int:
        return settings.width * (arrays * task.K * task.M + _recorded(task, settings))

    return bytes_per_run


def _recorded(task: Any, settings: Settings[Fixed]) -> int:
    # In reduced form all classes are one.
    classes = 1 if isinstance(task, SymmetricTask) else task.K
    return settings.num_times * len(settings.record) * classes


def parameters(task: dynsim.SequenceClasses) -> int:
    """Numbers in Y and Z."""
    return (task.M + task.num_queries) * task.M


def reduced_parameters(task: dynsim.SequenceClasses | SymmetricTask) -> int:
    """Numbers in the symmetric reduction."""
    # Four numbers for a kind of distinct token, three for a kind of common token.
    if isinstance(task, SymmetricTask):
        return 4 * (np.size(task.p) + np.size(task.rho))
    return 4 * task.support.shape[1]


def batch(task: dynsim.SequenceClasses, fixed: Fixed) -> float:
    """Examples of a step: the batch, or the classes where it is infinite."""
    return fixed.batch if math.isfinite(fixed.batch) else task.K


def classes(task: dynsim.SequenceClasses, fixed: Fixed) -> int:
    """Examples of the population: the classes."""
    del fixed
    return task.K


def none(task: dynsim.SequenceClasses, fixed: Fixed) -> int:
    """No examples."""
    del task, fixed
    return 0
