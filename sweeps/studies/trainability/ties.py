"""The rim of an unstable region: where steps that are too large amplify the noise of batches; and
the regions of a plane by a flow, with steps in its place where they are too large for it."""

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array

from dynsim.precision import precision
from dynsim.training.rule import Rule
from odes import decoder, symmetric
from odes.symmetric import check_applicable, check_rule
from odes.theory import refusal
from sweeps.runner.run import run as run_sweep
from sweeps.runner.spec import Sweep
from sweeps.studies.phase.plane import sampled
from sweeps.studies.phase.tally import Tally
from sweeps.studies.transitions.peaks import effective_rates
from sweeps.systems.experiment import Experiment

ENGINE = "symmetric-noise"
"""Descent with the noise of batches, by which regions beyond the rim are decided."""
NAME = r"unstable ties: $\sigma_u = 1$"
OVERSHOOT = r"steps overshoot: $\eta_Z h = 2 (1 + \mu)$"
"""The rim at infinite T, where no noise breaks a tie."""
_ETA = ("rule", "eta")
RATES = {_ETA, (*_ETA, "Y"), (*_ETA, "Z"), ("rule", "momentum")}
"""Axes over which the rim is drawn."""
TOGETHER = 64
"""Flows that are solved in lockstep, of which the stiffest decides."""


def lines(sweep: Sweep) -> dict[str, xr.DataArray]:
    """Log of the largest standard deviation, over tokens and steps, that linear theory predicts for
    a tie between tokens along the flow, or with T infinite of how far steps overshoot; by what the
    legend calls the line where it is zero.

    Args:
        sweep: sweep of the attention layer, over a few values of learning rates and momentum.

    Returns:
        Nothing for other axes, and where the theory does not apply.
    """
    run: Any = sweep.first
    if not {axis.path for axis in sweep.varied.named.values()} <= RATES:
        return {}
    layer, rule = run.built
    asked: dict[str, Any] = {"batch": run.batch, "length": layer.length}
    endless = math.isinf(layer.length)
    checked = (check_rule, rule) if endless else (check_applicable, rule, *asked.values())
    if refusal(symmetric.symmetric_task, layer) or refusal(*checked):
        return {}
    reduced = symmetric.merged(symmetric.symmetric_task(layer))
    shape = tuple(dim.size for dim in sweep.dims)
    with precision("float64"):
        rules = jax.tree.map(
            lambda number: jnp.broadcast_to(number, shape).ravel(),
            sweep.plane({}).rule.build().astype("float64"),
        )

        def highest(rule: Rule) -> Array:
            if not endless:
                return symmetric.instability(reduced, rule, steps=run.steps, **asked).max()
            # At the first step nothing is attended to.
            found = symmetric.overshoot(reduced, rule, steps=run.steps).max()
            return jnp.log(jnp.maximum(found, jnp.finfo(found.dtype).tiny))

        found = jax.jit(lambda rules: jax.lax.map(highest, rules, batch_size=TOGETHER))(rules)
    values = np.asarray(found).reshape(shape)
    # A flow that fails is beyond any rim.
    values = np.where(np.isfinite(values), values, np.log(np.finfo(float).max))
    name = OVERSHOOT if endless else NAME
    axes = {name: list(each) for name, each in sweep.fields.items()}
    return {name: xr.DataArray(values, axes, tuple(axes))}


def stepped(
    run: Experiment,
    region: xr.DataArray,
    ties: xr.DataArray | None,
    noisy: Sweep,
    tally: Tally,
    out: Path,
) -> xr.DataArray | None:
    """Regions by a flow, but the most probable ones by descent with noise where steps are too large
    for a flow: where ties are unstable, and where one step takes the decoder past its transition.

    Args:
        run: run of the attention layer.
        region: by the flow, over the plane.
        ties: from `lines`, on a coarser plane; None where no noise of counts breaks a tie.
        noisy: descent with noise on all of the plane, of which only these points run.
        tally: tally of these runs, empty.
        out: folder of their sweep.

    Returns:
        None where steps are nowhere too large, or such descent does not describe the runs.
    """
    large = _peak(run, region) < 1
    if ties is not None:
        near = ties.reindex({dim: region[dim] for dim in region.dims}, method="nearest")
        large = large | (near.transpose(*region.dims).values > 0)
    points = np.argwhere(large)
    if not len(points):
        return None
    beyond = sampled(noisy, points, "steps too large for a flow")
    if refusal(beyond.check):
        return None
    tally.add(points, run_sweep(beyond, out).load())
    return region.where(tally.seeds == 0, tally.region)


def _peak(run: Experiment, region: xr.DataArray) -> np.ndarray:
    """Closed form of the step at which the speed of the attention peaks (Theorem 1b), without the
    momentum that the first step does not have."""
    plane = Sweep(run, {str(dim): region[dim].values for dim in region.dims})
    point = zip(plane.fields, np.ix_(*map(np.asarray, plane.fields.values())), strict=True)
    traced = {name: values for name, values in point if plane.varied.named[name].traced}
    rule, task = plane.point(traced).built[1], run.built[0]
    eta_y = effective_rates(rule)[0] * (1 - rule.mu)
    peak = decoder.stages(eta_y, task.K, task.M).peak
    return np.broadcast_to(np.asarray(peak), region.shape)
