"""Figures of in-context learning by linear attention (Zhang et al., arXiv:2501.16265)."""

import xarray as xr

import odes
import sweeps


def escapes(loss: xr.DataArray, levels: xr.DataArray) -> xr.DataArray:
    """First time at which each loss is halfway from one plateau to the next; NaN if never."""
    middle = (levels.isel(plateau=slice(1, None)) + levels.isel(plateau=slice(-1))) / 2
    return sweeps.crossing(loss, middle)


def measured(data: xr.Dataset, sweep: sweeps.Sweep) -> xr.Dataset:
    """Number of plateaus, time of the first escape in units of tau, and last loss of each run of a
    sweep over the ratio of eigenvalues; and the (ratio, plateau) levels of eq. 19."""
    loss = sweeps.valid(data).loss.isel(time=slice(1, None))
    loss = loss.assign_coords(time=loss.time * (2 * sweep.first.setting("eta")))  # 1 / tau
    level = [
        odes.linear_icl.plateaus(sweep.first.at({"ratio": r}).built[0]) for r in loss.ratio.values
    ]
    level = xr.DataArray(level, {"ratio": loss.ratio}, ("ratio", "plateau"))
    core, count = [["time"], ["time"], ["plateau"]], odes.linear_icl.count_plateaus
    number = xr.apply_ufunc(count, loss.time, loss, level, input_core_dims=core)
    escape = escapes(loss, level).isel(plateau=0)
    end = loss.isel(time=-1, drop=True)
    return xr.Dataset({"plateaus": number, "escape": escape, "end": end, "level": level})
