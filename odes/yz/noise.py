r"""What a batch of sequences adds to the gradient of the layer [ours].

Its covariance is C/B, with C that of the gradient of one sequence. With
:math:`s_n(c) = \lambda \cdot \nabla \ell_n(c)` for a sequence of class n with frequencies c, which
are multinomial (`dynsim.yz.finite_length`), to first order in 1/L

.. math::

    \lambda^\top C \lambda' = \operatorname{Cov}_n (\mathbb E s_n, \mathbb E s_n')
    + \mathbb E_n\, \frac1L \sum_i p_i\, \frac{\partial s_n}{\partial c_i}\,
    \frac{\partial s_n'}{\partial c_i}

where :math:`\sum_i p_i\, \partial s_n / \partial c_i = 0` has been used, as :math:`\ell_n` does not
change when c is scaled. The derivative of :math:`(\ell_n, \partial \ell_n / \partial c)` along
:math:`\lambda` is all that is needed. Late in training rare sequences make the noise, which no
expansion in 1/L sees; then a sample of sequences that fills their law evenly takes its place.

Adam and RMSProp need the variance of each entry of that gradient, `variance` [ours]. The gradient
is :math:`-f r^\top` by Y and :math:`-h` by the row of Z of the query, with
:math:`r = x - \alpha`, :math:`g = Y r` and :math:`h = f \odot (g - f (f \cdot g))`. None of f,
r and h changes when c is scaled, so that for each entry :math:`\varphi` of a gradient

.. math::

    \mathbb E\, \varphi = \mathbb E_n \left[ \varphi_n + \frac{1}{2L} \sum_i p_i
    \frac{\partial^2 \varphi_n}{\partial c_i^2} \right], \qquad
    \mathbb E\, \varphi^2 = \mathbb E_n \left[ \varphi_n^2 + \frac1L \sum_i p_i \left(
    \frac{\partial \varphi_n}{\partial c_i} \right)^{\!2} + \frac1L \varphi_n \sum_i p_i
    \frac{\partial^2 \varphi_n}{\partial c_i^2} \right]

at c = p, and the variance is the second less the square of the first. No matrix of the size of Y is
formed for each class: the squares of f, r and of their derivatives are multiplied out.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, Real

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.precision import Number
from dynsim.training.recording import Recording
from dynsim.training.rule import Rule, of_layer
from dynsim.yz import finite_length, observables
from dynsim.yz import model as yz
from odes.solver import linear_noise
from odes.symmetric import finite_length as symmetric


class Law(NamedTuple):
    r"""The gradient of the population loss, with the features by which `covariance` is formed, from
    the weights; and (P, P) :math:`\lambda^\top C \lambda'` of all pairs of P vectors, from the
    derivatives (P, ...) of the features along each of them."""

    derive: Callable[[yz.YZ], tuple[yz.YZ, Any]]
    covariance: Callable[[Any], Float[Array, "P P"]]


def expanded(task: SequenceClasses, context: finite_length.Context) -> Law:
    """To first order in 1/L, for `context` contextual tokens."""

    def derive(params: yz.YZ) -> tuple[yz.YZ, finite_length.Expansion]:
        found = finite_length.expand(params, task, context)
        return found.gradient, found

    return Law(derive, functools.partial(covariance, task, context))


def sampled(task: SequenceClasses, examples: yz.Examples) -> Law:
    """With the sequences of `evenly_spread` in place of their law."""
    labels = task.next_token[examples.classes]

    def losses(params: yz.YZ) -> Float[Array, " E"]:
        return yz.cross_entropy(yz.forward(params, task, examples), labels)[0]

    def derive(params: yz.YZ) -> tuple[yz.YZ, Float[Array, " E"]]:
        return yz.loss_and_grad(params, task, examples)[1], losses(params)

    return Law(derive, functools.partial(_between, yz.weights(examples, examples.counts.dtype)))


def evenly_spread(task: SequenceClasses, length: Real[Number, ""]) -> yz.Examples:
    """`symmetric.SEQUENCES` sequences of each class that fill the law of its counts evenly.

    Raises:
        ValueError: for a task or a length that is traced, or a length that is not whole.
    """
    if checks.is_traced((task, length)):
        raise ValueError("tails = True: draws sequences, so task and length must not be traced")
    rest = checks.integer("length", length, 2) - 1
    classes = np.repeat(np.arange(task.K), symmetric.SEQUENCES)
    counts = np.zeros((task.K, symmetric.SEQUENCES, task.M))
    for of_class, probs in zip(counts, np.asarray(task.probs, np.float64), strict=True):
        tokens = np.flatnonzero(probs)
        of_class[:, tokens] = symmetric.evenly_spread(probs[tokens], rest)
    weight = np.repeat(
        np.asarray(task.prior, np.float64) / symmetric.SEQUENCES, symmetric.SEQUENCES
    )
    return yz.Examples(classes, counts.reshape(-1, task.M), weight)


def covariance(
    task: SequenceClasses, context: finite_length.Context, along: finite_length.Expansion
) -> Float[Array, "P P"]:
    r""":math:`\lambda^\top C \lambda'` of all pairs of P vectors to first order in 1/L, from what
    is derived along each of them."""
    prior = jnp.asarray(task.prior)
    between = _between(prior, along.losses)
    if context is None:
        return between
    within = jnp.sqrt(prior[:, None] * jnp.asarray(task.probs) / context)[None] * along.slope
    flat = within.reshape(len(within), -1)
    return between + flat @ flat.T


def _between(weight: Float[Array, " E"], along: Float[Array, "P E"]) -> Float[Array, "P P"]:
    """Covariance of what occurs with probability `weight`."""
    centred = along - (along @ weight)[:, None]
    return centred @ (weight[:, None] * centred.T)


def draw(
    task: SequenceClasses, context: finite_length.Context, batch: Float[Array, ""]
) -> Callable[[yz.YZ, PRNGKeyArray], yz.YZ]:
    """From weights and a key, Gaussian noise of covariance C/B, with C to first order in 1/L."""
    prior = jnp.asarray(task.prior)

    def sample(params: yz.YZ, key: PRNGKeyArray) -> yz.YZ:
        def features(params: yz.YZ) -> tuple[Array, Array]:
            found = finite_length.expand(params, task, context)
            return found.losses, found.slope

        (losses, slope), pull = jax.vjp(features, params)
        of_class, of_token = jax.random.split(key)
        root = jnp.sqrt(prior)
        one = jax.random.normal(of_class, losses.shape, losses.dtype)
        between = root * (one - root * jnp.sum(root * one))
        within = jnp.zeros_like(slope)
        if context is not None:
            scale = jnp.sqrt(prior[:, None] * jnp.asarray(task.probs) / context)
            within = scale * jax.random.normal(of_token, slope.shape, slope.dtype)
        return jax.tree.map(lambda x: x / jnp.sqrt(batch), pull((between, within))[0])

    return sample


def descent(
    task: SequenceClasses,
    optimizer: Rule,
    init: yz.YZ,
    law: Law,
    record: Recording,
    variance: Callable[[yz.YZ], yz.YZ] | None,
) -> linear_noise.Descent:
    """Descent and its noise; with a `variance`, what is divided by has noise in it."""

    def observe(params: yz.YZ, k: Array) -> tuple[Array, Array]:
        del k
        snapshot = observables.measure(task, params)
        seen = record(task, snapshot)
        return ravel_pytree(seen)[0], observables.loss(task, snapshot)

    return linear_noise.Descent(
        optimizer,
        lambda params, k: law.derive(params),
        law.covariance,
        observe,
        groups=of_layer(init),
        variance=None if variance is None else lambda params, k: variance(params),
    )


def variance(params: yz.YZ, task: SequenceClasses, context: finite_length.Context) -> yz.YZ:
    """Variance over sequences of each entry of their gradients, for `context` contextual tokens.

    Shapes are those of the weights.
    """
    p, prior = jnp.asarray(task.probs), jnp.asarray(task.prior)
    classes = jnp.arange(task.K)

    def factors(counts: Float[Array, "K M"]) -> tuple[Array, Array, Array]:
        f = yz.normalise(yz.attend(jnp.asarray(params.Z)[task.query_index], counts))
        read, to_f = jax.vjp(lambda f: yz.output(params, task, f, classes), f)
        _, r = yz.cross_entropy(read @ params.Y, task.next_token)
        (g,) = to_f(r @ jnp.asarray(params.Y).T)
        return read, r, f * (g - f * jnp.sum(f * g, axis=1, keepdims=True))

    f, r, h = factors(p)
    by_class = prior[:, None]
    mean_y, square_y = f.T @ (by_class * r), (f**2).T @ (by_class * r**2)
    mean_h, square_h = h, h**2
    if context is not None:

        def along(slot: Array) -> tuple[tuple[Array, Array, Array], tuple[Array, Array, Array]]:
            token = jax.nn.one_hot(task.support[:, slot], task.M, dtype=p.dtype)
            root = jnp.sqrt(jnp.sum(p * token, axis=1, keepdims=True) / context)
            step = jnp.where(p > 0, root * token, 0)
            slope = lambda counts: jax.jvp(factors, (counts,), (step,))[1]  # noqa: E731
            return jax.jvp(slope, (p,), (step,))

        first, second = jax.vmap(along)(jnp.arange(task.support.shape[1]))
        (df, dr, _), (ddf, ddr, ddh) = first, (jnp.sum(x, axis=0) for x in second)
        scatter_f, scatter_r, scatter_h = (jnp.sum(x**2, axis=0) for x in first)
        mean_y += jnp.einsum("skm,skn->mn", df, by_class[None] * dr)
        mean_y += (ddf.T @ (by_class * r) + f.T @ (by_class * ddr)) / 2
        square_y += (scatter_f + f * ddf).T @ (by_class * r**2)
        square_y += (f**2).T @ (by_class * (scatter_r + r * ddr))
        square_y += 4 * jnp.einsum("skm,skn->mn", f[None] * df, (by_class * r)[None] * dr)
        mean_h, square_h = h + ddh / 2, square_h + scatter_h + h * ddh
    mean = yz.YZ(mean_y, _by_query(task, by_class * mean_h), params.residual)
    square = yz.YZ(square_y, _by_query(task, by_class * square_h), params.residual)
    return jax.tree.map(lambda both, one: jnp.maximum(both - one**2, 0), square, mean)


def variance_of_batch(
    task: SequenceClasses, context: finite_length.Context, batch: Float[Array, ""]
) -> Callable[[yz.YZ], yz.YZ]:
    """`variance` of the mean over `batch` sequences, as a function of the weights."""
    return lambda params: jax.tree.map(lambda one: one / batch, variance(params, task, context))


def _by_query(task: SequenceClasses, rows: Float[Array, "K M"]) -> Float[Array, "Q M"]:
    return jax.ops.segment_sum(rows, task.query_index, num_segments=task.num_queries)
