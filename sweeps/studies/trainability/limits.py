"""Where steps are too large on a plane: the edge of stability, and the rim where ties are unstable.

A step swings from side to side, and grows, where the preconditioned sharpness exceeds 2 (see
`dynsim.problem.sharpness`). It is measured at the start, and at its largest along the flow of all
weights, on a coarse grid of the plane, and interpolated in the logarithms of sharpness and axes.

Steps of the attention layer that are too large amplify the noise of batches. Beyond that rim, the
regions of a plane by a flow have steps in its place.
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
from odes.symmetric import check_applicable, check_rule
from odes.theory import refusal
from sweeps.runner.run import run as run_sweep
from sweeps.runner.spec import Sweep
from sweeps.studies.phase import regions
from sweeps.studies.phase.panels import Line, Prediction
from sweeps.studies.phase.plane import Tally, sampled
from sweeps.studies.phase.refinement import Level
from sweeps.studies.transitions.peaks import effective_rates
from sweeps.systems import registry
from sweeps.systems.experiment import Experiment

NOISY = "symmetric-noise"
"""Descent with the noise of batches, by which regions beyond the rim are decided."""
TIES = r"unstable ties: $\sigma_u = 1$"
OVERSHOOT = r"steps overshoot: $\eta_Z h = 2 (1 + \mu)$"
"""The rim at infinite T, where no noise breaks a tie."""
_ETA = ("rule", "eta")
TIE_AXES = {_ETA, (*_ETA, "Y"), (*_ETA, "Z"), ("rule", "momentum")}
"""Axes over which the rim is drawn."""
TOGETHER = 64
"""Flows that are solved in lockstep, of which the stiffest decides."""


def tie_lines(sweep: Sweep) -> dict[str, xr.DataArray]:
    """Log of the largest standard deviation, over tokens and steps, that linear theory predicts for
    a tie between tokens along the flow, or with T infinite of how far steps overshoot; by what the
    legend calls the line where it is zero.

    Args:
        sweep: sweep of the attention layer, over a few values of learning rates and momentum.

    Returns:
        Nothing for other axes, and where the theory does not apply.
    """
    run: Any = sweep.first
    if not {axis.path for axis in sweep.varied.named.values()} <= TIE_AXES:
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


COARSE = 12
"""Values of an axis at which the sharpness is measured, at most."""
TIMES = 16
"""Steps of a flow at which it is, about."""
COLOUR = "#009E73"
LINES = {
    "edge-start": ("edge at the start", ":"),
    "edge": ("edge along the flow", "-"),
}


def flow_of(run: Experiment, axes: Mapping[str, Sequence[float]]) -> Sweep:
    """The flows of runs over a plane, at `COARSE` values of each axis.

    A run of sequences so short that no expansion in 1/T describes them is taken at T infinite.

    Raises:
        ValueError: with the reason, for runs that have no edge or no flow of all weights.
    """
    if WHOLE.name not in registry.engines(registry.system_of(run)):
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
    """What is zero on each line of `LINES`, (y, x) over the plane: the log of the preconditioned
    sharpness over the edge, of flows as `flow_of` returns them, which are stored in `out`. NaN
    where the sharpness is not known."""
    runs = run_sweep(flows, out).load().isel(seed=0)
    values = runs[PRECONDITIONED].where(np.isfinite(runs[PRECONDITIONED]))
    recorded = next(dim for dim in ("time", "record") if dim in values.dims)
    # Below a saddle it is negative, far from the edge.
    sharp = (values / EDGE).clip(min=np.finfo(float).tiny)
    logs: xr.DataArray = xr.apply_ufunc(np.log, sharp)
    found = xr.Dataset({"edge-start": logs.isel({recorded: 0}), "edge": logs.max(recorded)})
    # Linear along the numbers of the points: by the logarithm on a logarithmic axis.
    found = found.assign_coords({name: _places(len(each)) for name, each in axes.items()})
    found = found.interp({name: np.arange(len(each)) for name, each in axes.items()})
    found = found.assign_coords({name: np.asarray(each) for name, each in axes.items()})
    return {name: found[name].transpose(*reversed(tuple(axes))) for name in LINES}


def _places(number: int) -> np.ndarray:
    """Of so many values, those of the coarse grid, with both ends."""
    return np.unique(np.rint(np.linspace(0, number - 1, COARSE)).astype(int))


def told(
    edges: Mapping[str, xr.DataArray], rule: regions.Rule, found: xr.Dataset
) -> Iterator[Prediction]:
    """What the lines in the plane say of the runs of a map: those beyond a line diverge. Nothing of
    a rule that has no region so called."""
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
    """The lines that lie within the plane, as they are drawn."""
    for name, values in edges.items():
        if inside(values):
            text, dashes = LINES[name]
            yield Line(name, text, values, (colour, dashes, 1.8))


def inside(values: xr.DataArray) -> bool:
    """Whether a line lies within the plane."""
    return bool(np.isfinite(values).all() and values.min() < 0 < values.max())


def outside(edges: Mapping[str, xr.DataArray]) -> Iterator[str]:
    """Why lines are not drawn, in a line each."""
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
    """How many runs of the coarse grid are on the side of each line that it predicts, in lines."""
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
