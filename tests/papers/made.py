"""Trainings for equations, and results of sweeps that nobody ran, to draw figures from."""

import numpy as np
import xarray as xr

import dynsim
from dynsim import Status
from odes import Training
from sweeps.runner import labels


def training(problem, eta, batch=1):
    """What the equations of a problem are given."""
    return Training(problem, dynsim.sgd(eta), batch)


def falling(sweep):
    """Everything that a sweep records falls from 1 in straight lines, to other ends in each run."""
    dims = {dim.name: dim.size for dim in sweep.dims}
    data = xr.Dataset(coords=labels.coordinates(sweep))
    ends = np.linspace(0.1, 0.5, int(np.prod([*dims.values()])) or 1).reshape(*dims.values())
    ends, time = xr.DataArray(ends, dims=[*dims]), data.time / data.time[-1]
    for name in sweep.record:
        inner = sweep.system.labels.inner_dims.get(name, ())
        sizes = {dim: data.sizes.get(dim, 4) for dim in inner}
        data[name] = (1 - (1 - ends) * time).expand_dims(sizes, [-1] * len(sizes))
    data["status"] = xr.zeros_like(ends, int)
    return data


def results(figure, time="time", **inner):
    """Random numbers in [0, 1) of each sweep at six times, 0 to 5 if they are the same for all
    runs; `inner` are the sizes of further dimensions, by observable."""
    rng, found = np.random.default_rng(0), {}
    for name, sweep in figure.sweeps().items():
        axes = {dim.name: dim.size for dim in sweep.dims}
        data = {"status": (tuple(axes), np.full([*axes.values()], Status.OK))}
        for each in sweep.names:
            sizes = {**axes, time: 6, **inner.get(each, {})}
            data[each] = tuple(sizes), rng.uniform(size=[*sizes.values()])
        coords = {n: (dim.name, list(v)) for dim in sweep.dims for n, v in dim.axes.items()}
        found[name] = xr.Dataset(data, coords)
        if time == "time":
            found[name]["time"] = np.arange(6.0)
    return found
