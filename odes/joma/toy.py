"""Salient components first: v' = (mu - v) o exp(v^2/2) from zero (arXiv:2310.00535, section 4).

A heuristic of the paper, not derived from its Theorems 1 and 3. With the part left to learn
delta = 1 - v/mu and l = -ln delta, l' = exp(mu^2 (1 - e^-l)^2 / 2), so that exactly [ours]

    t(l) = int_0^l exp(-mu^2 (1 - e^-s)^2 / 2) ds,   t = e^{-mu^2/2} (l + c(mu)) for large l
    c(mu) = int_0^inf (exp(mu^2/2 (1 - (1 - e^-s)^2)) - 1) ds

which is Theorem 4, ln(1/delta_j)/ln(1/delta_k) -> e^{(mu_j^2 - mu_k^2)/2}, with its constant.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Real

from dynsim.precision import Number

NODES = 200
"""Of Gauss and Legendre, which is exact to rounding for mu up to 4."""
FAR = 40.0
"""Where e^-s is no more than rounding."""


def time_to_learn(level: Real[Number, ""], mu: Real[Number, ""]) -> Float[Array, ""]:
    """t at which ln(1/delta) = `level` >= 0."""
    s, weight = _nodes(level)
    return jnp.sum(weight * jnp.exp(-(mu**2) * (1 - jnp.exp(-s)) ** 2 / 2))


def delay(mu: Real[Number, ""]) -> Float[Array, ""]:
    """c(mu)."""
    s, weight = _nodes(FAR)
    return jnp.sum(weight * jnp.expm1(mu**2 / 2 * (1 - (1 - jnp.exp(-s)) ** 2)))


def speed_up(mu: Real[Number, ""], other: Real[Number, ""]) -> float:
    """e^{(mu^2 - other^2)/2}, the limit of Theorem 4."""
    return math.exp((float(mu) ** 2 - float(other) ** 2) / 2)


def _nodes(end: Real[Number, ""]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Nodes and weights of a quadrature over [0, end]."""
    x, weight = np.polynomial.legendre.leggauss(NODES)
    half = jnp.asarray(end) / 2
    return half * (1 + jnp.asarray(x, half.dtype)), half * jnp.asarray(weight, half.dtype)
