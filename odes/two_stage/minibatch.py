"""Variance that the draw of the prompts gives to the gradients of a and b [ours].

The gradient of one prompt with the margin M = y N is G = -sigmoid(-M) dM/da. For its query, M and
dM/da are jointly normal over contexts, and Cov(M, dM/da) = (1/2) d Var(M)/da: with
M = mean + sd f, the mean of dM/da given f is the derivative of that, whence

    C = Var G = E[sigmoid(-M)^2 ((dM/da)^2 + Var(dM/da) - (d sd/da)^2)] - (dLoss/da)^2

and for b alike, where Var over contexts is exact because tokens come in pairs (x, y), -(x, y) for P
and in pairs of either sign of zeta for Q, one of which the ReLU lets through:

    W: Var = p^2 (kappa/L) (p2/2 - pbar^2/4)
    V: Var = r^4 (kappa/L) (1/4 - erf(m / s sqrt 2)^2 / 16)   for y = -1, else 0

A batch of B prompts makes noise of variance C/B beside tau_xi^2; a pool of N makes a force of
variance C/N that stays all along a run.

Assumes what `odes.two_stage.loss` does, and that each component has a loss of its own (c = 0).
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynsim.precision import AnyArray
from dynsim.two_stage.task import Prompts
from odes.two_stage.loss import Rule, half_normal_nodes, normal_nodes, outputs, weight_P
from odes.two_stage.maps import root
from odes.two_stage.state import ReducedState


class GradientVariance(NamedTuple):
    """Variance over prompts of dl/da and of dl/db, both ()."""

    a: Float[Array, ""]
    b: Float[Array, ""]


@functools.partial(jax.jit, static_argnames=("task", "rule"))
def gradient_variance(
    state: ReducedState, task: Prompts, *, rule: Rule | None = None
) -> GradientVariance:
    """C of the entries a = W[0,0] and b = V[0,0] in the reduced state, for c = 0. What is left
    out is smaller by O(1/L): of b 13 % at L = 33, 2.5 % at L = 129."""
    rule = rule or Rule()
    unit = ReducedState(1.0, 1.0, *(5 * (0.0,)))
    unit = jax.tree.map(lambda one, value: jnp.full_like(value, one), unit, state)

    def moments(state: ReducedState) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        P, (_, Q) = outputs(state, task, True, rule)
        return (P.mean, root(P.variance)), (Q.mean, root(Q.variance))

    (of_P, of_Q), (by_a, by_b) = jax.jvp(moments, (state,), (unit,))
    P, (_, Q) = outputs(state, task, True, rule)
    p = task.gamma0 + task.s1 * half_normal_nodes(rule.g)[0][:, None]
    each = task.kappa / task.length
    square = (task.mean_square_margin / 2 - task.mean_margin**2 / 4) * p**2
    passed = jax.lax.erf(Q.m / Q.s / math.sqrt(2)) / 4
    a = _moments(of_P, by_a, each * square, weight_P(P, rule), rule)
    b = _moments(of_Q, by_b, each * task.r**4 * (1 / 4 - passed**2), normal_nodes(rule.e)[1], rule)
    # Queries of the other class, half of all, have nothing along zeta.
    return GradientVariance(a[1] - a[0] ** 2, b[1] / 2 - (b[0] / 2) ** 2)


def _moments(
    margin: tuple[Array, Array],
    slope: tuple[Array, Array],
    variance: Float[AnyArray, "*#n"],
    weight: Float[AnyArray, "*n"],
    rule: Rule,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Mean and mean square of the gradient; `margin` and `slope` have mean and standard deviation
    over contexts, and their derivatives."""
    f, of_f = (values.astype(margin[0].dtype) for values in normal_nodes(rule.f))
    f = f.reshape(margin[0].ndim * (1,) + (-1,))
    gate = jax.nn.sigmoid(-(margin[0][..., None] + margin[1][..., None] * f))
    along = slope[0][..., None] + slope[1][..., None] * f
    left = (variance - slope[1] ** 2)[..., None]
    mean = jnp.sum(weight * ((gate * along) @ of_f))
    return -mean, jnp.sum(weight * ((gate**2 * (along**2 + left)) @ of_f))
