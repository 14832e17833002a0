r"""Averages over sequences of finite length that see the rare ones, for symmetric tasks [ours].

Late in training the loss of a sequence is nearly the exponential of a function of its frequencies
c, and its average is made by sequences that no expansion in 1/L about their mean p knows. The
transform of the multinomial is exact, though: with a tilt t, :math:`Z = \sum_i p_i e^{t_i / L}` and
:math:`q_i = p_i e^{t_i / L} / Z`,

.. math::

    \mathbb E_p\, \ell(c) = Z^L\; \mathbb E_q\, \ell(c)\, e^{-t \cdot c}.

Attention normalises, so :math:`\ln \ell` is not linear in c. With t its gradient at q the right
hand side has no exponential left to first order, and is expanded about q to the second. With
:math:`s = \nabla \ln \ell(q)`

.. math::

    \ln \mathbb E\, \ell = \ln \ell(q) + L \ln Z - t \cdot q + \frac{1}{2L} \Bigl[
    \operatorname{tr} \bigl( \Sigma_q \nabla^2 \ln \ell(q) \bigr)
    + (s - t)^\top \Sigma_q\, (s - t) \Bigr] + O(L^{-2}).

The last term is what a tilt that is not quite the gradient leaves; a few turns of the fixed point
make it small. In early training t is small, and this is `odes.symmetric.finite_length`.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Real

from dynsim import checks
from dynsim.precision import AnyArray, Number
from odes.symmetric import finite_length, reduction
from odes.symmetric.state import Attention, Decoder, Kinds, Reduced, State, SymmetricTask
from odes.theory import named

TURNS = 3
"""Turns of the fixed point for the tilt."""
SEQUENCES = 4096
"""Sequences that stand for all where the covariance of the gradient is wanted, in which errors of
the saddle point nearly cancel the result."""


def loss(task: SymmetricTask, state: State, context: Float[Array, ""]) -> Float[Array, ""]:
    """Population loss in nat for `context` contextual tokens."""

    def total(values: Attention) -> Float[Array, ""]:
        return task.sum_distinct(values.distinct) + task.sum_common(values.common)

    def at(q: Attention) -> tuple[SymmetricTask, Reduced, Attention]:
        """The task with other frequencies, what is measured there, and the gradient of log loss."""
        tilted = dataclasses.replace(task, p=q.distinct, rho=q.common)
        now = reduction.measure(tilted, state)
        slope = finite_length.slope(now, q)
        return tilted, now, jax.tree.map(lambda s: s / now.loss, slope)

    p = Attention(jnp.asarray(task.p), jnp.asarray(task.rho))
    q = p = jax.tree.map(lambda x: x / total(p), p)
    for _ in range(TURNS):
        tilt = at(q)[2]
        weight = jax.tree.map(lambda x, t: x * jnp.exp(t / context), p, tilt)
        norm = total(weight)
        q = jax.tree.map(lambda w, norm=norm: w / norm, weight)

    def mean(*factors: Attention) -> Float[Array, ""]:
        return total(jax.tree.map(lambda *x: jnp.prod(jnp.stack(x), axis=0), q, *factors))

    tilted, now, slope = at(q)
    left = jax.tree.map(jnp.subtract, slope, tilt)
    curvature = 2 * finite_length.correction(tilted, state, now) / now.loss - mean(slope, slope)
    second = curvature + mean(left, left) - mean(left) ** 2
    return now.loss * jnp.exp(context * jnp.log(norm) - mean(tilt) + second / (2 * context))


def gradient(task: SymmetricTask, state: State, context: Float[Array, ""]) -> State:
    """Gradient of the population loss per *full* parameter, as `reduction.gradient` defines it."""
    found = jax.grad(lambda state: loss(task, state, context))(state)
    return finite_length.per_weight(task, found)


class Sequences(NamedTuple):
    """Sequences of a class, as the frequencies of its tokens one by one, the distinct ones first;
    and of which kind each token is."""

    frequencies: Float[Array, "N S"]
    kinds: Kinds


def sequences(task: SymmetricTask, length: Int[Number, ""]) -> Sequences:
    """SEQUENCES sequences that fill the law of the counts evenly: conditional binomials at points
    of a scrambled Sobol sequence.

    Raises:
        ValueError: for a task or a length that is traced, or a length that is not whole.
    """
    if checks.is_traced((task, length)):
        raise ValueError("tails = True: draws sequences, for which task and length must be known")
    rest = checks.integer("length", length, 2) - 1
    kinds = Kinds(_kinds(task.p, task.p_copies), _kinds(task.rho, task.rho_copies))
    p = np.concatenate([np.asarray(task.p)[kinds.distinct], np.asarray(task.rho)[kinds.common]])
    return Sequences(jnp.asarray(evenly_spread(p, rest) / rest), kinds)


def evenly_spread(p: Float[np.ndarray, " S"], total: int) -> Float[np.ndarray, "N S"]:
    """SEQUENCES count vectors of the multinomial law of `total` tokens with probabilities `p`."""
    # Importing it takes as long as importing JAX does.
    from scipy.stats import binom, qmc

    share = np.minimum(p / np.cumsum(p[::-1])[::-1], 1)
    uniform = qmc.Sobol(p.size, rng=0).random(SEQUENCES)
    counts, left = np.zeros((SEQUENCES, p.size)), np.full(SEQUENCES, total)
    for i in range(p.size):
        counts[:, i] = binom.ppf(uniform[:, i], left, share[i])
        left = left - counts[:, i]
    return counts


def losses(task: SymmetricTask, state: State, sample: Sequences) -> Float[Array, " N"]:
    """Loss of each sequence, over the root of their number."""
    kinds, Y, Z = sample.kinds, state.Y, state.Z
    distinct = [x[kinds.distinct] for x in (Y.own, Y.other, Y.rest)]
    common = [x[kinds.common] for x in (Y.common_next, Y.common_rest)]
    each = Attention(Z.distinct[kinds.distinct], Z.common[kinds.common])

    def one(c: Float[Array, " S"]) -> Float[Array, ""]:
        number = kinds.distinct.shape[0]
        of_one = SymmetricTask(c[:number], c[number:], task.K, task.M, task.num_queries)
        return reduction.measure(of_one, State(Decoder(*distinct, *common), each)).loss

    return jax.vmap(one)(sample.frequencies) / SEQUENCES**0.5


def gradient_of(task: SymmetricTask, state: State, sample: Sequences) -> State:
    """Gradient of the mean loss of a sample per *full* parameter."""
    found = jax.grad(lambda state: jnp.sum(losses(task, state, sample)))(state)
    return jax.tree.map(lambda g: g / SEQUENCES**0.5, finite_length.per_weight(task, found))


def covariance(along: Float[Array, "P N"]) -> Float[Array, "P P"]:
    r""":math:`\lambda^\top C \lambda'` of all pairs, from the derivatives of `losses`."""
    centred = along - jnp.mean(along, axis=1, keepdims=True)
    return centred @ centred.T


def _kinds(values: AnyArray, copies: AnyArray | None) -> np.ndarray:
    """Of which kind each of the tokens is."""
    one_each = 1 if copies is None else np.asarray(copies, int)
    return np.repeat(np.arange(np.size(values)), one_each)


class Law(NamedTuple):
    """Population loss, and its gradient per full parameter, of task, state and context; and the
    name of a theory with it."""

    loss: Callable[..., Array]
    gradient: Callable[..., State]
    name: Callable[[str, bool], str]


FIRST_ORDER = Law(finite_length.loss, finite_length.gradient, named)
TAILS = Law(loss, gradient, lambda name, finite: f"{named(name, finite)}-tails")


def law_of(task: SymmetricTask, length: Real[Number, ""], tails: bool) -> Law:
    """The law for sequences of some length; raises `ValueError` where it says nothing of them."""
    finite_length.check_length(task, length)
    if tails and isinstance(length, float) and math.isinf(length):
        raise ValueError("length = inf: sequences without end have no tails; use tails = False")
    return TAILS if tails else FIRST_ORDER
