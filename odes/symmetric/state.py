"""Symmetric tasks and their parameters in reduced form.

`odes.symmetric.reduction` defines symmetric tasks and explains why these numbers suffice.
"""

from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Real

from dynsim.precision import AnyArray, Number, cast

Tree = TypeVar("Tree")


class SymmetricTask(eqx.Module):
    """K classes over M tokens in reduced form; build it with `symmetric_task` or
    `symmetric_profiles`. All leaves are arrays or plain numbers and may be traced. Trailing axes *B
    are those of runs that are computed together, see `columns`.

    Attributes:
        p: (D,) probabilities of the kinds of distinct tokens of a class.
        rho: (C,) probabilities of the kinds of common tokens.
        K: number of classes, which is also the number of next tokens.
        M: vocabulary size, which is also the number of outputs.
        num_queries: number of query tokens, each shared by K / num_queries classes.
        p_copies, rho_copies: (D,) and (C,) number of tokens of each kind. Tokens of equal
            probability stay equal, so one may represent all. None means one of each.
    """

    p: Float[AnyArray, "D *B"]
    rho: Float[AnyArray, "C *B"]
    K: Real[Number, ""]
    M: Real[Number, ""]
    num_queries: Real[Number, ""]
    p_copies: Real[AnyArray, "D *B"] | None = None
    rho_copies: Real[AnyArray, "C *B"] | None = None

    def sum_distinct(self, values: Float[Array, "D *B"]) -> Float[Array, "*B"]:
        """Sum values per kind over all distinct tokens of a class."""
        return jnp.sum(values if self.p_copies is None else self.p_copies * values, axis=0)

    def sum_common(self, values: Float[Array, "C *B"]) -> Float[Array, "*B"]:
        """Sum values per kind over all common tokens."""
        return jnp.sum(values if self.rho_copies is None else self.rho_copies * values, axis=0)

    def astype(self, dtype: str) -> "SymmetricTask":
        """Return the task with its numbers as JAX arrays of `dtype`."""
        return jax.tree.map(lambda number: cast(number, dtype), self)


class Decoder(eqx.Module):
    """The different entries of Y, with rows by kind of token and columns by kind of output.

    Attributes:
        own: (D,) from a distinct token to the next token of its class.
        other: (D,) from a distinct token to each of the K-1 other next tokens.
        rest: (D,) from a distinct token to each of the M-K outputs that are not next tokens.
        common_next: (C,) from a common token to each of the K next tokens.
        common_rest: (C,) from a common token to each of the other outputs.
    """

    own: Float[Array, "D *B"]
    other: Float[Array, "D *B"]
    rest: Float[Array, "D *B"]
    common_next: Float[Array, "C *B"]
    common_rest: Float[Array, "C *B"]


class Attention(eqx.Module):
    """The different entries of Z: (D,) from a class's query to its distinct tokens, (C,) from every
    query to the common tokens."""

    distinct: Float[Array, "D *B"]
    common: Float[Array, "C *B"]


class Kinds(eqx.Module):
    """Index of the reduced task's entry for each distinct token of a class (D,), by increasing
    probability, and for each common token (C,)."""

    distinct: Int[AnyArray, " D"]
    common: Int[AnyArray, " C"]


class State(eqx.Module):
    """The parameters in reduced form, with the fields of a `YZ`."""

    Y: Decoder
    Z: Attention


class Reduced(eqx.Module):
    """Forward and backward pass of one class at one time; all classes are alike.

    Attributes:
        c: attention on the distinct (D,) and the common (C,) tokens, summing to 1.
        f: c / |c|_2.
        g: gradient sent back to the attention, g = Y (x_{T+1} - alpha).
        loss: () cross entropy in nat.
        residual: () 1 - alpha_own, the total probability of wrong outputs.
        other, rest: () probability of one other next token and of one of the M-K outputs.
        to_other, to_rest: () logits of these minus the own one.
        margin: () own logit minus the largest other one.
        speed: () f . g, which Theorem 1 predicts to be gamma(t).
    """

    c: Attention
    f: Attention
    g: Attention
    loss: Float[Array, "*B"]
    residual: Float[Array, "*B"]
    other: Float[Array, "*B"]
    rest: Float[Array, "*B"]
    to_other: Float[Array, "*B"]
    to_rest: Float[Array, "*B"]
    margin: Float[Array, "*B"]
    speed: Float[Array, "*B"]


def columns(tree: Tree, axes: int) -> Tree:
    """Append so many axes of size 1 to the arrays of a tree, which broadcast over runs."""
    return jax.tree.map(lambda x: jnp.reshape(x, (*x.shape, *axes * (1,))) if x.ndim else x, tree)


def zero_state(task: SymmetricTask, dtype: DTypeLike) -> State:
    """Return zero weights, the only start for which the reduction is exact."""
    # The arrays may be shared, because JAX never writes into one.
    distinct, common = jnp.zeros(np.shape(task.p), dtype), jnp.zeros(np.shape(task.rho), dtype)
    decoder = Decoder(distinct, distinct, distinct, common, common)
    return State(decoder, Attention(distinct, common))
