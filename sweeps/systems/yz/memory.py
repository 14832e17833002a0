"""Estimates of the memory of theories that hold other arrays than all weights."""

from typing import Any

import numpy as np

import dynsim
from odes.symmetric.state import SymmetricTask
from sweeps.systems.base import Engine, Settings
from sweeps.systems.engines import COPIES

BY_CLASS = {
    "lemma3": 24,
    "eq10": 12,
    "theorem4": 3,
    "fixed_attention": 1,
}
"""Arrays of the shape (K, M) that a theory holds which has no array of all weights, by the part of
its name before the first dash."""


def of_theory(name: str, engine: Engine) -> Engine:
    """The engine of a theory, with such an estimate where it holds so many arrays."""
    arrays = BY_CLASS.get(name.split("-")[0])
    if arrays is None:
        return engine

    def bytes_per_run(task: dynsim.SequenceClasses, settings: Settings) -> int:
        return settings.width * arrays * task.K * task.M + recorded(task, settings)

    return engine._replace(bytes_per_run=bytes_per_run)


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
