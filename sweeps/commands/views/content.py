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
from typing import NamedTuple

import numpy as np
import xarray as xr

from dynsim import Status, checks
from sweeps.language.fields import without_imports
from sweeps.language.tree import toml
from sweeps.language.values import find_value
from sweeps.output import JsonObject
from sweeps.runner.config import from_config
from sweeps.runner.labels import aligned_with, label, select
from sweeps.runner.progress import count
from sweeps.runner.spec import Sweep
from sweeps.runner.store import PARTS
from sweeps.runner.store.arrays import MISSING
from sweeps.systems import budget

TIME_DIMS = ("time", "record")
OWN_DIMS = ("seed", *TIME_DIMS)
"""Dimensions along which sweeps have separate values."""
REGION = "region"
"""Name of the array of regions, and of the attribute with their names and colours."""
PYTHON = "python"
"""Dataset attribute with lines of Python that open it as `runs`."""
DIAGRAM_LINES = "lines"
"""Attribute with lines to draw over the map of two axes, as returned by `outlines`."""
INFERRED = "inferred"
"""Dataset attribute that describes the inferred points of a dataset with runs at some points."""
BYTES = {"status": 1}
"""Bytes per value on the page, where it is not four."""
NOT_IN_FILE = ("axes", "run", "zip", "title", "system", "contents", "functions", PARTS)
"""Keys of a configuration that are written elsewhere in a sweep file, or follow from the others."""


class Content(NamedTuple):
    """The content of a page.

    Attributes:
        about: the sweeps, their axes and arrays, as JSON values.
        datasets: the aligned sweeps by name, without arrays that are not shown.
        observables: names of arrays that can be shown.
    """

    about: JsonObject
    datasets: dict[str, xr.Dataset]
    observables: tuple[str, ...]

    @classmethod
    def of(
        cls, datasets: dict[str, xr.Dataset], observables: tuple[str, ...], notes: Sequence[str]
    ) -> "Content":
        """Describe aligned datasets. Raises `ValueError` if they have no common time."""
        common = functools.reduce(np.intersect1d, map(_times, datasets.values()))
        if not len(common):
            raise ValueError("time: the sweeps have no recorded time in common")

        dims = {}
        every = [array for data in datasets.values() for array in data.data_vars.values()]
        for dim in dict.fromkeys(dim for array in every for dim in array.dims):
            if dim in OWN_DIMS:
                continue
            data = next(data for data in datasets.values() if dim in data.dims)
            along = [name for name, values in data.coords.items() if values.dims == (dim,)]
            dims[str(dim)] = {
                "label": label(data[dim]) if dim in data.coords else str(dim),
                "values": _plain(data[dim].values),
                # Axes that are zipped with this one.
                "together": {
                    str(n): _plain(data[n].values) for n in along if n not in (dim, "time")
                },
                "axis": any(dim in data["status"].dims for data in datasets.values()),
            }

        shown = []
        for name in observables:
            array = next(data[name] for data in datasets.values() if name in data)
            # The code, name and colour of each region.
            legend = {REGION: array.attrs[REGION]} if REGION in array.attrs else {}
            shown.append({"name": name, "label": label(array), **legend})

        stores = []
        for name, data in datasets.items():
            arrays = {n: data[n] for n in (*data.data_vars, *({"time"} & {*data.coords}))}
            stores.append(
                {
                    "name": name,
                    "theory": json.loads(data.attrs.get("config", "{}")).get("theory", ""),
                    "arrays": {
                        str(n): {"dims": [str(dim) for dim in a.dims], "shape": list(a.shape)}
                        for n, a in arrays.items()
                    },
                    "seeds": _plain(data["seed"].values) if "seed" in data.dims else [],
                    # Where the common times are among those of this sweep.
                    "at": np.searchsorted(_times(data), common).tolist(),
                    "some": INFERRED in data.attrs,
                    PYTHON: data.attrs[PYTHON],
                    "recipe": recipe(data),
                }
            )

        # Imports matplotlib, which computations do not need.
        from sweeps.output import drawing

        about = {
            "title": next(iter(datasets.values())).attrs.get("title") or ", ".join(datasets),
            "notes": list(notes),
            "dims": dims,
            "observables": shown,
            "times": _plain(common),
            "statuses": {MISSING: "not computed"} | {int(s): s.name for s in Status},
            "palette": drawing.PALETTE,
            "scale": drawing.scale(9),
            DIAGRAM_LINES: [
                line for data in datasets.values() for line in data.attrs.get(DIAGRAM_LINES, [])
            ],
            "stores": stores,
        }
        return cls(about, datasets, observables)

    def arrays(self) -> dict[str, xr.DataArray]:
        """All arrays that a page reads, by sweep and name, such as `0/entropy`."""
        arrays = {}
        for number, dataset in enumerate(self.datasets.values()):
            names = [name for name in (*self.observables, "status") if name in dataset]
            arrays |= {f"{number}/{name}": dataset[name] for name in names}
            # Curves are drawn at all times of a sweep, of which others may lack some.
            if "time" in dataset.coords:
                arrays[f"{number}/time"] = dataset["time"]
        return arrays

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
    check_systems(sweeps)
    notes: list[str] = []
    first = next(iter(sweeps.values()))
    selected = []
    for name, dataset in sweeps.items():
        # The page shows Python code that does to a stored sweep what is done here.
        lines = [*dataset.attrs.get(PYTHON, ["# `runs` is the dataset that this page shows."])]
        data = aligned_with(first, dataset)
        if PYTHON in dataset.attrs and not data.coords.identical(dataset.coords):
            lines = [
                *first.attrs[PYTHON],
                "first = runs",
                *lines,
                "from sweeps.runner.labels import aligned_with",
                "runs = aligned_with(first, runs)",
            ]
        swept = data["status"].dims
        data = select(data, where)
        if fixed := [dim for dim in swept if dim not in data["status"].dims]:
            at = ", ".join(f"{dim}={data[dim].item()!r}" for dim in fixed)
            lines.append(f"runs = runs.sel({at})")
        # Cells of a map are drawn around increasing values.
        for dim in data["status"].dims:
            values = data[dim].values
            if values.dtype.kind in "iuf" and (np.diff(values) < 0).any():
                data = data.sortby(dim)
        selected.append(data.assign_attrs({PYTHON: lines}))

        budget.check_read(name, data["status"].nbytes)
        size, done = data["status"].size, int((data["status"].values != MISSING).sum())
        if INFERRED in data.attrs:
            notes.append(f"{name}: {data.attrs[INFERRED]}.")
        elif begun and not done:
            raise ValueError(f"{name}: 0 of {count(size, 'run')} done; nothing to show yet")
        elif done < size:
            notes.append(f"{name}: {done} of {count(size, 'run')} done; the others are blank.")

    names = (str(name) for data in selected for name in data.data_vars if name != "status")
    recorded = list(dict.fromkeys(names))
    shown = tuple(checks.choice("observables", name, recorded) for name in observables)
    # Arrays that every system records come last by default.
    shown = shown or tuple(sorted(recorded, key=lambda name: name == "first_bad_step"))

    # A dimension of size one, such as the class axis of a symmetric task, is dropped if other
    # sweeps have several values there: its result applies to all of them.
    sizes = [
        {dim: size for dim, size in data.sizes.items() if dim not in {*data.coords, *OWN_DIMS}}
        for data in selected
    ]
    largest = {dim: max(own.get(dim, 1) for own in sizes) for own in sizes for dim in own}
    for dim, size in largest.items():
        if others := {own[dim] for own in sizes if dim in own} - {1, size}:
            raise ValueError(f"{dim}: sizes differ, {size} and {min(others)}")
    selected = [
        data.squeeze([dim for dim, size in own.items() if size < largest[dim]], drop=True)
        for data, own in zip(selected, sizes, strict=True)
    ]

    datasets = {}
    aligned = xr.align(*selected, join="inner", exclude=OWN_DIMS)
    for name, before, data in zip(sweeps, selected, aligned, strict=True):
        for dim in before["status"].dims:
            if data.sizes[dim] == before.sizes[dim]:
                continue
            if not data.sizes[dim]:
                raise ValueError(f"{dim}: the sweeps have no value in common")
            notes.append(f"{dim}: {data.sizes[dim]} of {before.sizes[dim]} values are common.")
        if times and "record" in data.dims:
            raise ValueError(
                f"times = {times[0]:g}: the runs have times of their own; leave it out"
            )
        at = sorted({find_value("times", _times(data), time) for time in times})
        # Without times, a sweep has only its end.
        if at and "time" in data.dims:
            data = data.isel(time=at)
        datasets[name] = data[[*(name for name in shown if name in data), "status"]]
    return Content.of(datasets, shown, notes)


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


@without_imports()
def recipe(dataset: xr.Dataset) -> JsonObject | None:
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
    head = {n: v for n, v in config.items() if n not in NOT_IN_FILE and v is not None}
    # The page adds the settings that axes vary, at the values that the user selects.
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
def sweep_of(dataset: xr.Dataset, at: JsonObject) -> Sweep:
    """Return the sweep of one setting of a stored sweep, at the values `at` some axes and the first
    values of others.

    Raises:
        ValueError: if no file can describe it.
    """
    config = json.loads(dataset.attrs.get("config", "{}"))
    names = config.get("axes", [])
    known = names and all(n in dataset.coords and dataset[n].ndim <= 1 for n in names)
    if not known or "functions" in config:
        raise ValueError("no sweep file describes these runs, which were made in Python")
    first = {name: dataset[name].values.reshape(-1)[0].item() for name in names}
    axes = {name: [at.get(name, value)] for name, value in first.items()}
    try:
        parts = {
            name: {label: labels[label] for label in axes[name]}
            for name, labels in config.get(PARTS, {}).items()
        }
        return from_config({**config, "axes": axes, PARTS: parts})
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        # Settings that no version of dynsim has written.
        raise ValueError(f"no sweep file describes these runs ({error!r})") from None


def _remove(table: JsonObject, path: Sequence[str]) -> None:
    """Remove a setting that an axis varies, or the abbreviated part that contains it."""
    first, *rest = path
    if rest and isinstance(table.get(first), dict):
        _remove(table[first], rest)
    else:
        table.pop(first, None)


def _toml(value: object) -> str:
    """Convert a JSON value to TOML, which has no null. Text and lists are written the same way."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(n)} = {_toml(v)}" for n, v in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps("none" if value is None else value, ensure_ascii=False)


def _times(dataset: xr.Dataset) -> np.ndarray:
    """Return the times of a sweep, or the record numbers if runs have different times."""
    if "record" in dataset.dims:
        return np.arange(dataset.sizes["record"], dtype=float)
    known = "time" in dataset.coords and dataset["time"].ndim <= 1
    return np.atleast_1d(dataset["time"].values) if known else np.zeros(1)


def _plain(values: np.ndarray) -> list[float | str]:
    """Convert axis values to JSON; numbers that JSON lacks become words."""
    return [str(v) if isinstance(v, float) and not math.isfinite(v) else v for v in values.tolist()]
