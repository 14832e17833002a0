"""Phase diagrams in the explorer: the sweeps in a diagram's folder, and regions of runs."""

import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from sweeps import output
from sweeps.commands.views.content import INFERRED, LINES, PYTHON, REGION
from sweeps.commands.views.outlines import outlines
from sweeps.language.values import find_value
from sweeps.runner.progress import count
from sweeps.runner.run import open_sweep
from sweeps.runner.store import GROUP, Report
from sweeps.runner.store.arrays import MISSING
from sweeps.studies.phase.regions import NAMED, chosen
from sweeps.systems import budget, registry
from sweeps.systems.diagrams import Diagram, Regions
from sweeps.systems.experiment import about

PARTS = ("-refined", "-seeds")
"""Suffixes of folders with further runs of a panel, each at some points of the plane."""
NOWHERE = -1
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
    found: dict[str, xr.Dataset] = {}
    for path in dict.fromkeys(paths):
        folder = Path(path)
        stores = _sweeps(folder)
        if not stores or folder in stores:
            found[path] = _opened(path, report)
            continue
        try:
            panels = dict(_panels(folder, stores, report))
        except (LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path}: has files that dynsim does not write ({error!r})") from error
        if not panels:
            raise ValueError(f"{path}: contains sweeps, but no phase diagram; choose one of them")
        found |= panels
    return found


def _sweeps(folder: Path) -> list[Path]:
    """Return the folder if it is a sweep, else those below it. Links, which may lead back to it,
    are not followed."""
    found = []
    for inside, folders, files in os.walk(folder):
        folders.sort()
        if GROUP in files:
            found.append(Path(inside))
            folders.clear()
    return found


def _opened(path: str, report: Report) -> xr.Dataset:
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
        theory = next((top.removesuffix(end) for end in PARTS if top.endswith(end)), top)
        theories.setdefault(theory, []).append(path)
    settings = _settings(folder)
    points = None
    for theory in sorted(theories, key=lambda name: name != "simulation"):
        paths = theories[theory]
        datasets = [_opened(str(path), report) for path in paths]
        config = json.loads(datasets[0].attrs["config"])
        system = config["system"]
        diagram = registry.system(system).diagram() if system in registry.names() else Diagram()
        rule = _rule(diagram, datasets[0], settings, folder, theory, report)
        title = {"simulation": "training", **diagram.titles}.get(theory, theory)
        # Zipped points that refine nothing only correct a theory in the figure.
        refined = f"{theory}{PARTS[0]}" in paths[0].parts
        if rule is None or (config["zip"] and not refined):
            continue
        if datasets[0]["status"].ndim and (len(paths) > 1 or config["zip"]):
            dataset = gathered(datasets, rule, _map(folder, theory)).assign_attrs(
                {PYTHON: _python(folder, title)}
            )
        else:
            dataset = datasets[0].assign({REGION: _regions(datasets[0], rule)})
        grid = {dim: size for dim, size in dataset["status"].sizes.items() if dim != "seed"}
        # Predictions of noise and the edge of stability are also there, on coarser grids.
        if len(grid) != 2 or grid != (points or grid):
            continue
        legend = [[int(code), name, colour] for code, (name, colour) in rule.legend.items()]
        dataset[REGION].attrs = {REGION: legend}
        dataset.attrs["title"] = f"Phase diagram of {about(config['run']['problem'])}"
        if points is None:
            dataset.attrs[LINES] = outlines(folder, config["axes"][:2])
        points = grid
        yield title, dataset


def _settings(folder: Path) -> dict[str, Any]:
    """Return the settings of the command that wrote a diagram, if they are recorded."""
    # The name of another problem than that of the command is in the name of the file.
    path = next(iter(sorted(folder.glob("phase*.run.json"))), None)
    if path is None:
        return {}
    with output.reading(path):
        return json.loads(path.read_text()).get("settings", {})


def _rule(
    diagram: Diagram,
    dataset: xr.Dataset,
    settings: dict[str, Any],
    folder: Path,
    theory: str,
    report: Report,
) -> Regions | None:
    """Return the regions that a diagram was drawn with, else those of its system, or others for
    which the recorded observables suffice."""
    rules = [chosen(None, diagram.regions), *NAMED.values()]
    word = settings.get("regions")
    if word in NAMED:
        rules.insert(0, NAMED[word])
    elif word:
        # Code of somebody's, which opening a folder must not run: the regions as they were drawn.
        if drawn := _as_drawn(folder, theory):
            return drawn
        report(f"regions = {word!r}: not in this folder; using the regions of the system instead")
    return next((each for each in rules if {*each.record} <= {*dataset.data_vars}), None)


def _as_drawn(folder: Path, theory: str) -> Regions | None:
    """Return the regions of a figure: those of each run are those of its point there."""
    path, found = folder / "phase.json", _map(folder, theory)
    if not path.exists() or REGION not in found:
        return None
    with output.reading(path):
        legend = json.loads(path.read_text()).get("regions")
    if not legend:
        return None
    region = found.pop(REGION)
    x, y = (name for name, values in found.items() if len(values) in region.shape)
    area = xr.DataArray(region, {x: found[x], y: found[y]}, (x, y))

    def classify(runs: xr.Dataset) -> xr.DataArray:
        at = area.sel({x: runs[x], y: runs[y]}, method="nearest").drop_vars([x, y])
        return at.broadcast_like(runs["status"]).transpose(*runs["status"].dims)

    named = {int(code): (name, colour) for code, (name, colour) in legend.items()}
    return Regions((), classify, named, failures=True)


def _regions(dataset: xr.Dataset, regions: Regions) -> xr.DataArray:
    """Return the region of each run as an integer code."""
    budget.check_read("status", dataset.nbytes)
    found = regions.classify(dataset.load())
    return found.where(dataset["status"] != MISSING, NOWHERE)


def _map(folder: Path, theory: str) -> dict[str, np.ndarray]:
    """Return the axes of a diagram and the region at each point, as in its figure."""
    path = folder / "phase.npz"
    if not path.exists():
        return {}
    with output.reading(path), np.load(path) as file:
        if sum(each.file_size for each in file.zip.infolist()) > output.MOST_READ:
            raise ValueError(f"holds more than {output.MOST_READ / 1e6:.0f} MB")
        axes = {name: file[name] for name in file if "/" not in name and file[name].ndim == 1}
        return {**axes, REGION: file[f"{theory}/region"]} if f"{theory}/region" in file else axes


def _python(folder: Path, title: str) -> list[str]:
    return [
        "from sweeps.commands.views.diagrams import opened",
        f"runs = opened([{str(folder)!r}], print)[{title!r}]",
    ]


def gathered(
    parts: Sequence[xr.Dataset], regions: Regions, drawn: dict[str, np.ndarray]
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
        n: drawn.get(n, np.unique(np.concatenate([p[n].values for p in parts]))) for n in (x, y)
    }
    seeded = "seed" in parts[0].dims
    seeds = np.unique(np.concatenate([each["seed"].values for each in parts])) if seeded else [0]
    shape = (len(axes[x]), len(axes[y]), len(seeds))
    budget.check_read(f"{x}, {y}", 4 * math.prod(shape))
    full: dict[str, Any] = {}
    for part in parts:
        runs = part.assign({REGION: _regions(part, regions)})
        grid = y in runs.dims
        runs = runs.stack(point=[x, y]) if grid else runs.rename_dims({x: "point"})
        places = [_places(n, axes[n], runs[n].values) for n in (x, y)]
        runs = runs if seeded else runs.expand_dims("seed")
        own = np.searchsorted(seeds, runs["seed"].values) if seeded else np.zeros(1, int)
        at = (places[0][:, None], places[1][:, None], own)
        for name, array in runs.data_vars.items():
            ordered = array.transpose("point", "seed", ...)
            if name not in full:
                empty = {"status": MISSING, REGION: NOWHERE}.get(str(name))
                kind = np.float32 if ordered.dtype.kind == "f" else ordered.dtype
                none = np.nan if empty is None and kind == np.float32 else empty or 0
                values = np.full((*shape, *ordered.shape[2:]), none, kind)
                full[str(name)] = ((x, y, "seed", *ordered.dims[2:]), values, array.attrs)
            full[str(name)][1][at] = ordered.values
    status, region = full["status"][1], full[REGION][1]
    run = (status != MISSING).any(-1)
    told = [f"{count(int((status != MISSING).sum()), 'run')} at {count(int(run.sum()), 'point')}"]
    if REGION in drawn and not run.all():
        region[~run, 0] = drawn[REGION][~run]
        told.append(
            f"the regions of the other {int((~run).sum())} are inferred from their neighbours"
        )
    coords = {n: (n, v, parts[0][n].attrs) for n, v in axes.items()}
    more = {n: c for n, c in parts[0].coords.items() if n not in (x, y, "seed")}
    found = xr.Dataset(full, {**coords, "seed": np.asarray(seeds), **more}, parts[0].attrs)
    found.attrs["config"] = json.dumps({**config, "zip": []})
    found.attrs[INFERRED] = "; ".join(told)
    return found if seeded else found.isel(seed=0, drop=True)


def _places(name: str, axis: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the indices of the values of many runs on an axis."""
    own, run = np.unique(values, return_inverse=True)
    return np.array([find_value(name, axis, each.item()) for each in own])[run]
