r"""The loss of sequences of finite length T, to first order in 1/T [ours].

A sequence of class n holds L = T - 1 contextual tokens, and the frequencies c of the tokens among
them scatter around :math:`p = P(\cdot \mid n)` with covariance :math:`\Sigma/L`, where
:math:`\Sigma = \operatorname{diag}(p) - p p^\top`. So the loss of the class, averaged over its
sequences, is

.. math::

    \mathbb E\, \ell_n(c) = \ell_n(p)
    + \frac{1}{2L} \operatorname{tr} \bigl( \Sigma\, \nabla^2 \ell_n(p) \bigr) + O(L^{-2}).

Attention normalises its input, so :math:`\ell_n` does not change when all of c is rescaled.
Therefore :math:`\nabla^2 \ell_n\, p = -\nabla \ell_n` and :math:`p \cdot \nabla \ell_n = 0`, and
the trace is a sum over the diagonal,

.. math::

    \operatorname{tr} \bigl( \Sigma\, \nabla^2 \ell_n \bigr)
    = \sum_i p_i\, \frac{\partial^2 \ell_n}{\partial c_i^2}.

For the Y/Z layer its terms are known. With logits :math:`y = Y^\top f`,
:math:`\alpha = \operatorname{softmax}(y)`, x the next token, :math:`g_i = Y_i \cdot (x - \alpha)`,
:math:`\gamma = f \cdot g` and :math:`r_i = f_i / p_i`,

.. math::

    \begin{align*}
    \frac{\partial f}{\partial c_i} &= r_i\, (e_i - f_i f) \\
    \frac{\partial^2 f}{\partial c_i^2} &= r_i^2 \bigl( (3 f_i^2 - 1) f - 2 f_i e_i \bigr) \\
    \frac{\partial^2 \ell}{\partial c_i^2} &= r_i^2 \bigl( 2 f_i g_i + (1 - 3 f_i^2)\, \gamma
        + \operatorname{Var}_\alpha (Y_i - f_i y) \bigr)
    \end{align*}

These are a few matrix products, as large as those of the gradient. If 1/L is small, these losses
replace the population loss in gradient descent, in all flows, and in the reduction.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Real

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.precision import Number, cast
from dynsim.yz import model as yz

MAX_REPEATS = 4
"""Factor by which rows of Y may be repeated, for classes that share tokens."""
LossesOfCounts = Callable[[Float[Array, "K M"]], Float[Array, " K"]]
Context = Float[Array, ""] | None
"""L = T - 1, the number of contextual tokens, possibly traced; None for T infinite, where the
correction is not compiled."""


def check_length(task: SequenceClasses, length: Real[Number, ""]) -> None:
    """Raise `ValueError` if the expansion is not valid for sequences of length T.

    Traced values are not checked.
    """
    if not checks.is_traced(task):
        check_effective(float(np.max(1 / np.sum(np.asarray(task.probs) ** 2, axis=1))), length)


def check_effective(effective: float, length: Real[Number, ""]) -> None:
    r"""Raise `ValueError` for sequences with fewer contextual tokens than the `effective` number
    :math:`1/\sum_i p_i^2` of tokens of a class.

    At zero weights that number is :math:`\sum_i f_i^2/p_i`, and the expansion parameter is this
    number over 2 L. With fewer contextual tokens the expansion is less accurate than T = infinity;
    docs/results/accuracy.md has the measurements.
    """
    if checks.is_traced(length) or _infinite(length):
        return
    checks.real("length", length, 2)
    if np.min(length) - 1 < effective:
        raise ValueError(
            f"length = {np.min(length):g}: the theory is an expansion in 1/T, which needs at least "
            f"as many contextual tokens as a class has in effect, 1 / sum P(l|n)^2 = "
            f"{effective:.3g} here: length >= {math.ceil(effective) + 1}"
        )


def contextual(length: Real[Number, ""], dtype: str) -> Context:
    """Return T - 1 as an array of `dtype`, or None for `math.inf`."""
    if _infinite(length):
        return None
    return cast(length - 1, dtype)


class Expansion(NamedTuple):
    """Losses of sequences of finite length, and their derivatives.

    Attributes:
        losses: (K,) loss of each class in nat, averaged over its sequences.
        gradient: gradient of the population loss, the mean over classes weighted by their prior.
        slope: (K, M) derivatives of the loss of each class at T infinite with respect to the
            frequencies of its tokens; 0 for tokens that it lacks.
    """

    losses: Float[Array, " K"]
    gradient: yz.YZ
    slope: Float[Array, "K M"]


def loss_and_grad(
    params: yz.YZ, task: SequenceClasses, context: Context
) -> tuple[Float[Array, ""], yz.YZ]:
    """Like `yz.loss_and_grad` for the population, for `context` contextual tokens."""
    if context is None:
        return yz.loss_and_grad(params, task, yz.population(task))
    expansion = expand(params, task, context)
    return jnp.sum(jnp.asarray(task.prior) * expansion.losses), expansion.gradient


def expand(params: yz.YZ, task: SequenceClasses, context: Context) -> Expansion:
    r"""Compute losses, gradient and slope for `context` contextual tokens.

    The gradient is written out, like that of `yz.loss_and_grad`, at a third of the cost of reverse
    mode. It uses only the probabilities q of wrong outputs, and logits relative to the label's, so
    that its relative precision is kept when :math:`\alpha` is nearly 1. With :math:`Y_i` and
    y denoting such differences, and :math:`w_i = f_i^2 / p_i`,

    .. math::

        \begin{align*}
        m_i &= q \cdot Y_i, \quad s = q \cdot y, \quad e_i = q \cdot (y \odot Y_i), \quad
            h = q \cdot y^2, \quad v_i = m_i - f_i s \\
        t_i &= q \cdot Y_i^2 - 2 f_i e_i + f_i^2 h - v_i^2 - 2 f_i m_i - (1 - 3 f_i^2)\, s \\
        \ell_T &= \ell + \frac{1}{2L} \sum_i w_i t_i, \qquad
            \frac{\partial \ell}{\partial c_i} = \frac{f_i v_i}{p_i}
        \end{align*}
    """
    if params.residual or context is None:
        # Automatic differentiation, where there is no explicit form.
        p = jnp.asarray(task.probs)
        losses = by_counts(params, task)
        _, gradient = loss_and_grad(params, task, None)
        if context is not None:
            gradient = jax.grad(lambda q: mean_loss(by_counts(q, task), task, context))(params)
        slope = jnp.where(p > 0, jax.grad(lambda counts: jnp.sum(losses(counts)))(p), 0)
        values = losses(p)
        if context is not None:
            values = values + correction_of(losses, task) / context
        return Expansion(values, gradient, slope)

    label, query, support = task.next_token, task.query_index, task.support
    prior, p = jnp.asarray(task.prior), jnp.asarray(task.probs)
    Y, Z = jnp.asarray(params.Y), jnp.asarray(params.Z)[query]
    # Gather the rows of Y for each class's tokens, if they are few and not repeated too often.
    gathered = 2 * support.shape[1] <= task.M and support.size <= MAX_REPEATS * task.M
    rows = "ksm" if gathered else "sm"
    if gathered:
        p, Z = (jnp.take_along_axis(x, support, axis=1) for x in (p, Z))
        Y = Y[support]
    f = yz.normalise(yz.attend(Z, p))
    to_outputs, to_tokens = f"ks,{rows}->km", f"km,{rows}->ks"
    logits = jnp.einsum(to_outputs, f, Y)
    losses, residual = yz.cross_entropy(logits, label)
    is_label = jax.nn.one_hot(label, task.M, dtype=f.dtype)
    # q are the probabilities of wrong outputs. y and Y_i are relative to the label: y here, and Y_i
    # through `own`, the label's entry of each row.
    q, y, square = residual * (is_label - 1), logits - _sum(logits * is_label), Y**2
    qy = q * y
    wrong, s, h = _sums(q, qy, qy * y)

    m, e, own = jnp.einsum(f"jkm,{rows}->jks", jnp.stack([q, qy, is_label]), Y)
    # q . Y_i^2 for differences to the label, from the squares of the rows themselves.
    second = jnp.einsum(to_tokens, q, square) - own * (2 * m - own * wrong)
    m, e = m - own * wrong, e - own * s
    v = m - f * s
    t = second - 2 * f * e + f**2 * h - v**2 - 2 * f * m - (1 - 3 * f**2) * s
    # Padding of the support has p = 0 and f = 0.
    over_p = jnp.where(p > 0, f / jnp.where(p > 0, p, 1), 0)
    w = f * over_p
    wf = w * f

    # Derivatives with respect to the logits, of sum_i w_i t_i / 2 through q and y, and of q itself.
    at_wf, at_v, at_own = jnp.einsum(f"jks,{rows}->jkm", jnp.stack([wf, w * (f + v), w * own]), Y)
    at_square = jnp.einsum(to_outputs, w, square)
    width, wv, own_wf, own_v, own_own, rest = _sums(
        wf * f, wf * v, wf * own, w * (f + v) * own, w * own**2, w * (1 - 3 * f**2)
    )
    by_y = own_wf - at_wf - rest / 2 + wv
    by_q = own_v - at_v + at_square / 2 - at_own + own_own / 2 + y * by_y + width * y**2 / 2
    u = q * (by_q - _sum(q * by_q) + by_y + width * y)
    u = u - _sum(u) * is_label

    # Derivatives with respect to f, then to z through the normalised attention (Lemma 1).
    through = jnp.einsum(to_tokens, u, Y)
    by_f = m + (over_p * t + w * (f * h + v * s + 3 * f * s - e - m) + through) / context
    dz = prior[:, None] * f * (by_f - f * _sum(f * by_f))
    left = jnp.stack([w * (f + v) - context * f, f, -w * own, -wf, -w * v])
    right = jnp.stack([residual, u, q, qy, is_label]) * (prior / context)[None, :, None]
    dY = jnp.einsum(f"jks,jkm->{rows}", left, right)
    dY = dY + Y * jnp.einsum(f"ks,km->{rows}", w, right[2])
    slope = over_p * v
    if gathered:
        # Back from the support of each class to the whole vocabulary.
        dY = jnp.zeros_like(params.Y).at[support].add(dY)
        place, shape = (jnp.arange(task.K)[:, None], support), (task.K, task.M)
        dz, slope = (jnp.zeros(shape, x.dtype).at[place].set(x) for x in (dz, slope))
    dZ = jax.ops.segment_sum(dz, query, num_segments=task.num_queries)
    return Expansion(losses + jnp.sum(w * t, axis=1) / (2 * context), yz.YZ(dY, dZ), slope)


def mean_loss(losses: LossesOfCounts, task: SequenceClasses, context: Context) -> Float[Array, ""]:
    """Return the population loss in nat for `context` contextual tokens, from the losses of all
    classes as a function of counts (K, M), which must not change when the counts of a class are
    rescaled."""
    values = losses(jnp.asarray(task.probs))
    if context is not None:
        values = values + correction_of(losses, task) / context
    return jnp.sum(jnp.asarray(task.prior) * values)


def by_counts(
    params: Any, task: SequenceClasses, forward: Callable[..., Float[Array, "K M"]] = yz.forward
) -> LossesOfCounts:
    """Return the loss of each class in nat as a function of the counts (K, M) of its sequence, for
    a model with the logits `forward(params, task, examples)`."""

    def losses(counts: Float[Array, "K M"]) -> Float[Array, " K"]:
        examples = yz.Examples(jnp.arange(task.K), counts, jnp.asarray(task.prior))
        return yz.cross_entropy(forward(params, task, examples), task.next_token)[0]

    return losses


def correction_of(losses: LossesOfCounts, task: SequenceClasses) -> Float[Array, " K"]:
    r"""Return :math:`\operatorname{tr}(\Sigma\, \nabla^2 \ell_n) / 2` of each class for any such
    losses, by second derivatives along each token of its support."""
    p = jnp.asarray(task.probs)

    def along(slot: Array) -> Float[Array, " K"]:
        token = jax.nn.one_hot(task.support[:, slot], task.M, dtype=p.dtype)
        # Shorter rows of the support are padded with tokens of probability zero.
        weight = jnp.sum(p * token, axis=1)

        def slope(counts: Float[Array, "K M"]) -> Float[Array, " K"]:
            return jax.jvp(losses, (counts,), (jnp.where(p > 0, token, 0),))[1]

        return weight * jax.jvp(slope, (p,), (jnp.where(p > 0, token, 0),))[1]

    return jnp.sum(jax.vmap(along)(jnp.arange(task.support.shape[1])), axis=0) / 2


def _sum(x: Float[Array, "K N"]) -> Float[Array, "K 1"]:
    return jnp.sum(x, axis=1, keepdims=True)


def _sums(*summands: Float[Array, "K N"]) -> Float[Array, "J K 1"]:
    # One operation, because each sum takes as long to compile as a product.
    return jnp.sum(jnp.stack(summands), axis=-1, keepdims=True)


def _infinite(length: Real[Number, ""]) -> bool:
    return isinstance(length, float) and math.isinf(length)
