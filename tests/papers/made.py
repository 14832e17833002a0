"""Results of sweeps that nobody ran, to draw figures from."""

import numpy as np
import xarray as xr

import sweeps
from sweeps.runner import labels


def falling(sweep: sweeps.Sweep) -> xr.Dataset:
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
