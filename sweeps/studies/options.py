"""What several figures share: options and their check, lines of curves, and the cells and colours
of maps.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import xarray as xr
from annotated_types import Ge, Le
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from scipy import stats

from dynsim import checks
from odes.theory import refusal
from sweeps import output
from sweeps.language.tree import settle
from sweeps.runner import cluster
from sweeps.runner.spec import Sweep
from sweeps.systems.experiment import Experiment

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh

Several = Annotated[int, Ge(2), Le(2**31 - 1)]
"""How many there are of something, more than one."""

Queries = tuple[str, ...]
"""Numbers of queries, also as one option with commas: --num-queries 1,3."""
MANY_DECADES = 1e3
"""Ratio of the largest to the smallest value from which on colours are logarithmic."""


def begin(config: Any) -> None:
    """Check the settings of a figure against their annotations, and `out`; then use all cores.

    Raises:
        ValueError: naming the setting, its value and what is allowed.
    """
    settle(config)
    if hasattr(config, "run"):
        checks.kind("run", config.run, Experiment)
    output.check_directory(config.out)
    cluster.use_all_cores()


UNREDUCED = {"symmetric": "plain", "symmetric-descent": "descent"}
"""The engines for any classes that compute the same as those for symmetric ones."""


def unreduced(sweep: Sweep) -> Sweep:
    """The same by the engine for any classes, where the symmetric reduction does not apply."""
    if sweep.engine not in UNREDUCED or refusal(sweep.rules.check_run, sweep.first) is None:
        return sweep
    return dataclasses.replace(sweep, engine=UNREDUCED[sweep.engine])


def queries(given: Sequence[str]) -> list[int]:
    """Numbers of queries from words such as "1,3,5,10"; `ValueError` for anything else."""
    words = [word for part in given for word in part.split(",") if word]
    try:
        numbers = [int(word) for word in words]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1 or len(set(numbers)) < len(numbers):
        raise ValueError(f"num_queries = {','.join(given)!r}: must be different integers >= 1")
    return numbers


class Line(NamedTuple):
    """A straight line through points, by least squares.

    Attributes:
        slope: slope of the line.
        error: standard error of the slope, from the residuals; NaN for two points.
        intercept: where it is at 0.
    """

    slope: float
    error: float
    intercept: float


def line(x: Float[np.ndarray, " P"], y: Float[np.ndarray, " P"]) -> Line:
    """The line of least squares through two points or more."""
    apart = x - x.mean()
    slope = apart @ y / (apart @ apart)
    intercept = y.mean() - slope * x.mean()
    left, free = y - slope * x - intercept, len(x) - 2
    error = np.sqrt(left @ left / free / (apart @ apart)) if free else np.nan
    return Line(float(slope), float(error), float(intercept))


TWO_ERRORS = float(stats.norm.sf(2))
"""Probability that a normal number is more than two standard errors above its mean."""


def student(free: int, level: float = TWO_ERRORS) -> float:
    """By which factor a standard error that is estimated with `free` degrees of freedom is widened,
    so that as many of it as for a normal distribution are exceeded with the probability `level`;
    NaN for none."""
    return float(stats.t.isf(level, free) / stats.norm.isf(level)) if free > 0 else np.nan


def heat_map(
    ax: "Axes", values: xr.DataArray, scale: str | None = None, **options: Any
) -> "QuadMesh":
    """Values (across, up) as colours of the cells around their coordinates, as `cell_edges` finds
    them; what is not finite has the colour of bad values. Returns the mesh, for a colour bar."""
    edges = (cell_edges(values[dim], scale) for dim in values.dims)
    return ax.pcolormesh(*edges, values.values.T, rasterized=True, **options)


def scale_of(values: ArrayLike) -> str:
    """The scale of an axis: linear for values that are evenly spaced or not all positive, else
    log."""
    numbers = np.asarray(values)
    steps = np.diff(numbers)
    # Whole numbers are evenly spaced up to rounding.
    rounding = 1 if numbers.dtype.kind in "iu" else 1e-6 * abs(numbers).max()
    even = steps.size > 1 and np.ptp(steps) <= rounding
    return "linear" if even or numbers.min() <= 0 else "log"


def cell_edges(values: ArrayLike, scale: str | None = None) -> np.ndarray:
    """Edges of the cells around increasing `values` on an axis of the `scale`, by default that
    which `scale_of` finds."""
    logarithmic = (scale or scale_of(values)) == "log"
    centres = np.asarray(values, np.float64)
    centres = np.log(centres) if logarithmic else centres
    if centres.size == 1:
        found = centres + np.array([-0.5, 0.5])
    else:
        middle = (centres[1:] + centres[:-1]) / 2
        ends = 2 * centres[[0, -1]] - middle[[0, -1]]
        found = np.concatenate([ends[:1], middle, ends[1:]])
    return np.exp(found) if logarithmic else found


class ColourRange(NamedTuple):
    """First and last value that colours show, and whether they are logarithmic."""

    low: float
    high: float
    logarithmic: bool

    def apart(self, values: Float[np.ndarray, "N C"], tolerance: float) -> Bool[np.ndarray, " N"]:
        """Whether values differ by more than a share of the range of colours, or some but not all
        of them are NaN."""
        if self.logarithmic:
            values = np.log(np.maximum(values, self.low))
        ends = np.log([self.low, self.high]) if self.logarithmic else (self.low, self.high)
        lost = np.isnan(values)
        largest = np.where(lost, -np.inf, values).max(axis=1)
        smallest = np.where(lost, np.inf, values).min(axis=1)
        some = lost.any(axis=1) & ~lost.all(axis=1)
        return some | (largest - smallest > tolerance * (ends[1] - ends[0]))


def colour_range(values: np.ndarray) -> ColourRange:
    """The range for all of these values, those that are not finite left out: logarithmic if nine in
    ten of them span decades, as a few that are nearly zero must not hide how the others differ."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if not 0 < low * MANY_DECADES < high:
        return ColourRange(low, high, False)
    some = np.quantile(finite, 0.05, method="lower")
    most = np.quantile(finite, 0.95, method="higher")
    return ColourRange(low, high, bool(some * MANY_DECADES < most))
