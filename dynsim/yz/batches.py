"""Sampled batches, their counts kept on the support of their classes."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Real

from dynsim.classes.task import SequenceClasses
from dynsim.precision import AnyArray
from dynsim.yz.model import Examples, weights


class SupportExamples(eqx.Module):
    """A weighted set of examples, their counts on the support of their classes alone.

    Attributes:
        classes: (E,) class of each example.
        counts: (S, E) how often each token of `task.support[classes]` occurs; integers too.
        weight: (E,) weight of each example in the loss; sums to 1. None for equal weights.
    """

    classes: Int[AnyArray, " E"]
    counts: Real[AnyArray, "S E"]
    weight: Float[AnyArray, " E"] | None = None

    def astype(self, dtype: DTypeLike) -> "SupportExamples":
        """The examples with counts and weights in `dtype`."""
        return SupportExamples(self.classes, self.counts.astype(dtype), weights(self, dtype))

    def dense(self, task: SequenceClasses) -> Examples:
        """The same examples with counts over the whole vocabulary."""
        return Examples(self.classes, on_vocabulary(task, self, self.counts).T, self.weight)


@functools.partial(jax.jit, inline=True)
def on_vocabulary(
    task: SequenceClasses, examples: SupportExamples, values: Float[Array, "S E"]
) -> Float[Array, "M E"]:
    """(M, E) values on the support of each example's class, with zeros for all other tokens."""
    tokens = task.support[examples.classes].T
    zeros = jnp.zeros((task.M, values.shape[1]), values.dtype)
    return zeros.at[tokens, jnp.arange(values.shape[1])].set(values, unique_indices=True)
