"""Tasks with too many classes for a table: their reduced form, from the numbers alone."""

from typing import Any

import numpy as np

import dynsim
from dynsim import Overlapping, Syn, SynMedium, SynSmall, Task
from odes import symmetric
from odes.symmetric.state import SymmetricTask
from sweeps.systems import budget


def classes_of(run: Any) -> dynsim.SequenceClasses | SymmetricTask:
    """The sequence classes of a run of the attention layer, in reduced form where their table would
    be too large; `ValueError` for such a table of a task that has no reduced form."""
    task = getattr(run.problem, "task", None)
    if task is not None and budget.is_large(task) and (found := reduced(task)) is not None:
        return found
    return run.built[0]


def reduced(task: Task) -> SymmetricTask | None:
    """The reduced form of a synthetic task, made without its table; None for any other task."""
    if type(task) is SynSmall:
        task = Syn(2, 1, layout=task.layout)
    elif type(task) is SynMedium:
        task = Syn(task.num_queries, 2, layout=task.layout)
    if type(task) is Overlapping:
        num_queries, p = task.K, np.ones(5)
        rho = np.full(5 if task.overlap else 0, np.sqrt(task.overlap / (1 - task.overlap)))
    elif type(task) is Syn:
        num_queries, p = task.num_queries, np.linspace(0.1, 1, task.num_distinct)
        rho = np.ones(task.num_common)
    else:
        return None
    K, M = task.sizes
    total = p.sum() + rho.sum()
    return symmetric.merged(symmetric.symmetric_profiles(p / total, rho / total, K, M, num_queries))
