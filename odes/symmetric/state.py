"""The few numbers that a symmetric task and its parameters consist of.

`odes.symmetric.reduction` explains what symmetric means, and why these numbers are enough.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Real

from dynsim.precision import AnyArray, Number, cast


class SymmetricTask(eqx.Module):
    """K classes over M tokens in reduced form; build it with `symmetric_task` or
    `symmetric_profiles`. Its leaves, arrays or plain numbers, may all be traced.

    Attributes:
        p: (D,) probabilities of the kinds of distinct tokens of a class.
        rho: (C,) probabilities of the kinds of common tokens.
        K: number of classes, the number of next tokens.
        M: vocabulary size, the number of outputs.
        num_queries: number of query tokens, each of which serves K / num_queries classes.
        p_copies, rho_copies: (D,) and (C,) number of tokens of each kind: tokens of equal
            probability stay equal, so one may stand for all. None means one of each.
    """

    p: Float[AnyArray, " D"]
    rho: Float[AnyArray, " C"]
    K: Real[Number, ""]
    M: Real[Number, ""]
    num_queries: Real[Number, ""]
    p_copies: Real[AnyArray, " D"] | None = None
    rho_copies: Real[AnyArray, " C"] | None = None

    def sum_distinct(self, values: Float[Array, " D"]) -> Float[Array, ""]:
        """Sum over all distinct tokens of a class of what each kind of them has."""
        return jnp.sum(values if self.p_copies is None else self.p_copies * values)

    def sum_common(self, values: Float[Array, " C"]) -> Float[Array, ""]:
        """Sum over all common tokens of what each kind of them has."""
        return jnp.sum(values if self.rho_copies is None else self.rho_copies * values)

    def astype(self, dtype: str) -> "SymmetricTask":
        """The same task with its numbers as JAX arrays of `dtype`."""
        return jax.tree.map(lambda number: cast(number, dtype), self)


class Decoder(eqx.Module):
    """The different entries of Y, row by kind of token, column by kind of output.

    Attributes:
        own: (D,) a distinct token towards the next token of its class.
        other: (D,) a distinct token towards each of the K-1 other next tokens.
        rest: (D,) a distinct token towards each of the M-K outputs that are no next token.
        common_next: (C,) a common token towards each of the K next tokens.
        common_rest: (C,) a common token towards each of the other outputs.
    """

    own: Float[Array, " D"]
    other: Float[Array, " D"]
    rest: Float[Array, " D"]
    common_next: Float[Array, " C"]
    common_rest: Float[Array, " C"]


class Attention(eqx.Module):
    """The different entries of Z: (D,) towards the distinct tokens of a class from its query,
    (C,) towards the common tokens from every query."""

    distinct: Float[Array, " D"]
    common: Float[Array, " C"]


class Kinds(eqx.Module):
    """The entry of a reduced task that stands for each distinct token of a class (D,), by
    increasing probability, and for each common token (C,)."""

    distinct: Int[AnyArray, " D"]
    common: Int[AnyArray, " C"]


class State(eqx.Module):
    """The parameters in reduced form, with the fields of a `YZ`."""

    Y: Decoder
    Z: Attention


class Reduced(eqx.Module):
    """One class of the layer at one moment; all classes are alike.

    Attributes:
        c: attention on the distinct (D,) and the common (C,) tokens, summing to 1.
        f: c / |c|_2.
        g: gradient sent back to the attention, g = Y (x_{T+1} - alpha).
        loss: () cross entropy in nat.
        residual: () 1 - alpha_own, the probability of all wrong outputs together.
        other, rest: () probability of one other next token and of one of the M-K outputs.
        to_other, to_rest: () logits of these, less the own one.
        margin: () own logit minus the largest other one.
        speed: () f . g, which Theorem 1 predicts to be gamma(t).
    """

    c: Attention
    f: Attention
    g: Attention
    loss: Float[Array, ""]
    residual: Float[Array, ""]
    other: Float[Array, ""]
    rest: Float[Array, ""]
    to_other: Float[Array, ""]
    to_rest: Float[Array, ""]
    margin: Float[Array, ""]
    speed: Float[Array, ""]


def zero_state(task: SymmetricTask, dtype: DTypeLike) -> State:
    """Zero weights, from which alone the reduction is exact."""
    distinct, common = jnp.zeros(np.shape(task.p), dtype), jnp.zeros(np.shape(task.rho), dtype)
    decoder = Decoder(distinct, distinct, distinct, common, common)
    return State(decoder, Attention(distinct, common))
