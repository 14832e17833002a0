"""The edge of stability over a plane: where descent oscillates, at the start and along the flow.

Steps oscillate and grow where the preconditioned sharpness exceeds 2 (see
`dynsim.problem.sharpness`). Its value at the start and its maximum along the flow of all weights
are measured on a coarse grid, and interpolated in the logarithms of sharpness and axes.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

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

COARSE_VALUES = 12
"""Largest number of values of an axis at which the sharpness is measured."""
FLOW_TIMES = 16
"""Approximate number of steps of a flow at which the sharpness is measured."""
COLOUR = "#009E73"
EDGE_LINES = {"edge-start": ("edge at the start", ":"), "edge": ("edge along the flow", "-")}


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
        for name, (text, dashes) in EDGE_LINES.items()
    ]
    for line in lines:
        if np.isnan(line.values).any():
            print(f"line {line.name}: left out, at some points the sharpness is not known")
        elif not crosses(line):
            ends = line.values.min(), line.values.max()
            low, high = (float(EDGE * np.exp(end)) for end in ends)
            print(
                f"line {line.name}: not in the plane, where the preconditioned sharpness is "
                f"{low:.2g} to {high:.2g} and the edge at {EDGE:g}"
            )
    return lines


def flow_of(run: Experiment, axes: Mapping[str, Sequence[float]]) -> Sweep:
    """Return the flows of runs over a coarse grid of the plane. `ValueError` with the reason for
    runs that have no edge or no flow of all weights."""
    system = registry.system_of(run)
    if WHOLE.name not in registry.theories(system):
        raise ValueError("the problem has no population loss")
    rule = run.built[1]
    check_threshold(rule)
    if rule.is_adaptive:
        raise ValueError(f"along a flow, the preconditioner of {rule.name} is not known")
    coarse: dict[str, Sequence[float] | dict[str, int]] = {
        name: [values[i] for i in _coarse(len(values)).tolist()] for name, values in axes.items()
    }
    coarse["seed"] = {"range": 1}
    reasons = []
    # Runs without a flow may have one with the settings that their system names for this purpose.
    for settings in ({}, system.diagram().flow):
        try:
            flows = Sweep(run.at(settings), coarse, WHOLE.name, (PRECONDITIONED,), FLOW_TIMES)
            flows.check()
        except ValueError as error:
            reasons.append(error)
        else:
            return flows
    raise reasons[0]


def values_of(runs: xr.Dataset, axes: Mapping[str, Sequence[float]]) -> Mapping[str, xr.DataArray]:
    """Return the log of the sharpness of flows over the edge, (y, x), by the name of the line."""
    sharpness = runs[PRECONDITIONED].where(np.isfinite(runs[PRECONDITIONED]))
    recorded = next(dim for dim in ("time", "record") if dim in sharpness.dims)
    # The sharpness below a saddle is negative, far from the edge.
    ratio = (sharpness / EDGE).clip(min=np.finfo(float).tiny)
    logs: xr.DataArray = xr.apply_ufunc(np.log, ratio)
    values = xr.Dataset({"edge-start": logs.isel({recorded: 0}), "edge": logs.max(recorded)})
    # Linear along the numbers of the points: by the logarithm on a logarithmic axis.
    values = values.assign_coords({name: _coarse(len(axis)) for name, axis in axes.items()})
    values = values.interp({name: np.arange(len(axis)) for name, axis in axes.items()})
    values = values.assign_coords({name: np.asarray(axis) for name, axis in axes.items()})
    return {name: values[name].transpose(*reversed(tuple(axes))) for name in EDGE_LINES}


def _coarse(number: int) -> np.ndarray:
    """Return the indices of the coarse grid among `number` values, with both ends."""
    return np.unique(np.rint(np.linspace(0, number - 1, COARSE_VALUES)).astype(int))


def crosses(line: Line) -> bool:
    """Return whether a line lies within the plane of its values.

    Example:
        >>> import xarray as xr
        >>> sweeps.diagrams.crosses(sweeps.diagrams.Line("edge", "", xr.DataArray([[-1.0, 1.0]])))
        True
    """
    values = line.values
    return bool(np.isfinite(values).all() and values.min() < 0 < values.max())


def predictions_of(
    lines: Sequence[Line], rule: Regions, phase_map: xr.Dataset
) -> Iterator[regions.RegionPrediction]:
    """Yield the lines of the edge that cross a map, for the statement that runs beyond it and no
    others diverge; nothing for a rule without such a region."""
    code = next(
        (code for code, (name, _) in rule.legend.items() if name == regions.DIVERGED_NAME), None
    )
    if code is None:
        return
    # The same map with two regions, 1 where runs diverge.
    diverged = xr.Dataset({"region": (phase_map["region"] == code).astype(int)})
    if "share" in phase_map:
        share = phase_map["share"].sel(code=code, drop=True)
        diverged["share"] = xr.concat([1 - share, share], "code").assign_coords(code=[0, 1])
        diverged = diverged.assign_coords(code=[0, 1])
    alone = 100 * float((diverged["region"] == 0).mean())
    for line in filter(crosses, lines):
        right = regions.region_agreement((line.values > 0).astype(int), diverged)
        text = f"diverged beyond it and nowhere else ({alone:.1f} % do not diverge)"
        yield regions.RegionPrediction(line.name, text, right, line)
