"""Where steps are too large on a plane: the edge of stability, and the rim where ties are unstable.

Steps oscillate and grow where the preconditioned sharpness exceeds 2 (see
`dynsim.problem.sharpness`). Its value at the start and its maximum along the flow of all weights
are measured on a coarse grid, and interpolated in the logarithms of sharpness and axes.

In the attention layer, steps that are too large amplify batch noise. Beyond that rim, the regions
of a plane come from discrete descent with noise instead of a flow.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array

from dynsim.precision import precision
from dynsim.problem.sharpness import EDGE, check_threshold
from dynsim.training.recording import PRECONDITIONED
from dynsim.training.rule import Rule
from odes import decoder, symmetric
from odes.general import WHOLE
from odes.solver.posed import effective_rates
from odes.symmetric import check_applicable, check_rule
from odes.theory import refusal
from sweeps.runner.run import run as run_sweep
from sweeps.runner.spec import Sweep
from sweeps.studies.phase import regions
from sweeps.studies.phase.panels import Line, Prediction
from sweeps.studies.phase.plane import Tally, sampled
from sweeps.studies.phase.refinement import Level
from sweeps.systems import registry
from sweeps.systems.experiment import Experiment

NOISY = "symmetric-noise"
"""Descent with batch noise, which decides the regions beyond the rim."""
TIES = r"unstable ties: $\sigma_u = 1$"
OVERSHOOT = r"steps overshoot: $\eta_Z h = 2 (1 + \mu)$"
"""The rim at infinite T, where no noise breaks ties."""
_ETA = ("rule", "eta")
TIE_AXES = {_ETA, (*_ETA, "Y"), (*_ETA, "Z"), ("rule", "momentum")}
"""Axes over which the rim is drawn."""
TOGETHER = 64
"""Number of flows solved in lockstep; the stiffest one determines the number of solver steps."""


def tie_lines(sweep: Sweep) -> dict[str, xr.DataArray]:
    """Compute arrays whose zeros are the lines where ties become unstable, by label in the legend:
    the log of the largest standard deviation of a tie between tokens, over tokens and steps along
    the flow, in linear theory; at infinite T, the log of how far steps overshoot.

    Args:
        sweep: sweep of the attention layer, over a few values of learning rates and momentum.

    Returns:
        An empty dict for other axes, and where the theory does not apply.
    """
    run: Any = sweep.first
    if not {axis.path for axis in sweep.varied.named.values()} <= TIE_AXES:
        return {}
    layer, rule = run.built
    asked: dict[str, Any] = {"batch": run.batch, "length": layer.length}
    endless = math.isinf(layer.length)
    checked = (check_rule, rule) if endless else (check_applicable, rule, *asked.values())
    if refusal(symmetric.symmetric_task, layer.classes) or refusal(*checked):
        return {}
    reduced = symmetric.merged(symmetric.symmetric_task(layer.classes))
    shape = tuple(dim.size for dim in sweep.dims)
    with precision("float64"):
        rules = jax.tree.map(
            lambda number: jnp.broadcast_to(number, shape).ravel(),
            sweep.plane({}).rule.build().astype("float64"),
        )

        def highest(rule: Rule) -> Array:
            if not endless:
                return symmetric.instability(reduced, rule, steps=run.steps, **asked).max()
            # There is no attention at the first step.
            found = symmetric.overshoot(reduced, rule, steps=run.steps).max()
            return jnp.log(jnp.maximum(found, jnp.finfo(found.dtype).tiny))

        found = jax.jit(lambda rules: jax.lax.map(highest, rules, batch_size=TOGETHER))(rules)
    values = np.asarray(found).reshape(shape)
    # A flow that fails counts as beyond the rim.
    values = np.where(np.isfinite(values), values, np.log(np.finfo(float).max))
    name = OVERSHOOT if endless else TIES
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
    """Replace the regions by a flow where its steps are too large: where ties are unstable, and
    where one step takes the decoder past its transition. There, take the most probable regions by
    noisy descent.

    Args:
        run: run of the attention layer.
        region: by the flow, over the plane.
        ties: from `tie_lines`, on a coarser plane; None where no noise of counts breaks a tie.
        noisy: noisy descent on the whole plane; only these points are run.
        tally: tally of these runs, empty.
        out: folder of their sweep.

    Returns:
        None if steps are nowhere too large, or noisy descent does not describe the runs.
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
    """Closed form of the step at which the speed of attention peaks (Theorem 1b), without momentum,
    as the first step has none."""
    plane = Sweep(run, {str(dim): region[dim].values for dim in region.dims})
    point = zip(plane.fields, np.ix_(*map(np.asarray, plane.fields.values())), strict=True)
    traced = {name: values for name, values in point if plane.varied.named[name].traced}
    rule, task = plane.point(traced).built[1], run.built[0].classes
    eta_y = effective_rates(rule)[0] * (1 - rule.mu)
    peak = decoder.stages(eta_y, task.K, task.M).peak
    return np.broadcast_to(np.asarray(peak), region.shape)


COARSE = 12
"""Largest number of values of an axis at which the sharpness is measured."""
TIMES = 16
"""Approximate number of steps of a flow at which the sharpness is measured."""
COLOUR = "#009E73"
LINES = {
    "edge-start": ("edge at the start", ":"),
    "edge": ("edge along the flow", "-"),
}


def flow_of(run: Experiment, axes: Mapping[str, Sequence[float]]) -> Sweep:
    """Return the flows of runs over a plane, at `COARSE` values of each axis.

    Sequences too short for an expansion in 1/T are replaced by infinite ones.

    Raises:
        ValueError: with the reason, for runs that have no edge or no flow of all weights.
    """
    if WHOLE.name not in registry.theories(registry.system_of(run)):
        raise ValueError("the problem has no population loss")
    rule = run.built[1]
    check_threshold(rule)
    if rule.is_adaptive:
        raise ValueError(f"along a flow, the preconditioner of {rule.name} is not known")
    coarse: dict[str, Any] = {
        name: [values[i] for i in _places(len(values)).tolist()] for name, values in axes.items()
    }
    coarse["seed"] = {"range": 1}
    reasons = []
    for length in ({}, {"length": math.inf}):
        try:
            found = Sweep(run.at(length), coarse, WHOLE.name, (PRECONDITIONED,), TIMES)
            found.check()
        except ValueError as error:
            reasons.append(error)
        else:
            return found
    raise reasons[0]


def edge_lines(
    flows: Sweep, axes: Mapping[str, Sequence[float]], out: Path
) -> dict[str, xr.DataArray]:
    """Compute arrays (y, x) over the plane whose zeros are the lines of `LINES`: the log of the
    preconditioned sharpness over the edge, of flows from `flow_of`, which are stored in `out`. NaN
    where the sharpness is not known."""
    runs = run_sweep(flows, out).load().isel(seed=0)
    values = runs[PRECONDITIONED].where(np.isfinite(runs[PRECONDITIONED]))
    recorded = next(dim for dim in ("time", "record") if dim in values.dims)
    # The sharpness below a saddle is negative, far from the edge.
    sharp = (values / EDGE).clip(min=np.finfo(float).tiny)
    logs: xr.DataArray = xr.apply_ufunc(np.log, sharp)
    found = xr.Dataset({"edge-start": logs.isel({recorded: 0}), "edge": logs.max(recorded)})
    # Linear along the numbers of the points: by the logarithm on a logarithmic axis.
    found = found.assign_coords({name: _places(len(each)) for name, each in axes.items()})
    found = found.interp({name: np.arange(len(each)) for name, each in axes.items()})
    found = found.assign_coords({name: np.asarray(each) for name, each in axes.items()})
    return {name: found[name].transpose(*reversed(tuple(axes))) for name in LINES}


def _places(number: int) -> np.ndarray:
    """Return the indices of the coarse grid among `number` values, with both ends."""
    return np.unique(np.rint(np.linspace(0, number - 1, COARSE)).astype(int))


def told(
    edges: Mapping[str, xr.DataArray], rule: regions.Rule, found: xr.Dataset
) -> Iterator[Prediction]:
    """Yield the predictions of the lines for the runs of a map: those beyond a line diverge. Yields
    nothing for a rule without a region of that name."""
    code = next((code for code, (name, _) in rule.legend.items() if name == regions.DIVERGED), None)
    if code is None:
        return
    diverged = xr.Dataset({"region": (found["region"] == code).astype(int)})
    if "share" in found:
        share = found["share"].sel(code=code, drop=True)
        diverged["share"] = xr.concat([1 - share, share], "code").assign_coords(code=[0, 1])
        diverged = diverged.assign_coords(code=[0, 1])
    alone = 100 * float((diverged["region"] == 0).mean())
    for line in drawn(edges):
        said = regions.agreement((line.values > 0).astype(int), diverged)
        text = f"diverged beyond it and nowhere else ({alone:.1f} % do not diverge)"
        yield Prediction(line.name, text, said, line)


def drawn(edges: Mapping[str, xr.DataArray], colour: str = COLOUR) -> Iterator[Line]:
    """Yield the lines that lie within the plane, ready to draw."""
    for name, values in edges.items():
        if inside(values):
            text, dashes = LINES[name]
            yield Line(name, text, values, (colour, dashes, 1.8))


def inside(values: xr.DataArray) -> bool:
    """Return whether a line lies within the plane."""
    return bool(np.isfinite(values).all() and values.min() < 0 < values.max())


def outside(edges: Mapping[str, xr.DataArray]) -> Iterator[str]:
    """Explain in one line each why lines are not drawn."""
    for name, values in edges.items():
        if np.isnan(values).any():
            yield f"line {name}: left out, at some points the sharpness is not known"
        elif not inside(values):
            low, high = (float(EDGE * np.exp(end)) for end in (values.min(), values.max()))
            yield (
                f"line {name}: not in the plane, where the preconditioned sharpness is "
                f"{low:.2g} to {high:.2g} and the edge at {EDGE:g}"
            )


def shares(edges: Mapping[str, xr.DataArray], coarse: Level) -> Iterator[str]:
    """Report how many runs of the coarse grid are on the predicted side of each line."""
    trained = np.zeros((round(1 / coarse.eps) + 1,) * 2, bool)
    trained[tuple(np.rint(coarse.places / coarse.eps).astype(int).T)] = coarse.region == 1
    alone = 100 * max(trained.mean(), 1 - trained.mean())
    for name, values in edges.items():
        if inside(values):
            right = 100 * ((values.values < 0) == trained).mean()
            yield (
                f"line {name}: {right:.1f} % of the coarse grid trained below it or did not beyond "
                f"it (the more frequent outcome alone: {alone:.1f} %)"
            )
