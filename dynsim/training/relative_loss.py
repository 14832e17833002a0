"""Whether a run trained: the loss of its last steps relative to that of its first.

The measure of Sohl-Dickstein (arXiv:2402.06184), who counts a run as converged where it is below
1. It needs the loss of every step, so it is summed up along a run instead of recorded.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from dynsim.precision import Number

LAST = 20
"""Number of steps at the end of a run whose losses are averaged; all of a shorter run."""


class Sums(NamedTuple):
    """The sums that a run carries along.

    Attributes:
        first: (*B) loss of step 0.
        last: (*B) sum of the losses so far of the last `LAST` steps.
    """

    first: Float[Array, "*B"]
    last: Float[Array, "*B"]


def start(shape: tuple[int, ...], dtype: DTypeLike) -> Sums:
    """The sums before step 0 of runs of this shape."""
    return Sums(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))


def add(sums: Sums, loss: Float[Array, "*B"], k: Int[Array, ""], steps: Int[Number, ""]) -> Sums:
    """The sums after adding the `loss` of step k, before its update; k = `steps` adds nothing."""
    # Chosen, not multiplied by 0, because the loss may be infinite.
    late = (k >= steps - LAST) & (k < steps)
    return Sums(
        jnp.where(k == 0, loss, sums.first),
        sums.last + jnp.where(late, loss, jnp.zeros_like(loss)),
    )


def recorded(sums: Sums, times: Int[Array, " S"], steps: Int[Number, ""]) -> Float[Array, "S *B"]:
    """The mean of the last losses over the first at the end of a run; NaN at earlier times. It
    is inf or NaN for a run whose losses are."""
    relative = sums.last / (jnp.minimum(LAST, steps) * sums.first)
    at_end = (times == steps).reshape(-1, *(1,) * relative.ndim)
    return jnp.where(at_end, relative[None], math.nan)
