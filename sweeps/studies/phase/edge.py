"""The edge of stability over a plane: where descent oscillates, at the start and along the flow.

Steps oscillate and grow where the preconditioned sharpness exceeds 2 (see
`dynsim.problem.sharpness`). Its value at the start and its maximum along the flow of all weights
are measured on a coarse grid, and interpolated in the logarithms of sharpness and axes.
"""

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
from sweeps.studies.phase import regions
from sweeps.systems import registry
from sweeps.systems.diagrams import Line, Regions
from sweeps.systems.experiment import Experiment

COARSE = 12
"""Largest number of values of an axis at which the sharpness is measured."""
TIMES = 16
"""Approximate number of steps of a flow at which the sharpness is measured."""
COLOUR = "#009E73"
LINES = {"edge-start": ("edge at the start", ":"), "edge": ("edge along the flow", "-")}


def edges(run: Experiment, axes: Mapping[str, Sequence[float]], out: Path) -> list[Line]:
    """Compute the lines on which the preconditioned sharpness of a run is 2: at the start, and its
    maximum along the flow of all weights.

    Args:
        run: the run. For one without an edge, the reason is printed and there are no lines.
        axes: values of the two axes of a plane, by name, the horizontal one first.
        out: folder in which the flows are stored.

    Returns:
        Lines whose values, over (y, x), are the log of the sharpness over 2; NaN where the
        sharpness is not known. `crosses` tells whether a line lies within the plane.

    Example:
        >>> run = sweeps.experiment("saxe", steps=5)
        >>> sweeps.diagrams.edges(run, {"eta": (0.1, 8.0), "u0": (0.01, 0.1)}, Path("out"))[0].name
        'edge-start'
    """
    try:
        flows = flow_of(run, axes)
    except ValueError as error:
        print(f"edge of stability: left out, {error}")
        return []
    values = values_of(run_sweep(flows, out / WHOLE.name).load().isel(seed=0), axes)
    lines = [
        Line(name, text, values[name], (COLOUR, dashes, 1.8))
        for name, (text, dashes) in LINES.items()
    ]
    for line in lines:
        if np.isnan(line.values).any():
            print(f"line {line.name}: left out, at some points the sharpness is not known")
        elif not crosses(line):
            low, high = (
                float(EDGE * np.exp(end)) for end in (line.values.min(), line.values.max())
            )
            print(
                f"line {line.name}: not in the plane, where the preconditioned sharpness is "
                f"{low:.2g} to {high:.2g} and the edge at {EDGE:g}"
            )
    return lines


def flow_of(run: Experiment, axes: Mapping[str, Sequence[float]]) -> Sweep:
    """Return the flows of runs over a plane, at `COARSE` values of each axis. `ValueError` with the
    reason for runs that have no edge or no flow of all weights."""
    system = registry.system_of(run)
    if WHOLE.name not in registry.theories(system):
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
    for settings in ({}, system.diagram().flow):
        try:
            found = Sweep(run.at(settings), coarse, WHOLE.name, (PRECONDITIONED,), TIMES)
            found.check()
        except ValueError as error:
            reasons.append(error)
        else:
            return found
    raise reasons[0]


def values_of(runs: xr.Dataset, axes: Mapping[str, Sequence[float]]) -> Mapping[str, xr.DataArray]:
    """Return the log of the sharpness of flows over the edge, (y, x), by the name of the line."""
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


def crosses(line: Line) -> bool:
    """Return whether a line lies within the plane of its values.

    Example:
        >>> import xarray as xr
        >>> sweeps.diagrams.crosses(sweeps.diagrams.Line("edge", "", xr.DataArray([[-1.0, 1.0]])))
        True
    """
    values = line.values
    return bool(np.isfinite(values).all() and values.min() < 0 < values.max())


def predicted(
    lines: Sequence[Line], rule: Regions, found: xr.Dataset
) -> Iterator[regions.Prediction]:
    """Yield the lines of the edge that cross a map, for the statement that runs beyond it and no
    others diverge; nothing for a rule without such a region."""
    code = next((code for code, (name, _) in rule.legend.items() if name == regions.DIVERGED), None)
    if code is None:
        return
    diverged = xr.Dataset({"region": (found["region"] == code).astype(int)})
    if "share" in found:
        share = found["share"].sel(code=code, drop=True)
        diverged["share"] = xr.concat([1 - share, share], "code").assign_coords(code=[0, 1])
        diverged = diverged.assign_coords(code=[0, 1])
    alone = 100 * float((diverged["region"] == 0).mean())
    for line in filter(crosses, lines):
        right = regions.agreement((line.values > 0).astype(int), diverged)
        text = f"diverged beyond it and nowhere else ({alone:.1f} % do not diverge)"
        yield regions.Prediction(line.name, text, right, line)
