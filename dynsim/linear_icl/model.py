"""Linear attention on regression prompts, with merged or separate key and query (arXiv:2501.16265).

Blocks of the weights that start at zero and remain zero are left out (section 3 there). Every model
computes

    y_hat_q = beta^T M x_q,   beta = (1/N) sum_n y_n x_n                  eq. 4
    merged    M = sum_i v_i U_i                                          eq. 6
    separate  M = sum_i v_i sum_r k_ir q_ir^T                            eq. 12 (rank R = 1)
    network   M = v^T W as a matrix                                      eq. 7

so its loss is a quadratic form in the D x D matrix M. The network has two fully connected
linear layers on the cubic features z = vec(beta x_q^T); merged attention is equivalent to it.

Sequences are drawn as tokens, or as the few numbers that enter a model: beta = S w, x_q and
y_q, with the sample covariance S = X X^T/N, a Wishart matrix. Bartlett's decomposition
S = sqrt(Lambda) A A^T sqrt(Lambda)/N draws it from D chi-squared and D (D-1)/2 normal numbers
instead of the N D numbers of the tokens.
"""

import abc
import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PRNGKeyArray, Real

from dynsim import checks
from dynsim.decoding import Size
from dynsim.precision import AnyArray, Number

MAX_SUMMED = 128
"""Degrees of freedom up to which a chi-squared number is computed as a sum; for more, JAX's own
rejection sampling is as fast."""


class Sequences(NamedTuple):
    """Model inputs of B sequences: (B, D) beta of eq. 4, (B, D) x_q and (B,) y_q."""

    beta: Float[Array, "B D"]
    x: Float[Array, "B D"]
    y: Float[Array, " B"]


def draw_sequences(
    spectrum: Float[Array, " D"], N: int, key: PRNGKeyArray, num: int, *, tokens: bool = False
) -> Sequences:
    """Draw `num` sequences of N pairs. The random numbers do not depend on the spectrum, so runs
    that differ only in the spectrum share them.

    Args:
        spectrum: (D,) eigenvalues of the covariance of x.
        tokens: draw N tokens instead of a Wishart matrix, with the same distribution; a context
            shorter than D + 1 is always drawn this way.
    """
    context_key, w_key, x_key = jax.random.split(key, 3)
    D, dtype = spectrum.size, spectrum.dtype
    root = jnp.sqrt(spectrum)[None]
    w = jax.random.normal(w_key, (num, D), dtype)
    x = root * jax.random.normal(x_key, (num, D), dtype)
    # N S = sqrt(Lambda) A A^T sqrt(Lambda), with A the factor: the tokens themselves, or Bartlett's
    # triangle, which needs fewer numbers.
    if tokens or N <= D:
        factor = jax.random.normal(context_key, (num, D, N), dtype)
    else:
        factor = _bartlett(D, N, context_key, num, dtype)
    # beta = S w in two products, without forming S.
    labels = jnp.einsum("bdn,bd->bn", factor, root * w)
    beta = root * jnp.einsum("bdn,bn->bd", factor, labels) / N
    return Sequences(beta, x, jnp.sum(w * x, axis=1))


def _bartlett(
    D: int, N: int, key: PRNGKeyArray, num: int, dtype: DTypeLike
) -> Float[Array, "B D D"]:
    """Draw lower triangular A such that A A^T is distributed as X X^T for N normal columns."""
    below_key, square_key = jax.random.split(key)
    # Row d has N - d degrees of freedom left.
    diagonal = jnp.sqrt(_chi_squared(N - np.arange(D), square_key, num, dtype))
    # The entries below the diagonal are standard normal, and those on it chi.
    below = jax.random.normal(below_key, (num, D, D), dtype)
    return jnp.tril(below, -1) + diagonal[:, :, None] * jnp.eye(D, dtype=dtype)[None]


def _chi_squared(
    freedom: Int[np.ndarray, " D"], key: PRNGKeyArray, num: int, dtype: DTypeLike
) -> Float[Array, "B D"]:
    """Draw chi-squared numbers with these degrees of freedom, the largest first."""
    if freedom[0] > MAX_SUMMED:
        df = jnp.asarray(np.broadcast_to(freedom, (num, freedom.size)), dtype)
        return jax.random.chisquare(key, df, dtype=dtype)
    pair_key, odd_key = jax.random.split(key)
    # Two degrees of freedom give an exponential number, -2 times the logarithm of a uniform one.
    pairs = freedom // 2
    tiny = jnp.finfo(dtype).tiny
    uniform = jax.random.uniform(pair_key, (num, freedom.size, pairs[0]), dtype, minval=tiny)
    is_summed = np.arange(pairs[0])[None, :] < pairs[:, None]
    even = -2 * jnp.sum(jnp.where(is_summed[None], jnp.log(uniform), 0), axis=2)
    odd = jax.random.normal(odd_key, (num, freedom.size), dtype)
    return even + jnp.where((freedom % 2 == 1)[None], odd**2, 0)


class Merged(eqx.Module):
    """H heads whose key and query weights are merged into one matrix.

    Attributes:
        v: (H,) value weights.
        U: (H, D, D) key-query matrices.

    Example:
        >>> dynsim.Merged(v=jnp.ones(2), U=jnp.ones((2, 3, 3))).matrix()[0]
        Array([2., 2., 2.], dtype=float32)
    """

    v: Float[AnyArray, " H"]
    U: Float[AnyArray, "H D D"]

    def matrix(self) -> Float[Array, "D D"]:
        """The matrix M of eq. 6."""
        return jnp.sum(self.v[:, None, None] * self.U, axis=0)

    def outputs(self, batch: Sequences) -> Float[Array, " B"]:
        r""":math:`\hat y_q` of each sequence."""
        return attended(self.matrix(), batch)

    def imbalance(self) -> Float[Array, " H"]:
        r""":math:`v_i^2 - \lVert U_i \rVert^2`, which the flow conserves."""
        return jnp.asarray(self.v) ** 2 - jnp.sum(self.U**2, axis=(1, 2))


class Separate(eqx.Module):
    """H heads of rank R.

    Attributes:
        v: (H,) value weights, shared by the R key-query pairs of a head.
        k, q: (H, R, D) key and query weights.

    Example:
        >>> pairs = jnp.ones((2, 1, 3))
        >>> dynsim.Separate(v=jnp.ones(2), k=pairs, q=pairs).matrix()[0]
        Array([2., 2., 2.], dtype=float32)
    """

    v: Float[AnyArray, " H"]
    k: Float[AnyArray, "H R D"]
    q: Float[AnyArray, "H R D"]

    def matrix(self) -> Float[Array, "D D"]:
        """The matrix M, which for R = 1 is the S of eq. 14."""
        # For many runs at once, a CPU needs fifty times as long for products of such small matrices
        # as for the same sums entry by entry, which it vectorises over runs.
        keys = self.v[:, None, None, None] * self.k[:, :, :, None]
        return jnp.sum(keys * self.q[:, :, None, :], axis=(0, 1))

    def outputs(self, batch: Sequences) -> Float[Array, " B"]:
        r""":math:`\hat y_q` of each sequence."""
        return attended(self.matrix(), batch)

    def imbalance(self) -> Float[Array, " H"]:
        r""":math:`v_i^2 - \sum_r \lVert k_{ir} \rVert^2`, which the flow conserves (appendix E.8
        for R = 1)."""
        return jnp.asarray(self.v) ** 2 - jnp.sum(self.k**2, axis=(1, 2))


class Network(eqx.Module):
    r"""Two fully connected linear layers with H hidden units.

    They act on :math:`z = \operatorname{vec}(\beta x_q^\top)`.

    Attributes:
        v: (H,) weights of the second layer, :math:`w_2` of eq. 7.
        W: (H, D^2) weights of the first layer, :math:`W_1`; each row is
            :math:`\operatorname{vec}(U_i)` of a merged head.

    Example:
        >>> dynsim.Network(v=jnp.ones(2), W=jnp.ones((2, 9))).matrix()[0]
        Array([2., 2., 2.], dtype=float32)
    """

    v: Float[AnyArray, " H"]
    W: Float[AnyArray, "H D2"]

    def matrix(self) -> Float[Array, "D D"]:
        r""":math:`v^\top W`, reshaped to act on :math:`\beta` and :math:`x_q`."""
        D = math.isqrt(self.W.shape[1])
        return jnp.sum(self.v[:, None] * self.W, axis=0).reshape(D, D)

    def outputs(self, batch: Sequences) -> Float[Array, " B"]:
        r""":math:`\hat y_q` of each sequence, layer by layer."""
        z = batch.beta[:, :, None] * batch.x[:, None, :]
        return (z.reshape(z.shape[0], -1) @ jnp.asarray(self.W).T) @ jnp.asarray(self.v)

    def imbalance(self) -> Float[Array, " H"]:
        r""":math:`v_i^2 - \lVert W_i \rVert^2`, which the flow conserves."""
        return jnp.asarray(self.v) ** 2 - jnp.sum(self.W**2, axis=1)


Model = Merged | Separate | Network


class Attention(eqx.Module):
    """The architecture of a model. Subclass it to define your own model."""

    @abc.abstractmethod
    def init(self, heads: int, D: int, key: PRNGKeyArray, scale: Real[Number, ""]) -> Model:
        """Starting weights, independent N(0, scale^2)."""


class MergedHeads(Attention):
    """Heads whose key and query weights are merged into one matrix.

    Example:
        >>> task = dynsim.Regression(attention=dynsim.MergedHeads(), heads=8)
    """

    def init(self, heads: int, D: int, key: PRNGKeyArray, scale: Real[Number, ""]) -> Merged:
        """Starting weights."""
        # As many keys as separate heads use, so that v is the same for one key.
        v, U, _ = jax.random.split(key, 3)
        return Merged(_normal(v, (heads,), scale), _normal(U, (heads, D, D), scale))


class SeparateHeads(Attention):
    """Heads with separate key and query weights.

    Attributes:
        rank: rank R of the key and query of a head.

    Raises:
        ValueError: for a rank below 1.

    Example:
        >>> task = dynsim.Regression(attention=dynsim.SeparateHeads(rank=2), heads=4)
    """

    rank: Size = eqx.field(default=1, static=True)

    def __check_init__(self) -> None:
        checks.integer("rank", self.rank, 1)

    def init(self, heads: int, D: int, key: PRNGKeyArray, scale: Real[Number, ""]) -> Separate:
        """Starting weights."""
        v, k, q = jax.random.split(key, 3)
        shape = heads, self.rank, D
        return Separate(
            _normal(v, (heads,), scale), _normal(k, shape, scale), _normal(q, shape, scale)
        )


class LinearNetwork(Attention):
    """The fully connected linear network on cubic features that is equivalent to merged heads.

    Its hidden units are called heads.

    Example:
        >>> task = dynsim.Regression(attention=dynsim.LinearNetwork(), heads=8)
    """

    def init(self, heads: int, D: int, key: PRNGKeyArray, scale: Real[Number, ""]) -> Network:
        """The starting weights of merged heads for the same key."""
        merged = MergedHeads().init(heads, D, key, scale)
        return Network(merged.v, jnp.asarray(merged.U).reshape(heads, D * D))


def _normal(
    key: PRNGKeyArray, shape: tuple[int, ...], scale: Real[Number, ""]
) -> Float[Array, "..."]:
    return jax.random.normal(key, shape, "float32") * scale


def attended(M: Float[AnyArray, "D D"], batch: Sequences) -> Float[Array, " B"]:
    """The output beta^T M x_q of each sequence."""
    return jnp.sum((batch.beta @ M) * batch.x, axis=1)


class Moments(NamedTuple):
    """The moments that determine the loss on fixed sequences: means of y^2 (), y z (D, D) and
    z z^T (D, D, D, D), with z = beta x_q^T."""

    square: Float[Array, ""]
    cross: Float[Array, "D D"]
    second: Float[Array, "D D D D"]

    @classmethod
    def of(cls, batch: Sequences) -> "Moments":
        """Return the moments of a batch."""
        z = batch.beta[:, :, None] * batch.x[:, None, :]
        num = batch.y.shape[0]
        return cls(
            jnp.mean(batch.y**2),
            jnp.tensordot(batch.y, z, 1) / num,
            jnp.tensordot(z, z, ((0,), (0,))) / num,
        )

    def loss(self, M: Float[AnyArray, "D D"]) -> Float[Array, ""]:
        """Mean squared error on these sequences; its cost does not depend on their number."""
        quadratic = jnp.sum(M * jnp.tensordot(self.second, M, 2))
        return self.square - 2 * jnp.sum(self.cross * M) + quadratic
