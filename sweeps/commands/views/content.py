"""What a page of the explorer shows of stored sweeps: their arrays, how these go together, and the
sweep file that runs a part of them again.

Sweeps of one system share their axes, of which the common values are kept; times, and seeds, are
each sweep's own. A page is told by `Content.about`, as JSON, and reads arrays by slices, so that a
server can answer for what a page does not hold.
"""

import functools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from dynsim import Status, checks
from sweeps.language.tree import toml
from sweeps.runner.config import from_config
from sweeps.runner.labels import label, select
from sweeps.runner.progress import count
from sweeps.runner.spec import Sweep
from sweeps.runner.store import PARTS
from sweeps.runner.store.arrays import MISSING

LEFT_OUT = ("axes", "run", "zip", "title", "system", "contents", "functions", PARTS)
"""Of a configuration: what is written elsewhere, or follows from the rest."""


def recipe(dataset: xr.Dataset) -> dict[str, Any] | None:
    """What a sweep file of some of the runs of a stored sweep says, without the values of axes.

    Returns:
        `head` and `run`, lines of TOML; the `axes`, each with the dimension that it lies on (None
        for one of a single value) and its values in TOML; and groups that are `zip`ped. None for
        what no file describes, such as a sweep that was made of objects in Python.
    """
    try:
        sweep = sweep_of(dataset, {})
        sweep.check()
    except ValueError:
        return None
    config = json.loads(dataset.attrs["config"])
    head = {n: v for n, v in config.items() if n not in LEFT_OUT and v is not None}
    run = config["run"]
    for path in [("kind",), *(axis.path for axis in sweep.varied.named.values())]:
        _remove(run, path)
    return {
        "head": toml(head).splitlines(),
        "run": toml(run, ("run",)).splitlines(),
        "axes": {
            name: {
                "dim": str(dataset[name].dims[0]) if dataset[name].dims else None,
                "values": [
                    _toml(config.get(PARTS, {}).get(name, {}).get(value, value))
                    for value in dataset[name].values.reshape(-1).tolist()
                ],
            }
            for name in config["axes"]
        },
        "zip": config["zip"],
    }


def sweep_of(dataset: xr.Dataset, chosen: Mapping[str, Any]) -> Sweep:
    """The sweep of one setting of a stored sweep, at the `chosen` values of axes and the first ones
    of others.

    Raises:
        ValueError: for what no file describes.
    """
    config = json.loads(dataset.attrs.get("config", "{}"))
    names = config.get("axes", [])
    known = names and all(n in dataset.coords and dataset[n].ndim <= 1 for n in names)
    if not known or "functions" in config:
        raise ValueError("no sweep file describes these runs, which were made in Python")
    first = {name: dataset[name].values.reshape(-1)[0].item() for name in names}
    axes = {name: [chosen.get(name, value)] for name, value in first.items()}
    parts = {
        name: {label: labels[label] for label in axes[name]}
        for name, labels in config.get(PARTS, {}).items()
    }
    return from_config({**config, "axes": axes, PARTS: parts})


def _remove(table: dict[str, Any], path: Sequence[str]) -> None:
    """Remove a setting that an axis has, or what it is part of that is written in short."""
    first, *rest = path
    if rest and isinstance(table.get(first), dict):
        _remove(table[first], rest)
    else:
        table.pop(first, None)


def _toml(value: Any) -> str:
    """A value of JSON in TOML, which has no null. Text and lists are written the same way."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(n)} = {_toml(v)}" for n, v in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps("none" if value is None else value, ensure_ascii=False)


OWN = ("seed", "time", "record")
"""Dimensions along which each sweep has values of its own."""
TIMES = ("time", "record")
REGION = "region"
"""What the regions of runs are called, and the attribute that has their names and colours."""
PYTHON = "python"
"""The attribute of a dataset that has the lines of Python which open it, as `runs`."""
LINES = "lines"
"""The attribute that has lines to draw over the map of two axes, as `outlines` returns them."""
INFERRED = "inferred"
"""The attribute of a dataset, of some runs at some points, that says which these are."""
BYTES = {"status": 1}
"""Of a value on the page: all numbers but these have four."""


class Content(NamedTuple):
    """What a page shows.

    Attributes:
        about: the sweeps, their axes and arrays, as JSON values.
        datasets: the sweeps by name, aligned, with nothing left in them that is not shown.
        observables: names of the arrays that can be shown.
    """

    about: dict[str, Any]
    datasets: dict[str, xr.Dataset]
    observables: tuple[str, ...]

    def arrays(self) -> dict[str, xr.DataArray]:
        """All arrays that a page reads, by sweep and name, such as `0/entropy`."""
        found = {}
        for number, dataset in enumerate(self.datasets.values()):
            names = [name for name in (*self.observables, "status") if name in dataset]
            found |= {f"{number}/{name}": dataset[name] for name in names}
            if "time" in dataset.coords:
                found[f"{number}/time"] = dataset["time"]
        return found

    def size(self) -> int:
        """Bytes of the values of all arrays."""
        return sum(
            array.size * BYTES.get(name.partition("/")[2], 4)
            for name, array in self.arrays().items()
        )


def content(
    sweeps: Mapping[str, xr.Dataset],
    observables: Sequence[str] = (),
    times: Sequence[float] = (),
    where: Sequence[str] = (),
    begun: bool = True,
) -> Content:
    """Put sweeps together for a page; nothing of their values is read but the status.

    Args:
        sweeps: datasets as `sweeps.open` returns them, by the names that the page shows.
        observables: recorded quantities to show; by default all.
        times: steps to show, of those recorded; by default all.
        where: fixed values of axes, such as "eta_z=1".
        begun: whether a sweep without a complete run is an error.

    Raises:
        ValueError: for sweeps of different systems, without a common value of an axis or a common
            time, without a complete run, or for a name or a value that they do not have.
    """
    notes: list[str] = []
    check_systems(sweeps)
    for name, dataset in sweeps.items():
        notes += _progress(name, dataset, begun)
    chosen = [_opened_by(each, _chosen(each, where)) for each in sweeps.values()]
    names = (str(name) for each in chosen for name in each.data_vars if name != "status")
    recorded = list(dict.fromkeys(names))
    shown = tuple(checks.choice("observables", name, recorded) for name in observables)
    # What is not asked for, but recorded by every system, comes last.
    shown = shown or tuple(sorted(recorded, key=lambda name: name == "first_bad_step"))
    aligned = xr.align(*_alike(chosen), join="inner", exclude=OWN)
    for before, after in zip(chosen, aligned, strict=True):
        notes += _dropped(before, after)
    datasets = {
        name: _timed(each, times)[[*(n for n in shown if n in each), "status"]]
        for name, each in zip(sweeps, aligned, strict=True)
    }
    return described(datasets, shown, notes)


def described(
    datasets: dict[str, xr.Dataset], shown: tuple[str, ...], notes: Sequence[str]
) -> Content:
    """The content of datasets that are aligned."""
    common = _common_times(datasets)
    dims = dict.fromkeys(
        str(dim)
        for dataset in datasets.values()
        for array in dataset.data_vars.values()
        for dim in array.dims
        if dim not in OWN
    )
    # With matplotlib, which what only computes does without.
    from sweeps.output import drawing

    about = {
        "title": next(iter(datasets.values())).attrs.get("title") or ", ".join(datasets),
        "notes": list(notes),
        "dims": {dim: _dimension(dim, datasets) for dim in dims},
        "observables": [_observable(n, datasets) for n in shown],
        "times": _plain(common),
        "statuses": {MISSING: "not computed"} | {int(s): s.name for s in Status},
        "palette": drawing.PALETTE,
        "scale": drawing.scale(9),
        LINES: [line for each in datasets.values() for line in each.attrs.get(LINES, [])],
        "stores": [_store(name, dataset, common) for name, dataset in datasets.items()],
    }
    return Content(about, datasets, shown)


def check_systems(sweeps: Mapping[str, xr.Dataset]) -> None:
    """Raise `ValueError` for what is no dataset of a sweep, or sweeps of different systems."""
    systems = {}
    for name, dataset in sweeps.items():
        checks.kind(name, dataset, xr.Dataset)
        if "status" not in dataset:
            raise ValueError(f"{name}: has no status; must be a dataset of a sweep")
        systems[name] = json.loads(dataset.attrs.get("config", "{}")).get("system")
    (first, system), *others = systems.items()
    for name, other in others:
        if other != system:
            raise ValueError(f"{name}: belongs to the system {other!r}, {first} to {system!r}")


def remaining(dataset: xr.Dataset) -> int:
    """How many runs of a sweep are still to come."""
    return 0 if INFERRED in dataset.attrs else int((dataset["status"].values == MISSING).sum())


def _progress(name: str, dataset: xr.Dataset, begun: bool) -> list[str]:
    """A sentence about what is not computed yet; `ValueError` if that is all and may not be."""
    status = dataset["status"].values
    if INFERRED in dataset.attrs:
        return [f"{name}: {dataset.attrs[INFERRED]}."]
    done = int((status != MISSING).sum())
    if begun and not done:
        raise ValueError(f"{name}: 0 of {count(status.size, 'run')} done; nothing to show yet")
    if done == status.size:
        return []
    return [f"{name}: {done} of {count(status.size, 'run')} done; the others are blank."]


def _chosen(dataset: xr.Dataset, where: Sequence[str]) -> xr.Dataset:
    """The sweep at some values of axes, in increasing order of all others."""
    found = select(dataset, where)
    for dim in found["status"].dims:
        values = found[dim].values
        if values.dtype.kind in "iuf" and (np.diff(values) < 0).any():
            found = found.sortby(dim)
    return found


def _opened_by(dataset: xr.Dataset, chosen: xr.Dataset) -> xr.Dataset:
    """The chosen part of a sweep, with the Python that selects it."""
    usual = ["# `runs` is the dataset that this page shows."]
    lines = list(dataset.attrs.get(PYTHON, usual))
    gone = [dim for dim in dataset["status"].dims if dim not in chosen["status"].dims]
    if gone:
        at = ", ".join(f"{dim}={chosen[dim].item()!r}" for dim in gone)
        lines.append(f"runs = runs.sel({at})")
    return chosen.assign_attrs({PYTHON: lines})


def _alike(datasets: Sequence[xr.Dataset]) -> list[xr.Dataset]:
    """Without the single place along a dimension, such as the one class that stands for all of a
    symmetric task, where other sweeps have several: it is the same at each of these."""
    sizes = [{d: n for d, n in e.sizes.items() if d not in {*e.coords, *OWN}} for e in datasets]
    most = {d: max(each.get(d, 1) for each in sizes) for each in sizes for d in each}
    for dim, size in most.items():
        if differ := {each[dim] for each in sizes if dim in each} - {1, size}:
            raise ValueError(f"{dim}: sizes differ, {size} and {min(differ)}")
    return [
        each.squeeze([d for d, n in own.items() if n < most[d]], drop=True)
        for each, own in zip(datasets, sizes, strict=True)
    ]


def _dropped(before: xr.Dataset, after: xr.Dataset) -> list[str]:
    """Sentences about values of axes that sweeps do not share; `ValueError` if none is shared."""
    told = []
    for dim in (d for d in before["status"].dims if after.sizes[d] < before.sizes[d]):
        if not after.sizes[dim]:
            raise ValueError(f"{dim}: the sweeps have no value in common")
        told.append(f"{dim}: {after.sizes[dim]} of {before.sizes[dim]} values are common.")
    return told


def _timed(dataset: xr.Dataset, times: Sequence[float]) -> xr.Dataset:
    """The sweep at the times that were asked for."""
    recorded = _times(dataset)
    for time in times:
        if "record" in dataset.dims:
            raise ValueError(f"times = {time:g}: the runs have times of their own; leave it out")
        if not np.isclose(recorded, time).any():
            near = ", ".join(f"{t:g}" for t in recorded[np.argsort(np.abs(recorded - time))[:2]])
            raise ValueError(f"times = {time:g}: was not recorded; the nearest are {near}")
    several = len(times) > 0 and "time" in dataset.dims
    return dataset.sel(time=list(times), method="nearest") if several else dataset


def _times(dataset: xr.Dataset) -> np.ndarray:
    """Times of a sweep, or the numbers of its records where runs have times of their own."""
    if "record" in dataset.dims:
        return np.arange(dataset.sizes["record"], dtype=float)
    known = "time" in dataset.coords and dataset["time"].ndim <= 1
    return np.atleast_1d(dataset["time"].values) if known else np.zeros(1)


def _common_times(datasets: Mapping[str, xr.Dataset]) -> np.ndarray:
    found = functools.reduce(np.intersect1d, map(_times, datasets.values()))
    if not len(found):
        raise ValueError("time: the sweeps have no recorded time in common")
    return found


def _dimension(dim: str, datasets: Mapping[str, xr.Dataset]) -> dict[str, Any]:
    """Values along a dimension, and whether it is one of the runs."""
    dataset = next(each for each in datasets.values() if dim in each.dims)
    array = dataset[dim]
    along = [name for name, each in dataset.coords.items() if each.dims == (dim,) and name != dim]
    return {
        "label": label(array) if dim in dataset.coords else dim,
        "values": _plain(array.values),
        "together": {str(name): _plain(dataset[name].values) for name in along if name != "time"},
        "axis": any(dim in each["status"].dims for each in datasets.values()),
    }


def _observable(name: str, datasets: Mapping[str, xr.Dataset]) -> dict[str, Any]:
    """Name and label; of regions also the code, name and colour of each."""
    array = next(each[name] for each in datasets.values() if name in each)
    regions = {REGION: array.attrs[REGION]} if REGION in array.attrs else {}
    return {"name": name, "label": label(array), **regions}


def _store(name: str, dataset: xr.Dataset, common: np.ndarray) -> dict[str, Any]:
    arrays = {n: dataset[n] for n in (*dataset.data_vars, *({"time"} & {*dataset.coords}))}
    return {
        "name": name,
        "engine": json.loads(dataset.attrs.get("config", "{}")).get("engine", ""),
        "arrays": {
            str(n): {"dims": [str(d) for d in each.dims], "shape": list(each.shape)}
            for n, each in arrays.items()
        },
        "seeds": _plain(dataset["seed"].values) if "seed" in dataset.dims else [],
        "at": np.searchsorted(_times(dataset), common).tolist(),
        "some": INFERRED in dataset.attrs,
        PYTHON: dataset.attrs[PYTHON],
        "recipe": recipe(dataset),
    }


def _plain(values: np.ndarray) -> list[Any]:
    """Values of an axis as JSON has them: what it has no number for is a word."""
    return [
        each if not isinstance(each, float) or np.isfinite(each) else str(each)
        for each in values.tolist()
    ]
