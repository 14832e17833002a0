"""Maps of a phase diagram: region and observable at each point, computed or inferred."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from types import MappingProxyType

import numpy as np
import xarray as xr
from jaxtyping import Bool, Int

from odes.theory import error_message
from sweeps.output.cells import along, colour_range, traced
from sweeps.runner.cluster import begin
from sweeps.runner.progress import say
from sweeps.runner.run import run as run_sweep
from sweeps.runner.spec import Sweep
from sweeps.runner.work import compile_first
from sweeps.studies.phase.counts import Tally, interval, undecided, wide, widths
from sweeps.studies.phase.plane import MOST_COARSE, Phase, at_points
from sweeps.studies.phase.refinement import Inferred, Lattice, Refinement, Value, guard, mixed
from sweeps.studies.phase.regions import BAND, resolve_regions
from sweeps.systems.diagrams import Predictions, Regions, View

PROBABILITIES = (BAND[0], 0.5, BAND[1])
"""Probabilities of a region at which curves are drawn."""
Compute = Callable[[Sweep, Path], xr.Dataset]


def maps(
    config: Phase,
    regions: Regions | None = None,
    *,
    seed: int = 0,
    executor: Executor | None = None,
) -> dict[str, xr.Dataset]:
    """Compute or resume the maps of a diagram, without drawing them.

    Args:
        config: the settings. With `refine`, only points near a change of region and random other
            points are run. Runs stored in `out` are reused.
        regions: the regions; by default those of the settings.
        seed: seed of the random points.
        executor: executor whose workers run the sweeps, as in `sweeps.run`.

    Returns:
        A dataset for training and each theory, over the two axes: `region`, the code of the most
        common region over seeds; the observable at the last step, averaged over its other axes and
        seeds, NaN where it was not computed or no run ended well; `computed`, False where the
        region was inferred from the corners of the point's cell; `drawn`, the observable,
        interpolated where it was not computed; and `seeds`, the number of runs at each point.

        With several seeds it also has, for the `code` and `name` of each region: `probability`, the
        share of the seeds that end in it; `low` and `high`, the ends of its Clopper-Pearson
        interval, with 95 % confidence that allows for repeated looks by `band`; and `share`, the
        probability, interpolated where it was not computed.

        The attribute `runs` is the number of runs. A refined map also has the number of `rounds` of
        random points and, for the last round, the numbers of `probes` and `failures` and the
        `bound`, an upper bound with 95 % confidence on the share of the plane whose inferred region
        (or observable, with a tolerance) is wrong. `dimension` is the box dimension of the boundary
        on the smallest cells, NaN without a boundary. With a band, `band` is the largest number of
        points across a boundary whose most probable region is uncertain.

    Raises:
        ValueError: for bad settings, before anything runs.
        StoreError: if `out` contains something else.

    Example:
        >>> run = sweeps.experiment("linear_icl", steps=20, batch=16)
        >>> plane = sweeps.diagrams.Phase(run, x="eta:0.05:20", y="scale:0.01:1", resolution=4)
        >>> regions = sweeps.diagrams.maps(plane)["simulation"].region
    """
    pairs = maps_and_runs(config, regions, seed=seed, executor=executor)
    return {name: phase_map for name, (phase_map, _) in pairs.items()}


def maps_and_runs(
    config: Phase,
    regions: Regions | None,
    *,
    seed: int = 0,
    executor: Executor | None = None,
    report: Callable[[str], None] | None = None,
) -> dict[str, tuple[xr.Dataset, xr.Dataset]]:
    """Return the datasets of `maps`, each with the runs of the full grid, or of the coarse one of a
    refined map. `report` is called with estimates of the cost."""
    begin(config)
    sweeps, regions = config.sweeps(), resolve_regions(regions or config.outcomes())
    for sweep in sweeps.values():
        sweep.check()
    axes = config.axes()
    if config.refine:
        say(f"{', '.join(sweeps)}: a coarse grid first, once its program is compiled")
    elif executor is None:
        # Errors in the equations of any sweep show before the first one runs.
        compile_first(sweeps.values())

    def compute(sweep: Sweep, out: Path) -> xr.Dataset:
        return run_sweep(sweep, out, executor=executor).load()

    pairs = {}
    for name, sweep in sweeps.items():
        xs, ys = axes.values()
        tally = Tally((len(xs), len(ys)), regions, config.shown)
        about: dict[str, float] = {}
        out = config.out / (f"{name}-refined" if config.refine else name)
        if config.refine:
            refinement, runs = refined(sweep, tally, config.tolerance, out, compute, report)
            about |= guard(refinement, config.probes, seed)._asdict()
            about["dimension"] = refinement.dimension()
            inferred, runs = refinement.infer(), on_grid(runs, *axes)
        else:
            inferred, runs = None, compute(sweep, out)
            tally.add(np.argwhere(tally.seeds == 0), runs)
        if config.band is not None and sweep.theory == "simulation":
            seeds = out.with_name(f"{out.name}-seeds")
            about["band"] = add_seeds(sweep, config, tally, seeds, compute)
        pairs[name] = as_map(tally, inferred, axes, runs).assign_attrs(about), runs
    return pairs


def refined(
    sweep: Sweep,
    tally: Tally,
    tolerance: float | None,
    out: Path,
    compute: Compute,
    report: Callable[[str], None] | None,
) -> tuple[Refinement, xr.Dataset]:
    """Refine a plane, counting the runs in `tally`; return the refinement and the runs of the
    coarse grid. The sweeps are stored in folders below `out`."""
    coarse: list[xr.Dataset] = []
    colours = colour_range(np.empty(0))

    def measure(name: str, points: Int[np.ndarray, "P 2"]) -> tuple[np.ndarray, np.ndarray]:
        nonlocal colours
        runs, at = compute(at_points(sweep, points, name), out / name), tuple(points.T)
        tally.add(points, runs)
        if not coarse:
            coarse.append(runs)
            # From the coarse grid alone: cells must not depend on the order of refinement.
            colours = colour_range(tally.value[at])
        return tally.region[at], tally.value[at]

    def apart(region: Int[np.ndarray, "N C"], value: Value) -> Bool[np.ndarray, " N"]:
        if tolerance is None:
            return mixed(region)
        return mixed(region) | colours.apart(value, tolerance)

    lattice = Lattice.of(tally.seeds.shape, MOST_COARSE)
    return Refinement(lattice, measure, apart, report), coarse[0]


def add_seeds(sweep: Sweep, config: Phase, tally: Tally, out: Path, compute: Compute) -> float:
    """Double the seeds where a boundary is uncertain by more than `band` points, until none is or
    `max_seeds` is reached. Return the largest remaining uncertainty."""
    width, most = config.band or math.inf, config.max_seeds
    number, unsure = 0, undecided(tally.shares, tally.seeds)
    while (todo := wide(unsure, width) & (tally.seeds < most)).any():
        number, seeds = number + 1, tally.seeds
        for have in np.unique(seeds[todo]).tolist():
            # An inferred point has no seeds yet.
            more = min(max(2 * have, config.seeds), most)
            points = np.argwhere(todo & (seeds == have))
            name = f"{width:g}-points-{number}-from-{have}-to-{more}"
            # Seeds are numbered through, so that a point has those of a uniform diagram.
            axes = {**sweep.axes, "seed": {"range": [have, more]}}
            added = at_points(dataclasses.replace(sweep, axes=axes), points, name)
            tally.add(points, compute(added, out / name))
        unsure = undecided(tally.shares, tally.seeds)
    return float(widths(unsure).max())


def as_map(
    tally: Tally,
    inferred: Inferred | None,
    axes: Mapping[str, Sequence[float]],
    runs: xr.Dataset,
) -> xr.Dataset:
    """Return the map of counted points, and of inferred ones elsewhere, labelled as in `runs`."""
    seeds, observable = tally.seeds, tally.observable
    known, region, drawn = seeds > 0, tally.region, tally.value
    if inferred is not None:
        # Seeds that were added after the refinement count where there are any.
        region = np.where(known, region, inferred.region)
        drawn = np.where(known, drawn, inferred.value)
    arrays = {
        observable: tally.value,
        "region": region,
        "drawn": drawn,
        "computed": known,
        "seeds": seeds,
    }
    coords = {name: (name, np.asarray(vs), runs[name].attrs) for name, vs in axes.items()}
    phase_map = xr.Dataset({name: (tuple(axes), array) for name, array in arrays.items()}, coords)
    if seeds.max() > 1:
        share = tally.shares
        low, high = interval(share, seeds[..., None])
        for name, array in {"share": share, "low": low, "high": high}.items():
            phase_map[name] = ((*axes, "code"), array)
        phase_map["probability"] = phase_map.share.where(phase_map.computed)
        texts = [text for text, _ in tally.regions.legend.values()]
        phase_map = phase_map.assign_coords(code=list(tally.regions.legend), name=("code", texts))
    for name in (observable, "drawn"):
        phase_map[name].attrs = dict(runs[observable].attrs)
    return phase_map.assign_attrs(runs=int(seeds.sum()))


def on_grid(dataset: xr.Dataset, x: str, y: str) -> xr.Dataset:
    """Unstack the zipped axes x and y, whose points form a full grid, into two dimensions."""
    return dataset.rename_dims({x: "point"}).set_index(point=[x, y]).unstack("point")


def predictions(
    config: Phase,
    phase_maps: Mapping[str, xr.Dataset] = MappingProxyType({}),
    regions: Regions | None = None,
) -> Predictions:
    """Return what theory predicts over the plane of a diagram: the lines, and where it expects
    noise and large steps to change the regions of a flow.

    Args:
        config: the settings.
        phase_maps: maps of these settings, from `maps`. Without training and a theory among them,
            there are only the lines that need no runs.
        regions: the regions; by default those of the settings.

    Example:
        >>> run = sweeps.experiment("yz", steps=20)
        >>> diagram = sweeps.diagrams.Phase(run, x="eta_y:0.1:10:3", y="eta_z:0.1:10:3")
        >>> [line.name for line in sweeps.diagrams.predictions(diagram).lines]
        ['rise_end', 'peak', 'snap']
    """
    regions, plane = resolve_regions(regions or config.outcomes()), config.plane()

    def compute(sweep: Sweep, folder: str) -> xr.Dataset:
        return run_sweep(sweep, config.out / folder).load()

    def solve(theory: str, points: Int[np.ndarray, "P 2"], folder: str) -> np.ndarray | None:
        sweep = at_points(config.sweep(theory), points, folder)
        if error_message(sweep.check):
            return None
        x, y = plane.dims
        tally = Tally((x.size, y.size), regions, config.shown)
        tally.add(points, compute(sweep, folder))
        return tally.region[tuple(points.T)]

    noise = config.noise and config.against != "none"
    return config.diagram.predict(View(plane, phase_maps, regions, noise, compute, solve))


def boundary(phase_map: xr.Dataset) -> xr.Dataset:
    """Return the curves on which regions have the probabilities `PROBABILITIES`.

    Args:
        phase_map: a map with several seeds, as `sweeps.diagrams.maps` returns it.

    Returns:
        A table over `vertex`: the name of the `region`; the `level`; `of`, the quantity at that
        level, which is the `share` of the seeds or, for 50 %, also the `low` or `high` end of its
        interval; the number of the `piece`, whose vertices are in order; `x` and `y` in units of
        the axes; and whether the nearest point was `computed`.

    Raises:
        ValueError: for a map with one run per point.

    Example:
        >>> run = sweeps.experiment("linear_icl", steps=10, batch=16)
        >>> plane = sweeps.diagrams.Phase(run, "eta:0.05:20", "scale:0.01:1", resolution=3, seeds=8)
        >>> curves = sweeps.diagrams.boundary(sweeps.diagrams.maps(plane)["simulation"])
    """
    if "share" not in phase_map:
        raise ValueError("phase_map: has one run at each point; a boundary needs several seeds")
    x, y = phase_map["computed"].dims
    # Between the 50 % curves of both ends, seeds do not decide which region is more probable.
    curves = [*(("share", level) for level in PROBABILITIES), ("low", 0.5), ("high", 0.5)]
    labels, pieces = [], []
    regions = enumerate(phase_map["name"].values)
    for (code, region), (of, level) in itertools.product(regions, curves):
        lines = traced(phase_map[of].isel(code=code).transpose(y, x), level)
        labels += [(region, level, of)] * len(lines)
        pieces += lines
    # There are no pieces if one region fills the plane.
    sizes, vertices = list(map(len, pieces)), np.concatenate([np.empty((0, 2)), *pieces])
    near_x, near_y = np.rint(vertices).astype(int).T
    names = ("region", "level", "of")
    columns = {n: np.repeat([label[i] for label in labels], sizes) for i, n in enumerate(names)}
    columns["piece"] = np.repeat(np.arange(len(sizes)), sizes)
    table = xr.Dataset({name: ("vertex", values) for name, values in columns.items()})
    for name, axis, at in (
        ("x", phase_map[x], vertices[:, 0]),
        ("y", phase_map[y], vertices[:, 1]),
    ):
        table[name] = ("vertex", along(axis, at), {**axis.attrs, "axis": axis.name})
    table["computed"] = ("vertex", phase_map["computed"].values[near_x, near_y])
    return table
