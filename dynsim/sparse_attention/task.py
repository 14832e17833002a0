"""Retrieval of one token among many (Zucchet, D'Angelo, Lampinen, Chan, arXiv:2505.17863).

A sequence has T tokens x_t ~ N(0, I/d) in R^d, and the answer is W* x_T; columns of W* have length
1. The last B tokens are copies of x_T; with probability p it is one fixed token, here e_0,
which has length 1 as well. W* has the entries +-1/sqrt(d): for SGD they do not matter, and for
Adam, which sees single weights, all of them then move alike.

A batch changes the weights through few numbers. With attention c on the other tokens, which are
independent and Gaussian, the output reads x_T and S = sum_t c_t x_t ~ N(0, |c|^2/d I); the slope of
the loss by c_t reads g . x_t, with g a function of x_T and S. Given S these are Gaussian, with mean
c_t g . S/|c|^2 and covariance |g|^2/d (I - c c^T/|c|^2), and their mean over the batch takes one
normal number a token [ours]. So a step draws 2 N d + T numbers, not N T d: `Draw`.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Real

from dynsim import checks
from dynsim.precision import DType, Number, cast


class Retrieval(eqx.Module):
    """The law of the sequences. Build it with `retrieval`.

    Attributes:
        p: probability that x_T is the fixed token.
        T: number of tokens of a sequence.
        d: dimension of a token.
        B: number of copies of the token that matters, at the end of the sequence.
    """

    p: Real[Number, "*#P"]
    T: int = eqx.field(static=True)
    d: int = eqx.field(static=True)
    B: int = eqx.field(static=True)

    def astype(self, dtype: str) -> "Retrieval":
        """The same task with its number as a JAX array of `dtype`."""
        return jax.tree.map(lambda number: cast(number, dtype), self)

    @property
    def moments(self) -> tuple[Real[Number, "*#P"], Real[Number, "*#P"]]:
        r"""Second moments of the last token, :math:`\tilde\sigma` and :math:`\sigma` of eq. 17:

        .. math::

            \mathbb E[x_0^2] = p + \frac{1-p}{d}, \qquad
            \mathbb E[x_i^2] = \frac{1-p}{d}, \quad i > 0.
        """
        rest = (1 - self.p) / self.d
        return self.p + rest, rest

    def target(self, dtype: DType = "float32") -> Float[Array, "d d"]:
        """:math:`W^*`, the same at every call."""
        key = jax.random.key(0, impl="threefry2x32")
        return jax.random.rademacher(key, (self.d, self.d), dtype) / self.d**0.5


@checks.renamed
def retrieval(length: int = 64, d: int = 64, B: int = 1, p: Real[Number, "*#P"] = 0.0) -> Retrieval:
    """The task, checked; see `Retrieval` for the meaning of its numbers.

    Raises:
        ValueError: unless d >= 2, 1 <= B < T and 0 <= p <= 1, naming the argument.
    """
    T = checks.integer("length", length, 2)
    d, B = checks.integer("d", d, 2), checks.integer("B", B, 1)
    if B >= T:
        raise ValueError(f"B = {B}: must be less than length = {T}")
    checks.real("p", p, 0, 1)
    return Retrieval(p, T, d, B)


class Draw(NamedTuple):
    """What a step reads of a batch of N sequences: (N, d) x_T, and standard normal numbers, (N, d)
    for S and (T - B,) for the slopes by attention."""

    last: Float[Array, "N d"]
    others: Float[Array, "N d"]
    slopes: Float[Array, " O"]


def draw(task: Retrieval, key: PRNGKeyArray, num: int, dtype: DType = "float32") -> Draw:
    """Draw what a step reads of `num` sequences."""
    last_key, other_key, slope_key = jax.random.split(key, 3)
    return Draw(
        _last(task, last_key, num, dtype),
        jax.random.normal(other_key, (num, task.d), dtype),
        jax.random.normal(slope_key, (task.T - task.B,), dtype),
    )


def _last(task: Retrieval, key: PRNGKeyArray, num: int, dtype: DType) -> Float[Array, "N d"]:
    token_key, fixed_key = jax.random.split(key)
    drawn = jax.random.normal(token_key, (num, task.d), dtype) / task.d**0.5
    is_fixed = jax.random.uniform(fixed_key, (num, 1), dtype) < jnp.asarray(task.p, dtype)
    return jnp.where(is_fixed, jnp.zeros((1, task.d), dtype).at[0, 0].set(1), drawn)


def draw_tokens(
    task: Retrieval, key: PRNGKeyArray, num: int, dtype: DType = "float32"
) -> Float[Array, "N T d"]:
    """Draw `num` sequences."""
    last_key, other_key = jax.random.split(key)
    last = _last(task, last_key, num, dtype)
    others = jax.random.normal(other_key, (num, task.T - task.B, task.d), dtype) / task.d**0.5
    copies = jnp.broadcast_to(last[:, None], (num, task.B, task.d))
    return jnp.concatenate([others, copies], axis=1)
