"""How an engine solves a theory: as the settings of a sweep ask for it, whatever the system."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dynsim import Trajectory
from odes.solver.tolerances import DEFAULT_TOLERANCES
from sweeps.systems.base import Settings

ATOL_SHARE = 0.01
"""Absolute tolerance of an adaptive solver over its relative one, as in its defaults."""


def integrate(
    solve: Callable[..., Trajectory],
    settings: Settings,
    task: Any,
    optimizer: Any,
    **options: Any,
) -> Trajectory:
    """A theory's solve as the settings ask for it, in times, record, precision and tolerance."""
    if settings.rtol is not None:
        options["tolerances"] = DEFAULT_TOLERANCES[settings.dtype]._replace(
            rtol=settings.rtol, atol=settings.rtol * ATOL_SHARE
        )
    times = np.asarray(settings.times, settings.dtype)
    return solve(task, optimizer, times, record=settings.record, dtype=settings.dtype, **options)
