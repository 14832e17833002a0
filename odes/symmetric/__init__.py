"""The exact reduction of symmetric tasks to a few numbers."""

from odes.symmetric.observables import OBSERVABLES
from odes.symmetric.reduction import (
    direction,
    expand,
    merged,
    symmetric_profiles,
    symmetric_task,
)
from odes.symmetric.solve import descend, solve
from odes.symmetric.state import State, SymmetricTask

__all__ = [
    "OBSERVABLES",
    "State",
    "SymmetricTask",
    "descend",
    "direction",
    "expand",
    "merged",
    "solve",
    "symmetric_profiles",
    "symmetric_task",
]
