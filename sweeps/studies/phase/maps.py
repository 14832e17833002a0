"""The maps of a diagram: region and observable at each point of its plane, computed or inferred."""

import pkgutil
from concurrent.futures import Executor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Bool, Int

from sweeps.runner.run import run as run_sweep
from sweeps.runner.spec import Sweep
from sweeps.studies.options import begin
from sweeps.studies.phase.lattice import Lattice, Value, mixed
from sweeps.studies.phase.plane import MOST_COARSE, Plane, at_end, colour_range, region_map, sampled
from sweeps.studies.phase.refinement import Refinement, guard
from sweeps.studies.phase.regions import Rule
from sweeps.systems import registry
from sweeps.systems.settings import settings_class

__all__ = ["maps", "settings"]


class Panel(NamedTuple):
    """What one engine says of the plane.

    Attributes:
        map: the dataset that `maps` returns.
        runs: of a full grid, or of the coarse one that was refined, for lines that a rule draws.
    """

    map: xr.Dataset
    runs: xr.Dataset


def settings(name: str = Plane.SYSTEM) -> type[Plane]:
    """The class of the settings of a system's diagrams, whose fields are the options of `dynsim
    phase NAME`; `ValueError` for an unknown system."""
    system = registry.system(name)
    if name == Plane.SYSTEM:
        # Loaded when it is asked for: it knows the theories that draw its lines.
        return pkgutil.resolve_name("sweeps.studies.phase.diagram:Phase")
    title = f"Draw a phase diagram of {name}: the outcome of its runs over a plane of two settings."
    return settings_class("Phase", system, Plane, title)


def maps(
    config: Plane, rule: Rule | None = None, *, seed: int = 0, executor: Executor | None = None
) -> dict[str, xr.Dataset]:
    """Compute or resume the maps of a diagram, without drawing them.

    Args:
        config: the settings, of the class that `settings` returns. With `refine`, only points near
            a change of region are run, and random ones among the others; what is in `out` is not
            run again.
        rule: of the regions, in place of that of the settings.
        seed: of the random points.
        executor: whose workers run the sweeps, as in `sweeps.run`.

    Returns:
        A dataset for each engine, over the two axes: `region`, a code of the rule, the most common
        one over seeds; the observable at the last step, averaged over classes and seeds, NaN where
        it was not computed or no run ended well; `computed`, False where the region was inferred
        from the corners of the point's cell; and `drawn`, the observable with values between those
        of the corners where it was not computed. Of a refined map, the attributes are the number of
        `runs`; `rounds` of random points until one had no `failures`, the number of `probes` of the
        last one, and its `bound`, an upper bound with 95 % confidence on the share of the plane
        whose inferred region, or with a tolerance its observable, is wrong.

    Raises:
        ValueError: for bad settings, before anything runs.
        StoreError: when `out` holds something else.
    """
    found = panels_of(config, rule or config.rule(), seed=seed, executor=executor)
    return {name: panel.map for name, panel in found.items()}


def panels_of(
    config: Plane, rule: Rule, *, seed: int = 0, executor: Executor | None = None
) -> dict[str, Panel]:
    """What `maps` returns, with runs of each engine."""
    begin(config)
    wanted = config.sweeps()
    for each in wanted.values():
        each.check()
    if config.refine:
        folders = {name: config.out / f"{name}-refined" for name in wanted}
        return {
            name: refined(each, config, rule, folders[name], seed, executor)
            for name, each in wanted.items()
        }
    full = {
        name: run_sweep(each, config.out / name, executor=executor).load()
        for name, each in wanted.items()
    }
    return {name: Panel(of_grid(found, config, rule), found) for name, found in full.items()}


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
