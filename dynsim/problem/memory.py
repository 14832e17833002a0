"""Estimates of the memory of a run, before anything is compiled."""

import math

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from dynsim.precision import DType
from dynsim.problem.base import Problem, call_user

BYTES_PER_RUN = 2**14
"""Bytes per run besides copies of its weights and its batch."""
COPIES = 8
"""Approximate number of copies of the weights in a step or a solver."""
SHARED_COPIES = 3
"""Copies of the shared data of a key: as drawn, with the numbers of a run, and reordered."""


def bytes_of(
    problem: Problem,
    batch: int | float,
    steps: int | None,
    dtype: DType = "float64",
    *,
    trains: bool = False,
) -> int:
    """Return the bytes for copies of the weights; in training also of batch and shared data."""

    # NumPy's arrays could not be indexed by what is drawn.
    arrays, rest = eqx.partition(problem, eqx.is_array)

    def allocated(key: PRNGKeyArray, arrays: Problem) -> tuple[list[Array], object]:
        (prepared, shared), data = eqx.combine(arrays, rest).prepare(key), ()
        if trains and not math.isinf(batch):
            data = prepared.batches(key, steps, int(batch))(jax.numpy.int32(0))
        init = call_user(prepared, "init", key)
        weights = [x for x in jax.tree.leaves((init, data)) if eqx.is_array(x)]
        return weights, shared if trains else ()

    weights, shared = (
        sum(math.prod(x.shape) for x in jax.tree.leaves(tree))
        # By shapes alone: nothing is computed or allocated.
        for tree in jax.eval_shape(allocated, jax.eval_shape(lambda: jax.random.key(0)), arrays)
    )
    return np.dtype(dtype).itemsize * (COPIES * weights + SHARED_COPIES * shared) + BYTES_PER_RUN
