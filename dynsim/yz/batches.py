"""Sampled batches, their counts kept on the support of their classes: one, and those of a run."""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt

from dynsim.classes.task import SequenceClasses
from dynsim.yz.model import Examples


class SupportExamples(eqx.Module):
    """A weighted set of examples, their counts on the support of their classes alone.

    Attributes:
        classes: (E,) class of each example.
        counts: (S, E) how often each token of `task.support[classes]` occurs.
        weight: (E,) weight of each example in the loss; sums to 1.
    """

    classes: Int[Array, " E"]
    counts: Float[Array, "S E"]
    weight: Float[Array, " E"]

    def dense(self, task: SequenceClasses) -> Examples:
        """The same examples with counts over the whole vocabulary."""
        return Examples(self.classes, on_vocabulary(task, self, self.counts).T, self.weight)


class Batches(NamedTuple):
    """The batches of a run, as few bytes.

    Attributes:
        classes: (N, E) class of each example.
        counts: (N, S, E) counts on the support of the classes, in the smallest unsigned integers.
    """

    classes: Int[Array, "*B N E"]
    counts: UInt[Array, "*B N S E"]

    def at(self, k: Int[Array, ""], dtype: str) -> SupportExamples:
        """Batch k."""
        classes = self.classes[k]
        weight = jnp.full(classes.shape, 1 / classes.size, dtype)
        return SupportExamples(classes, self.counts[k].astype(dtype), weight)


@functools.partial(jax.jit, inline=True)
def on_vocabulary(
    task: SequenceClasses, examples: SupportExamples, values: Float[Array, "S E"]
) -> Float[Array, "M E"]:
    """(M, E) values on the support of each example's class, with zeros for all other tokens."""
    tokens = task.support[examples.classes].T
    zeros = jnp.zeros((task.M, values.shape[1]), values.dtype)
    return zeros.at[tokens, jnp.arange(values.shape[1])].set(values, unique_indices=True)
