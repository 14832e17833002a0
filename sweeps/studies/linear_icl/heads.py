"""Fewer heads than components, and more: the table of `dynsim figure linear_icl_plateaus`."""

from collections.abc import Mapping

import numpy as np
import xarray as xr

LEFT = 0.02
"""Share of the first loss above the last plateau up to which it counts as reached."""


def excess(read: xr.Dataset, D: int) -> xr.DataArray:
    """Loss at the end above the lowest plateau that so many heads can reach, eq. 19 with min(H, D)
    components, over the loss at the start."""
    lowest = read.level.isel(plateau=np.minimum(read.heads, D))
    return (read.end - lowest) / read.level.isel(plateau=0)


def right(read: Mapping[str, xr.Dataset]) -> xr.DataArray:
    """Whether descent rests at as many plateaus as eq. 21 says."""
    return read["heads/simulation"].plateaus == read["heads/scalar"].plateaus


def table(read: Mapping[str, xr.Dataset], D: int) -> list[str]:
    """A line for each number of heads."""
    trained = read["heads/simulation"]
    over, late = excess(trained, D), np.log2(trained.escape / read["heads/scalar"].escape)
    lines = []
    for number in trained.heads.values:
        same, rest, time = (x.sel(heads=number) for x in (right(read), over, late))
        seen = float(trained.plateaus.sel(heads=number).mean())
        share, reached = 100 * float(same.mean()), 100 * float((rest < LEFT).mean())
        lines.append(
            f"{number} heads, D = {D}: {seen:.2f} plateaus, as many as eq. 21 says in "
            f"{share:.0f} %; first escape off by a factor {2 ** float(abs(time).median()):.2f}; "
            f"last plateau reached in {reached:.0f} %"
        )
    return lines
