"""Linear attention on regression prompts, with merged or separate key and query (arXiv:2501.16265).

Blocks of the weights that start at zero and stay there are left out (section 3 there). Every model
computes

    y_hat_q = beta^T M x_q,   beta = (1/N) sum_n y_n x_n                  eq. 4
    merged    M = sum_i v_i U_i                                          eq. 6
    separate  M = sum_i v_i sum_r k_ir q_ir^T                            eq. 12 (rank R = 1)
    network   M = v^T W as a matrix                                      eq. 7

so that its loss is a quadratic form in the D x D matrix M. The network has two fully connected
linear layers on the cubic features z = vec(beta x_q^T), to which merged attention is equal.
"""

import abc
import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Real

from dynsim import checks
from dynsim.decoding import Size
from dynsim.linear_icl.sampling import Sequences
from dynsim.precision import AnyArray, Number


class Merged(eqx.Module):
    """H heads whose key and query are one matrix.

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
        """M."""
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
        v: (H,) value weights, shared by the pairs of a head.
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
        """M, which for R = 1 is the S of eq. 14."""
        # In many runs at once products of such small matrices take a CPU fifty times as long as the
        # same sums entry by entry, which it does for several runs with an instruction.
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
        W: (H, D^2) weights of the first, :math:`W_1`; a row of it is
            :math:`\operatorname{vec}(U_i)` of a merged head.

    Example:
        >>> dynsim.Network(v=jnp.ones(2), W=jnp.ones((2, 9))).matrix()[0]
        Array([2., 2., 2.], dtype=float32)
    """

    v: Float[AnyArray, " H"]
    W: Float[AnyArray, "H D2"]

    def matrix(self) -> Float[Array, "D D"]:
        r""":math:`v^\top W`, as the matrix that it is on :math:`\beta` and :math:`x_q`."""
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
    """The kind of a model. Subclass it for a model of your own."""

    @abc.abstractmethod
    def init(self, heads: int, D: int, key: PRNGKeyArray, scale: Real[Number, ""]) -> Model:
        """Starting weights, independent N(0, scale^2)."""


class MergedHeads(Attention):
    """Heads whose key and query are one matrix.

    Example:
        >>> task = dynsim.Regression(attention=dynsim.MergedHeads(), heads=8)
    """

    def init(self, heads: int, D: int, key: PRNGKeyArray, scale: Real[Number, ""]) -> Merged:
        """Starting weights."""
        v, U, _ = jax.random.split(key, 3)
        return Merged(_normal(v, (heads,), scale), _normal(U, (heads, D, D), scale))


class SeparateHeads(Attention):
    """Heads with separate key and query.

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
        """The starting weights of merged heads with the same key."""
        merged = MergedHeads().init(heads, D, key, scale)
        return Network(merged.v, jnp.asarray(merged.U).reshape(heads, D * D))


def _normal(
    key: PRNGKeyArray, shape: tuple[int, ...], scale: Real[Number, ""]
) -> Float[Array, "..."]:
    return jax.random.normal(key, shape, "float32") * scale


def attended(M: Float[AnyArray, "D D"], batch: Sequences) -> Float[Array, " B"]:
    """beta^T M x_q of each sequence."""
    return jnp.sum((batch.beta @ M) * batch.x, axis=1)


class Moments(NamedTuple):
    """All that the loss on fixed sequences reads: means of y^2, of y z and of z z^T, with
    z = beta x_q^T, (), (D, D) and (D, D, D, D)."""

    square: Float[Array, ""]
    cross: Float[Array, "D D"]
    second: Float[Array, "D D D D"]

    def loss(self, M: Float[AnyArray, "D D"]) -> Float[Array, ""]:
        """Mean square error on these sequences, whatever their number."""
        quadratic = jnp.sum(M * jnp.tensordot(self.second, M, 2))
        return self.square - 2 * jnp.sum(self.cross * M) + quadratic


def moments(batch: Sequences) -> Moments:
    """The moments of a batch."""
    z = batch.beta[:, :, None] * batch.x[:, None, :]
    num = batch.y.shape[0]
    return Moments(
        jnp.mean(batch.y**2),
        jnp.tensordot(batch.y, z, 1) / num,
        jnp.tensordot(z, z, ((0,), (0,))) / num,
    )
