"""The maps of a diagram: region and observable at each point of its plane, computed or inferred."""

from concurrent.futures import Executor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Bool, Int

from sweeps.runner.run import run as run_sweep
from sweeps.runner.spec import Sweep
from sweeps.studies.phase.lattice import Lattice, Value, mixed
from sweeps.studies.phase.plane import MOST_COARSE, Plane, at_end, colour_range, region_map, sampled
from sweeps.studies.phase.refinement import Refinement, guard
from sweeps.studies.phase.regions import Rule


class Panel(NamedTuple):
    """What one engine says of the plane.

    Attributes:
        map: the dataset that `sweeps.studies.phase.figure.maps` returns.
        runs: of a full grid, or of the coarse one that was refined, for lines that a rule draws.
    """

    map: xr.Dataset
    runs: xr.Dataset


def of_grid(dataset: xr.Dataset, config: Plane, rule: Rule) -> xr.Dataset:
    """The map of a full grid."""
    values, region = at_end(dataset, config.observable), region_map(dataset, rule)
    found = {config.observable: values, "region": region, "drawn": values}
    found["computed"] = xr.ones_like(region, dtype=bool)
    return xr.Dataset(found, attrs={"runs": dataset.status.size})


def refined(
    sweep: Sweep, config: Plane, rule: Rule, out: Path, seed: int, executor: Executor | None
) -> Panel:
    """The map of one engine, refined; its sweeps are in folders below `out`."""
    axes = config.axes()
    kept: dict[str, xr.Dataset] = {}
    colours = colour_range(np.empty(0))

    def measure(name: str, points: Int[np.ndarray, "P 2"]) -> tuple[np.ndarray, np.ndarray]:
        nonlocal colours
        found = run_sweep(sampled(sweep, points, name), out / name, executor=executor).load()
        values = at_end(found, config.observable).values
        if not kept:
            kept[name] = found
            # Of the coarse grid alone: cells must not depend on what was refined before them.
            colours = colour_range(values)
        return region_map(found, rule).values, values

    def apart(region: Int[np.ndarray, "N C"], value: Value) -> Bool[np.ndarray, " N"]:
        if config.tolerance is None:
            return mixed(region)
        return mixed(region) | colours.apart(value, config.tolerance)

    xs, ys = axes.values()
    lattice = Lattice.of((len(xs), len(ys)), MOST_COARSE)
    refinement = Refinement(lattice, measure, apart)
    guarded = guard(refinement, config.probes, seed)
    whole = refinement.infer()
    values = np.where(whole.measured, whole.value, np.nan)
    (coarse,) = kept.values()
    arrays = {
        config.observable: values,
        "region": whole.region,
        "drawn": whole.value,
        "computed": whole.measured,
    }
    seeds = len(sweep.fields.get("seed", (0,)))
    found = xr.Dataset(
        {name: (tuple(axes), array) for name, array in arrays.items()},
        {name: (name, np.asarray(values), coarse[name].attrs) for name, values in axes.items()},
        {"runs": refinement.num_measured * seeds, **guarded._asdict()},
    )
    for name in (config.observable, "drawn"):
        found[name].attrs = coarse[config.observable].attrs
    return Panel(found, on_grid(coarse, *axes))


def on_grid(dataset: xr.Dataset, x: str, y: str) -> xr.Dataset:
    """Runs with zipped axes that are all of a grid, with a dimension for each of these."""
    return dataset.rename_dims({x: "point"}).set_index(point=[x, y]).unstack("point")
