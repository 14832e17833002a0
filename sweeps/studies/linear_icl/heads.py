"""The lower row of `dynsim figure linear_icl_plateaus`: fewer heads than components, and more."""

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from sweeps.studies.options import cell_edges

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


def plot(read: Mapping[str, xr.Dataset], D: int, axes: Sequence[Axes]) -> None:
    """Plateaus seen in descent, how often eq. 21 says their number, and how often the last one that
    so many heads can reach is reached."""
    trained = read["heads/simulation"]
    reached = (excess(trained, D) < LEFT).astype(float)
    panels = {
        "plateaus seen: descent": (trained.plateaus, D + 1, f"of {D + 1}, mean over seeds"),
        "as many as eq. 21 says": (right(read).astype(float), 1, "share of runs"),
        "last plateau of min(H, D) reached": (reached, 1, "share of runs"),
    }
    for ax, (title, (values, top, label)) in zip(axes, panels.items(), strict=True):
        mean = values.mean("seed").transpose("ratio", "heads")
        places = np.arange(mean.heads.size)
        mesh = ax.pcolormesh(
            np.arange(mean.heads.size + 1) - 0.5,
            cell_edges(mean.ratio, "log"),
            mean,
            vmin=0,
            vmax=top,
            cmap="cividis",
            rasterized=True,
        )
        ax.set_xticks(places, [str(number) for number in mean.heads.values])
        few = int(np.sum(mean.heads.values < D))
        ax.axvline(few - 0.5, color="#D55E00", ls="--", lw=2)
        ax.set(xlabel="heads H; left of the line fewer than D", title=title)
        ax.figure.colorbar(mesh, ax=ax, label=label)
