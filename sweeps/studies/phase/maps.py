"""The maps of a diagram: region and observable at each point of its plane, computed or inferred."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Bool, Int

from sweeps.runner.run import run as run_sweep
from sweeps.runner.spec import Sweep
from sweeps.studies.options import begin, colour_range
from sweeps.studies.phase import bands
from sweeps.studies.phase.bands import boundary
from sweeps.studies.phase.diagram import Phase
from sweeps.studies.phase.lattice import Inferred, Lattice, Value, mixed
from sweeps.studies.phase.plane import MOST_COARSE, Plane, sampled
from sweeps.studies.phase.refinement import Refinement, guard
from sweeps.studies.phase.regions import Rule
from sweeps.studies.phase.tally import Tally

__all__ = ["Phase", "Plane", "boundary", "maps"]


class Panel(NamedTuple):
    """What one engine says of the plane.

    Attributes:
        map: the dataset that `maps` returns.
        runs: of a full grid, or of the coarse one that was refined, for lines that a rule draws.
    """

    map: xr.Dataset
    runs: xr.Dataset


def maps(
    config: Plane, rule: Rule | None = None, *, seed: int = 0, executor: Executor | None = None
) -> dict[str, xr.Dataset]:
    """Compute or resume the maps of a diagram, without drawing them.

    Args:
        config: the settings: a `Plane`, or a `Phase` for the layer in Y and Z. With `refine`, only
            points near a change of region are run, and random ones among the others; what is in
            `out` is not run again.
        rule: of the regions, in place of that of the settings.
        seed: of the random points.
        executor: whose workers run the sweeps, as in `sweeps.run`.

    Returns:
        A dataset for each engine, over the two axes: `region`, a code of the rule, the most common
        one over seeds; the observable at the last step, averaged over classes and seeds, NaN where
        it was not computed or no run ended well; `computed`, False where the region was inferred
        from the corners of the point's cell; `drawn`, the observable with values between those of
        the corners where it was not computed; and `seeds`, the number of runs at each point.

        With several seeds also, for the `code` and `name` of each region: its `probability`, the
        share of the seeds that end in it; the `low` and `high` ends of its interval after Clopper
        and Pearson, with 95 % confidence even after the repeated looks that `band` takes; and
        `share`, the probability with values in between where it was not computed.

        The attributes are the number of `runs`. Of a refined map, also `rounds` of random points
        until one had no `failures`, the number of `probes` of the last one, and its `bound`, an
        upper bound with 95 % confidence on the share of the plane whose inferred region, or with a
        tolerance its observable, is wrong; and the box `dimension` of the boundary on the smallest
        cells, NaN without one. With a band, also `band`, the largest number of points across a
        boundary whose most probable region is uncertain.

    Raises:
        ValueError: for bad settings, before anything runs.
        StoreError: when `out` holds something else.

    Example:
        >>> run = sweeps.experiment("linear_icl", steps=200)
        >>> plane = sweeps.phase.Plane(run, x="eta:0.05:20", y="scale:0.01:1", resolution=8)
        >>> regions = sweeps.phase.maps(plane)["simulation"]
    """
    found = panels_of(config, rule or config.rule(), seed=seed, executor=executor)
    return {name: panel.map for name, panel in found.items()}


def panels_of(
    config: Plane,
    rule: Rule,
    *,
    seed: int = 0,
    executor: Executor | None = None,
    report: Callable[[str], None] | None = None,
) -> dict[str, Panel]:
    """What `maps` returns, with runs of each engine. `report` is called with lines for people."""
    begin(config)
    wanted = config.sweeps()
    for each in wanted.values():
        each.check()
    return {
        name: panel(each, config, rule, config.out / name, seed, executor, report)
        for name, each in wanted.items()
    }


def panel(
    sweep: Sweep,
    config: Plane,
    rule: Rule,
    out: Path,
    seed: int,
    executor: Executor | None,
    report: Callable[[str], None] | None = None,
) -> Panel:
    """The map of one engine; its sweeps are in folders whose names begin with `out`."""
    axes = config.axes()
    xs, ys = axes.values()
    tally = Tally((len(xs), len(ys)), rule, config.observable)
    whole, about = None, {}
    if config.refine:
        out = out.with_name(f"{out.name}-refined")
        runs, refinement = refined(sweep, config, tally, out, executor, report)
        about = guard(refinement, config.probes, seed)._asdict()
        about["dimension"] = refinement.dimension()
        whole = refinement.infer()
    else:
        runs = run_sweep(sweep, out, executor=executor).load()
        tally.add(np.argwhere(tally.seeds == 0), runs)
    if config.band is not None and sweep.engine == "simulation":
        about |= add_seeds(sweep, config, tally, out.with_name(f"{out.name}-seeds"), executor)
    found = as_map(tally, whole, rule, axes, runs, config.observable)
    return Panel(found.assign_attrs(about), on_grid(runs, *axes) if config.refine else runs)


def refined(
    sweep: Sweep,
    config: Plane,
    tally: Tally,
    out: Path,
    executor: Executor | None,
    report: Callable[[str], None] | None,
) -> tuple[xr.Dataset, Refinement]:
    """The runs of the coarse grid, and what refines it, adding to the tally; its sweeps are in
    folders below `out`."""
    kept: list[xr.Dataset] = []
    colours = colour_range(np.empty(0))

    def measure(name: str, points: Int[np.ndarray, "P 2"]) -> tuple[np.ndarray, np.ndarray]:
        nonlocal colours
        found = run_sweep(sampled(sweep, points, name), out / name, executor=executor).load()
        tally.add(points, found)
        at = tuple(points.T)
        if not kept:
            kept.append(found)
            # Of the coarse grid alone: cells must not depend on what was refined before them.
            colours = colour_range(tally.value[at])
        return tally.region[at], tally.value[at]

    def apart(region: Int[np.ndarray, "N C"], value: Value) -> Bool[np.ndarray, " N"]:
        if config.tolerance is None:
            return mixed(region)
        return mixed(region) | colours.apart(value, config.tolerance)

    lattice = Lattice.of(tally.seeds.shape, MOST_COARSE)
    refinement = Refinement(lattice, measure, apart, report)
    return kept[0], refinement


def add_seeds(
    sweep: Sweep, config: Plane, tally: Tally, out: Path, executor: Executor | None
) -> dict[str, float]:
    """Double the seeds where a boundary is uncertain by more than `band` points, until none is or
    they are `max_seeds`; returns the largest uncertainty that is left."""
    width, most = config.band or math.inf, config.max_seeds
    number, unsure = 0, bands.undecided(tally.shares, tally.seeds)
    while (todo := bands.wide(unsure, width) & (tally.seeds < most)).any():
        number, seeds = number + 1, tally.seeds
        for have in np.unique(seeds[todo]).tolist():
            # A point that was inferred has none yet.
            more = min(max(2 * have, config.seeds), most)
            points = np.argwhere(todo & (seeds == have))
            name = f"{width:g}-points-{number}-from-{have}-to-{more}"
            wanted = {**sweep.axes, "seed": {"range": [have, more]}}
            added = sampled(dataclasses.replace(sweep, axes=wanted), points, name)
            tally.add(points, run_sweep(added, out / name, executor=executor).load())
        unsure = bands.undecided(tally.shares, tally.seeds)
    return {"band": float(bands.widths(unsure).max())}


def as_map(
    tally: Tally,
    whole: Inferred | None,
    rule: Rule,
    axes: Mapping[str, Sequence[float]],
    runs: xr.Dataset,
    observable: str,
) -> xr.Dataset:
    """The map of what was counted, and inferred where nothing was; labels are those of `runs`."""
    seeds = tally.seeds
    known = seeds > 0
    arrays = {
        observable: tally.value,
        "region": tally.region if whole is None else np.where(known, tally.region, whole.region),
        "drawn": tally.value if whole is None else np.where(known, tally.value, whole.value),
        "computed": known,
        "seeds": seeds,
    }
    coords = {name: (name, np.asarray(each), runs[name].attrs) for name, each in axes.items()}
    found = xr.Dataset({name: (tuple(axes), each) for name, each in arrays.items()}, coords)
    if seeds.max() > 1:
        share = tally.shares
        low, high = bands.interval(share, seeds[..., None])
        for name, each in {"share": share, "low": low, "high": high}.items():
            found[name] = ((*axes, "code"), each)
        found["probability"] = found.share.where(found.computed)
        texts = [text for text, _ in rule.legend.values()]
        found = found.assign_coords(code=list(rule.legend), name=("code", texts))
    for name in (observable, "drawn"):
        found[name].attrs = dict(runs[observable].attrs)
    return found.assign_attrs(runs=int(seeds.sum()))


def on_grid(dataset: xr.Dataset, x: str, y: str) -> xr.Dataset:
    """Runs with zipped axes that are all of a grid, with a dimension for each of these."""
    return dataset.rename_dims({x: "point"}).set_index(point=[x, y]).unstack("point")
