"""The reduced two-stage ODE, started again from states that were measured along a run.

The nominal start leaves out what chance does to a and b before Q is learned. Started from the
measured state at the beginning of each stage, the ODE is held to what it says within a stage.
Assumes what `odes.two_stage.field` does, from one anchor to the next.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from dynsim import checks
from dynsim.precision import DType, precision, settle
from dynsim.training.rule import UpdateRule
from dynsim.trajectory import Times, Trajectory
from dynsim.two_stage.task import Prompts
from odes.two_stage.field import solve as ode
from odes.two_stage.state import ReducedState


def solve(
    task: Prompts,
    optimizer: UpdateRule,
    times: Times,
    *,
    anchors: Mapping[int, ReducedState],
    dtype: DType = "float64",
    **options: Any,
) -> Trajectory:
    """Integrate the reduced ODE piece by piece.

    Args:
        task, optimizer: as in `odes.two_stage.solve`.
        times: (S,) optimiser steps at which to record, increasing.
        anchors: state by index of the time at which it was measured, 0 among them. The entry at an
            anchor belongs to the piece that starts there.
        dtype: "float64" or "float32".
        options: of `odes.two_stage.solve`, besides `start`, `begin` and `dtype`.

    Returns:
        As `odes.two_stage.solve`, with the source "anchored"; status and first bad step are those
        of the first piece that fails.

    Raises:
        ValueError: as `odes.two_stage.solve`, and if anchors are missing.
    """
    size = len(times)
    begins = sorted(checks.integer("anchors", at, 0) for at in anchors)
    if begins[:1] != [0] or begins[-1] >= size:
        raise ValueError(f"anchors = {begins}: must be indices of the {size} times, 0 among them")
    ends = [*(at + 1 for at in begins[1:]), size]
    with precision(dtype, task, optimizer, times, anchors):
        pieces = [
            ode(
                task,
                optimizer,
                times[at:end],
                start=anchors[at],
                begin=times[at],
                dtype=dtype,
                **options,
            )
            for at, end in zip(begins, ends, strict=True)
        ]
        return settle(dataclasses.replace(functools.reduce(_joined, pieces), source="anchored"))


def _joined(before: Trajectory, piece: Trajectory) -> Trajectory:
    rows = {
        name: jnp.concatenate([before[name][:-1], values])
        for name, values in piece.observables.items()
    }
    return Trajectory(
        jnp.concatenate([before.times[:-1], piece.times]),
        rows,
        piece.params,
        jnp.where(before.ok, piece.status, before.status),
        jnp.where(before.ok, piece.first_bad_step, before.first_bad_step),
        before.source,
    )
