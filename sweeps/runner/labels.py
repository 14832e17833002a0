"""Names, units and coordinates of stored results, and the combination of several results."""

import json
import re
import textwrap
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import xarray as xr

from dynsim import Status, checks, plugins
from dynsim.training.recording import GROUP
from dynsim.trajectory import crossings
from sweeps.language.axes import Axis
from sweeps.language.fields import normalise
from sweeps.language.values import find_axis, find_value, matching
from sweeps.runner.spec import Sweep
from sweeps.runner.store import CHECKPOINT, PARTS
from sweeps.runner.store.arrays import MISSING
from sweeps.systems.base import System, static_times
from sweeps.systems.experiment import Experiment

SweptT = TypeVar("SweptT", xr.Dataset, xr.DataArray)
WIDTH = 32
"""Characters per line of a label, as wide as a panel."""
LONGEST_NAME = 42
"""Longest description that names an axis of a figure; a setting with a longer one has its name."""
COMMON = {
    "time": ("time", "step"),
    "steps": ("optimiser steps", "step"),
    "first_bad_step": ("first invalid step of a run, -1 if it has none", "step"),
    CHECKPOINT: ("weights and memory of the update rule at the end of a run", "byte"),
}
"""`Labels.about` for the arrays of every system."""


def coordinates(sweep: Sweep) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """Return the dimensions and values of all coordinates: of the axes, of observables, and of the
    recorded times if they are known in advance."""
    coords: dict[str, tuple[tuple[str, ...], np.ndarray]] = {
        name: ((dim.name,), np.asarray(values))
        for dim in sweep.dims
        for name, values in dim.axes.items()
    }
    labels = sweep.system.labels
    for name in sweep.names:
        for inner in labels.inner_dims.get(name, ()):
            if inner in labels.values:
                coords[inner] = ((inner,), labels.values[inner])
    times = _steps(sweep)
    if isinstance(times, int):
        # Each run records its own times.
        return coords
    steps = next((dim for dim in sweep.dims if "steps" in dim.axes), None)
    if steps is None:
        values = np.asarray(times, np.float64)
        coords["time"] = (("time",), values) if len(times) > 1 else ((), values[0, ...])
        return coords
    # Runs of different length record at different times: a table, padded with NaN.
    of_steps = [{name: v[i] for name, v in steps.axes.items()} for i in range(steps.size)]
    rows = [static_times(_steps(sweep, chosen)) for chosen in of_steps]
    table = np.full((len(rows), max(map(len, rows))), np.nan)
    for padded, row in zip(table, rows, strict=True):
        padded[: len(row)] = row
    several = table.shape[1] > 1
    coords["time"] = ((steps.name, "record"), table) if several else ((steps.name,), table[:, 0])
    return coords


def inner_dims(sweep: Sweep, name: str, ndim: int) -> tuple[str, ...]:
    """Return the names of a recorded array's axes after those of the sweep. The axis of recorded
    times is `time`, or `record` if runs have different times."""
    if name in ("status", "first_bad_step"):
        return ()
    if name == CHECKPOINT:
        return ("byte",)
    time_dims: tuple[str, ...] = ()
    times = _steps(sweep)
    if (times if isinstance(times, int) else len(times)) > 1:
        differ = isinstance(times, int) or "steps" in sweep.fields
        time_dims = ("record",) if differ else ("time",)
    dims = sweep.system.labels.inner_dims.get(name, ())
    if len(time_dims) + len(dims) != ndim:
        dims = tuple(f"{name}_{i}" for i in range(ndim - len(time_dims)))
    return (*time_dims, *dims)


def _steps(sweep: Sweep, chosen: Mapping[str, float] | None = None) -> tuple[int, ...] | int:
    return sweep.point(chosen or {}).steps_recorded(sweep.times)


def about(system: System, name: str, axis: Axis | None = None) -> dict[str, Any]:
    """Return attributes of an array: long name, unit, and the meaning of status codes."""
    if name == "status":
        codes = {"NOT_COMPUTED": MISSING} | {s.name: int(s) for s in Status}
        return {
            "long_name": "how the run ended",
            "flag_values": list(codes.values()),
            "flag_meanings": " ".join(codes),
        }
    known = {**COMMON, **system.labels.about}
    if name in known:
        return dict(zip(("long_name", "units"), known[name], strict=True))
    long_name, unit = name.replace("_", " "), "1"
    if f"{system.name}.{name}" in plugins.entry_points(GROUP):
        # The unit of another package's observable is unknown.
        return {"long_name": long_name}
    if axis is not None:
        first_clause = re.split("[.:;]", axis.field.doc)[0]
        if 0 < len(first_clause) <= LONGEST_NAME:
            long_name = first_clause
        unit = axis.field.unit or unit
    return {"long_name": long_name, "units": unit}


def label(array: xr.DataArray) -> str:
    """Return the name and unit of a quantity, for an axis of a figure."""
    text = array.attrs.get("long_name", str(array.name))
    unit = array.attrs.get("units", "1")
    return text if unit == "1" else f"{text} ({unit})"


def wrapped(array: xr.DataArray) -> str:
    """Return `label` broken into lines as wide as a panel."""
    return textwrap.fill(label(array), WIDTH)


def worded(data: xr.Dataset | xr.DataArray, name: Hashable) -> bool:
    return name in data.coords and data[name].dtype.kind == "U"


def shown(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def select(data: SweptT, where: Sequence[str]) -> SweptT:
    """Select stored results at values of axes, each given as "NAME=VALUE" (see
    `sweeps.language.values`). Raises `ValueError` for a dimension or value that they do not have,
    and lists the existing ones."""
    for entry in where:
        axis, _, text = entry.partition("=")
        name = find_axis("where", axis, data.dims)
        value: float | str = text
        if not worded(data, name):
            try:
                # Integers may have more digits than a float, up to 18 in 64 bits.
                is_integer = len(text) < 19 and text.strip().lstrip("+-").isdecimal()
                value = int(text) if is_integer else float(text)
            except ValueError:
                raise ValueError(f"where = {entry!r}: must be NAME=NUMBER") from None
        data = data.isel({name: find_value(f"where: {name}", np.asarray(data[name]), value)})
    return data


def aligned_with(first: xr.Dataset, other: xr.Dataset) -> xr.Dataset:
    """Return a dataset whose axes have the names and values of those of the `first`, where they
    have others that mean the same: `eta_W0` and `eta.W0`, 0.1 and 0.10000000000000002."""
    names = {normalise(str(dim)): dim for dim in first.dims}
    known = {
        dim: names.get(normalise(str(dim)), dim) for dim in other.dims if dim not in first.dims
    }
    renamed = {str(dim): str(name) for dim, name in known.items() if dim != name}
    if renamed and "axes" in (config := json.loads(other.attrs.get("config", "{}"))):
        # The name of an axis is one of several spellings of its setting.
        config["axes"] = [renamed.get(name, name) for name in config["axes"]]
        config["zip"] = [[renamed.get(name, name) for name in group] for group in config["zip"]]
        if PARTS in config:
            config[PARTS] = {renamed.get(name, name): p for name, p in config[PARTS].items()}
        other = other.assign_attrs(config=json.dumps(config))
    other = other.rename(renamed)
    for dim in {*first.dims} & {*first.coords} & {*other.dims} & {*other.coords}:
        here, there = first[dim].values, other[dim].values
        if here.dtype.kind == there.dtype.kind == "f" and not np.array_equal(here, there):
            values = there.astype(here.dtype)
            for i in np.flatnonzero(~np.isin(there, here)):
                matches = matching(here, there[i].item())
                # Values that only the other one has stay as they are.
                values[i] = here[matches[0]] if len(matches) == 1 else there[i]
            other = other.assign_coords({dim: (dim, values, other[dim].attrs)})
    return other


def valid(dataset: xr.Dataset) -> xr.Dataset:
    """Replace the records of all runs whose status is not OK by NaN.

    Raises:
        ValueError: for anything but a dataset; `Trajectory.to_xarray()` converts a trajectory.

    Example:
        >>> run = sweeps.Experiment(DeepLinear(), dynsim.sgd(0.1), steps=20)
        >>> sweep = sweeps.Sweep(run, {"eta": [0.1, 100.0]}, record=["loss"])
        >>> runs = sweeps.run(sweep, progress=False)
        >>> np.isnan(sweeps.valid(runs).loss.values).tolist()
        [False, True]
    """
    checks.kind("dataset", dataset, xr.Dataset)
    return dataset.where(dataset["status"] == Status.OK)


def moments(dataset: xr.Dataset, name: str) -> xr.Dataset:
    """Return the mean and standard deviation across seeds of a recorded quantity.

    Of a theory of noise, which records its effects as `name_std` and `name_drift` for each start,
    the mean includes the drift, and the variance is that of the noise plus that across the starts.

    Args:
        dataset: results with a dimension `seed`; runs that are NaN, as in `valid`, do not count.
        name: name of the recorded quantity.

    Returns:
        A dataset in float64: `runs`, with the drift of each, and their `mean` and `std`, which
        divides by one less than the number of runs; 0 for a single seed.

    Example:
        >>> moments = sweeps.moments(xr.Dataset({"loss": ("seed", [1.0, 3.0])}), "loss")
        >>> float(moments["mean"]), round(float(moments["std"]), 4)
        (2.0, 1.4142)
    """
    runs = dataset[name].astype(np.float64)
    std = runs.std("seed", ddof=min(1, runs.sizes["seed"] - 1))
    if name + "_std" in dataset:
        std = ((dataset[name + "_std"] ** 2).mean("seed") + std**2) ** 0.5
    if name + "_drift" in dataset:
        runs = runs + dataset[name + "_drift"]
    return xr.Dataset({"runs": runs, "mean": runs.mean("seed"), "std": std})


def crossing(values: xr.DataArray, level: xr.DataArray | float) -> xr.DataArray:
    """Return the first time at which a recorded quantity crosses a level.

    Args:
        values: a quantity with a dimension `time`; runs that are NaN, as in `valid`, never cross.
        level: the level, which may differ between runs; its other dimensions are added.

    Returns:
        Times in optimiser steps, linear between recorded ones; NaN where `values` stays on the side
        of the level on which it starts.

    Example:
        >>> loss = xr.DataArray([1.0, 0.5, 0.1], {"time": [0, 10, 20]})
        >>> float(sweeps.crossing(loss, 0.75))
        5.0
    """
    values, levels = xr.broadcast(values, xr.DataArray(level), exclude=["time"])
    core = [["time"], ["time"], []]
    return xr.apply_ufunc(crossings, values["time"], values, levels, input_core_dims=core)


def evaluate(sweep: Sweep, function: Callable[[Experiment], float]) -> xr.DataArray:
    """Evaluate a function of the run, such as a closed form, at every point of a sweep.

    Args:
        sweep: the sweep; nothing is trained.
        function: function of the run at one point that returns a number.

    Returns:
        The values over the dimensions of the sweep but its seeds, with their coordinates, so that
        they align with its results.

    Example:
        >>> run = sweeps.experiment(steps=100, momentum=0.9)
        >>> sweep = sweeps.Sweep(run, {"eta_y": [0.5, 1.0], "seed": range(4)})
        >>> rate = lambda run: odes.effective_rates(run.built[1])[0]
        >>> sweeps.evaluate(sweep, rate).values.round(4).tolist()
        [5.0, 10.0]
    """
    dims = [dim for dim in sweep.dims if dim.name != "seed"]
    values = np.empty([dim.size for dim in dims])
    for index in np.ndindex(*values.shape):
        at = zip(dims, index, strict=True)
        values[index] = function(
            sweep.point({name: v[i] for dim, i in at for name, v in dim.axes.items()})
        )
    coordinates = {name: (dim.name, list(axis)) for dim in dims for name, axis in dim.axes.items()}
    return xr.DataArray(values, coordinates, [dim.name for dim in dims])


def difference(theory: xr.Dataset, simulation: xr.Dataset) -> xr.Dataset:
    """Theory minus simulation, for everything that both recorded.

    Args:
        theory: results of a sweep, or a `Trajectory.to_xarray()`.
        simulation: the same for training. Dimensions that one of them lacks, such as the seeds of a
            theory that starts from zero, are repeated; along the others, common values are kept.

    Returns:
        A dataset with the units of the theory. Its `status` is the simulation's where that is not
        OK, else the theory's, so that `valid` masks it. Its attributes `theory` and `simulation`
        hold the attributes of both as JSON.

    Raises:
        ValueError: unless both are datasets, with a recorded array in common and common values
            along each dimension.

    Example:
        >>> axes = {"eta": [0.1, 0.2]}
        >>> run = sweeps.Experiment(DeepLinear(), dynsim.sgd(0.1), steps=20)
        >>> training = sweeps.run(sweeps.Sweep(run, axes, record=["loss"]), progress=False)
        >>> theory = sweeps.run(sweeps.Sweep(run, axes, "modes", ["loss"]), progress=False)
        >>> error = sweeps.difference(theory, training)
    """
    for side, dataset in (("theory", theory), ("simulation", simulation)):
        checks.kind(side, dataset, xr.Dataset)
    names = [name for name in theory.data_vars if name in simulation.data_vars]
    names = [name for name in names if name not in ("status", "first_bad_step")]
    if not names:
        raise ValueError(
            f"theory recorded {', '.join(map(str, theory.data_vars))}, simulation "
            f"{', '.join(map(str, simulation.data_vars))}: they have no array in common"
        )
    ours, theirs = xr.align(theory, aligned_with(theory, simulation), join="inner")
    for dim, size in ours.sizes.items():
        if size < min(theory.sizes[dim], 1):
            raise ValueError(f"{dim}: theory and simulation have no value in common")
    error = ours[names] - theirs[names]
    for name in names:
        # xarray drops attributes in arithmetic.
        attributes = dict(theory[name].attrs)
        attributes["long_name"] = f"theory minus simulation: {attributes.get('long_name', name)}"
        error[name].attrs = attributes
    error["status"] = theirs["status"].where(theirs["status"] != Status.OK, ours["status"])
    error["status"].attrs = dict(simulation["status"].attrs)
    sides = {"theory": theory, "simulation": simulation}
    error.attrs = {name: json.dumps(side.attrs, default=str) for name, side in sides.items()}
    return error


def relative_error(theory: xr.Dataset, simulation: xr.Dataset, name: str) -> xr.DataArray:
    """Return the relative error of a theory against the mean over the seeds of the simulation.

    It is |theory - mean| / |mean|, both in the l2 norm over recorded times and entries.

    Args:
        theory: results of a sweep; if it has seeds, their mean is compared.
        simulation: those of training, with seeds.
        name: a quantity that both recorded.

    Returns:
        The error over the axes of the sweep, except seeds; NaN where the theory or all runs failed.

    Example:
        >>> axes = {"eta": [0.1, 0.2], "seed": range(3)}
        >>> run = sweeps.Experiment(DeepLinear(), dynsim.sgd(0.1), steps=20)
        >>> training = sweeps.run(sweeps.Sweep(run, axes, record=["loss"]), progress=False)
        >>> theory = sweeps.run(sweeps.Sweep(run, axes, "modes", ["loss"]), progress=False)
        >>> sweeps.relative_error(theory, training, "loss").dims
        ('eta',)
    """
    mean, solution = valid(simulation)[name].mean("seed"), valid(theory)[name]
    solution = solution.mean("seed") if "seed" in solution.dims else solution
    inner = [dim for dim in mean.dims if dim not in simulation["status"].dims]
    # Entries that a run does not have, such as those of sizes that vary, are NaN on both sides.
    exists = mean.notnull()
    error, norm = (
        (values**2).where(exists, 0).sum(inner, skipna=False) ** 0.5
        for values in (solution - mean, mean)
    )
    return (error / norm).where(exists.any(inner))
