"""Results of the sweeps of a figure that no training has made: for tests of what is drawn."""

from typing import Any

import numpy as np
import xarray as xr

from dynsim import Status


def results(figure: Any, time: str = "time", **inner: dict[str, int]) -> dict[str, xr.Dataset]:
    """Random numbers in [0, 1) of each sweep at six times, 0 to 5 if they are the same for all
    runs; `inner` are the sizes of further dimensions, by observable."""
    rng, found = np.random.default_rng(0), {}
    for name, sweep in figure.sweeps().items():
        axes = {dim.name: dim.size for dim in sweep.dims}
        data: dict[str, Any] = {"status": (tuple(axes), np.full([*axes.values()], Status.OK))}
        for each in sweep.names:
            sizes = {**axes, time: 6, **inner.get(each, {})}
            data[each] = tuple(sizes), rng.uniform(size=[*sizes.values()])
        coords = {n: (dim.name, list(v)) for dim in sweep.dims for n, v in dim.axes.items()}
        found[name] = xr.Dataset(data, coords)
        if time == "time":
            found[name]["time"] = np.arange(6.0)
    return found
