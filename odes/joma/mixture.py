r"""Theorem 3 of JoMA (arXiv:2310.00535): a node on a mixture of isotropic Gaussians.

With uniform attention a node receives :math:`x \sim \mathcal N(x_c, s^2 I)` from cluster c, and a
backpropagated gradient that is constant within each cluster,
:math:`a_c = \mathbb E[g \mid c]\, P(c)`. The paper's form, in unknown functions :math:`\theta_1`
and :math:`\theta_2`,

.. math::

    v' = \frac{1}{\lVert v \rVert} \sum_c a_c\, \theta_1(r_c)\, x_c
    + \frac{1}{\lVert v \rVert^3} \sum_c a_c\, \theta_2(r_c)\, v

becomes explicit by Stein's lemma [ours], with
:math:`u \sim \mathcal N(r_c, s^2 \lVert v \rVert^2)`, :math:`r_c = v \cdot x_c` + residual:

.. math::

    v' = \mathbb E[g\, \phi'(u)\, x]
    = \sum_c a_c \bigl( \mathbb E[\phi'(u)]\, x_c + s^2\, \mathbb E[\phi''(u)]\, v \bigr).

For a ReLU :math:`\mathbb E[\phi'] = \Phi(r_c / (s \lVert v \rVert))`, and
:math:`\mathbb E[\phi'']` is the density of u at 0. Assumes infinitely many samples and small steps.
We reconstructed the theorem without the paper's main text. From our form it follows that
:math:`\theta_1 = \lVert v \rVert\, \mathbb E[\phi']` and
:math:`\theta_2 = \lVert v \rVert^3 s^2\, \mathbb E[\phi'']`.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Real

from dynsim import checks
from dynsim.joma import ACTIVATIONS, Activation
from dynsim.precision import AnyArray, Number

HERMITE_NODES = 64
"""Number of Gauss-Hermite nodes, used for tanh."""


def slopes(
    r: Float[AnyArray, " C"], width: Float[AnyArray, ""], activation: Activation
) -> tuple[Float[Array, " C"], Float[Array, " C"]]:
    r"""Return the (C,) :math:`\mathbb E[\phi'(u)]` and :math:`\mathbb E[\phi''(u)]` of
    :math:`u \sim \mathcal N(r_c, \text{width}^2)`, width > 0."""
    r = jnp.asarray(r)
    if activation == "linear":
        return jnp.ones_like(r), jnp.zeros_like(r)
    # phi = u^2 / 2, so that phi' = u and phi'' = 1.
    if activation == "quadratic":
        return r, jnp.ones_like(r)
    if activation == "relu":
        density = jnp.exp(-((r / width) ** 2) / 2) / (math.sqrt(2 * math.pi) * width)
        return jax.scipy.special.ndtr(r / width), density
    # Only tanh is left, without a closed form: phi' = 1 - phi^2, phi'' = -2 phi phi'.
    x, weight = np.polynomial.hermite_e.hermegauss(HERMITE_NODES)
    nodes, weight = jnp.asarray(x, r.dtype), jnp.asarray(weight / weight.sum(), r.dtype)
    value = jnp.tanh(r[:, None] + width * nodes[None])
    first = 1 - value**2
    return first @ weight, (-2 * value * first) @ weight


def velocity(
    v: Float[AnyArray, " D"],
    centres: Float[AnyArray, "C D"],
    signal: Float[AnyArray, " C"],
    spread: Real[Number, ""],
    *,
    residual: Float[AnyArray, " C"] | float = 0.0,
    activation: Activation = "relu",
) -> Float[Array, " D"]:
    r"""Return :math:`v'` of one node, at unit rate.

    Args:
        v: (D,) its weights, not zero.
        centres: (C, D) means :math:`x_c` of the clusters.
        signal: (C,) :math:`a_c`, mean gradient times probability of a cluster.
        spread: standard deviation s of an entry around its mean, > 0.
        residual: (C,) residual added to v . x.
        activation: :math:`\phi`.

    Raises:
        ValueError: naming the argument, its value and what is allowed.
    """
    checks.choice("activation", activation, tuple(ACTIVATIONS))
    checks.real("spread", spread, 0, open_minimum=True)
    v, centres, signal = jnp.asarray(v), jnp.asarray(centres), jnp.asarray(signal)
    # v' = sum_c a_c (E[phi'(u)] x_c + s^2 E[phi''(u)] v), u ~ N(r_c, s^2 |v|^2).
    width = jnp.asarray(spread) * jnp.sqrt(jnp.sum(v**2))
    first, second = slopes(centres @ v + jnp.asarray(residual), width, activation)
    return (signal * first) @ centres + jnp.asarray(spread) ** 2 * jnp.sum(signal * second) * v
