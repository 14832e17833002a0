"""Estimates of the memory of theories that hold other arrays than all weights, and the smallest
layer there is, which stands for all of them."""

from collections.abc import Callable
from typing import Any

import numpy as np

import dynsim
from odes.symmetric.state import SymmetricTask
from sweeps.systems.base import Settings
from sweeps.systems.engines import COPIES, Like

ONE, TWO = np.zeros(1, np.int32), np.zeros(2, np.int32)
# In NumPy: no device may be used before somebody computes.
LAYER = dynsim.Layer(
    probs=np.array([[1.0, 0.0]]),
    prior=np.ones(1),
    query=ONE,
    next_token=ONE,
    queries=ONE,
    query_index=ONE,
    support=ONE[None],
    owner=TWO,
    shared=ONE[:0],
    place=TWO,
    place_shared=ONE[None, :0],
)
LIKE = Like(LAYER)

BY_CLASS = {
    "lemma3": 24,
    "eq10": 12,
    "theorem4": 3,
    "fixed_attention": 1,
}
"""Arrays of the shape (K, M) that a theory holds which has no array of all weights, by the part of
its name before the first dash."""


def by_class(arrays: int) -> Callable[[Any, Settings], int]:
    """An estimate of bytes for theories that hold so many arrays of the shape (K, M)."""

    def bytes_per_run(task: Any, settings: Settings) -> int:
        return settings.width * arrays * task.K * task.M + recorded(task, settings)

    return bytes_per_run


def recorded(task: Any, settings: Settings) -> int:
    """What is recorded."""
    # In reduced form all classes are one.
    classes = 1 if isinstance(task, SymmetricTask) else task.K
    return settings.width * settings.num_times * len(settings.record) * classes


def of_reduction(task: dynsim.SequenceClasses | SymmetricTask, settings: Settings) -> int:
    """Of the symmetric reduction: its numbers, and what is recorded."""
    # Four numbers for a kind of distinct token, three for a kind of common token.
    if isinstance(task, SymmetricTask):
        numbers = 4 * (np.size(task.p) + np.size(task.rho))
    else:
        numbers = 4 * task.support.shape[1]
    return COPIES * settings.width * numbers + recorded(task, settings)


def weights(task: dynsim.SequenceClasses) -> int:
    """Numbers in Y and Z."""
    return (task.M + task.num_queries) * task.M
