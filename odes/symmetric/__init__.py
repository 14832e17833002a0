"""The exact reduction of symmetric tasks to a few numbers.

Example:
    >>> task = odes.symmetric.symmetric_profiles(p=[0.08] * 10, rho=[0.02] * 10, K=1000, M=100_000)
    >>> run = odes.symmetric.solve(task, dynsim.sgd(1.0, 0.1), [0, 100])
"""

from odes.symmetric.instability import instability, overshoot, spread
from odes.symmetric.reduction import (
    OBSERVABLES,
    Placed,
    direction,
    expand,
    merged,
    placed,
    symmetric_profiles,
    symmetric_task,
)
from odes.symmetric.solve import descend, solve
from odes.symmetric.state import State, SymmetricTask

__all__ = [
    "OBSERVABLES",
    "Placed",
    "State",
    "SymmetricTask",
    "descend",
    "direction",
    "expand",
    "instability",
    "merged",
    "overshoot",
    "placed",
    "solve",
    "spread",
    "symmetric_profiles",
    "symmetric_task",
]
