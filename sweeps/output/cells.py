"""Cells, colours and contours of maps, and which of their scales are logarithmic."""

from typing import NamedTuple

import numpy as np
import xarray as xr
from contourpy import contour_generator
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

LOG_RATIO = 1e3
"""Ratio of the largest to the smallest value above which colours are logarithmic by default."""


def scale_of(values: ArrayLike) -> str:
    """Choose an axis scale: "linear" for values evenly spaced or not all positive, else "log"."""
    numbers = np.asarray(values)
    steps = np.diff(numbers)
    # Evenly spaced values that were rounded to integers differ by up to 1 in their steps.
    rounding = 1 if numbers.dtype.kind in "iu" else 1e-6 * abs(numbers).max()
    even = steps.size > 1 and np.ptp(steps) <= rounding
    return "linear" if even or numbers.min() <= 0 else "log"


def cell_edges(values: ArrayLike, scale: str | None = None) -> np.ndarray:
    """Return the edges of cells around increasing `values`, on `scale` or that of `scale_of`."""
    logarithmic = (scale or scale_of(values)) == "log"
    centres = np.asarray(values, np.float64)
    centres = np.log(centres) if logarithmic else centres
    if centres.size == 1:
        edges = centres + np.array([-0.5, 0.5])
    else:
        middle = (centres[1:] + centres[:-1]) / 2
        # The first and the last cell extend as far outwards as inwards.
        ends = 2 * centres[[0, -1]] - middle[[0, -1]]
        edges = np.concatenate([ends[:1], middle, ends[1:]])
    return np.exp(edges) if logarithmic else edges


class ColourRange(NamedTuple):
    """Smallest and largest value of a colour scale, and whether it is logarithmic."""

    low: float
    high: float
    logarithmic: bool

    def apart(self, values: Float[np.ndarray, "N C"], tolerance: float) -> Bool[np.ndarray, " N"]:
        """Return which rows differ by more than `tolerance` times the colour range, or have both
        NaN and other values."""
        if self.logarithmic:
            values = np.log(np.maximum(values, self.low))
        ends = np.log([self.low, self.high]) if self.logarithmic else (self.low, self.high)
        invalid = np.isnan(values)
        largest = np.where(invalid, -np.inf, values).max(axis=1)
        smallest = np.where(invalid, np.inf, values).min(axis=1)
        mixed = invalid.any(axis=1) & ~invalid.all(axis=1)
        return mixed | (largest - smallest > tolerance * (ends[1] - ends[0]))


def colour_range(values: np.ndarray, far: float = LOG_RATIO) -> ColourRange:
    """Choose a colour range for the finite values. It is logarithmic if the largest of the middle
    90 % of them is more than `far` times the smallest; a few values near zero must not hide how the
    others differ."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if not 0 < low * far < high:
        return ColourRange(low, high, False)
    # Quantiles that are values: interpolation would mix the few near zero with the others.
    small = np.quantile(finite, 0.05, method="lower")
    large = np.quantile(finite, 0.95, method="higher")
    return ColourRange(low, high, bool(small * far < large))


def contour(values: xr.DataArray, level: float = 0.0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the curves where values over the axes (y, x) are at a level, as places (x, y).

    Example:
        >>> import xarray as xr
        >>> values = xr.DataArray([[-1.0, 1.0]] * 2, {"a": [0.0, 1.0], "eta": [0.0, 2.0]})
        >>> [x.tolist() for x, y in sweeps.diagrams.contour(values)]
        [[1.0, 1.0]]
    """
    y, x = (values[dim] for dim in values.dims)
    return [(along(x, at[:, 0]), along(y, at[:, 1])) for at in traced(values, level)]


def traced(values: xr.DataArray, level: float) -> list[Float[np.ndarray, "V 2"]]:
    """Return the curves where values over the axes (y, x) are at a level, as fractional indices of
    x and y."""
    if min(values.shape) < 2:
        return []
    return contour_generator(z=values.values).lines(level)  # pyright: ignore[reportReturnType]  (separate lines)


def along(axis: xr.DataArray, index: Float[np.ndarray, " V"]) -> Float[np.ndarray, " V"]:
    """Interpolate an axis at fractional indices, on its scale."""
    values = axis.values.astype(float)
    logarithmic = scale_of(axis) == "log"
    points = np.interp(index, np.arange(len(values)), np.log(values) if logarithmic else values)
    return np.exp(points) if logarithmic else points
