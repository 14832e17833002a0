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
from odes.symmetric import saddle


class Law(NamedTuple):
    r"""The gradient of the population loss, and the noise of one sequence around it.

    Attributes:
        derive: from the weights, the gradient, and the features by which `covariance` is formed.
        covariance: (P, P) :math:`\lambda^\top C \lambda'` of all pairs of P vectors, from the
            derivatives (P, ...) of the features along each of them.
    """

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
    """`saddle.SEQUENCES` sequences of each class that fill the law of its counts evenly.

    Raises:
        ValueError: for a task or a length that is traced, or a length that is not whole.
    """
    if checks.is_traced((task, length)):
        raise ValueError("tails = True: draws sequences, for which task and length must be known")
    rest = checks.integer("length", length, 2) - 1
    classes = np.repeat(np.arange(task.K), saddle.SEQUENCES)
    counts = np.zeros((task.K, saddle.SEQUENCES, task.M))
    for of_class, probs in zip(counts, np.asarray(task.probs, np.float64), strict=True):
        tokens = np.flatnonzero(probs)
        of_class[:, tokens] = saddle.evenly_spread(probs[tokens], rest)
    weight = np.repeat(np.asarray(task.prior, np.float64) / saddle.SEQUENCES, saddle.SEQUENCES)
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
