"""Loss and gradient of the layer with fewer numbers: merged columns of Y, and counts on supports.

An output that is not the next token of any class enters the loss only through the sum over all
outputs. So all these outputs have the same gradient. Training from zero, where their columns of Y
are equal, keeps them equal under any rule that treats entries alike: K + 1 columns replace M.

A sequence of class n contains only the S tokens of n's support. So attention needs S exponentials
per sequence instead of M, its logits are a sum of S rows of Y, and the gradient of a row of Y that
only class n attends to is a sum over the few sequences of n. `_sum_rows` writes such sums out
where that is faster than a matrix product with zeros.
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dynsim.classes.task import SHARED, SequenceClasses
from dynsim.precision import AnyArray
from dynsim.yz import model as yz
from dynsim.yz.sampling import SupportExamples, on_vocabulary


class OutputColumns(NamedTuple):
    """The columns of Y.

    Attributes:
        label: (K,) the column of each class's next token.
        count: (C,) number of outputs that each column represents, one for a label; None if it is
            one for all columns.
        column: (M,) the column of each output; None if each output has its own.
    """

    label: Int[AnyArray, " K"]
    count: Float[Array, " C"] | None = None
    column: Int[Array, " M"] | None = None

    def merge(self, Y: Float[AnyArray, "M M"]) -> Float[AnyArray, "M C"]:
        """Return Y with these columns, from a full Y whose merged columns are equal."""
        return Y if self.count is None else Y[:, : self.count.size]

    def spread(self, Y: Float[AnyArray, "M C"]) -> Float[AnyArray, "M M"]:
        """Return Y with one column per output."""
        return Y if self.column is None else jnp.asarray(Y)[:, self.column]

    def expand(self, params: yz.YZ) -> yz.YZ:
        """Return weights with one column per output."""
        return dataclasses.replace(params, Y=self.spread(params.Y))

    def total(self, residual: Float[Array, "_ _"], axis: int = 1) -> Float[Array, "_ _"]:
        """Return the summed residuals of each column's outputs, from that of one output; `axis` is
        the axis of the columns."""
        if self.count is None:
            return residual
        return residual * jnp.expand_dims(self.count, 1 - axis)


def each_output(task: SequenceClasses) -> OutputColumns:
    """Return one column per output."""
    return OutputColumns(task.next_token)


def merged_outputs(task: SequenceClasses, dtype: str) -> OutputColumns:
    """Return a column per next token and one for all other outputs, if this at least halves their
    number."""
    if 2 * (task.K + 1) > task.M:
        return each_output(task)
    label = jnp.arange(task.K, dtype=jnp.int32)
    # All outputs but the labels share the last column.
    column = jnp.full(task.M, task.K, jnp.int32).at[task.next_token].set(label)
    count = jnp.append(jnp.ones(task.K, dtype), jnp.asarray(task.M - task.K, dtype))
    return OutputColumns(label, count, column)


FEW_QUERIES = 4
"""Number of queries up to which comparing with each of them is faster than looking up rows."""


def loss_and_grad(
    params: yz.YZ, task: SequenceClasses, examples: yz.Examples, outputs: OutputColumns
) -> tuple[Float[Array, ""], yz.YZ]:
    """Like `yz.loss_and_grad`, without the residual connection, for weights with the columns of
    `outputs`; each column of dJ/dY is the gradient of one of its outputs.

    Examples are the last axis of all arrays, because it is long when columns are few. Products
    name the axes that they sum over: XLA may fold a transposition into a product in one program
    but not in another, for instance with more devices, and then the last bit differs.
    """
    row = task.query_index[examples.classes]
    if len(params.Z) > FEW_QUERIES:
        z = jnp.asarray(params.Z)[row].T
    else:
        # The same by comparisons. On a CPU under `jax.vmap`, a lookup puts the axes of its result
        # in an order that every later loop has to transpose.
        z = jnp.broadcast_to(params.Z[0][:, None], (params.Z.shape[1], row.size))
        for query, logits in enumerate(params.Z[1:], 1):
            z = jnp.where(row == query, logits[:, None], z)
    f = yz.direction(z, examples.counts.T, 0)
    label = outputs.label[examples.classes]
    logits = jnp.tensordot(params.Y, f, (0, 0))
    losses, residual = yz.cross_entropy(logits, label, 0, outputs.count)
    weight = yz.weights(examples, f.dtype)
    residual = weight[None] * residual
    g = params.Y @ outputs.total(residual, 0)
    # diag(f) (I - f f^T) g of Lemma 1.
    dz = f * (g - f * jnp.sum(f * g, axis=0, keepdims=True))
    dY = jnp.tensordot(f, residual, (1, 1))
    dZ = jnp.tensordot(dz, jax.nn.one_hot(row, task.num_queries, dtype=dz.dtype), (1, 0)).T
    return jnp.sum(weight * losses), yz.YZ(-dY, -dZ)


def loss_and_grad_on_support(
    params: yz.YZ,
    task: SequenceClasses,
    examples: SupportExamples,
    outputs: OutputColumns | None = None,
) -> tuple[Float[Array, ""], yz.YZ]:
    """Like `yz.loss_and_grad`, without the residual connection.

    Its third matrix product, g = Y (x_{T+1} - alpha), enters dZ only through two sums over the
    examples of a query m, which follow from known quantities:

        f . g         = (x_{T+1} - alpha) . logits
        sum_e f_l g_l = sum_k Y_lk (sum_e f_l (x_{T+1} - alpha)_k)

    The inner sum is dJ/dY if no other query attends to token l. For the tokens that several
    classes share (`task.shared`) the product is computed. In sums over outputs k, each column of
    `outputs` is weighted by the number of outputs it represents.
    """
    outputs = outputs or each_output(task)
    classes = examples.classes
    tokens = task.support[classes].T
    row = task.query_index[classes]
    f = yz.normalise(yz.attend(params.Z[row, tokens], examples.counts, axis=0), axis=0)
    if support_pays(f.shape[0], task.M):
        logits = _sum_rows(params.Y, tokens, f)
    else:
        logits = on_vocabulary(task, examples, f).T @ params.Y
    losses, residual = yz.cross_entropy(logits, outputs.label[classes], count=outputs.count)
    weight = yz.weights(examples, f.dtype)
    residual = weight[:, None] * residual
    # f on the shared tokens alone, 0 where a class lacks one.
    place = task.place_shared[classes].T
    f_shared = jnp.where(place < f.shape[0], f[place, jnp.arange(classes.size)[None]], 0)
    dY = _decoder_gradient(task, examples, f, f_shared, residual)

    # Products with ones, because XLA's sum of a product over a trailing axis is slow.
    count = jnp.ones(task.M, f.dtype) if outputs.count is None else outputs.count
    # sum_e f_l g_l of each token l, and -f^2 (f . g): the two parts of diag(f) (I - f f^T) g.
    own = ((params.Y * dY) @ count)[None]
    dz = -(f**2) * ((residual * logits) @ count)[None]
    if task.num_queries > 1:
        # The sum for a token that one class owns goes to the query of that class; for tokens of
        # several classes the product is computed.
        readers = jnp.where(task.owner < 0, -1, task.query_index[task.owner])
        own = jnp.where(jnp.arange(task.num_queries)[:, None] == readers[None], own, 0)
        shared = f_shared * (outputs.total(residual) @ params.Y[task.shared].T).T
        tokens = jnp.concatenate([tokens, jnp.broadcast_to(task.shared[:, None], shared.shape)])
        dz = jnp.concatenate([dz, shared])
    dZ = jnp.zeros_like(params.Z).at[row[None], tokens].add(dz) + own
    return jnp.sum(weight * losses), yz.YZ(-dY, -dZ)


def _decoder_gradient(
    task: SequenceClasses,
    examples: SupportExamples,
    f: Float[Array, "S E"],
    f_shared: Float[Array, "shared E"],
    residual: Float[Array, "E C"],
) -> Float[Array, "M C"]:
    """Return dJ/dY = sum over examples of f residual^T.

    The row of a token that only one class contains is a sum over the examples of that class. There
    is room for four standard deviations more examples than a class has on average. If a class has
    more, for instance because priors are unequal, the matrix product is used.
    """
    E, mean = examples.classes.size, examples.classes.size / task.K
    room = math.ceil(mean + 4 * math.sqrt(mean))

    def product() -> Float[Array, "M C"]:
        return on_vocabulary(task, examples, f) @ residual

    if not support_pays(room, E) or 2 * task.shared.size > task.M:
        return product()
    # The examples of class n are order[start[n]], ..., order[start[n + 1] - 1].
    order = jnp.argsort(examples.classes)
    start = jnp.sum(examples.classes[:, None] < jnp.arange(task.K + 1)[None], axis=0)
    slot = start[task.owner][None] + jnp.arange(room)[:, None]
    is_example = (slot < start[task.owner + 1][None]) & (task.owner >= 0)[None]
    example = order[jnp.minimum(slot, E - 1)]

    def by_class() -> Float[Array, "M C"]:
        weight = jnp.where(is_example, f[task.place[None], example], 0)
        dY = _sum_rows(residual, example, weight)
        if task.shared.size:
            shared = (f_shared @ residual)[task.place]
            dY = jnp.where((task.owner == SHARED)[:, None], shared, dY)
        return dY

    # The classes do not depend on weights or rates, so under vmap over those this remains a branch.
    return jax.lax.cond(jnp.max(start[1:] - start[:-1]) <= room, by_class, product)


def support_pays(terms: int, products: int) -> bool:
    """Return whether sums of `terms` rows beat a matrix product over `products` rows, mostly zeros:
    a term costs about as much as two of those, and has to be compiled."""
    return terms <= 32 and 4 * terms <= products


@jax.custom_jvp
def _sum_rows(
    rows: Float[AnyArray, "N M"], index: Int[Array, "T E"], weight: Float[Array, "T E"]
) -> Float[Array, "E M"]:
    """out[e] = sum_t weight[t, e] rows[index[t, e]].

    Written out term by term, it becomes one loop on the CPU, vectorised over the columns. A sum
    over an axis, or a product of small matrices, would first gather all rows in memory.
    """
    terms = (
        w[:, None] * jnp.asarray(rows).at[i].get(mode="promise_in_bounds")
        for i, w in zip(index.astype(jnp.uint32), weight, strict=True)
    )
    return sum(terms, start=jnp.zeros((), weight.dtype))


@_sum_rows.defjvp
def _(primals, tangents):  # type: ignore[no-untyped-def]
    """Derivative of the equivalent product, as the transpose of each term would be a scatter."""

    def product(rows: Float[Array, "N M"], weight: Float[Array, "T E"]) -> Float[Array, "E M"]:
        E = weight.shape[1]
        spread = jnp.zeros((len(rows), E), weight.dtype).at[index, jnp.arange(E)[None]].add(weight)
        return spread.T @ rows

    (rows, index, weight), (d_rows, _, d_weight) = primals, tangents
    return _sum_rows(*primals), product(d_rows, weight) + product(rows, d_weight)
