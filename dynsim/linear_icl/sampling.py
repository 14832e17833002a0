"""Drawing sequences: as tokens, or as the few numbers that a model reads of them.

A model reads a sequence through beta = S w, x_q and y_q, with the sample covariance S = X X^T/N,
a Wishart matrix. Bartlett's decomposition S = sqrt(Lambda) A A^T sqrt(Lambda)/N draws it from D
chi-squared and D (D-1)/2 normal numbers instead of the N D numbers of the tokens.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PRNGKeyArray

FEW = 128
"""Degrees of freedom up to which a chi-squared number is summed up: JAX's own rejection takes as
long as about so many."""


class Sequences(NamedTuple):
    """What models read of B sequences: (B, D) beta of eq. 4, (B, D) x_q and (B,) y_q."""

    beta: Float[Array, "B D"]
    x: Float[Array, "B D"]
    y: Float[Array, " B"]


def draw(
    spectrum: Float[Array, " D"], N: int, key: PRNGKeyArray, num: int, *, tokens: bool = False
) -> Sequences:
    """Draw `num` sequences of N pairs. What is random does not depend on the spectrum, so that runs
    which differ in it alone share it.

    Args:
        spectrum: (D,) eigenvalues of the covariance of x.
        tokens: draw N tokens in place of a Wishart matrix, equal in law; a context shorter than
            D + 1 is drawn so in any case.
    """
    context_key, w_key, x_key = jax.random.split(key, 3)
    D, dtype = spectrum.size, spectrum.dtype
    root = jnp.sqrt(spectrum)[None]
    w = jax.random.normal(w_key, (num, D), dtype)
    x = root * jax.random.normal(x_key, (num, D), dtype)
    if tokens or N <= D:
        factor = jax.random.normal(context_key, (num, D, N), dtype)
    else:
        factor = _bartlett(D, N, context_key, num, dtype)
    labels = jnp.einsum("bdn,bd->bn", factor, root * w)
    beta = root * jnp.einsum("bdn,bn->bd", factor, labels) / N
    return Sequences(beta, x, jnp.sum(w * x, axis=1))


def _bartlett(
    D: int, N: int, key: PRNGKeyArray, num: int, dtype: DTypeLike
) -> Float[Array, "B D D"]:
    """Lower triangular A such that A A^T has the law of X X^T for N standard normal columns."""
    below_key, square_key = jax.random.split(key)
    diagonal = jnp.sqrt(_chi_squared(N - np.arange(D), square_key, num, dtype))
    below = jax.random.normal(below_key, (num, D, D), dtype)
    return jnp.tril(below, -1) + diagonal[:, :, None] * jnp.eye(D, dtype=dtype)[None]


def _chi_squared(
    freedom: Int[np.ndarray, " D"], key: PRNGKeyArray, num: int, dtype: DTypeLike
) -> Float[Array, "B D"]:
    """Chi-squared numbers of so many degrees of freedom each."""
    if freedom[0] > FEW:
        many = jnp.asarray(np.broadcast_to(freedom, (num, freedom.size)), dtype)
        return jax.random.chisquare(key, many, dtype=dtype)
    pair_key, odd_key = jax.random.split(key)
    # Two degrees of freedom make an exponential number, minus twice the logarithm of a uniform one.
    pairs = freedom // 2
    tiny = jnp.finfo(dtype).tiny
    uniform = jax.random.uniform(pair_key, (num, freedom.size, pairs[0]), dtype, minval=tiny)
    used = np.arange(pairs[0])[None, :] < pairs[:, None]
    even = -2 * jnp.sum(jnp.where(used[None], jnp.log(uniform), 0), axis=2)
    odd = jax.random.normal(odd_key, (num, freedom.size), dtype)
    return even + jnp.where((freedom % 2 == 1)[None], odd**2, 0)
