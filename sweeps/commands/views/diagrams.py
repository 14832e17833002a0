"""Phase diagrams in the explorer: the sweeps in the folder of one, and regions of their runs."""

import json
import pkgutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import xarray as xr

from sweeps.commands.views.content import REGION
from sweeps.runner.run import open_sweep
from sweeps.runner.store.base import Report
from sweeps.studies.phase.regions import BY_STATUS, NAMED, RULE, Rule
from sweeps.systems.experiment import about

PHASE = "sweeps.studies.phase"
"""What draws diagrams, which is imported when there is one: it loads matplotlib and theory."""
SWEEP = "*/zarr.json"
"""What a sweep has in a folder of a diagram."""


def opened(paths: Sequence[str], report: Report) -> dict[str, xr.Dataset]:
    """Stored sweeps by what the page calls them.

    Args:
        paths: of sweeps, or of folders that `dynsim phase` wrote. These stand for the sweeps of
            their panels, by the titles of these, whose runs also have a `region`.
        report: called with lines about what lies there and is not a sweep's.

    Raises:
        ValueError: for a diagram without a sweep of all of its points.
        StoreError: as `sweeps.open`.
    """
    found: dict[str, xr.Dataset] = {}
    for path in dict.fromkeys(paths):
        folder = Path(path)
        if not any(folder.glob(SWEEP)) and any(folder.glob(f"*-refined/{SWEEP}")):
            raise ValueError(
                f"{path}: is a refined phase diagram, whose runs are not on a grid; draw it "
                "without --refine to explore it"
            )
        if (folder / "zarr.json").exists() or not any(folder.glob(SWEEP)):
            found[path] = open_sweep(path, report)
        elif panels := dict(_panels(folder, report)):
            found |= panels
        else:
            raise ValueError(f"{path}: holds sweeps, but none of a phase diagram; name one of them")
    return found


def _panels(folder: Path, report: Report) -> Iterator[tuple[str, xr.Dataset]]:
    """The sweeps of a diagram that have recorded what its regions need, training first."""
    titles = pkgutil.resolve_name(f"{PHASE}.figure:TITLES")
    inside = sorted(each.parent for each in folder.glob(SWEEP))
    points = None
    for path in sorted(inside, key=lambda each: each.name != "simulation"):
        dataset = open_sweep(path, report)
        config = json.loads(dataset.attrs["config"])
        grid = {dim: size for dim, size in dataset["status"].sizes.items() if dim != "seed"}
        rule = _rule(config["system"], dataset)
        # What predicts noise and the edge of stability lies there too, on coarser grids.
        if rule and grid == (points := points or grid):
            title = f"Phase diagram of {about(config['run']['problem'])}"
            found = dataset.assign({REGION: _regions(dataset, rule)}).assign_attrs(title=title)
            yield titles.get(path.name, path.name), found


def _rule(system: str, dataset: xr.Dataset) -> Rule | None:
    """The rule of a system's diagrams, or another one, for which the records suffice."""
    rules = (RULE if system == "yz" else BY_STATUS, *NAMED.values())
    return next((each for each in rules if {*each.record} <= {*dataset.data_vars}), None)


def _regions(dataset: xr.Dataset, rule: Rule) -> xr.DataArray:
    """The region of each run as a code, with the name and colour of each code."""
    legend = [[int(code), name, colour] for code, (name, colour) in rule.legend.items()]
    return rule.classify(dataset.load()).assign_attrs({REGION: legend})
