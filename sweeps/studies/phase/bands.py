"""The boundary of a region whose runs differ by seed: a curve, how wide it is and how well known.

The share of the seeds that end in a region is an estimate of its probability. Where it is 50 % lies
the boundary, between 10 and 90 % its band, a property of training that more seeds do not make
narrower. What they make narrower is where the 50 % can be: the points whose Clopper-Pearson
interval contains them. Shares are not smoothed over neighbours: these draw the same batches, so
that they add little, and a sharp boundary would become a band of several points.
"""

from typing import Any

import numpy as np
import xarray as xr
from contourpy import contour_generator
from jaxtyping import Bool, Float, Int, Real
from scipy.ndimage import distance_transform_edt
from scipy.special import betaincinv

from sweeps.studies.options import scale_of
from sweeps.studies.phase.regions import BAND

Mask = Bool[np.ndarray, "X Y"]
LEVELS = (BAND[0], 0.5, BAND[1])
"""Of the probability of a region, at which curves are drawn."""
TAIL = 0.0158 / 2
"""Of each end of an interval. Seeds are added where it is too wide and kept where it is not, so
each point has several chances to be wrong: this is Pocock's level, at which five looks, such as at
8, 16, 32, 64 and 128 seeds, are right in 95 % of all cases together."""


def interval(
    share: Float[np.ndarray, "*B"], seeds: Real[np.ndarray, "*B"]
) -> tuple[Float[np.ndarray, "*B"], Float[np.ndarray, "*B"]]:
    """Lower and upper end of the Clopper-Pearson interval of a probability that was seen as `share`
    of so many seeds. Points without any, whose shares are interpolated, count as the poorest."""
    share, seeds = np.broadcast_arrays(share, np.where(seeds > 0, seeds, seeds[seeds > 0].min()))
    # Where all seeds agree, as at most points, there is a closed form.
    low = np.where(share < 1, 0.0, TAIL ** (1 / seeds))
    high = np.where(share > 0, 1.0, 1 - TAIL ** (1 / seeds))
    some = (share > 0) & (share < 1)
    k, n = (share * seeds)[some], seeds[some]
    low[some], high[some] = betaincinv(k, n - k + 1, TAIL), betaincinv(k + 1, n - k, 1 - TAIL)
    return low, high


def undecided(share: Float[np.ndarray, "X Y R"], seeds: Int[np.ndarray, "X Y"]) -> Mask:
    """Where a region has a probability that may be above one half, or below it."""
    low, high = interval(share, seeds[..., None])
    return np.any((low < 0.5) & (high > 0.5), axis=-1)


def widths(mask: Mask) -> Float[np.ndarray, "2*X 2*Y"]:
    """Twice the distance in points to what is not in the mask, at each quarter of a point: along
    the middle of a stripe that is its width. Beyond the plane the mask goes on."""
    fine = mask.repeat(2, axis=0).repeat(2, axis=1)
    return np.full(fine.shape, np.inf) if mask.all() else distance(fine)


def distance(mask: Mask) -> Float[np.ndarray, "X Y"]:
    """Of each point to the nearest one outside of the mask."""
    return np.asarray(distance_transform_edt(mask))


def wide(mask: Mask, width: float) -> Mask:
    """The points of a mask where it is wider than so many points: all larger discs within it."""
    middle = widths(mask) > width
    if not middle.any():
        return np.zeros_like(mask)
    near = distance(~middle) <= width
    return near.reshape(len(mask), 2, -1, 2).any(axis=(1, 3)) & mask


def boundary(found: xr.Dataset) -> xr.Dataset:
    """The curves where regions have the probabilities `LEVELS`.

    Args:
        found: a map of several seeds, as `sweeps.phase.maps` returns it.

    Returns:
        A table over `vertex`: name of the `region`; the `level` of its probability; `of` what it is
        the level, the `share` of the seeds, or for 50 % also the `low` and `high` end of its
        interval; the number of the `piece`, whose vertices are in order; `x` and `y` in units of
        the axes; and whether the nearest point was `computed`.

    Raises:
        ValueError: for a map of single runs.
    """
    if "share" not in found:
        raise ValueError("found: holds one run at each point; a boundary needs several seeds")
    x, y = found["computed"].dims
    wanted = [*(("share", level) for level in LEVELS), ("low", 0.5), ("high", 0.5)]
    heads, pieces = [], [np.empty((0, 2))]
    for place, name in enumerate(found["name"].values):
        for of, level in wanted:
            values = found[of].isel(code=place).transpose(x, y).values
            # A single row has no contours.
            lines: Any = contour_generator(z=values).lines(level) if min(values.shape) > 1 else []
            heads += [(name, level, of)] * len(lines)
            pieces += lines
    vertices = np.concatenate(pieces)
    sizes = [len(piece) for piece in pieces[1:]]
    # Where all of a plane is in one region, there is none.
    columns = {
        name: np.repeat([head[place] for head in heads], sizes)
        for place, name in enumerate(("region", "level", "of"))
    }
    columns["piece"] = np.repeat(np.arange(len(sizes)), sizes)
    # Contours are of (row, column), which is (x, y) here, and begin with the column.
    columns |= {"x": along(found[x], vertices[:, 1]), "y": along(found[y], vertices[:, 0])}
    nearest = np.rint(vertices).astype(int)
    columns["computed"] = found["computed"].values[nearest[:, 1], nearest[:, 0]]
    table = xr.Dataset({name: ("vertex", values) for name, values in columns.items()})
    for name, axis in (("x", found[x]), ("y", found[y])):
        table[name].attrs = {**axis.attrs, "axis": axis.name}
    return table


def along(axis: xr.DataArray, index: Float[np.ndarray, " V"]) -> Float[np.ndarray, " V"]:
    """Values of an axis between its points, evenly spaced on its scale."""
    values = axis.values.astype(float)
    logarithmic = scale_of(axis) == "log"
    found = np.interp(index, np.arange(len(values)), np.log(values) if logarithmic else values)
    return np.exp(found) if logarithmic else found
