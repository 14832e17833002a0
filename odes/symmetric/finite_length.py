"""The symmetric reduction for sequences of finite length T, to first order in 1/T [ours].

If classes may be permuted together with their tokens, so may their counts; hence the loss of
`dynsim.yz.finite_length` is as symmetric as that of T infinite, and the reduced numbers stay
closed. For one class the derivatives along its D + C kinds of tokens are those given there, with
three kinds of outputs: the class's own next token, the K - 1 others, and the M - K tokens that
follow no class.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Real

from dynsim import checks
from dynsim.precision import Number
from dynsim.yz.finite_length import Context, check_effective
from odes.symmetric import reduction
from odes.symmetric.state import Attention, Decoder, Reduced, State, SymmetricTask


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
