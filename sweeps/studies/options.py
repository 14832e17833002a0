"""What several figures share: an option, and the cells of maps."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import tyro
from numpy.typing import ArrayLike

Queries = Annotated[tuple[str, ...], tyro.conf.arg(aliases=("--queries",))]
"""Numbers of queries, also as one option with commas: --queries 1,3."""


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
