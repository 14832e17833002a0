"""Batches with counts over the whole vocabulary, for layers in other parameters."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from dynsim.classes.task import SequenceClasses
from dynsim.precision import DType
from dynsim.yz import model as yz
from dynsim.yz import sampling

Sampler = Callable[[Int[Array, ""], PRNGKeyArray], yz.Examples]


def sampler(
    task: SequenceClasses,
    data: yz.Examples | None,
    steps: int,
    length: int | float,
    batch: int | float,
    dtype: DType,
    *,
    scatter: bool,
) -> Sampler:
    """The batch of a step, with counts over the whole vocabulary, as a function of the step and its
    key; `scatter` as in `sampling.counts_sampler`."""
    if data is not None:
        cast = yz.Examples(data.classes, data.counts.astype(dtype), data.weight.astype(dtype))
        return lambda k, _: jax.tree.map(lambda x: x[jnp.minimum(k, steps - 1)], cast)
    size = int(batch)
    if math.isinf(length):
        return lambda _, key: sampling.sample_classes_only(task, key, size, dtype)
    draw = sampling.counts_sampler(task, size, int(length), dtype, scatter=scatter)
    return lambda _, key: draw(key)
