r"""The attention layer in ordinary parameters: U, W_Q, W_K, W_V (arXiv:2305.16380, section 2).

A sequence of class n ends in the query m = psi(n), which attends only to the contextual tokens.
With :math:`u_l` the rows of the token embedding U (M, d), each head computes attention logits s and
the attention a (M,), reads x, and adds to the output logits (M,):

.. math::

    \begin{align*}
    s_t &= \frac{u_m W_Q \left( u_{x_t} W_K \right)^\top}{\sqrt d} \\
    a &= X^\top \operatorname{softmax}(s) \\
    x &= \operatorname{norm}(a)\, U \quad \text{("theory")} \quad \text{or} \quad
        \operatorname{norm}(a\, U) \quad \text{("practice")} \\
    \text{logits} &= \sum_h x\, W_V^\top D^\top
    \end{align*}

with the decoder D = U if tied, and a separate matrix (M, d) otherwise. The scale is the paper's,
:math:`\sqrt d` for the width d of the embedding, not of a head. Heads are summed, as in a
transformer, so H heads need W_V smaller by 1/H for the same output as one. With f = norm(a),
the matrix Y (M, M) and the query rows (Q, M) of Z,

.. math::

    Y = U W_V^\top D^\top, \qquad Z = \frac{U W_Q W_K^\top U^\top}{\sqrt d},

define a `YZ` layer that computes the same (`Embedded.effective`); this is exact for one head and l2
normalisation with "theory", the default. With the residual (paper, section 7) the heads read
:math:`\operatorname{norm}(\operatorname{norm}(a) + e_m)\, U` for "theory" and
:math:`\operatorname{norm}(\operatorname{norm}(a\, U) + u_m)` for "practice".

Normalisations of a vector v of length n, without gains: "l2" :math:`v / \lVert v \rVert`; "rms"
:math:`\sqrt n\, v / \lVert v \rVert`; "layer" the same after subtracting the mean; "none" v. They
have no epsilon, because the entries of a are of order 1/M, and the usual 1e-5 would not be
negligible. A vector of equal entries, for which "layer" divides by zero, therefore gives NaN.
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dynsim.classes.task import SequenceClasses
from dynsim.precision import AnyArray
from dynsim.yz import model as yz
from dynsim.yz.observables import Snapshot

Normalisation = Literal["l2", "rms", "layer", "none"]
Placement = Literal["theory", "practice"]


class Embedded(eqx.Module):
    """Weights of the layer.

    Attributes:
        U: (M, d) token embedding.
        W_Q, W_K: (H, d, r) query and key weights of each head, r its width.
        W_V: (H, d, d) value weights of each head, with its output weights multiplied in.
        D: (M, d) decoder; None if it is tied to U.
        normalisation, placement, residual: see the module docstring.

    Example:
        >>> head = jnp.zeros((1, 34, 8))
        >>> start = dynsim.Embedded(U=jnp.eye(34), W_Q=head, W_K=head, W_V=jnp.eye(34)[None])
        >>> start.W_Q.shape
        (1, 34, 8)
    """

    # Stored checkpoints rely on this order.
    D: Float[AnyArray, "*B M d"] | None
    U: Float[AnyArray, "*B M d"]
    W_V: Float[AnyArray, "*B H d d"]
    W_K: Float[AnyArray, "*B H d r"]
    W_Q: Float[AnyArray, "*B H d r"]
    normalisation: Normalisation = eqx.field(static=True)
    placement: Placement = eqx.field(static=True)
    residual: bool = eqx.field(static=True)

    def __init__(
        self,
        U: Float[AnyArray, "*B M d"],
        W_Q: Float[AnyArray, "*B H d r"],
        W_K: Float[AnyArray, "*B H d r"],
        W_V: Float[AnyArray, "*B H d d"],
        D: Float[AnyArray, "*B M d"] | None = None,
        normalisation: Normalisation = "l2",
        placement: Placement = "theory",
        residual: bool = False,
    ) -> None:
        self.U, self.W_Q, self.W_K, self.W_V, self.D = U, W_Q, W_K, W_V, D
        self.normalisation, self.placement, self.residual = normalisation, placement, residual

    @property
    def width(self) -> int:
        """Width d of the embedding."""
        return self.U.shape[1]

    @property
    def heads(self) -> int:
        """Number of heads H."""
        return self.W_Q.shape[0]

    @property
    def decoder(self) -> Float[AnyArray, "*B M d"]:
        """The decoder D, or U if they are tied."""
        return self.U if self.D is None else self.D

    def effective(self, task: SequenceClasses, head: int = 0) -> yz.YZ:
        r"""Return the Y/Z layer that is equivalent to one head:

        .. math::

            Y = U W_V^\top D^\top, \qquad Z = \frac{U W_Q W_K^\top U^\top}{\sqrt d}.

        It has the logits of the model for one head and l2 normalisation with "theory". Its
        attention, and everything that depends on attention alone, is the same in all cases.
        """
        return jax.tree.map(lambda leaf: leaf[head], heads(self, task))


def attention_logits(params: Embedded, task: SequenceClasses) -> Float[Array, "H Q M"]:
    r"""Return the logits :math:`Z = U W_Q W_K^\top U^\top / \sqrt d` of each head, for the queries
    of the task."""
    queries = params.U[task.queries] @ params.W_Q
    keys = params.U @ params.W_K
    return queries @ jnp.swapaxes(keys, 1, 2) / params.width**0.5


def heads(params: Embedded, task: SequenceClasses) -> yz.YZ:
    """Return the effective Y (H, M, M) and Z (H, Q, M), with a leading axis for the heads."""
    Y = params.U @ jnp.swapaxes(params.W_V, 1, 2) @ params.decoder.T
    return yz.YZ(Y, attention_logits(params, task), params.residual)


def from_heads(task: SequenceClasses, params: yz.YZ) -> Embedded:
    """Return weights with U = W_K = I, width M, and these effective Y (H, M, M) and Z (H, Q, M)."""
    # With U = W_K = I, Z is the query rows of W_Q over sqrt(M), and Y the transpose of W_V.
    H, M = params.Y.shape[0], task.M
    identity = jnp.eye(M, dtype=params.Y.dtype)
    scaled = params.Z * M**0.5
    W_Q = jnp.zeros((H, M, M), params.Z.dtype).at[:, task.queries].set(scaled)
    W_K = jnp.broadcast_to(identity, (H, M, M))
    return Embedded(identity, W_Q, W_K, jnp.swapaxes(params.Y, 1, 2), residual=params.residual)


def attend(params: Embedded, task: SequenceClasses, examples: yz.Examples) -> Float[Array, "H E M"]:
    """Return the attention a of each head on each token; rows sum to 1."""
    z = attention_logits(params, task)[:, task.query_index[examples.classes]]
    return jax.vmap(lambda z: yz.attend(z, examples.counts))(z)


def read(params: Embedded, a: Float[Array, "H E M"]) -> Float[Array, "H E n"]:
    """Return norm(a), n = M, for "theory"; or norm(a U), n = d, for "practice"."""
    return normalise(a if params.placement == "theory" else a @ params.U, params.normalisation)


def decode(
    params: Embedded, task: SequenceClasses, x: Float[Array, "H E n"], classes: Int[AnyArray, " E"]
) -> Float[Array, "E M"]:
    """Compute output logits from the normalised attention that `read` returns."""
    theory = params.placement == "theory"
    # The query is added before its values are read, as in section 7.
    if params.residual:
        query = task.query[classes]
        token = jax.nn.one_hot(query, task.M, dtype=x.dtype) if theory else params.U[query]
        x = normalise(x + token[None], params.normalisation)
    values = x @ params.U if theory else x
    return jnp.einsum("hed,hkd->ek", values, params.W_V) @ params.decoder.T


def forward(params: Embedded, task: SequenceClasses, examples: yz.Examples) -> Float[Array, "E M"]:
    """Return the logits of each example. For a positional prior on the attention logits, pass
    `positional_counts` as `examples.counts`."""
    x = read(params, attend(params, task, examples))
    return decode(params, task, x, examples.classes)


def loss(params: Embedded, task: SequenceClasses, examples: yz.Examples) -> Float[Array, ""]:
    """Return the mean cross entropy in nat, weighted by `examples.weight`."""
    logits = forward(params, task, examples)
    losses, _ = yz.cross_entropy(logits, task.next_token[examples.classes])
    return jnp.sum(yz.weights(examples, losses.dtype) * losses)


def normalise(x: Float[Array, "*B n"], kind: Normalisation) -> Float[Array, "*B n"]:
    """Normalise along the last axis; see the module docstring."""
    if kind == "none":
        return x
    if kind == "layer":
        x = x - jnp.mean(x, axis=-1, keepdims=True)
    unit = yz.normalise(x)
    return unit if kind == "l2" else unit * x.shape[-1] ** 0.5


def positional_prior(slope: Float[Array, ""], length: int) -> Float[Array, " C"]:
    """Return the (T - 1,) terms that ALiBi adds to the attention logits: minus `slope` times the
    distance of each contextual position from the query, which is 1 for the last position."""
    return -slope * jnp.arange(length - 1, 0, -1)


def positional_counts(
    tokens: Int[Array, "E T"], slope: Float[Array, ""], num_tokens: int
) -> Float[Array, "E M"]:
    """Return counts of contextual tokens, each occurrence weighted by exp of its positional prior.

    A prior multiplies the softmax weight of a position, and all positions of a token share its
    logit. So the model with positions equals the model without them on these counts.
    """
    weight = jnp.exp(positional_prior(slope, tokens.shape[1]))

    def one(context: Int[Array, " C"]) -> Float[Array, " M"]:
        return jax.ops.segment_sum(weight, context, num_segments=num_tokens)

    return jax.vmap(one)(tokens[:, :-1])


def forward_tokens(
    params: Embedded,
    task: SequenceClasses,
    tokens: Int[Array, " T"],
    slope: Float[Array, ""] | float = 0.0,
) -> Float[Array, " M"]:
    """Return the logits for one sequence of token ids, query last: the model as in transformers, by
    position, with a positional prior of this `slope`. The query must be one of `task.queries`."""
    context, query = params.U[tokens[:-1]], params.U[tokens[-1]]
    s = jnp.einsum("d,hdr,hsr->hs", query, params.W_Q, context @ params.W_K)
    prior = positional_prior(jnp.asarray(slope, s.dtype), tokens.shape[0])
    b = jax.nn.softmax(s / params.width**0.5 + prior[None])
    a = jax.vmap(lambda b: jax.ops.segment_sum(b, tokens[:-1], num_segments=task.M))(b)
    # Any class with this query: only the query of a class enters `decode`.
    classes = jnp.argmax(task.query == tokens[-1])[None]
    return decode(params, task, read(params, a[:, None]), classes)[0]


def measure(task: SequenceClasses, params: Embedded) -> Snapshot:
    """Return the snapshot of the layer in the limit T -> infinity, without a positional prior.

    For one head with l2 normalisation and "theory" it is `dynsim.yz.observables.measure` of
    `Embedded.effective`. Otherwise the output logits are still those of the model, and

        z, c, g   are means over the heads, and f = c / |c|
        g         is the gradient at norm(a) for "theory"; for "practice" the gradient at norm(a U),
                  multiplied by U^T to give one entry per token

    so that "speed" and "xi" can be compared with the theory up to the scale of the normalisation.
    """
    examples = yz.population(task)
    z = attention_logits(params, task)[:, task.query_index]
    c = attend(params, task, examples)
    x = read(params, c)
    logits, pull_back = jax.vjp(lambda x: decode(params, task, x, examples.classes), x)
    (g,) = pull_back(yz.cross_entropy(logits, task.next_token)[1])
    if params.placement == "practice":
        g = g @ params.U.T
    # Observables describe one head; of several they are means.
    c = jnp.mean(c, axis=0)
    return Snapshot(jnp.mean(z, axis=0), c, yz.normalise(c), logits, jnp.mean(g, axis=0))
