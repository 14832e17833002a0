"""Phase diagrams in the explorer: the sweeps in a diagram's folder, and regions of runs."""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from sweeps import output
from sweeps.commands.views.content import DIAGRAM_LINES, INFERRED, PYTHON, REGION
from sweeps.commands.views.outlines import outlines
from sweeps.language.values import find_value
from sweeps.runner.progress import count
from sweeps.runner.run import open_sweep
from sweeps.runner.store import GROUP_FILE, Report
from sweeps.runner.store.arrays import MISSING
from sweeps.studies.phase.regions import BY_NAME, resolve_regions
from sweeps.systems import budget, registry
from sweeps.systems.diagrams import Diagram, Regions
from sweeps.systems.experiment import problem_title

SUFFIX_REFINED = "-refined"
FOLDER_SUFFIXES = (SUFFIX_REFINED, "-seeds")
"""Suffixes of folders with further runs of a panel, each at some points of the plane."""
NO_REGION = -1
"""Region code of missing runs, which no legend uses."""


def opened(paths: Sequence[str], report: Report) -> dict[str, xr.Dataset]:
    """Open stored sweeps by the names that the page shows.

    Args:
        paths: paths of sweeps, or of folders that `dynsim phase` wrote. A folder gives the sweeps
            of its panels, named by their titles, whose runs also have a `region`. The runs of a
            refined diagram, or of one with a band, lie on the grid of all its points.
        report: called with lines about files there that do not belong to a sweep.

    Raises:
        ValueError: for a folder without a sweep of a diagram.
        StoreError: as in `sweeps.open`.
    """
    sweeps: dict[str, xr.Dataset] = {}
    for path in dict.fromkeys(paths):
        folder = Path(path)
        stores = _stores(folder)
        if not stores or folder in stores:
            sweeps[path] = _open(path, report)
            continue
        try:
            panels = dict(_panels(folder, stores, report))
        except (LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path}: has files that dynsim does not write ({error!r})") from error
        if not panels:
            raise ValueError(f"{path}: contains sweeps, but no phase diagram; choose one of them")
        sweeps |= panels
    return sweeps


def _stores(folder: Path) -> list[Path]:
    """Return the folder if it is a sweep, else those below it. Links, which may lead back to it,
    are not followed."""
    stores = []
    for inside, folders, files in os.walk(folder):
        folders.sort()
        if GROUP_FILE in files:
            stores.append(Path(inside))
            folders.clear()
    return stores


def _open(path: str, report: Report) -> xr.Dataset:
    """Open a stored sweep and note the Python code that opens it."""
    lines = ["import sweeps", f"runs = sweeps.open({path!r})"]
    return open_sweep(path, report).assign_attrs({PYTHON: lines})


def _panels(
    folder: Path, stores: Sequence[Path], report: Report
) -> Iterator[tuple[str, xr.Dataset]]:
    """Yield the sweeps of a diagram that recorded its regions' observables, training first."""
    theories: dict[str, list[Path]] = {}
    for path in stores:
        top = path.relative_to(folder).parts[0]
        theory = next((top.removesuffix(end) for end in FOLDER_SUFFIXES if top.endswith(end)), top)
        theories.setdefault(theory, []).append(path)
    # The regions that the command was called with. The file of another problem than the command's
    # default has the name of the problem, too.
    word = None
    for path in sorted(folder.glob("phase*.run.json"))[:1]:
        with output.reading(path):
            word = json.loads(path.read_text()).get("settings", {}).get("regions")

    shape = None
    for theory in sorted(theories, key=lambda name: name != "simulation"):
        paths = theories[theory]
        parts = [_open(str(path), report) for path in paths]
        first = parts[0]
        config = json.loads(first.attrs["config"])
        system = config["system"]
        diagram = registry.system(system).diagram() if system in registry.names() else Diagram()
        title = {"simulation": "training", **diagram.titles}.get(theory, theory)

        regions = None
        if word and word not in BY_NAME:
            # Somebody's code, which opening a folder must not run: the regions as they were drawn.
            regions = _regions_as_drawn(folder, theory)
            if regions is None:
                report(
                    f"regions = {word!r}: not in this folder; using the regions of the system "
                    "instead"
                )
        if regions is None:
            candidates = [BY_NAME[word]] if word in BY_NAME else []
            candidates += [resolve_regions(None, diagram.regions), *BY_NAME.values()]
            recorded = {*first.data_vars}
            regions = next((rule for rule in candidates if {*rule.record} <= recorded), None)
        # Zipped points that refine nothing only correct a theory in the figure.
        if regions is None or (config["zip"] and f"{theory}{SUFFIX_REFINED}" not in paths[0].parts):
            continue

        if first["status"].ndim and (len(parts) > 1 or config["zip"]):
            code = [
                "from sweeps.commands.views.diagrams import opened",
                f"runs = opened([{str(folder)!r}], print)[{title!r}]",
            ]
            dataset = on_plane(parts, regions, _read_map(folder, theory))
            dataset = dataset.assign_attrs({PYTHON: code})
        else:
            dataset = first.assign({REGION: _classify(first, regions)})
        grid = {dim: size for dim, size in dataset["status"].sizes.items() if dim != "seed"}
        # Predictions of noise and the edge of stability are also there, on coarser grids.
        if len(grid) != 2 or grid != (shape or grid):
            continue
        legend = [[int(code), name, colour] for code, (name, colour) in regions.legend.items()]
        dataset[REGION].attrs = {REGION: legend}
        dataset.attrs["title"] = f"Phase diagram of {problem_title(config['run']['problem'])}"
        if shape is None:
            dataset.attrs[DIAGRAM_LINES] = outlines(folder, config["axes"][:2])
        shape = grid
        yield title, dataset


def _regions_as_drawn(folder: Path, theory: str) -> Regions | None:
    """Return the regions of a figure: those of each run are those of its point there."""
    path, drawn = folder / "phase.json", _read_map(folder, theory)
    if not path.exists() or REGION not in drawn:
        return None
    with output.reading(path):
        legend = json.loads(path.read_text()).get("regions")
    if not legend:
        return None
    codes = drawn.pop(REGION)
    x, y = (name for name, values in drawn.items() if len(values) in codes.shape)
    plane = xr.DataArray(codes, {x: drawn[x], y: drawn[y]}, (x, y))

    def classify(runs: xr.Dataset) -> xr.DataArray:
        # The axes of runs and figure may differ by rounding.
        at = plane.sel({x: runs[x], y: runs[y]}, method="nearest").drop_vars([x, y])
        return at.broadcast_like(runs["status"]).transpose(*runs["status"].dims)

    named = {int(code): (name, colour) for code, (name, colour) in legend.items()}
    return Regions((), classify, named, failures=True)


def _classify(dataset: xr.Dataset, regions: Regions) -> xr.DataArray:
    """Return the region of each run as an integer code."""
    budget.check_read("status", dataset.nbytes)
    return regions.classify(dataset.load()).where(dataset["status"] != MISSING, NO_REGION)


def _read_map(folder: Path, theory: str) -> dict[str, np.ndarray]:
    """Return the axes of a diagram and the region at each point, as in its figure."""
    path = folder / "phase.npz"
    if not path.exists():
        return {}
    with output.reading(path), np.load(path) as file:
        # The sizes of arrays, which are compressed: a small file may have huge ones.
        if sum(entry.file_size for entry in file.zip.infolist()) > output.MOST_READ:
            raise ValueError(f"holds more than {output.MOST_READ / 1e6:.0f} MB")
        axes = {name: file[name] for name in file if "/" not in name and file[name].ndim == 1}
        return {**axes, REGION: file[f"{theory}/region"]} if f"{theory}/region" in file else axes


def on_plane(
    parts: Sequence[xr.Dataset], regions: Regions, drawn: Mapping[str, np.ndarray]
) -> xr.Dataset:
    """Combine runs at different points of a plane into one dataset over the whole plane.

    Args:
        parts: sweeps of one panel, over the plane or over points of it whose axes are zipped.
        regions: how runs are classified.
        drawn: values of the axes, and the `region` at each point, which replaces missing runs;
            empty if no figure was drawn.
    """
    config = json.loads(parts[0].attrs["config"])
    x, y = config["axes"][:2]
    axes = {
        name: drawn.get(name, np.unique(np.concatenate([part[name].values for part in parts])))
        for name in (x, y)
    }
    seeds, has_seeds = np.zeros(1, int), "seed" in parts[0].dims
    if has_seeds:
        seeds = np.unique(np.concatenate([part["seed"].values for part in parts]))
    shape = (len(axes[x]), len(axes[y]), len(seeds))
    budget.check_read(f"{x}, {y}", 4 * math.prod(shape))

    full: dict[str, tuple[tuple[str, ...], np.ndarray, dict]] = {}
    for part in parts:
        runs = part.assign({REGION: _classify(part, regions)})
        runs = runs if has_seeds else runs.expand_dims({"seed": seeds})
        # A grid over the plane, or points whose axes are zipped.
        runs = runs.stack(point=[x, y]) if y in runs.dims else runs.rename_dims({x: "point"})
        index = []
        for name in (x, y):
            # Each value is looked up once, as many runs share it.
            values, inverse = np.unique(runs[name].values, return_inverse=True)
            at = [find_value(name, axes[name], value.item()) for value in values]
            index.append(np.array(at)[inverse, None])
        index.append(np.searchsorted(seeds, runs["seed"].values))
        for key, array in runs.data_vars.items():
            name, array = str(key), array.transpose("point", "seed", ...)
            if name not in full:
                # What runs have that were not computed. The page shows float32.
                kind = np.dtype(np.float32) if array.dtype.kind == "f" else array.dtype
                missing = {"status": MISSING, REGION: NO_REGION}.get(
                    name, np.nan if kind == np.float32 else 0
                )
                empty = np.full((*shape, *array.shape[2:]), missing, kind)
                full[name] = ((x, y, "seed", *map(str, array.dims[2:])), empty, array.attrs)
            full[name][1][tuple(index)] = array.values

    computed = full["status"][1] != MISSING
    points = computed.any(-1)
    note = f"{count(int(computed.sum()), 'run')} at {count(int(points.sum()), 'point')}"
    if REGION in drawn and not points.all():
        # Of one seed, as an inferred region is that of a point.
        full[REGION][1][~points, 0] = drawn[REGION][~points]
        number = int((~points).sum())
        note += f"; the regions of the other {number} are inferred from their neighbours"
    coords = {name: (name, values, parts[0][name].attrs) for name, values in axes.items()}
    others = {n: c for n, c in parts[0].coords.items() if n not in (x, y, "seed")}
    dataset = xr.Dataset(full, {**coords, "seed": seeds, **others}, parts[0].attrs)
    # Over the whole plane, axes that were zipped are a grid.
    dataset.attrs["config"] = json.dumps({**config, "zip": []})
    dataset.attrs[INFERRED] = note
    return dataset if has_seeds else dataset.isel(seed=0, drop=True)
