r"""Normalised-ReLU attention with block-diagonal weights U = diag(W, V) (arXiv:2502.20681).

For a prompt with labels :math:`y_i` and the query :math:`x_L`,

.. math::

    N_U = \frac1L \sum_{i<L} y_i \operatorname{ReLU}(x_i^\top U x_L).

The row index of U contracts with the context token, the column index with the query. W acts on
component P of the tokens and V on component Q. The label of the query is never used.

A step makes only two operations per number that it reads, so it is limited by memory bandwidth.
Accelerators process a batch at once. A CPU processes a few prompts at a time, so that numbers are
still in the core's cache when they are read again. The pool is laid out for this before the first
step.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Real

from dynsim.precision import AnyArray, Number


class PromptBatch(NamedTuple):
    """N prompts: (N, L, d) tokens of each component, and (N, L) labels in {-1, +1}."""

    P: Float[Array, "N L d"]
    Q: Float[Array, "N L d"]
    labels: Float[Array, "N L"]


class PQ(eqx.Module):
    """Weights of the layer.

    Attributes:
        W, V: (d, d) blocks of component P and of component Q.
        beta: () bias added to :math:`N_V`; None for the model without one.

    Example:
        >>> weights = dynsim.PQ(W=jnp.eye(8), V=jnp.zeros((8, 8)))
        >>> float(jnp.trace(weights.W))
        8.0
    """

    W: Float[AnyArray, "*B d d"]
    V: Float[AnyArray, "*B d d"]
    beta: Float[AnyArray, "*B"] | None = None


class Split(eqx.Module):
    """Weights as the sum of a part moved by gradients and a part moved by noise.

    Attributes:
        signal: Ubar, which starts at zero and is moved by the gradients (at the full weights).
        noise: Util, which starts as the random weights and is moved by the gradient noise.
    """

    signal: PQ
    noise: PQ

    @property
    def total(self) -> PQ:
        """U = Ubar + Util."""
        bias = self.signal.beta
        return PQ(self.signal.W + self.noise.W, self.signal.V + self.noise.V, bias)


class Outputs(NamedTuple):
    """(N,) outputs of both components on N prompts."""

    P: Float[Array, " N"]
    Q: Float[Array, " N"]


def attend(
    U: Float[AnyArray, "d d"],
    x: Float[Array, "N L d"],
    labels: Float[Array, "N L"],
    gates: Float[AnyArray, "d d"] | None = None,
) -> Float[Array, " N"]:
    r"""Return :math:`N_U` on N prompts. With `gates`, a matrix A, tokens contribute if
    :math:`x_i^\top A x_L > 0` instead."""
    query = x[:, -1]
    scores = jnp.einsum("nld,nd->nl", x, query @ U.T)
    if gates is None:
        activations = jax.nn.relu(scores)
    else:
        is_open = jnp.einsum("nld,nd->nl", x, query @ gates.T) > 0
        activations = jnp.where(is_open, scores, 0)
    # A zero label removes the query from the sum.
    context = labels.at[:, -1].set(0)
    return jnp.einsum("nl,nl->n", context, activations) / x.shape[1]


def outputs(params: PQ, batch: PromptBatch) -> Outputs:
    """Compute the outputs of both components."""
    q = attend(params.V, batch.Q, batch.labels)
    if params.beta is not None:
        q = q + params.beta
    return Outputs(attend(params.W, batch.P, batch.labels), q)


def logistic(margin: Float[Array, "*N"]) -> Float[Array, "*N"]:
    r"""Return the logistic loss :math:`\ln(1 + e^{-m})` of a margin m, in nat."""
    return jax.nn.softplus(-margin)


def data_loss(params: PQ, coupling: Real[Number, ""], batch: PromptBatch) -> Float[Array, ""]:
    """Return the mean of :math:`(1 - c)(K_1 + K_2) + c J` over the batch, without weight decay; c
    is the `coupling`."""
    return outputs_loss(outputs(params, batch), coupling, batch.labels[:, -1])


def outputs_loss(
    outputs: Outputs, coupling: Real[Number, ""], y: Float[Array, " N"]
) -> Float[Array, ""]:
    """Compute `data_loss` from the outputs and the labels `y` of the queries."""
    separate = logistic(y * outputs.P) + logistic(y * outputs.Q)
    joint = logistic(y * (outputs.P + outputs.Q))
    return jnp.mean((1 - coupling) * separate + coupling * joint)


CACHE_BYTES = 2**17
"""Bytes of prompts that a CPU processes at once, which fit well into a core's caches."""
LANES = 8
"""Number of tokens that are adjacent in memory, for the vector instructions of a CPU."""
STREAMS = 4
"""Number of parts of a component that a CPU reads alternately. It prefetches only within a page of
memory, so the next pages have to be touched before the current one has been read."""
MAX_TERMS = 128
"""Longest sum that is written out term by term; longer ones take many seconds to compile."""


class CpuLayout(NamedTuple):
    """N prompts in the memory layout for a CPU.

    The L - 1 context tokens are divided into T groups of l = 8, the last one padded with zeros, and
    the coordinates of a component into S parts of D.

    Attributes:
        context: (N, 2, S, T, D, l) coordinate s D + i of component c (P, Q) of token t l + j of
            the context, at [:, c, s, t, i, j].
        labels: (N, T, l) labels of these tokens, 0 for padding.
        queries: (N, 2, d) query tokens.
        query_labels: (N,) labels of the queries.
    """

    context: Float[Array, "N 2 S T D l"]
    labels: Float[Array, "N T l"]
    queries: Float[Array, "N 2 d"]
    query_labels: Float[Array, " N"]


def cpu_layout(prompts: PromptBatch) -> PromptBatch | CpuLayout:
    """Lay out prompts for a CPU; unchanged if they have too many coordinates or tokens."""
    num, length, d = prompts.P.shape
    if max(d, math.ceil((length - 1) / LANES)) > MAX_TERMS:
        return prompts
    # Both components next to each other, as a step reads them together.
    tokens = jnp.stack([prompts.P, prompts.Q], 1)
    padding = [(0, -(length - 1) % LANES)]
    context = jnp.pad(tokens[:, :, :-1], [(0, 0), (0, 0), *padding, (0, 0)])
    streams = math.gcd(d, STREAMS)
    groups = context.reshape(num, 2, -1, LANES, streams, d // streams)
    # Padded tokens have the label 0, so that they do not count.
    labels = jnp.pad(prompts.labels[:, :-1], [(0, 0), *padding])
    return CpuLayout(
        jnp.transpose(groups, (0, 1, 4, 2, 5, 3)),
        labels.reshape(num, -1, LANES),
        tokens[:, :, -1],
        prompts.labels[:, -1],
    )


def loss_and_gradient(
    params: PQ,
    coupling: Real[Number, ""],
    length: int,
    pool: PromptBatch | CpuLayout,
    chosen: Int[Array, " B"],
) -> tuple[Float[Array, ""], PQ]:
    """Return `data_loss` and its gradient on the `pool`'s prompts with the indices `chosen`."""
    if not isinstance(pool, CpuLayout):
        # Gathering one long row per prompt is faster than gathering its tokens.
        rows = (leaf.reshape(len(leaf), -1)[chosen] for leaf in pool)
        leaves = (row.reshape(-1, *leaf.shape[1:]) for row, leaf in zip(rows, pool, strict=True))
        return jax.value_and_grad(data_loss)(params, coupling, PromptBatch(*leaves))

    # With h = (1/L) sum_i y_i 1[x_i^T U q > 0] x_i, the output of a prompt with the query q is
    # h^T U q, and its gradient h q^T. So the prompts are read only for h, in parts that fit into
    # the cache: once for the gates, and again for the sums.
    queries, query_labels = pool.queries[chosen], pool.query_labels[chosen]
    Uq = jnp.einsum("cde,nce->ncd", jnp.stack([params.W, params.V]), queries)
    size = part_size(len(chosen), pool.context[0].nbytes)
    parts = jax.tree.map(
        lambda leaf: leaf.reshape(-1, size, *leaf.shape[1:]), (chosen, Uq, pool.labels[chosen])
    )

    def turn(
        before: tuple[Array, Array], now: tuple[Array, Array, Array]
    ) -> tuple[tuple[Array, Array], Float[Array, "n 2 d"]]:
        # The gates reach the sums through the loop's carry, one turn later. Within one turn the
        # compiler would fuse both and compute all gates again for each coordinate.
        return (now[0], _gates(pool, *now)), _sums(pool, *before)

    begin = parts[0][0], jnp.zeros((size, 2, *pool.labels.shape[1:]), Uq.dtype)
    turns = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[-1:]]), parts)
    sums = jax.lax.scan(turn, begin, turns)[1][1:]
    h = sums.reshape(Uq.shape) / length
    P, Q = jnp.sum(h * Uq, -1).T
    result = Outputs(P, Q if params.beta is None else Q + params.beta)
    loss, slopes = jax.value_and_grad(outputs_loss)(result, coupling, query_labels)
    # A run with an overflowing output must end, although its slope may be finite.
    slopes = jnp.where(jnp.isfinite(jnp.stack(result)), jnp.stack(slopes), jnp.nan)
    W, V = jnp.einsum("cn,ncd,nce->cde", slopes, h, queries)
    return loss, PQ(W, V, None if params.beta is None else jnp.sum(slopes[1]))


def _gates(
    pool: CpuLayout,
    chosen: Int[Array, " n"],
    Uq: Float[Array, "n 2 d"],
    labels: Float[Array, "n T l"],
) -> Float[Array, "n 2 T l"]:
    """Return y_i 1[x_i^T U q > 0] of some prompts' tokens, read from the pool without a copy."""
    _, _, streams, groups, numbers, lanes = pool.context.shape
    # Coordinate by coordinate, alternately from all streams.
    scores = sum(
        _slices(pool.context, chosen, (0, s, 0, i, 0), (2, 1, groups, 1, lanes))[:, :, 0, :, 0]
        * Uq[:, :, s * numbers + i, None, None]
        for i in range(numbers)
        for s in range(streams)
    )
    return jnp.where(scores > 0, labels[:, None], 0)


def _sums(
    pool: CpuLayout, chosen: Int[Array, " n"], gates: Float[Array, "n 2 T l"]
) -> Float[Array, "n 2 d"]:
    """Return L h of some prompts, read from the pool, which is then already in the cache."""
    _, _, streams, groups, numbers, lanes = pool.context.shape
    sums = sum(
        _slices(pool.context, chosen, (0, 0, t, 0, 0), (2, streams, 1, numbers, lanes))[:, :, :, 0]
        * gates[:, :, t, None, None]
        for t in range(groups)
    )
    return jnp.sum(sums, -1).reshape(len(chosen), 2, -1)


def _slices(
    context: Array, chosen: Int[Array, " n"], start: Sequence[int], sizes: Sequence[int]
) -> Array:
    """Return slices (n, *sizes) of the `chosen` prompts from `start` on, without a copy."""

    def row(index: Int[Array, ""]) -> Array:
        begin = (jnp.asarray(i, index.dtype) for i in start)
        return jax.lax.dynamic_slice(context, (index, *begin), (1, *sizes))[0]

    return jax.vmap(row)(chosen)


def part_size(batch: int, size: int) -> int:
    """Return the number of the `batch` prompts, `size` bytes each, to process at once: a divisor of
    `batch`, at most half of it, because the gates of the last part are computed twice."""
    limit = max(min(CACHE_BYTES // size, batch // 2), 1)
    return max(n for n in range(1, limit + 1) if batch % n == 0)
