"""What several figures share: an option, and the cells of logarithmic maps."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike


def queries(given: Sequence[str]) -> list[int]:
    """Numbers of queries from words such as "1,3,5,10"; `ValueError` for anything else."""
    words = [word for part in given for word in part.split(",") if word]
    try:
        numbers = [int(word) for word in words]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1 or len(set(numbers)) < len(numbers):
        raise ValueError(f"queries = {','.join(given)!r}: must be different integers >= 1")
    return numbers


def log_edges(values: ArrayLike) -> np.ndarray:
    """Edges of the cells around increasing positive `values` on a logarithmic axis."""
    logs = np.log(np.asarray(values, np.float64))
    if logs.size == 1:
        return np.exp(logs + np.array([-0.5, 0.5]))
    middle = (logs[1:] + logs[:-1]) / 2
    ends = 2 * logs[[0, -1]] - middle[[0, -1]]
    return np.exp(np.concatenate([ends[:1], middle, ends[1:]]))
