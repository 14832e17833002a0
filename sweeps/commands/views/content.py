"""The content of an explorer page: the arrays of stored sweeps, their common axes, and the sweep
file that reruns a part of them.

Sweeps of one system are aligned to the common values of their axes; times and seeds stay separate.
A page gets `Content.about` as JSON, and reads arrays by slices, so that a server can supply those
that are not embedded.
"""

import functools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from dynsim import Status, checks
from sweeps.language.fields import without_imports
from sweeps.language.tree import toml
from sweeps.language.values import find_value
from sweeps.runner.config import from_config
from sweeps.runner.labels import aligned_with, label, select
from sweeps.runner.progress import count
from sweeps.runner.spec import Sweep
from sweeps.runner.store import PARTS
from sweeps.runner.store.arrays import MISSING
from sweeps.systems import budget

LEFT_OUT = ("axes", "run", "zip", "title", "system", "contents", "functions", PARTS)
"""Keys of a configuration that are written elsewhere, or follow from the others."""


@without_imports()
def recipe(dataset: xr.Dataset) -> dict[str, Any] | None:
    """Return the parts of a sweep file for some runs of a stored sweep, without the values of axes.

    Returns:
        `head` and `run`, lines of TOML; the `axes`, each with its dimension (None for an axis with
        a single value) and its values in TOML; and the `zip`ped groups. None if no file can
        describe the sweep, such as one made of Python objects, or if it names code to import.
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


@without_imports()
def sweep_of(dataset: xr.Dataset, chosen: Mapping[str, Any]) -> Sweep:
    """Return the sweep of one setting of a stored sweep, at the `chosen` values of axes and the
    first values of others.

    Raises:
        ValueError: if no file can describe it.
    """
    config = json.loads(dataset.attrs.get("config", "{}"))
    names = config.get("axes", [])
    known = names and all(n in dataset.coords and dataset[n].ndim <= 1 for n in names)
    if not known or "functions" in config:
        raise ValueError("no sweep file describes these runs, which were made in Python")
    first = {name: dataset[name].values.reshape(-1)[0].item() for name in names}
    axes = {name: [chosen.get(name, value)] for name, value in first.items()}
    try:
        parts = {
            name: {label: labels[label] for label in axes[name]}
            for name, labels in config.get(PARTS, {}).items()
        }
        return from_config({**config, "axes": axes, PARTS: parts})
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        # Settings that no version of dynsim has written.
        raise ValueError(f"no sweep file describes these runs ({error!r})") from None


def _remove(table: dict[str, Any], path: Sequence[str]) -> None:
    """Remove a setting that an axis varies, or the abbreviated part that contains it."""
    first, *rest = path
    if rest and isinstance(table.get(first), dict):
        _remove(table[first], rest)
    else:
        table.pop(first, None)


def _toml(value: Any) -> str:
    """Convert a JSON value to TOML, which has no null. Text and lists are written the same way."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(n)} = {_toml(v)}" for n, v in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps("none" if value is None else value, ensure_ascii=False)


OWN = ("seed", "time", "record")
"""Dimensions along which sweeps have separate values."""
TIMES = ("time", "record")
REGION = "region"
"""Name of the array of regions, and of the attribute with their names and colours."""
PYTHON = "python"
"""Dataset attribute with lines of Python that open it as `runs`."""
LINES = "lines"
"""Attribute with lines to draw over the map of two axes, as returned by `outlines`."""
INFERRED = "inferred"
"""Dataset attribute that describes the inferred points of a dataset with runs at some points."""
BYTES = {"status": 1}
"""Bytes per value on the page, where it is not four."""


class Content(NamedTuple):
    """The content of a page.

    Attributes:
        about: the sweeps, their axes and arrays, as JSON values.
        datasets: the aligned sweeps by name, without arrays that are not shown.
        observables: names of arrays that can be shown.
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
        """Bytes of all arrays."""
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
    """Combine sweeps for a page; only the status is read.

    Args:
        sweeps: datasets as `sweeps.open` returns them, by the names that the page shows.
        observables: recorded quantities to show; by default all.
        times: recorded steps to show; by default all.
        where: fixed values of axes, such as "eta_z=1".
        begun: whether to raise an error for a sweep without a complete run.

    Raises:
        ValueError: for sweeps of different systems, sweeps without a common value of an axis or a
            common time, sweeps without a complete run, and unknown names or values.
    """
    notes: list[str] = []
    check_systems(sweeps)
    first, *others = sweeps.values()
    alike = [first, *(_with_axes_of(first, each) for each in others)]
    chosen = [_opened_by(each, _chosen(each, where)) for each in alike]
    for name, dataset in zip(sweeps, chosen, strict=True):
        notes += _progress(name, dataset, begun)
    names = (str(name) for each in chosen for name in each.data_vars if name != "status")
    recorded = list(dict.fromkeys(names))
    shown = tuple(checks.choice("observables", name, recorded) for name in observables)
    # Arrays that every system records come last by default.
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
    """Return the content of aligned datasets."""
    common = _common_times(datasets)
    dims = dict.fromkeys(
        str(dim)
        for dataset in datasets.values()
        for array in dataset.data_vars.values()
        for dim in array.dims
        if dim not in OWN
    )
    # Imports matplotlib, which computations do not need.
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
    """Raise `ValueError` for objects that are not datasets of sweeps, or for different systems."""
    systems = {}
    for name, dataset in sweeps.items():
        checks.kind(name, dataset, xr.Dataset)
        if "status" not in dataset:
            raise ValueError(f"{name}: has no status; must be a dataset of a sweep")
        systems[name] = json.loads(dataset.attrs.get("config", "{}")).get("system")
    (first, system), *others = systems.items()
    for name, other in others:
        if other != system:
            raise ValueError(
                f"{name}: is of the system {other!r}, but {first} is of {system!r}; a page shows "
                "sweeps of one system"
            )


def remaining(dataset: xr.Dataset) -> int:
    """Return the number of runs that are not computed yet."""
    return 0 if INFERRED in dataset.attrs else int((dataset["status"].values == MISSING).sum())


def _progress(name: str, dataset: xr.Dataset, begun: bool) -> list[str]:
    """Describe missing runs in a sentence; raises `ValueError` if all are missing and `begun`, or
    if there are too many runs to read."""
    budget.check_read(name, dataset["status"].nbytes)
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
    """Select values of axes and sort all others in increasing order."""
    found = select(dataset, where)
    for dim in found["status"].dims:
        values = found[dim].values
        if values.dtype.kind in "iuf" and (np.diff(values) < 0).any():
            found = found.sortby(dim)
    return found


def _with_axes_of(first: xr.Dataset, dataset: xr.Dataset) -> xr.Dataset:
    """Return `labels.aligned_with` of two sweeps, with the Python code that does the same."""
    found = aligned_with(first, dataset)
    if PYTHON not in dataset.attrs or found.coords.identical(dataset.coords):
        return found
    lines = [
        *first.attrs[PYTHON],
        "first = runs",
        *dataset.attrs[PYTHON],
        "from sweeps.runner.labels import aligned_with",
        "runs = aligned_with(first, runs)",
    ]
    return found.assign_attrs({PYTHON: lines})


def _opened_by(dataset: xr.Dataset, chosen: xr.Dataset) -> xr.Dataset:
    """Return the chosen part of a sweep, with the Python code that selects it."""
    usual = ["# `runs` is the dataset that this page shows."]
    lines = list(dataset.attrs.get(PYTHON, usual))
    gone = [dim for dim in dataset["status"].dims if dim not in chosen["status"].dims]
    if gone:
        at = ", ".join(f"{dim}={chosen[dim].item()!r}" for dim in gone)
        lines.append(f"runs = runs.sel({at})")
    return chosen.assign_attrs({PYTHON: lines})


def _alike(datasets: Sequence[xr.Dataset]) -> list[xr.Dataset]:
    """Drop dimensions of size one, such as the class axis of a symmetric task, if other sweeps have
    several values there: the result applies to all of them."""
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
    """Describe axis values that sweeps do not share; raises `ValueError` if none is shared."""
    told = []
    for dim in (d for d in before["status"].dims if after.sizes[d] < before.sizes[d]):
        if not after.sizes[dim]:
            raise ValueError(f"{dim}: the sweeps have no value in common")
        told.append(f"{dim}: {after.sizes[dim]} of {before.sizes[dim]} values are common.")
    return told


def _timed(dataset: xr.Dataset, times: Sequence[float]) -> xr.Dataset:
    """Select the requested times."""
    if times and "record" in dataset.dims:
        raise ValueError(f"times = {times[0]:g}: the runs have times of their own; leave it out")
    recorded = _times(dataset)
    places = sorted({find_value("times", recorded, time) for time in times})
    return dataset.isel(time=places) if places and "time" in dataset.dims else dataset


def _times(dataset: xr.Dataset) -> np.ndarray:
    """Return the times of a sweep, or the record numbers if runs have different times."""
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
    """Describe the values along a dimension, and whether it is an axis of runs."""
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
    """Return name and label of an array; for regions also the code, name and colour of each."""
    array = next(each[name] for each in datasets.values() if name in each)
    regions = {REGION: array.attrs[REGION]} if REGION in array.attrs else {}
    return {"name": name, "label": label(array), **regions}


def _store(name: str, dataset: xr.Dataset, common: np.ndarray) -> dict[str, Any]:
    arrays = {n: dataset[n] for n in (*dataset.data_vars, *({"time"} & {*dataset.coords}))}
    return {
        "name": name,
        "theory": json.loads(dataset.attrs.get("config", "{}")).get("theory", ""),
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
    """Convert axis values to JSON; numbers that JSON lacks become words."""
    return [
        each if not isinstance(each, float) or np.isfinite(each) else str(each)
        for each in values.tolist()
    ]
