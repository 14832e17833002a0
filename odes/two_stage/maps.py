r"""Outputs of the two components of a prompt for given weights and infinitely many tokens.

For :math:`w = W x_L`, :math:`v = V x_L` and :math:`\kappa = (L-1)/L`, the mean over the context of
the normalised-ReLU attention of arXiv:2502.20681 is, exactly,

.. math::

    \begin{align*}
    N_W(x_L) &= \tfrac{\kappa}{2}\, \bar p\, w_0, \qquad
        \bar p = \mathbb E[y\, x \cdot w_\star] \\
    N_V(x_L) &= -\tfrac{\kappa}{4}\, D(r v_0, s_2 \lVert v_{1:} \rVert) \\
    G(m, s) &= \mathbb E\, |\mathcal N(m, s^2)|, \qquad D(m, s) = G(m, s) - G(0, s) \ge 0
    \end{align*}

:math:`N_W` is linear because P is symmetric under (x, y) -> -(x, y) and ReLU(s) - ReLU(-s) = s, so
that P is learned with any gates. :math:`N_V` has no linear part, and none of either sign: the
negative class is a symmetric spread of the positive one, which a convex ReLU can only raise. With
:math:`N_V \le 0` the loss of Q has the floor :math:`\tfrac12 \ln 2` for every V, at any L.

Assumes the core "fresh" of `dynsim.Prompts`. We reconstructed these equations, and the floor, from
fragments of the paper and derived them ourselves; they are not the authors' text.
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
    r""":math:`\sqrt{\max(x, 0) + \epsilon}` of x = `square`, elementwise; :math:`\epsilon` is
    `EPS`."""
    return jnp.sqrt(jnp.maximum(square, 0) + EPS)


def G(m: Real[Number, "..."], s: Real[Number, "..."]) -> Float[Array, "..."]:
    r"""The mean modulus of a normal number, elementwise; s >= 0:

    .. math::

        G(m, s) = \mathbb E\, |\mathcal N(m, s^2)|
        = s \sqrt{\frac2\pi}\, e^{-m^2/(2 s^2)} + m \operatorname{erf}\frac{m}{s \sqrt2}.
    """
    return D(m, s) + math.sqrt(2 / math.pi) * jnp.asarray(s)


@jax.custom_jvp
def D(m: Real[Number, "..."], s: Real[Number, "..."]) -> Float[Array, "..."]:
    """G(m, s) - G(0, s), which is in :math:`[0, |m|]`, elementwise, without cancellation for small
    m; s >= 0."""
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
    """:math:`N_W` on the P component (N, d) of the queries, in the mean over their contexts."""
    return (x_L @ W[0]) * (0.5 * task.kappa * task.mean_margin)


def population_Q(
    V: Float[Array, "d d"], x_L: Float[Array, "N d"], task: Prompts
) -> Float[Array, " N"]:
    r""":math:`N_V \le 0` on the Q component (N, d) of the queries, in the mean over their
    contexts."""
    v = x_L @ V.T
    across = jnp.sqrt(jnp.sum(v[:, 1:] ** 2, axis=1))
    return -0.25 * task.kappa * D(task.r * v[:, 0], task.s2 * across)
