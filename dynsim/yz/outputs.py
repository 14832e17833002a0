"""Outputs that training cannot tell apart, in one column of Y.

An output that is the next token of no class enters the loss through the sum over all outputs alone.
So all of these have one gradient, and training from zero, where their columns of Y are equal, keeps
them equal under any rule that treats entries alike: K + 1 columns say what M would.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dynsim.classes.task import SequenceClasses
from dynsim.precision import AnyArray
from dynsim.yz import model as yz


class Outputs(NamedTuple):
    """The columns of Y.

    Attributes:
        label: (K,) the column of each class's next token.
        count: (C,) how many outputs each column stands for, one where it is a label; None where
            that is one for all.
        column: (M,) the column of each output; None where there is one for each.
    """

    label: Int[AnyArray, " K"]
    count: Float[Array, " C"] | None = None
    column: Int[Array, " M"] | None = None

    def merge(self, Y: Float[AnyArray, "M M"]) -> Float[AnyArray, "M C"]:
        """Y with so many columns, from one whose columns are all equal."""
        return Y if self.count is None else Y[:, : self.count.size]

    def spread(self, Y: Float[AnyArray, "M C"]) -> Float[AnyArray, "M M"]:
        """Y with a column for each output again."""
        return Y if self.column is None else jnp.asarray(Y)[:, self.column]

    def total(self, residual: Float[Array, "_ _"], axis: int = 1) -> Float[Array, "_ _"]:
        """The residuals of all outputs of each column together, from those of one; `axis` is that
        of the columns."""
        if self.count is None:
            return residual
        return residual * jnp.expand_dims(self.count, 1 - axis)


def each(task: SequenceClasses) -> Outputs:
    """A column for each output."""
    return Outputs(task.next_token)


def merged(task: SequenceClasses, dtype: str) -> Outputs:
    """A column for each class's next token and one for all other outputs, if that at least halves
    their number."""
    if 2 * (task.K + 1) > task.M:
        return each(task)
    label = jnp.arange(task.K, dtype=jnp.int32)
    column = jnp.full(task.M, task.K, jnp.int32).at[task.next_token].set(label)
    count = jnp.append(jnp.ones(task.K, dtype), jnp.asarray(task.M - task.K, dtype))
    return Outputs(label, count, column)


def loss_and_grad(
    params: yz.YZ, task: SequenceClasses, examples: yz.Examples, outputs: Outputs
) -> tuple[Float[Array, ""], yz.YZ]:
    """As `yz.loss_and_grad`, without the residual connection, for weights in the columns of
    `outputs`; dJ/dY has that of one output in each.

    Examples are the last axis of all arrays, because it is long where columns are few. Products
    name the axes that they sum over: a transposition is folded into a product in one program and
    not in another, as for another number of devices, and the last bit differs with it.
    """
    row = task.query_index[examples.classes]
    f = yz.direction(params.Z[row].T, examples.counts.T, 0)
    label = outputs.label[examples.classes]
    logits = jnp.tensordot(params.Y, f, (0, 0))
    losses, residual = yz.cross_entropy(logits, label, 0, outputs.count)
    weight = yz.weights(examples, f.dtype)
    residual = weight[None] * residual
    g = params.Y @ outputs.total(residual, 0)
    dz = f * (g - f * jnp.sum(f * g, axis=0, keepdims=True))
    dY = jnp.tensordot(f, residual, (1, 1))
    dZ = jnp.tensordot(jax.nn.one_hot(row, task.num_queries, dtype=dz.dtype), dz, (0, 1))
    return jnp.sum(weight * losses), yz.YZ(-dY, -dZ)
