"""The rim of an unstable region: where steps that are too large amplify the noise of batches."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from dynsim.precision import precision
from odes import symmetric
from odes.symmetric.instability import check_applicable
from odes.theory import refusal
from sweeps.studies.phase.diagram import Phase

NAME = r"unstable ties: $\sigma_u = 1$"
RATES = {"eta_y", "eta_z", "momentum"}
"""Axes over which the rim is drawn."""
TOGETHER = 64
"""Flows that are solved in lockstep, of which the stiffest decides."""


def rim(config: Phase) -> dict[str, xr.DataArray]:
    """Log of the largest standard deviation, over tokens and steps, that linear theory predicts for
    a tie between tokens along the flow, over a coarser plane; by what the legend calls the line
    where it is zero. Nothing where no noise is predicted, or the theory does not apply."""
    wanted = config.scatter()
    if wanted is None or not set(wanted.axes) <= RATES:
        return {}
    training: Any = config.training()
    task, rule = training.make_task(), training.make_optimizer()
    asked: dict[str, Any] = {"batch": config.batch, "length": config.length}
    if refusal(symmetric.symmetric_task, task) or refusal(check_applicable, rule, *asked.values()):
        return {}
    reduced = symmetric.merged(symmetric.symmetric_task(task))
    axes = {name: np.asarray(values) for name, values in wanted.axes.items()}
    shape = tuple(map(len, axes.values()))
    with precision("float64"):
        point = dict(zip(axes, np.ix_(*axes.values()), strict=True))
        rules = jax.tree.map(
            lambda number: jnp.broadcast_to(number, shape).ravel(),
            training.at(point).make_optimizer().astype("float64"),
        )
        found = jax.jit(
            lambda rules: jax.lax.map(
                lambda rule: symmetric.instability(
                    reduced, rule, steps=config.steps, **asked
                ).max(),
                rules,
                batch_size=TOGETHER,
            )
        )(rules)
    values = np.asarray(found).reshape(shape)
    # A flow that fails is beyond any rim.
    highest = np.log(np.finfo(float).max)
    values = np.where(np.isfinite(values), values, highest)
    return {NAME: xr.DataArray(values, axes, tuple(axes))}
