"""The rim of an unstable region: where steps that are too large amplify the noise of batches."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from dynsim.precision import precision
from odes import symmetric
from odes.symmetric.instability import check_applicable
from odes.theory import refusal

NAME = r"unstable ties: $\sigma_u = 1$"
RATES = {"eta_y", "eta_z", "momentum"}
"""Axes over which the rim is drawn."""
TOGETHER = 64
"""Flows that are solved in lockstep, of which the stiffest decides."""


def lines(training: Any, axes: Mapping[str, Sequence[float]]) -> dict[str, xr.DataArray]:
    """Log of the largest standard deviation, over tokens and steps, that linear theory predicts for
    a tie between tokens along the flow; by what the legend calls the line where it is zero.

    Args:
        training: a run of the attention layer.
        axes: values of learning rates and momentum, a few.

    Returns:
        Nothing for other axes, and where the theory does not apply.
    """
    if not set(axes) <= RATES:
        return {}
    task, rule = training.make_task(), training.make_optimizer()
    asked: dict[str, Any] = {"batch": training.batch, "length": training.length}
    if refusal(symmetric.symmetric_task, task) or refusal(check_applicable, rule, *asked.values()):
        return {}
    reduced = symmetric.merged(symmetric.symmetric_task(task))
    shape = tuple(map(len, axes.values()))
    with precision("float64"):
        point = dict(zip(axes, np.ix_(*map(np.asarray, axes.values())), strict=True))
        rules = jax.tree.map(
            lambda number: jnp.broadcast_to(number, shape).ravel(),
            training.at(point).make_optimizer().astype("float64"),
        )
        found = jax.jit(
            lambda rules: jax.lax.map(
                lambda rule: symmetric.instability(
                    reduced, rule, steps=training.steps, **asked
                ).max(),
                rules,
                batch_size=TOGETHER,
            )
        )(rules)
    values = np.asarray(found).reshape(shape)
    # A flow that fails is beyond any rim.
    highest = np.log(np.finfo(float).max)
    values = np.where(np.isfinite(values), values, highest)
    return {NAME: xr.DataArray(values, {n: list(v) for n, v in axes.items()}, tuple(axes))}
