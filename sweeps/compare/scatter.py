"""How far the runs of a comparison scatter: predicted, and measured."""

import functools
import math
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from dynsim import Layer, Trajectory
from dynsim.precision import AnyArray
from dynsim.training.rule import Rule
from dynsim.yz.observables import DEFAULT_RECORD
from odes.yz import spread
from odes.yz.layer import weights
from sweeps.compare.comparison import average, valid
from sweeps.compare.comparison import spread as spread_of

NUM_TIMES = 9
"""At so many of the recorded times the spread is predicted; each costs a pass back to the start."""
MOST_STARTS = 8
"""From so many of the random starts, whose variance is averaged."""


class Scatter(NamedTuple):
    """Standard deviation over seeds of an observable.

    Attributes:
        predicted: (S, ...) by theory.
        measured: (S, ...) of the runs (ddof 1); NaN below two.
        error: (S, ...) sampling error of the latter, measured / sqrt(2 (runs - 1)) as of normal
            numbers.
    """

    predicted: Float[np.ndarray, "S ..."]
    measured: Float[np.ndarray, "S ..."]
    error: Float[np.ndarray, "S ..."]


def times_of(times: AnyArray) -> np.ndarray:
    """Places of the times at which the spread is predicted, the last among them."""
    return np.unique(np.rint(np.linspace(0, len(times) - 1, NUM_TIMES)).astype(int))


def predict(
    task: Layer, rule: Rule, batch: int | float, times: AnyArray, keys: Array
) -> Trajectory | None:
    """What `odes.yz.spread` predicts, with a leading axis of starts; None with an infinite batch,
    which has no spread."""
    if math.isinf(batch):
        return None
    solve = functools.partial(
        spread.solve,
        task,
        rule,
        np.asarray(times)[times_of(times)],
        batch=batch,
        length=task.length,
        record=DEFAULT_RECORD,
    )
    if task.start == "zero":
        return jax.tree.map(lambda leaf: leaf[None], solve())
    start = functools.partial(weights, None, task, "float64")
    return jax.vmap(lambda key: solve(init=start(key)))(keys[:MOST_STARTS])


def scatter(predicted: Trajectory, measured: np.ndarray, name: str) -> Scatter:
    """Of an observable, at the times of `predicted`.

    Args:
        predicted: as from `predict`.
        measured: (R, S, ...) the observable in the runs, at these times.
    """
    ok = np.asarray(predicted.ok)
    std = np.asarray(predicted.std[name], np.float64)[ok]
    return over_starts(std, valid(predicted, name), measured)


def over_starts(std: np.ndarray, mean: np.ndarray, measured: np.ndarray) -> Scatter:
    """From the standard deviation (R, S, ...) within each start, and the mean there."""
    # Law of total variance: within a start, and of the mean over the starts.
    total = average(std**2)
    if len(mean) > 1:
        total = total + spread_of(mean) ** 2
    found = spread_of(measured)
    return Scatter(np.sqrt(total), found, found / math.sqrt(2 * max(len(measured) - 1, 1)))


def at_end(found: Scatter) -> dict[str, Any]:
    """The last time alone, root mean square over classes."""
    return {name: math.sqrt(np.mean(value[-1] ** 2)) for name, value in found._asdict().items()}
