r"""One attention layer plus a decoder in Y/Z form (arXiv:2305.16380, section 2, Lemma 1).

For a sequence of class n with query :math:`m = \psi(n)` and contextual token counts N (the query
does not attend to itself), b is the softmax of :math:`Z[m, x_t]` over positions t, and

.. math::

    \begin{align*}
    a &= X^\top b, \qquad a_l \propto N_l\, e^{Z[m, l]} \\
    f &= a / \lVert a \rVert_2 \\
    \alpha &= \operatorname{softmax}(Y^\top f), \qquad \text{loss} = -\ln \alpha[\nu(n)]
    \end{align*}

Without positions everything depends on the counts alone, so this forward pass on counts *is* the
model. With P(l|n) instead of counts it is the limit :math:`T \to \infty` of Lemma 2, where
:math:`a = c_n`. Only the rows of Z that belong to a query have a gradient, so only they are stored.
"""

import functools
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PRNGKeyArray, Real

from dynsim.classes.task import SequenceClasses
from dynsim.precision import AnyArray

Init = Literal["zero", "uniform"]


class YZ(eqx.Module):
    r"""Weights of the layer.

    Attributes:
        Y: (M, M) decoder logits; attending to token l adds Y[l, k] to output k. During training
            possibly (M, C), with one column for several outputs (`dynsim.yz.gradients`).
        Z: (Q, M) attention logits of each query (`task.queries`) towards contextual tokens. For a
            fixed prior on the logits, such as a positional bias, start from it instead of zero.
        residual: whether to add the query's embedding to f and normalise again (paper, section 7):
            :math:`\alpha = \operatorname{softmax}(Y^\top h)` with
            :math:`h = (f + x_T) / \lVert f + x_T \rVert_2`.

    Example:
        >>> layer, rule = dynsim.Layer(), dynsim.sgd(1.0, 0.1)
        >>> start = dynsim.YZ(Y=jnp.zeros((34, 34)), Z=jnp.zeros((2, 34)))
        >>> run = dynsim.train(layer, rule, jax.random.key(0), steps=5, init=start)
        >>> run.params.Z.shape
        (2, 34)
    """

    Y: Float[AnyArray, "*B M C"]
    Z: Float[AnyArray, "*B Q M"]
    residual: bool = eqx.field(static=True, default=False)


class Examples(eqx.Module):
    """A weighted set of examples, given by token counts.

    Attributes:
        classes: (E,) class of each example.
        counts: (E, M) counts of each contextual token, or its probability (T infinite).
        weight: (E,) weight of each example in the loss; sums to 1. None for equal weights.

    Example:
        >>> task = dynsim.SynSmall().build()
        >>> two = dynsim.Examples(classes=jnp.arange(2), counts=jnp.asarray(100 * task.probs))
        >>> two.counts.shape
        (2, 34)
    """

    classes: Int[AnyArray, "*B E"]
    counts: Real[AnyArray, "*B E M"]
    weight: Float[AnyArray, "*B E"] | None = None

    def astype(self, dtype: DTypeLike) -> "Examples":
        """Return the examples with counts and weights in `dtype`."""
        return Examples(self.classes, self.counts.astype(dtype), weights(self, dtype))


def weights(examples: Any, dtype: DTypeLike) -> Float[Array, " E"]:
    """Return the (E,) weights of examples in `dtype`; equal ones if none are given."""
    if examples.weight is None:
        return jnp.full(examples.classes.shape, 1 / examples.classes.size, dtype)
    return jnp.asarray(examples.weight, dtype)


def init_zero(task: SequenceClasses, dtype: str = "float32", residual: bool = False) -> YZ:
    """Return zero weights, as in the paper's theory and Figs. 4 and 5."""
    Y, Z = np.zeros((task.M, task.M), dtype), np.zeros((task.num_queries, task.M), dtype)
    return YZ(jnp.asarray(Y), jnp.asarray(Z), residual)


@functools.partial(jax.jit, inline=True, static_argnames="dtype")
def init_uniform(task: SequenceClasses, key: PRNGKeyArray, dtype: str = "float32") -> YZ:
    r"""Draw Y and Z uniformly from :math:`(-1/\sqrt M, 1/\sqrt M)`, as in Fig. 6."""
    bound = task.M**-0.5
    key_y, key_z = jax.random.split(key)
    return YZ(
        jax.random.uniform(key_y, (task.M, task.M), dtype, -bound, bound),
        jax.random.uniform(key_z, (task.num_queries, task.M), dtype, -bound, bound),
    )


def population(task: SequenceClasses) -> Examples:
    r"""Return the population for :math:`T \to \infty`: each class once, weighted by its prior."""
    return Examples(jnp.arange(task.K), jnp.asarray(task.probs), jnp.asarray(task.prior))


def attend(
    z: Float[Array, "E M"], counts: Float[AnyArray, "E M"], axis: int = -1
) -> Float[Array, "E M"]:
    """Return attention a on each token, for logits `z` and token counts; sums to 1 along `axis`.

    Each example needs at least one positive count. Tokens with count zero get no attention for any
    logit, and cannot make the others overflow.
    """
    w = _weigh(z, counts, axis)
    return w / jnp.sum(w, axis=axis, keepdims=True)


def direction(
    z: Float[Array, "E M"], counts: Float[AnyArray, "E M"], axis: int = -1
) -> Float[Array, "E M"]:
    r"""Return :math:`f = a / \lVert a \rVert_2`, in fewer operations than `normalise(attend(...))`:
    it does not depend on the sum of a."""
    return normalise(_weigh(z, counts, axis), axis)


@functools.partial(jax.jit, inline=True, static_argnames="axis")
def _weigh(
    z: Float[Array, "E M"], counts: Float[AnyArray, "E M"], axis: int
) -> Float[Array, "E M"]:
    # The largest exponent of the tokens that occur: an absent token must not make theirs vanish.
    largest = jnp.max(jnp.where(counts > 0, z, -jnp.inf), axis=axis, keepdims=True)
    return jnp.exp(jnp.where(counts > 0, z - jax.lax.stop_gradient(largest), 0)) * counts


def normalise(a: Float[Array, "*E M"], axis: int = -1) -> Float[Array, "*E M"]:
    r"""Normalise :math:`f = a / \lVert a \rVert_2` along `axis`."""
    return a / jnp.sqrt(jnp.sum(a**2, axis=axis, keepdims=True))


def output(
    params: YZ, task: SequenceClasses, f: Float[Array, "E M"], classes: Int[AnyArray, " E"]
) -> Float[Array, "E M"]:
    r"""Return the input of the decoder: f, or with the residual
    :math:`(f + x_T) / \lVert f + x_T \rVert_2`."""
    if not params.residual:
        return f
    return normalise(f + jax.nn.one_hot(task.query[classes], task.M, dtype=f.dtype))


@functools.partial(jax.jit, inline=True)
def forward(params: YZ, task: SequenceClasses, examples: Examples) -> Float[Array, "E M"]:
    r"""Return the logits :math:`Y^\top f` of each example, :math:`Y^\top h` with the residual."""
    z = params.Z[task.query_index[examples.classes]]
    f = normalise(attend(z, examples.counts))
    return output(params, task, f, examples.classes) @ params.Y


@functools.partial(jax.jit, inline=True, static_argnames="axis")
def cross_entropy(
    logits: Float[Array, "_ _"],
    label: Int[AnyArray, " E"],
    axis: int = -1,
    count: Float[Array, " C"] | None = None,
) -> tuple[Float[Array, " E"], Float[Array, "_ _"]]:
    r"""Return the cross entropy :math:`-\ln \alpha[k]` of the label k in nat, and its residual
    :math:`e_k - \alpha`, for logits (E, C), or (C, E) with `axis` 0.

    With `count`, each logit represents that number of outputs (one for a label's logit), and the
    residual is the one of a single output.

    Both are computed from the probabilities of the wrong outputs, so that they keep their relative
    precision when they are small, late in training. Computing :math:`1 - \alpha` would leave no
    correct digit in float32 once :math:`\alpha` is 1 - 1e-7. The outputs lie along `axis`.
    """
    is_label = jax.nn.one_hot(label, logits.shape[axis], dtype=bool, axis=axis)
    picked = jnp.take_along_axis(logits, jnp.expand_dims(label, axis), axis=axis)
    largest = jax.lax.stop_gradient(jnp.max(logits, axis=axis, keepdims=True))
    w = jnp.exp(logits - largest)
    # Without the label, whose probability would hide them once it is nearly 1.
    others = jnp.where(is_label, 0, w)
    if count is None:
        wrong = jnp.sum(others, axis=axis, keepdims=True)
    else:
        wrong = jnp.expand_dims(jnp.tensordot(others, count, (axis, 0)), axis)
    # log((wrong + w_label) / w_label); where the loss is small, behind = 0 and w_label = 1.
    behind = largest - picked
    loss = jnp.squeeze(behind + jnp.log1p(wrong + jnp.expm1(-behind)), axis)
    residual = jnp.where(is_label, wrong, -w) / (wrong + jnp.exp(-behind))
    return loss, residual


def loss(params: YZ, task: SequenceClasses, examples: Examples) -> Float[Array, ""]:
    """Return the mean cross entropy in nat, weighted by `examples.weight`."""
    logits = forward(params, task, examples)
    losses, _ = cross_entropy(logits, task.next_token[examples.classes])
    return jnp.sum(weights(examples, losses.dtype) * losses)


def loss_and_grad(
    params: YZ, task: SequenceClasses, examples: Examples, *, scatter: bool = True
) -> tuple[Float[Array, ""], YZ]:
    r"""Return loss and gradient by Lemma 1 (descent follows minus the gradient).

    .. math::

        \begin{align*}
        \frac{\partial J}{\partial Y} &= f\, (x_{T+1} - \alpha)^\top \\
        \frac{\partial J}{\partial z_m} &= \operatorname{diag}(f)\, (I - f f^\top)\, g, \qquad
            g = Y (x_{T+1} - \alpha)
        \end{align*}

    where J is minus the loss. The second line is Lemma 1 with
    :math:`X^\top \operatorname{diag}(b)\, X = \operatorname{diag}(a)` and
    :math:`a / \lVert a \rVert_2 = f`. This explicit form needs three matrix products, and fewer
    passes than reverse-mode differentiation. With the residual, h replaces f in dY, and g is
    propagated through the second normalisation. Without `scatter` the sums over the examples of a
    query are a fourth product, which suits accelerators.
    """
    row = task.query_index[examples.classes]
    f = direction(params.Z[row], examples.counts)
    # Without the residual h = f, and `to_f` is the identity.
    h, to_f = jax.vjp(lambda f: output(params, task, f, examples.classes), f)
    losses, residual = cross_entropy(h @ params.Y, task.next_token[examples.classes])
    weight = weights(examples, f.dtype)
    # dJ/dY = f (x_{T+1} - alpha)^T, summed over examples by the product below.
    residual = weight[:, None] * residual
    (g,) = to_f(residual @ params.Y.T)
    # diag(f) (I - f f^T) g.
    dz = f * (g - f * jnp.sum(f * g, axis=-1, keepdims=True))
    if scatter:
        dZ = jax.ops.segment_sum(dz, row, num_segments=task.num_queries)
    else:
        dZ = jax.nn.one_hot(row, task.num_queries, dtype=dz.dtype).T @ dz
    return jnp.sum(weight * losses), YZ(-(h.T @ residual), -dZ, params.residual)


def forward_tokens(
    params: YZ, task: SequenceClasses, tokens: Int[AnyArray, " T"]
) -> Float[Array, " M"]:
    """Return the logits of one sequence of token ids, query last: the paper's form of the model.

    The softmax runs over the T - 1 contextual positions. The query must be one of
    `task.queries`.
    """
    row = jnp.searchsorted(task.queries, tokens[-1])
    # The query does not attend to itself.
    context = tokens[:-1]
    b = jax.nn.softmax(params.Z[row, context])
    f = normalise(jax.ops.segment_sum(b, context, num_segments=task.M))
    if params.residual:
        f = normalise(f + jax.nn.one_hot(tokens[-1], task.M, dtype=f.dtype))
    return f @ params.Y
