"""What the two components of a prompt make of given weights, for infinitely many tokens.

For w = W x_L, v = V x_L and kappa = (L-1)/L, the mean over the context of the normalised-ReLU
attention of arXiv:2502.20681 is, exactly,

    N_W(x_L) =  (kappa/2) pbar w_0,                        pbar = E[y x . w_star]
    N_V(x_L) = -(kappa/4) D(r v_0, s2 |v_{1:}|)
    G(m, s) = E|N(m, s^2)|,  D(m, s) = G(m, s) - G(0, s) >= 0

N_W is linear because P is symmetric under (x, y) -> -(x, y) and ReLU(s) - ReLU(-s) = s, so that
P is learned whatever the gates do. N_V has no linear part, and none of either sign: the
negative class is a symmetric spread of the positive one, which a convex ReLU can only raise.
With N_V <= 0 the loss of Q has the floor (1/2) log 2 for every V, at any L.

Assumes the core "fresh" of `dynsim.Prompts`. The paper was at hand in fragments: this is a
reconstruction derived by us, and so is the floor.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Real

from dynsim.precision import Number
from dynsim.two_stage.task import Prompts

JENSEN_FLOOR = 0.5 * math.log(2)
"""Least K2 of any V, in nat: the positives are at chance, log 2, and the negatives at 0."""

EPS = 1e-12
"""Added under every root, so that a weight or noise of zero has a derivative."""


def root(square: Real[Number, "..."]) -> Float[Array, "..."]:
    """sqrt(max(square, 0) + EPS), elementwise."""
    return jnp.sqrt(jnp.maximum(square, 0) + EPS)


def G(m: Real[Number, "..."], s: Real[Number, "..."]) -> Float[Array, "..."]:
    """E|N(m, s^2)| = s sqrt(2/pi) exp(-m^2 / 2 s^2) + m erf(m / (s sqrt 2)), elementwise;
    s >= 0."""
    return D(m, s) + math.sqrt(2 / math.pi) * jnp.asarray(s)


@jax.custom_jvp
def D(m: Real[Number, "..."], s: Real[Number, "..."]) -> Float[Array, "..."]:
    """G(m, s) - G(0, s) in [0, |m|], elementwise, without cancellation for small m; s >= 0."""
    m, s = _inner(m, s)
    ratio = m / s
    spread = math.sqrt(2 / math.pi) * jnp.expm1(-0.5 * ratio**2)
    return s * spread + m * jax.lax.erf(ratio / math.sqrt(2))


@D.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    # The derivatives of the terms cancel all but these two, which hold up to s = 0.
    (m, s), (m_dot, s_dot) = _inner(*primals), tangents
    ratio = m / s
    by_m = jax.lax.erf(ratio / math.sqrt(2))
    by_s = math.sqrt(2 / math.pi) * jnp.expm1(-0.5 * ratio**2)
    return D(*primals), by_m * m_dot + by_s * s_dot


def _inner(
    m: Real[Number, "..."], s: Real[Number, "..."]
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Arrays of one floating dtype, and s away from 0 by less than rounding of m and s."""
    dtype = jnp.result_type(float, m, s)
    # The smallest number whose ratios still have finite squares in float32.
    return jnp.asarray(m, dtype), jnp.maximum(jnp.asarray(s, dtype), 1e-15)


def population_P(
    W: Float[Array, "d d"], x_L: Float[Array, "N d"], task: Prompts
) -> Float[Array, " N"]:
    """N_W on the P component (N, d) of the queries, in the mean over their contexts."""
    return (x_L @ W[0]) * (0.5 * task.kappa * task.mean_margin)


def population_Q(
    V: Float[Array, "d d"], x_L: Float[Array, "N d"], task: Prompts
) -> Float[Array, " N"]:
    """N_V <= 0 on the Q component (N, d) of the queries, in the mean over their contexts."""
    v = x_L @ V.T
    across = jnp.sqrt(jnp.sum(v[:, 1:] ** 2, axis=1))
    return -0.25 * task.kappa * D(task.r * v[:, 0], task.s2 * across)
