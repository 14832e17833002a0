r"""Noise of the gradient of a batch of B sequences in the attention layer, at length T [ours].

Its covariance is C/B, where C is the covariance of the gradient of one sequence. Let
:math:`s_n(c) = \lambda \cdot \nabla \ell_n(c)` for a sequence of class n, whose frequencies c are
multinomial (`dynsim.yz.finite_length`). To first order in 1/L

.. math::

    \lambda^\top C \lambda' = \operatorname{Cov}_n (\mathbb E s_n, \mathbb E s_n')
    + \mathbb E_n\, \frac1L \sum_i p_i\, \frac{\partial s_n}{\partial c_i}\,
    \frac{\partial s_n'}{\partial c_i}

because :math:`\sum_i p_i\, \partial s_n / \partial c_i = 0`, as :math:`\ell_n` does not change when
c is scaled. Only the derivative of :math:`(\ell_n, \partial \ell_n / \partial c)` along
:math:`\lambda` is needed. Late in training, rare sequences dominate the noise, and the expansion in
1/L misses them. `sampled_law` instead averages over a sample that covers the distribution of
sequences evenly.

Adam and RMSProp need the variance of each entry of that gradient, `variance` [ours]. The gradient
with respect to Y is :math:`-f r^\top`, and with respect to the query's row of Z it is :math:`-h`,
with :math:`r = x - \alpha`, :math:`g = Y r` and :math:`h = f \odot (g - f (f \cdot g))`. Scaling c
changes none of f, r and h, so for each entry :math:`\varphi` of a gradient

.. math::

    \mathbb E\, \varphi = \mathbb E_n \left[ \varphi_n + \frac{1}{2L} \sum_i p_i
    \frac{\partial^2 \varphi_n}{\partial c_i^2} \right], \qquad
    \mathbb E\, \varphi^2 = \mathbb E_n \left[ \varphi_n^2 + \frac1L \sum_i p_i \left(
    \frac{\partial \varphi_n}{\partial c_i} \right)^{\!2} + \frac1L \varphi_n \sum_i p_i
    \frac{\partial^2 \varphi_n}{\partial c_i^2} \right]

at c = p. The variance is the second minus the square of the first. No matrix of the size of Y is
formed per class, because the square of an outer product is the outer product of the squares.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Real

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.precision import Number
from dynsim.yz import finite_length, gradients
from dynsim.yz import model as yz
from odes.symmetric import finite_length as symmetric


class NoiseLaw(NamedTuple):
    r"""Gradient and noise of a batch. `derive` returns the gradient of the population loss, and
    features of the weights; `covariance` returns :math:`\lambda^\top C \lambda'` (P, P) for all
    pairs of P vectors from the derivatives (P, ...) of the features along each of them."""

    derive: Callable[[yz.YZ], tuple[yz.YZ, PyTree]]
    covariance: Callable[[PyTree], Float[Array, "P P"]]


def expanded_law(task: SequenceClasses, context: finite_length.Context) -> NoiseLaw:
    """Return the law to first order in 1/L, for `context` contextual tokens."""

    def derive(params: yz.YZ) -> tuple[yz.YZ, finite_length.Expansion]:
        expansion = finite_length.expand(params, task, context)
        return expansion.gradient, expansion

    return NoiseLaw(derive, functools.partial(covariance, task, context))


SEQUENCES_AT_ONCE = 128
"""Number of sequences whose gradients are computed at once, so that they stay in a CPU's cache."""


def sampled_law(
    task: SequenceClasses, examples: yz.Examples, columns: gradients.OutputColumns | None = None
) -> NoiseLaw:
    """Return the law for the sample of sequences from `evenly_spread`, for weights with these
    columns of Y; by default each output has its own."""
    columns = columns or gradients.each_output(task)
    chunks = jax.tree.map(lambda x: jnp.reshape(x, (-1, SEQUENCES_AT_ONCE, *x.shape[1:])), examples)

    # Gradients and losses of one chunk after another, of which the gradient is the weighted sum.
    def derive(params: yz.YZ) -> tuple[yz.YZ, Float[Array, " E"]]:
        def of_chunk(chunk: yz.Examples) -> tuple[yz.YZ, Float[Array, " E"]]:
            def losses(params: yz.YZ) -> Float[Array, " E"]:
                logits = yz.forward(params, task, chunk)
                return yz.cross_entropy(logits, columns.label[chunk.classes], -1, columns.count)[0]

            values, pull = jax.vjp(losses, params)
            return pull(yz.weights(chunk, values.dtype))[0], values

        parts, losses = jax.lax.map(of_chunk, chunks)
        gradient = jax.tree.map(lambda part: jnp.sum(part, axis=0), parts)
        if columns.count is not None:
            # With respect to one of the weights that an entry of Y represents.
            gradient = dataclasses.replace(gradient, Y=gradient.Y / columns.count[None])
        return gradient, losses.reshape(-1)

    return NoiseLaw(
        derive, functools.partial(_between, yz.weights(examples, examples.counts.dtype))
    )


def evenly_spread(task: SequenceClasses, length: Real[Number, ""]) -> yz.Examples:
    """Return `symmetric.SEQUENCES` sequences per class that cover its distribution evenly.

    Raises:
        ValueError: for a task or a length that is traced, or a length that is not whole.
    """
    if checks.is_traced((task, length)):
        raise ValueError("tails = True: draws sequences, so task and length must not be traced")
    rest = checks.integer("length", length, 2) - 1
    classes = np.repeat(np.arange(task.K), symmetric.SEQUENCES)
    counts = np.zeros((task.K, symmetric.SEQUENCES, task.M))
    # Only tokens of the class: each further one would be a dimension of the Sobol sequence.
    for of_class, probs in zip(counts, np.asarray(task.probs, np.float64), strict=True):
        tokens = np.flatnonzero(probs)
        of_class[:, tokens] = symmetric.even_counts(probs[tokens], rest)
    weight = np.repeat(
        np.asarray(task.prior, np.float64) / symmetric.SEQUENCES, symmetric.SEQUENCES
    )
    return yz.Examples(classes, counts.reshape(-1, task.M), weight)


def covariance(
    task: SequenceClasses, context: finite_length.Context, along: finite_length.Expansion
) -> Float[Array, "P P"]:
    r"""Return :math:`\lambda^\top C \lambda'` for all pairs of P vectors to first order in 1/L,
    from the derivatives `along` each of them."""
    prior = jnp.asarray(task.prior)
    # Cov_n(E s_n, E s_n').
    between = _between(prior, along.losses)
    if context is None:
        return between
    # E_n (1/L) sum_i p_i ds_n/dc_i ds_n'/dc_i, as a product of vectors over n and i.
    within = jnp.sqrt(prior[:, None] * jnp.asarray(task.probs) / context)[None] * along.slope
    flat = within.reshape(len(within), -1)
    return between + flat @ flat.T


def _between(weight: Float[Array, " E"], along: Float[Array, "P E"]) -> Float[Array, "P P"]:
    """Return the covariance of values that occur with probability `weight`."""
    centred = along - (along @ weight)[:, None]
    return centred @ (weight[:, None] * centred.T)


def draw(
    task: SequenceClasses, context: finite_length.Context, batch: Float[Array, ""]
) -> Callable[[yz.YZ, PRNGKeyArray], yz.YZ]:
    """Return a function of weights and key that draws Gaussian noise of covariance C/B, with C to
    first order in 1/L."""
    prior = jnp.asarray(task.prior)

    def sample(params: yz.YZ, key: PRNGKeyArray) -> yz.YZ:
        def features(params: yz.YZ) -> tuple[Array, Array]:
            expansion = finite_length.expand(params, task, context)
            return expansion.losses, expansion.slope

        # The transposed derivative of the features, applied to normal noise: its covariance is that
        # of `covariance`, term by term.
        (losses, slope), pull = jax.vjp(features, params)
        of_class, of_token = jax.random.split(key)
        root = jnp.sqrt(prior)
        one = jax.random.normal(of_class, losses.shape, losses.dtype)
        # Covariance diag(pi) - pi pi^T of the frequencies of classes.
        between = root * (one - root * jnp.sum(root * one))
        within = jnp.zeros_like(slope)
        if context is not None:
            scale = jnp.sqrt(prior[:, None] * jnp.asarray(task.probs) / context)
            within = scale * jax.random.normal(of_token, slope.shape, slope.dtype)
        return jax.tree.map(lambda x: x / jnp.sqrt(batch), pull((between, within))[0])

    return sample


def variance(params: yz.YZ, task: SequenceClasses, context: finite_length.Context) -> yz.YZ:
    """Return the variance over sequences of each entry of the gradient, in the shapes of the
    weights, for `context` contextual tokens."""
    p, prior = jnp.asarray(task.probs), jnp.asarray(task.prior)
    classes = jnp.arange(task.K)

    # f, r = x - alpha and h = f (g - f f.g) with g = Y r, as functions of the frequencies.
    def factors(counts: Float[Array, "K M"]) -> tuple[Array, Array, Array]:
        f = yz.normalise(yz.attend(jnp.asarray(params.Z)[task.query_index], counts))
        read, to_f = jax.vjp(lambda f: yz.output(params, task, f, classes), f)
        _, r = yz.cross_entropy(read @ params.Y, task.next_token)
        (g,) = to_f(r @ jnp.asarray(params.Y).T)
        return read, r, f * (g - f * jnp.sum(f * g, axis=1, keepdims=True))

    f, r, h = factors(p)
    # E phi and E phi^2 for phi = -f r^T and phi = -h, at infinite T first. The square of an outer
    # product is the outer product of the squares, so that no matrix is formed per class.
    by_class = prior[:, None]
    mean_y, square_y = f.T @ (by_class * r), (f**2).T @ (by_class * r**2)
    mean_h, square_h = h, h**2
    if context is not None:
        # sqrt(p_i / L) d/dc_i and (p_i / L) d^2/dc_i^2 for one token i of each class at a time.
        def along(slot: Array) -> tuple[tuple[Array, Array, Array], tuple[Array, Array, Array]]:
            token = jax.nn.one_hot(task.support[:, slot], task.M, dtype=p.dtype)
            root = jnp.sqrt(jnp.sum(p * token, axis=1, keepdims=True) / context)
            step = jnp.where(p > 0, root * token, 0)
            slope = lambda counts: jax.jvp(factors, (counts,), (step,))[1]  # noqa: E731
            return jax.jvp(slope, (p,), (step,))

        first, second = jax.vmap(along)(jnp.arange(task.support.shape[1]))
        (df, dr, _), (ddf, ddr, ddh) = first, (jnp.sum(x, axis=0) for x in second)
        scatter_f, scatter_r, scatter_h = (jnp.sum(x**2, axis=0) for x in first)
        # E phi += phi'' / 2 with phi'' = f'' r + 2 f' r' + f r''. E phi^2 += phi'^2 + phi phi'',
        # which is (f'^2 + f f'') r^2 + f^2 (r'^2 + r r'') + 4 f f' r r'.
        mean_y += jnp.einsum("skm,skn->mn", df, by_class[None] * dr)
        mean_y += (ddf.T @ (by_class * r) + f.T @ (by_class * ddr)) / 2
        square_y += (scatter_f + f * ddf).T @ (by_class * r**2)
        square_y += (f**2).T @ (by_class * (scatter_r + r * ddr))
        square_y += 4 * jnp.einsum("skm,skn->mn", f[None] * df, (by_class * r)[None] * dr)
        mean_h, square_h = h + ddh / 2, square_h + scatter_h + h * ddh
    mean = yz.YZ(mean_y, _by_query(task, by_class * mean_h), params.residual)
    square = yz.YZ(square_y, _by_query(task, by_class * square_h), params.residual)
    return jax.tree.map(lambda both, one: jnp.maximum(both - one**2, 0), square, mean)


def _by_query(task: SequenceClasses, rows: Float[Array, "K M"]) -> Float[Array, "Q M"]:
    return jax.ops.segment_sum(rows, task.query_index, num_segments=task.num_queries)
