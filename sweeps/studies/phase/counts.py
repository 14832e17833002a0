"""Counts of outcomes at each point of a plane, and the uncertainty of the regions' boundaries.

The share of the seeds that end in a region estimates the region's probability. The boundary is
where this is 50 %, and its band is where it lies between 10 and 90 %. The band is a property of
training and does not narrow with more seeds. The uncertainty of the boundary does: it is the set of
points whose Clopper-Pearson interval contains 50 %. Shares are not smoothed over neighbours, which
draw the same batches and so add little; smoothing would turn a sharp boundary into a band.
"""

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Int, Real
from scipy.interpolate import griddata
from scipy.ndimage import distance_transform_edt
from scipy.special import betaincinv

from sweeps.runner.labels import valid
from sweeps.systems.diagrams import Regions

Mask = Bool[np.ndarray, "X Y"]
TAIL_PROBABILITY = 0.0158 / 2
"""Probability beyond each end of an interval. Points where seeds are added are tested repeatedly,
with a chance of error each time: at Pocock's level, five tests, such as at 8, 16, 32, 64 and 128
seeds, are all right with a probability of 95 %."""


class Tally:
    """Counts of runs over a plane of X x Y points.

    Args:
        shape: X and Y.
        regions: what classifies the runs.
        observable: quantity that is averaged at the last recorded time, over classes and runs.

    Attributes:
        counts: (X, Y, R) number of runs in each region of the legend.
    """

    def __init__(self, shape: tuple[int, int], regions: Regions, observable: str) -> None:
        self.counts = np.zeros((*shape, len(regions.legend)), np.int64)
        self.regions, self.observable = regions, observable
        self._codes = np.array(list(regions.legend))
        self._sum, self._valid = np.zeros(shape), np.zeros(shape, np.int64)

    def add(self, points: Int[np.ndarray, "P 2"], runs: xr.Dataset) -> None:
        """Count the runs at P points; their dimensions other than `seed` flatten to P."""
        dims = runs["status"].dims
        # Observables of failed runs are NaN, at whatever time they stopped.
        values = valid(runs[["status", self.observable]])[self.observable]
        values = values.isel({dim: -1 for dim in ("time", "record") if dim in values.dims})
        values = values.mean([dim for dim in values.dims if dim not in dims])
        order = [dim for dim in dims if dim != "seed"]
        # Results without seeds, of theories, count as one run.
        codes, values = (
            (array if "seed" in array.dims else array.expand_dims("seed"))
            .transpose(*order, "seed")
            .values.reshape(len(points), -1)
            for array in (self.regions.classify(runs), values)
        )
        if unknown := set(np.unique(codes).tolist()) - set(self._codes.tolist()):
            raise ValueError(
                f"regions: a run has the code {min(unknown)}; must be a code of the legend, "
                f"{', '.join(map(str, self._codes.tolist()))}"
            )
        # Points are distinct within a call, so that indexed sums lose none.
        at = tuple(points.T)
        self.counts[at] += (codes[..., None] == self._codes).sum(1)
        self._sum[at] += np.nansum(values, axis=1)
        self._valid[at] += np.isfinite(values).sum(1)

    @property
    def seeds(self) -> Int[np.ndarray, "X Y"]:
        """Number of runs at each point."""
        return self.counts.sum(-1)

    @property
    def region(self) -> Int[np.ndarray, "X Y"]:
        """Code of the most common region; of equally common ones the first in the legend."""
        return self._codes[self.counts.argmax(-1)]

    @property
    def value(self) -> Float[np.ndarray, "X Y"]:
        """Mean of the observable over runs that ended well; NaN where none did."""
        with np.errstate(invalid="ignore"):
            return self._sum / self._valid

    @property
    def shares(self) -> Float[np.ndarray, "X Y R"]:
        """Share of the runs in each region; linear between the nearest points with runs where a
        point has none."""
        known = self.seeds > 0
        shares = self.counts / np.maximum(self.seeds, 1)[..., None]
        if not known.all():
            # A line of points has no triangulation.
            method = "nearest" if 1 in known.shape else "linear"
            nodes, rest = np.argwhere(known), np.argwhere(~known)
            shares[~known] = griddata(nodes, shares[known], rest, method)
        return shares


def interval(
    share: Float[np.ndarray, "*B"], seeds: Real[np.ndarray, "*B"]
) -> tuple[Float[np.ndarray, "*B"], Float[np.ndarray, "*B"]]:
    """Return both ends of the Clopper-Pearson interval of a probability, from its share of `seeds`.
    Points without seeds, whose shares are interpolated, count as having the fewest."""
    share, seeds = np.broadcast_arrays(share, np.where(seeds > 0, seeds, seeds[seeds > 0].min()))
    # Where all seeds agree, as at most points, there is a closed form.
    low = np.where(share < 1, 0.0, TAIL_PROBABILITY ** (1 / seeds))
    high = np.where(share > 0, 1.0, 1 - TAIL_PROBABILITY ** (1 / seeds))
    # Else quantiles of the beta distribution, for k of n.
    some = (share > 0) & (share < 1)
    k, n = (share * seeds)[some], seeds[some]
    low[some], high[some] = (
        betaincinv(k, n - k + 1, TAIL_PROBABILITY),
        betaincinv(k + 1, n - k, 1 - TAIL_PROBABILITY),
    )
    return low, high


def undecided(share: Float[np.ndarray, "X Y R"], seeds: Int[np.ndarray, "X Y"]) -> Mask:
    """Return the points where it is uncertain whether a region's probability exceeds one half."""
    low, high = interval(share, seeds[..., None])
    return np.any((low < 0.5) & (high > 0.5), axis=-1)


def widths(mask: Mask) -> Float[np.ndarray, "2*X 2*Y"]:
    """Return twice the distance in points to the outside of the mask, for each quarter of a point:
    along the middle of a stripe, its width. The mask extends beyond the plane."""
    # At the resolution of the points themselves, a stripe of an even number has no middle.
    fine = mask.repeat(2, axis=0).repeat(2, axis=1)
    if mask.all():
        return np.full(fine.shape, np.inf)
    return np.asarray(distance_transform_edt(fine))


def wide(mask: Mask, width: float) -> Mask:
    """Return the points of a mask where it is wider than `width` points: its larger discs."""
    # A morphological opening: discs of this width that fit into the mask, about their middles.
    middle = widths(mask) > width
    if not middle.any():
        return np.zeros_like(mask)
    near = np.asarray(distance_transform_edt(~middle)) <= width
    return near.reshape(len(mask), 2, -1, 2).any(axis=(1, 3)) & mask
