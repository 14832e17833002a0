r"""The symmetric reduction for sequences of finite length T, and for finite batches [ours].

The expansion is to first order in 1/T. If a permutation of classes with their tokens is a symmetry,
it permutes the token counts too. Hence the loss of `dynsim.yz.finite_length` is as symmetric as
that for infinite T, and the reduction stays exact. For one class, the derivatives along its D + C
kinds of tokens are given there, with three kinds of outputs: the class's own next token, the K - 1
others, and the M - K tokens that follow no class.

With `tails`, averages include the rare sequences that dominate the loss late in training. For a
tilt t,
:math:`Z = \sum_i p_i e^{t_i / L}`, :math:`q_i = p_i e^{t_i / L} / Z` and
:math:`s = \nabla \ln \ell(q)`

.. math::

    \ln \mathbb E\, \ell = \ln \ell(q) + L \ln Z - t \cdot q + \frac{1}{2L} \Bigl[
    \operatorname{tr} \bigl( \Sigma_q \nabla^2 \ln \ell(q) \bigr)
    + (s - t)^\top \Sigma_q\, (s - t) \Bigr] + O(L^{-2})

where t is the gradient at q, found by fixed-point iteration. See `docs/theory/finite-size.md`.

A batch of B sequences, on average B / K per class, differs from the population in two ways.
The frequency of token i in the class is :math:`p_i (1 + \epsilon_i)`, with
:math:`\operatorname{Var} \epsilon_i = K / (B L p_i)`, the inverse of the expected number of such
tokens. To first order this displaces the logits z: it adds the Hessian times :math:`(0, \epsilon)`
to the gradient. The class itself occurs :math:`1 + \zeta_n` times as often as expected, with
:math:`\operatorname{Var} \zeta_n = (K - 1)/B`. Each class has its own noise and its own reduced
variables. This neglects that all classes share the rows of Y of common tokens, and that the classes
of a query share its row of Z. The mean over classes therefore has the correct variance, but the
variance of the difference between two classes is too small.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Real

from dynsim import checks
from dynsim.precision import AnyArray, Number
from dynsim.yz.finite_length import Context, check_effective
from odes.symmetric import reduction
from odes.symmetric.state import (
    Attention,
    Decoder,
    Kinds,
    Reduced,
    State,
    SymmetricTask,
    columns,
)
from odes.theory import named


def check_length(task: SymmetricTask, length: Real[Number, ""]) -> None:
    """Check as `dynsim.yz.finite_length.check_length` does."""
    if not checks.is_traced(task):
        parts = ((task.p, task.p_copies), (task.rho, task.rho_copies))
        squares = (np.sum(np.square(p) * (1 if copies is None else copies)) for p, copies in parts)
        check_effective(1 / float(sum(squares)), length)


def loss(task: SymmetricTask, state: State, context: Context) -> Float[Array, "*B"]:
    """Return the population loss in nat for `context` contextual tokens."""
    now = reduction.measure(task, state)
    return now.loss if context is None else now.loss + correction(task, state, now) / context


def gradient(task: SymmetricTask, state: State, context: Context) -> State:
    """Return the population loss's gradient per *full* parameter, as in `reduction.gradient`."""
    # grad ell_n + grad tr(Sigma grad^2 ell_n) / (2 L).
    population = reduction.gradient(task, state)
    if context is None:
        return population

    def excess(state: State) -> Float[Array, ""]:
        # Runs do not depend on each other, so this is the gradient of each.
        return jnp.sum(correction(task, state, reduction.measure(task, state))) / context

    return jax.tree.map(jnp.add, population, per_weight(task, jax.grad(excess)(state)))


def per_weight(task: SymmetricTask, gradient: State) -> State:
    """Convert a gradient in the reduced numbers to the gradient in one of the weights that each
    represents."""
    # Without other classes or other outputs, there are no such entries.
    return jax.tree.map(
        lambda g, count: jnp.where(count > 0, g / jnp.where(count > 0, count, 1), 0),
        gradient,
        multiplicity(task),
    )


def slope(now: Reduced, p: Attention) -> Attention:
    r"""Return the loss's derivatives :math:`-(f_i / p_i) (g_i - f_i\, f \cdot g)` in the
    frequencies, see `dynsim.yz.finite_length`."""
    return jax.tree.map(lambda f, g, p: f * (f * now.speed - g) / p, now.f, now.g, p)


def correction(task: SymmetricTask, state: State, now: Reduced) -> Float[Array, "*B"]:
    r"""Return :math:`\operatorname{tr}(\Sigma\, \nabla^2 \ell_n) / 2` of a class, see
    `dynsim.yz.finite_length`."""
    Y, f, g = state.Y, now.f, now.g
    # Total probability of each kind of output; `terms` has Y_i - f_i y relative to the own output.
    other, rest = (task.K - 1) * now.other, (task.M - task.K) * now.rest

    def terms(
        f: Float[Array, "D *B"],
        g: Float[Array, "D *B"],
        to_other: Float[Array, "D *B"],
        to_rest: Float[Array, "D *B"],
        p: Float[Array, "D *_"],
    ) -> Float[Array, "D *B"]:
        # f^2 / p (2 f g + (1 - 3 f^2) gamma + Var_alpha(Y_i - f_i y)), a term for each token i.
        at_other, at_rest = to_other - f * now.to_other, to_rest - f * now.to_rest
        mean = other * at_other + rest * at_rest
        variance = other * at_other**2 + rest * at_rest**2 - mean**2
        return f**2 / p * (2 * f * g + (1 - 3 * f**2) * now.speed + variance)

    distinct = terms(f.distinct, g.distinct, Y.other - Y.own, Y.rest - Y.own, jnp.asarray(task.p))
    alike = jnp.zeros_like(Y.common_next)
    common = terms(f.common, g.common, alike, Y.common_rest - Y.common_next, jnp.asarray(task.rho))
    return (task.sum_distinct(distinct) + task.sum_common(common)) / 2


def multiplicity(task: SymmetricTask) -> State:
    """Return how many entries of the full Y and Z each reduced number represents."""
    K, M = task.K, task.M
    p = jnp.ones_like(jnp.asarray(task.p)) if task.p_copies is None else task.p_copies
    rho = jnp.ones_like(jnp.asarray(task.rho)) if task.rho_copies is None else task.rho_copies
    decoder = K * p, K * (K - 1) * p, K * (M - K) * p, K * rho, (M - K) * rho
    attention = K * p, task.num_queries * rho
    return State(Decoder(*map(jnp.asarray, decoder)), Attention(*map(jnp.asarray, attention)))


TILT_ITERATIONS = 3
"""Fixed-point iterations for the tilt."""
SEQUENCES = 4096
"""Number of sequences in the sample for the covariance of the gradient, whose saddle-point errors
would be nearly as large as the result."""


def loss_with_tails(
    task: SymmetricTask, state: State, context: Float[Array, ""]
) -> Float[Array, "*B"]:
    """Return the population loss in nat for `context` contextual tokens, with rare sequences."""

    def total(values: Attention) -> Float[Array, "*B"]:
        return task.sum_distinct(values.distinct) + task.sum_common(values.common)

    def at(q: Attention) -> tuple[SymmetricTask, Reduced, Attention]:
        """Return the task with frequencies q, its forward pass, and the log loss's gradient."""
        tilted = dataclasses.replace(task, p=q.distinct, rho=q.common)
        now = reduction.measure(tilted, state)
        return tilted, now, jax.tree.map(lambda s: s / now.loss, slope(now, q))

    # t = grad ln ell(q) with q_i = p_i e^{t_i / L} / Z, by iteration from q = p.
    p = Attention(jnp.asarray(task.p), jnp.asarray(task.rho))
    q = p = jax.tree.map(lambda x: x / total(p), p)
    for _ in range(TILT_ITERATIONS):
        tilt = at(q)[2]
        weight = jax.tree.map(lambda x, t: x * jnp.exp(t / context), p, tilt)
        norm = total(weight)
        q = jax.tree.map(lambda w, norm=norm: w / norm, weight)

    def mean(*factors: Attention) -> Float[Array, "*B"]:
        return total(jax.tree.map(lambda *x: jnp.prod(jnp.stack(x), axis=0), q, *factors))

    # tr(Sigma_q grad^2 ln ell) + (s - t)^T Sigma_q (s - t), with Sigma_q = diag(q) - q q^T and
    # grad^2 ln ell = grad^2 ell / ell - s s^T; q.s = 0, because scaling q does not change ell.
    tilted, now, pull = at(q)
    left = jax.tree.map(jnp.subtract, pull, tilt)
    curvature = 2 * correction(tilted, state, now) / now.loss - mean(pull, pull)
    second = curvature + mean(left, left) - mean(left) ** 2
    return now.loss * jnp.exp(context * jnp.log(norm) - mean(tilt) + second / (2 * context))


def gradient_with_tails(task: SymmetricTask, state: State, context: Float[Array, ""]) -> State:
    """Return the gradient of `loss_with_tails` per *full* parameter, as in `reduction.gradient`."""
    # The sum over runs, each of which depends on its own state only.
    of_numbers = jax.grad(lambda state: jnp.sum(loss_with_tails(task, state, context)))(state)
    return per_weight(task, of_numbers)


class Sequences(NamedTuple):
    """Sampled sequences of a class: the frequency of each token, distinct ones first, and the kind
    of each token."""

    frequencies: Float[Array, "N S"]
    kinds: Kinds


def sequences(task: SymmetricTask, length: Int[Number, ""]) -> Sequences:
    """Return SEQUENCES sequences that cover the distribution of counts evenly: conditional
    binomials at the points of a scrambled Sobol sequence.

    Raises:
        ValueError: for a traced task or length, or a length that is not whole.
    """
    if checks.is_traced((task, length)):
        raise ValueError("tails = True: draws sequences, so task and length must not be traced")
    rest = checks.integer("length", length, 2) - 1
    kinds = Kinds(_kinds(task.p, task.p_copies), _kinds(task.rho, task.rho_copies))
    p = np.concatenate([np.asarray(task.p)[kinds.distinct], np.asarray(task.rho)[kinds.common]])
    return Sequences(jnp.asarray(even_counts(p, rest) / rest), kinds)


def even_counts(p: Float[np.ndarray, " S"], total: int) -> Float[np.ndarray, "N S"]:
    """Return SEQUENCES multinomial count vectors of `total` tokens with probabilities `p`."""
    # Imported here, because it takes as long to import as JAX.
    from scipy.stats import binom, qmc

    # A multinomial is a chain of binomials: of the tokens that are left, a share p_i / sum_{j >= i}
    # p_j is token i. Rounding must not make it exceed 1.
    share = np.minimum(p / np.cumsum(p[::-1])[::-1], 1)
    uniform = qmc.Sobol(p.size, rng=0).random(SEQUENCES)
    counts, left = np.zeros((SEQUENCES, p.size)), np.full(SEQUENCES, total)
    for i in range(p.size):
        counts[:, i] = binom.ppf(uniform[:, i], left, share[i])
        left = left - counts[:, i]
    return counts


def losses(task: SymmetricTask, state: State, sample: Sequences) -> Float[Array, " N"]:
    """Return the loss of each sequence, divided by the square root of their number."""
    kinds, Y, Z = sample.kinds, state.Y, state.Z
    distinct = [x[kinds.distinct] for x in (Y.own, Y.other, Y.rest)]
    common = [x[kinds.common] for x in (Y.common_next, Y.common_rest)]
    of_tokens = Attention(Z.distinct[kinds.distinct], Z.common[kinds.common])

    # A sequence acts like a class whose probabilities are its frequencies.
    def one(c: Float[Array, " S"]) -> Float[Array, ""]:
        number = kinds.distinct.shape[0]
        of_one = SymmetricTask(c[:number], c[number:], task.K, task.M, task.num_queries)
        return reduction.measure(of_one, State(Decoder(*distinct, *common), of_tokens)).loss

    return jax.vmap(one)(sample.frequencies) / SEQUENCES**0.5


def gradient_of_sample(task: SymmetricTask, state: State, sample: Sequences) -> State:
    """Return the gradient of a sample's mean loss per *full* parameter."""
    of_numbers = jax.grad(lambda state: jnp.sum(losses(task, state, sample)))(state)
    return jax.tree.map(lambda g: g / SEQUENCES**0.5, per_weight(task, of_numbers))


def covariance(along: Float[Array, "P N"]) -> Float[Array, "P P"]:
    r"""Return :math:`\lambda^\top C \lambda'` of all pairs, from the derivatives of `losses`."""
    centred = along - jnp.mean(along, axis=1, keepdims=True)
    return centred @ centred.T


def _kinds(values: AnyArray, copies: AnyArray | None) -> np.ndarray:
    one_each = 1 if copies is None else np.asarray(copies, int)
    return np.repeat(np.arange(np.size(values)), one_each)


class LossLaw(NamedTuple):
    """Population loss and its gradient per full parameter, as functions of task, state and context,
    and the name of the theory as a function of its base name and whether T is finite."""

    loss: Callable[..., Array]
    gradient: Callable[..., State]
    name: Callable[[str, bool], str]


FIRST_ORDER = LossLaw(loss, gradient, named)
TAILS = LossLaw(
    loss_with_tails, gradient_with_tails, lambda name, finite: f"{named(name, finite)}-tails"
)


def law_of(task: SymmetricTask, length: Real[Number, ""], tails: bool) -> LossLaw:
    """Return the law for sequences of a length; raise `ValueError` if it does not apply to it."""
    check_length(task, length)
    if tails and isinstance(length, float) and math.isinf(length):
        raise ValueError("length = inf: infinite sequences have no tails; use tails = False")
    return TAILS if tails else FIRST_ORDER


class Batches(NamedTuple):
    """The batches of a run.

    Attributes:
        key: random key; step k uses fold_in(key, k).
        size: B, sequences per batch.
    """

    key: PRNGKeyArray
    size: Float[Array, ""]


class Draw(NamedTuple):
    """Noise of one batch for N classes: zeta, and epsilon of distinct and common tokens."""

    count: Float[Array, "*N"]
    distinct: Float[Array, "D *N"]
    common: Float[Array, "C *N"]


def draw_noise(
    task: SymmetricTask, batches: Batches, context: Context, classes: int, k: Int[Array, ""]
) -> Draw:
    """Draw the noise of step k for `classes` of the K classes."""
    # Var zeta = (K - 1) / B, and Var epsilon_i = K / (B L p_i), the inverse of an expected number.
    of_class, of_distinct, of_common = jax.random.split(jax.random.fold_in(batches.key, k), 3)
    dtype = batches.size.dtype
    one = jax.random.normal(of_class, (classes + 1,), dtype)
    # The zetas of all K classes sum to zero; the last number represents the other classes.
    total = jnp.sum(one[:-1]) + jnp.sqrt(task.K - classes) * one[-1]
    count = jnp.sqrt(task.K / batches.size) * (one[:-1] - total / task.K)

    def shift(key: PRNGKeyArray, p: Array, copies: AnyArray | None) -> Float[Array, "D N"]:
        noise = jnp.zeros((*jnp.shape(p), classes), dtype)
        if context is None:
            return noise
        expected = p * batches.size * context / task.K * (1 if copies is None else copies)
        return jax.random.normal(key, noise.shape, dtype) / jnp.sqrt(expected)[:, None]

    return Draw(
        count,
        shift(of_distinct, jnp.asarray(task.p), task.p_copies),
        shift(of_common, jnp.asarray(task.rho), task.rho_copies),
    )


def noisy_loss_and_gradient(
    task: SymmetricTask, states: State, context: Context, draw: Draw
) -> tuple[Float[Array, "*B"], State]:
    """Return the population loss, averaged over N classes, and their noisy gradient.

    Args:
        states: states of the N classes, with axes (..., N, *B).
    """
    axes = states.Z.distinct.ndim - 2
    task, noise = columns(task, axes + 1), columns(draw, axes)
    mean = gradient(task, states, context)
    if context is not None:
        # H (0, epsilon): frequencies p (1 + epsilon) act like logits z + epsilon.
        still = jax.tree.map(jnp.zeros_like, states.Y)
        moves = Attention(noise.distinct, noise.common)
        moves = jax.tree.map(lambda by, z: jnp.broadcast_to(by, z.shape), moves, states.Z)
        shifted = State(still, moves)
        _, added = jax.jvp(lambda at: reduction.gradient(task, at), (states,), (shifted,))
        mean = jax.tree.map(jnp.add, mean, added)
    # The class occurs 1 + zeta times as often as expected.
    scaled = jax.tree.map(lambda leaf: (1 + noise.count) * leaf, mean)
    return jnp.mean(loss(task, states, context), axis=0), scaled
