"""What the runs at each point of a plane did, counted as they come: by region, and on average."""

import numpy as np
import xarray as xr
from jaxtyping import Float, Int
from scipy.interpolate import griddata

from sweeps.studies.phase.regions import Rule


class Tally:
    """Counts of runs over a plane of X x Y points.

    Args:
        shape: X and Y.
        rule: how a run is classified.
        observable: quantity that is averaged at the last recorded time.

    Attributes:
        counts: (X, Y, R) number of runs in each region of the rule's legend.
    """

    def __init__(self, shape: tuple[int, int], rule: Rule, observable: str) -> None:
        self.counts = np.zeros((*shape, len(rule.legend)), np.int64)
        self._rule, self._observable = rule, observable
        self._codes = np.array(list(rule.legend))
        self._sum, self._valid = np.zeros(shape), np.zeros(shape, np.int64)

    def add(self, points: Int[np.ndarray, "P 2"], runs: xr.Dataset) -> None:
        """Count the runs at these points; their dimensions besides `seed` make up the P."""
        order = [dim for dim in runs["status"].dims if dim != "seed"]
        codes, values = (
            (found if "seed" in found.dims else found.expand_dims("seed"))
            .transpose(*order, "seed")
            .values.reshape(len(points), -1)
            for found in (self._rule.classify(runs), at_end(runs, self._observable))
        )
        if unknown := set(np.unique(codes).tolist()) - set(self._codes.tolist()):
            raise ValueError(
                f"regions: a run has the code {min(unknown)}; must be one of the legend, "
                f"{', '.join(map(str, self._codes.tolist()))}"
            )
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
        found = self.counts / np.maximum(self.seeds, 1)[..., None]
        if not known.all():
            method = "nearest" if 1 in known.shape else "linear"
            nodes, rest = np.argwhere(known), np.argwhere(~known)
            found[~known] = griddata(nodes, found[known], rest, method)
        return found


def at_end(dataset: xr.Dataset, observable: str) -> xr.DataArray:
    """The observable at the last recorded time, averaged over classes; NaN for runs that did not
    end well."""
    values = dataset.where(dataset["status"] == 0)[observable]
    recorded = next(dim for dim in ("time", "record") if dim in values.dims)
    values = values.isel({recorded: -1})
    return values.mean([dim for dim in values.dims if dim not in dataset["status"].dims])
