"""The edge of stability on a plane: where steps begin to oscillate, by the flow of all weights.

A step swings from side to side, and grows, where the preconditioned sharpness exceeds 2 (see
`dynsim.problem.sharpness`). It is measured at the start, and at its largest along the flow, on a
coarse grid of the plane, and interpolated in the logarithms of sharpness and axes.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from dynsim.problem.sharpness import EDGE, check_threshold
from dynsim.training.recording import PRECONDITIONED
from odes.general import WHOLE
from sweeps.runner.run import run as run_sweep
from sweeps.runner.spec import Sweep
from sweeps.studies.phase.lattice import Level
from sweeps.studies.phase.panels import Line, Told
from sweeps.studies.phase.regions import DIVERGED, Rule, agreement
from sweeps.systems import registry
from sweeps.systems.experiment import Experiment

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


def lines(flows: Sweep, axes: Mapping[str, Sequence[float]], out: Path) -> dict[str, xr.DataArray]:
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


def told(edges: Mapping[str, xr.DataArray], rule: Rule, found: xr.Dataset) -> Iterator[Told]:
    """What the lines in the plane say of the runs of a map: those beyond a line diverge. Nothing of
    a rule that has no region so called."""
    code = next((code for code, (name, _) in rule.legend.items() if name == DIVERGED), None)
    if code is None:
        return
    diverged = xr.Dataset({"region": (found["region"] == code).astype(int)})
    if "share" in found:
        share = found["share"].sel(code=code, drop=True)
        diverged["share"] = xr.concat([1 - share, share], "code").assign_coords(code=[0, 1])
        diverged = diverged.assign_coords(code=[0, 1])
    alone = 100 * float((diverged["region"] == 0).mean())
    for line in drawn(edges):
        said = agreement((line.values > 0).astype(int), diverged)
        text = f"diverged beyond it and nowhere else ({alone:.1f} % do not diverge)"
        yield Told(line.name, text, said, line)


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
