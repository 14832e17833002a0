r"""The symmetric reduction for sequences of finite length T, and for batches [ours].

To first order in 1/T. If classes may be permuted together with their tokens, so may their counts;
hence the loss of `dynsim.yz.finite_length` is as symmetric as that of T infinite, and the reduced
numbers stay closed. For one class the derivatives along its D + C kinds of tokens are those given
there, with three kinds of outputs: the class's own next token, the K - 1 others, and the M - K
tokens that follow no class.

With `tails`, averages see the rare sequences that make the loss late in training. With a tilt t,
:math:`Z = \sum_i p_i e^{t_i / L}`, :math:`q_i = p_i e^{t_i / L} / Z` and
:math:`s = \nabla \ln \ell(q)`

.. math::

    \ln \mathbb E\, \ell = \ln \ell(q) + L \ln Z - t \cdot q + \frac{1}{2L} \Bigl[
    \operatorname{tr} \bigl( \Sigma_q \nabla^2 \ln \ell(q) \bigr)
    + (s - t)^\top \Sigma_q\, (s - t) \Bigr] + O(L^{-2})

with t the gradient at q, by a few turns of a fixed point. `docs/theory/finite-size.md` derives it.

A batch of B sequences, of which B / K belong to a class, differs from the population in two ways.
The frequency of token i in the class is :math:`p_i (1 + \epsilon_i)`, with
:math:`\operatorname{Var} \epsilon_i = K / (B L p_i)`, one over the expected number of such tokens.
To first order these act as a displacement of the logits z: what they add to the gradient is the
Hessian times :math:`(0, \epsilon)`. And the class itself occurs :math:`1 + \zeta_n` times as often
as expected, with :math:`\operatorname{Var} \zeta_n = (K - 1)/B`. Each class has its own noise, and
reduced numbers of its own. Left out is that the rows of Y of common tokens are the same for
all classes, as are those of Z for the classes of a query. So the mean over the classes scatters as
it should, the difference between two of them too little.
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
from odes.symmetric.state import Attention, Decoder, Kinds, Reduced, State, SymmetricTask
from odes.theory import named


def check_length(task: SymmetricTask, length: Real[Number, ""]) -> None:
    """As `dynsim.yz.finite_length.check_length`."""
    if not checks.is_traced(task):
        parts = ((task.p, task.p_copies), (task.rho, task.rho_copies))
        squares = (np.sum(np.square(p) * (1 if copies is None else copies)) for p, copies in parts)
        check_effective(1 / float(sum(squares)), length)


def loss(task: SymmetricTask, state: State, context: Context) -> Float[Array, ""]:
    """Population loss in nat for `context` contextual tokens."""
    now = reduction.measure(task, state)
    return now.loss if context is None else now.loss + correction(task, state, now) / context


def gradient(task: SymmetricTask, state: State, context: Context) -> State:
    """Gradient of the population loss per *full* parameter, as `reduction.gradient` defines it."""
    population = reduction.gradient(task, state)
    if context is None:
        return population

    def excess(state: State) -> Float[Array, ""]:
        return correction(task, state, reduction.measure(task, state)) / context

    return jax.tree.map(jnp.add, population, per_weight(task, jax.grad(excess)(state)))


def per_weight(task: SymmetricTask, gradient: State) -> State:
    """A gradient with respect to the reduced numbers, converted to that with respect to one of the
    weights that each stands for."""
    # Without other classes, or other outputs, there are no such entries.
    return jax.tree.map(
        lambda g, count: jnp.where(count > 0, g / jnp.where(count > 0, count, 1), 0),
        gradient,
        multiplicity(task),
    )


def slope(now: Reduced, p: Attention) -> Attention:
    r"""Derivatives :math:`-(f_i / p_i) (g_i - f_i\, f \cdot g)` of the loss by the frequencies, see
    `dynsim.yz.finite_length`."""
    return jax.tree.map(lambda f, g, p: f * (f * now.speed - g) / p, now.f, now.g, p)


def correction(task: SymmetricTask, state: State, now: Reduced) -> Float[Array, ""]:
    r""":math:`\operatorname{tr}(\Sigma\, \nabla^2 \ell_n) / 2` of a class, see
    `dynsim.yz.finite_length`."""
    Y, f, g = state.Y, now.f, now.g
    # Probability of all outputs of a kind, and what the terms Y_i - f_i y have at them, less what
    # they have at the own output.
    other, rest = (task.K - 1) * now.other, (task.M - task.K) * now.rest

    def terms(
        f: Float[Array, " D"],
        g: Float[Array, " D"],
        to_other: Float[Array, " D"],
        to_rest: Float[Array, " D"],
        p: Float[Array, " D"],
    ) -> Float[Array, " D"]:
        at_other, at_rest = to_other - f * now.to_other, to_rest - f * now.to_rest
        mean = other * at_other + rest * at_rest
        variance = other * at_other**2 + rest * at_rest**2 - mean**2
        return f**2 / p * (2 * f * g + (1 - 3 * f**2) * now.speed + variance)

    distinct = terms(f.distinct, g.distinct, Y.other - Y.own, Y.rest - Y.own, jnp.asarray(task.p))
    alike = jnp.zeros_like(Y.common_next)
    common = terms(f.common, g.common, alike, Y.common_rest - Y.common_next, jnp.asarray(task.rho))
    return (task.sum_distinct(distinct) + task.sum_common(common)) / 2


def multiplicity(task: SymmetricTask) -> State:
    """How many entries of the full Y and Z each reduced number stands for."""
    K, M = task.K, task.M
    p = jnp.ones_like(jnp.asarray(task.p)) if task.p_copies is None else task.p_copies
    rho = jnp.ones_like(jnp.asarray(task.rho)) if task.rho_copies is None else task.rho_copies
    decoder = K * p, K * (K - 1) * p, K * (M - K) * p, K * rho, (M - K) * rho
    attention = K * p, task.num_queries * rho
    return State(Decoder(*map(jnp.asarray, decoder)), Attention(*map(jnp.asarray, attention)))


TURNS = 3
"""Turns of the fixed point for the tilt."""
SEQUENCES = 4096
"""Sequences that stand for all where the covariance of the gradient is wanted, in which errors of
the saddle point nearly cancel the result."""


def loss_with_tails(
    task: SymmetricTask, state: State, context: Float[Array, ""]
) -> Float[Array, ""]:
    """Population loss in nat for `context` contextual tokens."""

    def total(values: Attention) -> Float[Array, ""]:
        return task.sum_distinct(values.distinct) + task.sum_common(values.common)

    def at(q: Attention) -> tuple[SymmetricTask, Reduced, Attention]:
        """The task with other frequencies, what is measured there, and the gradient of log loss."""
        tilted = dataclasses.replace(task, p=q.distinct, rho=q.common)
        now = reduction.measure(tilted, state)
        return tilted, now, jax.tree.map(lambda s: s / now.loss, slope(now, q))

    p = Attention(jnp.asarray(task.p), jnp.asarray(task.rho))
    q = p = jax.tree.map(lambda x: x / total(p), p)
    for _ in range(TURNS):
        tilt = at(q)[2]
        weight = jax.tree.map(lambda x, t: x * jnp.exp(t / context), p, tilt)
        norm = total(weight)
        q = jax.tree.map(lambda w, norm=norm: w / norm, weight)

    def mean(*factors: Attention) -> Float[Array, ""]:
        return total(jax.tree.map(lambda *x: jnp.prod(jnp.stack(x), axis=0), q, *factors))

    tilted, now, pull = at(q)
    left = jax.tree.map(jnp.subtract, pull, tilt)
    curvature = 2 * correction(tilted, state, now) / now.loss - mean(pull, pull)
    second = curvature + mean(left, left) - mean(left) ** 2
    return now.loss * jnp.exp(context * jnp.log(norm) - mean(tilt) + second / (2 * context))


def gradient_with_tails(task: SymmetricTask, state: State, context: Float[Array, ""]) -> State:
    """Gradient of the population loss per *full* parameter, as `reduction.gradient` defines it."""
    found = jax.grad(lambda state: loss_with_tails(task, state, context))(state)
    return per_weight(task, found)


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
        raise ValueError("tails = True: draws sequences, so task and length must not be traced")
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
    return jax.tree.map(lambda g: g / SEQUENCES**0.5, per_weight(task, found))


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


FIRST_ORDER = Law(loss, gradient, named)
TAILS = Law(
    loss_with_tails, gradient_with_tails, lambda name, finite: f"{named(name, finite)}-tails"
)


def law_of(task: SymmetricTask, length: Real[Number, ""], tails: bool) -> Law:
    """The law for sequences of some length; raises `ValueError` where it says nothing of them."""
    check_length(task, length)
    if tails and isinstance(length, float) and math.isinf(length):
        raise ValueError("length = inf: infinite sequences have no tails; use tails = False")
    return TAILS if tails else FIRST_ORDER


class Batches(NamedTuple):
    """The batches of a run.

    Attributes:
        key: step k draws with fold_in(key, k).
        size: B, sequences per batch.
    """

    key: PRNGKeyArray
    size: Float[Array, ""]


class Draw(NamedTuple):
    """What one batch adds, for N classes: zeta, and epsilon of distinct and of common tokens."""

    count: Float[Array, "*N"]
    distinct: Float[Array, "D *N"]
    common: Float[Array, "C *N"]


def drawn_noise(
    task: SymmetricTask, batches: Batches, context: Context, classes: int, k: Int[Array, ""]
) -> Draw:
    """The noise of step k in so many of the K classes."""
    of_class, of_distinct, of_common = jax.random.split(jax.random.fold_in(batches.key, k), 3)
    dtype = batches.size.dtype
    one = jax.random.normal(of_class, (classes + 1,), dtype)
    # The zetas of all K classes sum to zero; the last number stands for those not followed.
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
    task: SymmetricTask, states: State, context: Context, drawn: Draw
) -> tuple[Float[Array, ""], State]:
    """Population loss, averaged over N classes, and the gradient (..., N) that a batch gives them.

    Args:
        states: of the N classes, with that axis last.
    """

    def of_class(state: State, noise: Draw) -> tuple[Array, State]:
        found = gradient(task, state, context)
        if context is not None:
            shift = Attention(noise.distinct, noise.common)
            still = jax.tree.map(jnp.zeros_like, state.Y)
            added = jax.jvp(
                lambda at: reduction.gradient(task, at), (state,), (State(still, shift),)
            )[1]
            found = jax.tree.map(jnp.add, found, added)
        scaled = jax.tree.map(lambda leaf: (1 + noise.count) * leaf, found)
        return loss(task, state, context), scaled

    losses, gradients = jax.vmap(of_class, in_axes=-1, out_axes=-1)(states, drawn)
    return jnp.mean(losses), gradients
