"""The loss of sequences of finite length T, to first order in 1/T [ours].

A sequence of class n holds L = T - 1 contextual tokens, and the frequencies c of the tokens among
them scatter around p = P(.|n) with covariance Sigma/L, Sigma = diag(p) - p p^T. So the loss of the
class, averaged over its sequences, is

    E l_n(c) = l_n(p) + (1/2L) tr(Sigma Hess l_n(p)) + O(1/L^2)

Attention normalises what it reads, so that l_n does not change when all of c is scaled: then
Hess l_n p = -grad l_n and p . grad l_n = 0, and the trace is a sum over the diagonal,

    tr(Sigma Hess l_n) = sum_i p_i d^2 l_n / dc_i^2

For the Y/Z layer its terms are known. With logits y = Y^T f, alpha = softmax(y), x the next token,
g_i = Y_i . (x - alpha), gamma = f . g and r_i = f_i / p_i,

    df/dc_i     = r_i (e_i - f_i f)               d^2f/dc_i^2 = r_i^2 ((3 f_i^2 - 1) f - 2 f_i e_i)
    d^2l/dc_i^2 = r_i^2 (2 f_i g_i + (1 - 3 f_i^2) gamma + Var_alpha(Y_i - f_i y))

which are a few matrix products of the size of those of the gradient. Wherever 1/L is small these
losses take the place of the population's: in descent, in every flow, in the reduction.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Real

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.precision import Number
from dynsim.yz import model as yz

LossesOfCounts = Callable[[Float[Array, "K M"]], Float[Array, " K"]]
Context = Float[Array, ""] | None
"""L = T - 1, the number of contextual tokens, perhaps traced; None for T infinite, which leaves
the correction out of the program."""


def check_length(task: SequenceClasses, length: Real[Number, ""]) -> None:
    """Raise `ValueError` where the expansion says nothing of sequences of length T.

    Traced values are let through.
    """
    if not checks.is_traced(task):
        check_effective(float(np.max(1 / np.sum(np.asarray(task.probs) ** 2, axis=1))), length)


def check_effective(effective: float, length: Real[Number, ""]) -> None:
    """Raise `ValueError` for sequences with fewer contextual tokens than the `effective` number
    1 / sum_i p_i^2 of tokens of a class.

    That number is sum_i f_i^2 / p_i with zero weights, so that the expansion is one in it over 2 L.
    With fewer contextual tokens than that it does worse than T = infinity: docs/accuracy.md has the
    measurement.
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
    """T - 1 as an array of `dtype`, None for `math.inf`."""
    if _infinite(length):
        return None
    return jnp.asarray(length, dtype) - 1


def losses(params: yz.YZ, task: SequenceClasses, context: Context) -> Float[Array, " K"]:
    """Loss of each class in nats, averaged over its sequences with `context` contextual tokens."""
    population = by_counts(params, task)(jnp.asarray(task.probs))
    if context is None:
        return population
    return population + correction(params, task) / context


def loss_and_grad(
    params: yz.YZ, task: SequenceClasses, context: Context
) -> tuple[Float[Array, ""], yz.YZ]:
    """Population loss and gradient, as `yz.loss_and_grad`, for `context` contextual tokens."""
    loss, grads = yz.loss_and_grad(params, task, yz.population(task))
    if context is None:
        return loss, grads

    def excess(params: yz.YZ) -> Float[Array, ""]:
        return jnp.sum(jnp.asarray(task.prior) * correction(params, task)) / context

    more, corrections = jax.value_and_grad(excess)(params)
    return loss + more, jax.tree.map(jnp.add, grads, corrections)


def mean_loss(losses: LossesOfCounts, task: SequenceClasses, context: Context) -> Float[Array, ""]:
    """Population loss in nats for `context` contextual tokens, from the losses of all classes as a
    function of counts (K, M); these must not change when the counts of a class are scaled."""
    found = losses(jnp.asarray(task.probs))
    if context is not None:
        found = found + correction_of(losses, task) / context
    return jnp.sum(jnp.asarray(task.prior) * found)


def by_counts(params: yz.YZ, task: SequenceClasses) -> LossesOfCounts:
    """Loss of each class as a function of the counts (K, M) that its sequence has."""

    def losses(counts: Float[Array, "K M"]) -> Float[Array, " K"]:
        examples = yz.Examples(jnp.arange(task.K), counts, jnp.asarray(task.prior))
        return yz.cross_entropy(yz.forward(params, task, examples), task.next_token)[0]

    return losses


def correction(params: yz.YZ, task: SequenceClasses) -> Float[Array, " K"]:
    """tr(Sigma Hess l_n) / 2 of each class."""
    if params.residual:
        return correction_of(by_counts(params, task), task)
    p, label = jnp.asarray(task.probs), task.next_token
    f = yz.normalise(yz.attend(params.Z[task.query_index], p))
    logits = f @ params.Y
    # Of the probabilities the wrong ones alone, and logits less that of the label: all that is
    # left when alpha is nearly 1.
    is_label = jax.nn.one_hot(label, task.M, dtype=bool)
    wrong = jnp.where(is_label, 0, -yz.cross_entropy(logits, label)[1])
    behind = logits - jnp.take_along_axis(logits, label[:, None], axis=1)
    at_label = params.Y[:, label].T
    total, weighted = jnp.sum(wrong, axis=1, keepdims=True), wrong * behind
    speed = -jnp.sum(weighted, axis=1, keepdims=True)
    mean = wrong @ params.Y.T
    g = at_label * total - mean
    square = wrong @ (params.Y**2).T - 2 * at_label * mean + at_label**2 * total
    product = weighted @ params.Y.T + at_label * speed
    variance = (
        square
        - 2 * f * product
        + f**2 * jnp.sum(weighted * behind, axis=1, keepdims=True)
        - (g - f * speed) ** 2
    )
    terms = 2 * f * g + (1 - 3 * f**2) * speed + variance
    return jnp.sum(jnp.where(p > 0, f**2 / jnp.where(p > 0, p, 1), 0) * terms, axis=1) / 2


def correction_of(losses: LossesOfCounts, task: SequenceClasses) -> Float[Array, " K"]:
    """tr(Sigma Hess l_n) / 2 of each class for any such losses: by second derivatives along every
    token of its support."""
    p = jnp.asarray(task.probs)

    def along(slot: Array) -> Float[Array, " K"]:
        token = jax.nn.one_hot(task.support[:, slot], task.M, dtype=p.dtype)
        # Rows of the support shorter than others are filled up with tokens of probability zero.
        weight = jnp.sum(p * token, axis=1)

        def slope(counts: Float[Array, "K M"]) -> Float[Array, " K"]:
            return jax.jvp(losses, (counts,), (jnp.where(p > 0, token, 0),))[1]

        return weight * jax.jvp(slope, (p,), (jnp.where(p > 0, token, 0),))[1]

    return jnp.sum(jax.vmap(along)(jnp.arange(task.support.shape[1])), axis=0) / 2


def _infinite(length: Real[Number, ""]) -> bool:
    return isinstance(length, float) and math.isinf(length)
