r"""Salient components first: a heuristic of JoMA from zero weights (arXiv:2310.00535, section 4).

It is not derived from the paper's Theorems 1 and 3. Elementwise, with the part left to learn
:math:`\delta = 1 - v/\mu` and :math:`l = -\ln \delta` [ours],

.. math::

    \begin{align*}
    v' &= (\mu - v) \odot e^{v^2/2}, \qquad
        t(l) = \int_0^l e^{-\mu^2 (1 - e^{-s})^2 / 2}\, ds, \qquad
        t = e^{-\mu^2/2}\, \bigl( l + c(\mu) \bigr) \text{ for large } l \\
    c(\mu) &= \int_0^\infty
        \Bigl( e^{\frac{\mu^2}{2} \left( 1 - (1 - e^{-s})^2 \right)} - 1 \Bigr)\, ds
    \end{align*}

which is Theorem 4, :math:`\ln(1/\delta_j) / \ln(1/\delta_k) \to e^{(\mu_j^2 - \mu_k^2)/2}`, with
its constant.

With softmax instead of exp, :math:`v' = (\mu - v) \odot \operatorname{softmax}(v^2/(2T))`, all
components share a time variable s with :math:`ds/dt = 1/\sum_j e^{v_j^2/(2T)}`, and in s each
follows the equation above in :math:`v/\sqrt T`. As :math:`l_j' = e^{v_j^2/(2T)}` in s, the sum of
the increases of :math:`l_j` equals t [ours]:

.. math::

    t = \sum_j \ln \frac{\mu_j - v_j(0)}{\mu_j - v_j}.

This gives the paper's Fig. 4 without a solver.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Real

from dynsim.precision import AnyArray, Number

QUADRATURE_NODES = 200
"""Number of Gauss-Legendre nodes, exact to rounding for mu up to 4."""
FAR = 40.0
"""Value of s at which e^-s is below rounding."""
TOY_BISECTIONS = 60


def time_to_learn(level: Real[Number, "*#B"], mu: Real[Number, "*#B"]) -> Float[Array, "*B"]:
    r"""Return the t at which :math:`\ln(1/\delta)` is `level` >= 0, elementwise."""
    # t = int_0^level e^{-mu^2 (1 - e^{-s})^2 / 2} ds.
    s, weight = _nodes(level)
    slope = jnp.exp(-(jnp.asarray(mu)[..., None] ** 2) * (1 - jnp.exp(-s)) ** 2 / 2)
    return jnp.sum(weight * slope, axis=-1)


def level_after(
    s: Float[AnyArray, "S 1"], mu: Float[AnyArray, " D"], start: Float[AnyArray, " D"]
) -> Float[Array, "S D"]:
    r"""Return (S, D) :math:`\ln(1/\delta)` a time `s` after it was `start`, the inverse of
    `time_to_learn`."""
    shape = s.shape[0], mu.shape[0]
    mu, start = (jnp.broadcast_to(jnp.asarray(x)[None], shape) for x in (mu, start))
    target = s + time_to_learn(start, mu)

    def halve(_: Int[Array, ""], bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) / 2
        early = time_to_learn(middle, mu) < target
        return jnp.where(early, middle, low), jnp.where(early, high, middle)

    # t(l) rises, so bisection inverts it.
    far = jnp.full(shape, FAR, target.dtype)
    low, _ = jax.lax.fori_loop(0, TOY_BISECTIONS, halve, (start, far))
    # Beyond `far`, l rises at a constant rate.
    beyond = (target - time_to_learn(far, mu)) * jnp.exp(mu**2 / 2)
    return low + jnp.maximum(beyond, 0)


def under_softmax(
    s: Float[AnyArray, " S"],
    mu: Float[AnyArray, " D"],
    start: Float[AnyArray, " D"],
    temperature: Real[Number, ""] = 1.0,
) -> tuple[Float[Array, " S"], Float[Array, "S D"]]:
    r"""Solve :math:`v' = (\mu - v) \odot \operatorname{softmax}(v^2/(2T))` in closed form.

    Args:
        s: (S,) values of the time variable of :math:`v' = (\mu - v) \odot e^{v^2/(2T)}`, from 0.
        mu: (D,) critical point, > 0.
        start: (D,) v at s = 0, in [0, mu).
        temperature: T.

    Returns:
        (S,) times t and (S, D) weights v.
    """
    mu, start = jnp.asarray(mu), jnp.asarray(start)
    # In v / sqrt(T) each component follows the equation without softmax, in the common time s.
    first = -jnp.log1p(-start / mu)
    level = level_after(jnp.asarray(s)[:, None], mu / jnp.sqrt(jnp.asarray(temperature)), first)
    # t = sum_j (l_j - l_j(0)), and v = mu (1 - e^{-l}).
    return jnp.sum(level - first[None], axis=1), -mu[None] * jnp.expm1(-level)


def delay(mu: Real[Number, ""]) -> Float[Array, ""]:
    r"""Return the constant :math:`c(\mu)` of the late-time expansion above."""
    s, weight = _nodes(FAR)
    return jnp.sum(weight * jnp.expm1(mu**2 / 2 * (1 - (1 - jnp.exp(-s)) ** 2)))


def _nodes(end: Real[Number, "*B"]) -> tuple[Float[Array, "*B n"], Float[Array, "*B n"]]:
    """Return nodes and weights of a quadrature over [0, end], on an axis after those of `end`."""
    x, weight = np.polynomial.legendre.leggauss(QUADRATURE_NODES)
    half = jnp.asarray(end)[..., None] / 2
    behind = (1,) * (half.ndim - 1) + (QUADRATURE_NODES,)
    x, weight = (jnp.asarray(values.reshape(behind), half.dtype) for values in (x, weight))
    return half * (1 + x), half * weight
