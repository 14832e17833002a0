r"""Coefficients of the backpropagated gradient (Scan and Snap, Theorem 1, Eqs. 86-93).

With :math:`G = F F^\top = I + E` and :math:`G^{-1} = I - E'` (Lemma 14), to leading order in 1/M:

.. math::

    g_n = \gamma \Bigl( \iota_n f_n - \sum_{n' \ne n} \beta_{nn'} f_{n'} \Bigr), \qquad
    \iota_n = 1 - E'_{nn}, \qquad \beta_{nn'} = E'_{n'n}, \qquad
    \xi_n = \gamma \bigl( (G^{-1})_{nn} - 1 \bigr)

At finite M (Eqs. 86, 88) :math:`g_n = \sum_{n'} (A G^{-1})_{nn'} f_{n'}`, with the overlaps
:math:`\zeta_n \cdot \zeta_n = q_1 = 1 + 1/(M-1)` and
:math:`\zeta_n \cdot \zeta_{n'} = q_0 = -M/(M-1)^2`,

.. math::

    A_{nn'} = (\zeta_n \cdot \zeta_{n'})\, \frac{(M-1)^2\, h_{n'}}{(M-1) + e^{M h_n}},

whose leading order is :math:`A = \operatorname{diag}(\gamma)`. The functions accept both: `speed`
is :math:`\gamma` (K,), or A (K, K) from `finite_m_speed`. `docs/theory/attention.md` derives both.

Assumes that the :math:`f_n` are linearly independent, so that G is invertible. (The paper's list
of notation gives E' the opposite sign; the sign of Lemma 14 is the consistent one.)

Example:
    >>> f = jnp.asarray([[0.8, 0.6, 0.0], [0.8, 0.0, 0.6]])
    >>> odes.coefficients.xi(f, jnp.ones(2)).round(3)
    Array([0.694, 0.694], dtype=float32)
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynsim.precision import one_by_one


def gram_inverse(f: Float[Array, "K M"]) -> Float[Array, "K K"]:
    r"""Return the symmetric :math:`(F F^\top)^{-1}` of normalised attention `f`."""
    gram = f @ f.T
    inverse = one_by_one(jnp.linalg.inv)(jax.lax.stop_gradient(gram))
    # `sequential_vmap` in `one_by_one` has no reverse-mode derivative; a linear solve has one.
    solve = lambda _, b: inverse @ b  # noqa: E731
    identity = jnp.eye(len(gram), dtype=gram.dtype)
    return jax.lax.custom_linear_solve(lambda x: gram @ x, identity, solve, symmetric=True)


def finite_m_speed(h: Float[Array, " K"], M: int) -> Float[Array, "K K"]:
    r"""Return :math:`A_{nn'}` above from each class's h; its diagonal is :math:`q_1 \gamma_n`."""
    # (M-1)^2 h / ((M-1) + e^{M h}), divided by e^{M h}, which could overflow.
    decayed = jnp.exp(-M * h)
    residual = (M - 1) * decayed / ((M - 1) * decayed + 1)
    q1, q0 = M / (M - 1), -M / (M - 1) ** 2
    overlap = jnp.where(jnp.eye(h.shape[0], dtype=bool), q1, q0).astype(h.dtype)
    return residual[:, None] * overlap * ((M - 1) * h)[None, :]


def own_speed(speed: Float[Array, "K *K"]) -> Float[Array, " K"]:
    r"""Return :math:`f_n \cdot g_n`: :math:`\gamma_n`, or :math:`q_1 \gamma_n` at finite M."""
    return speed if speed.ndim == 1 else jnp.diagonal(speed)


def mixing(f: Float[Array, "K M"], speed: Float[Array, "K *K"]) -> Float[Array, "K K"]:
    r"""Return C with g = C F. Its entries are :math:`\gamma_n \iota_n` on the diagonal and
    :math:`-\gamma_n \beta_{nn'}` off it."""
    # diag(gamma) G^{-1} to leading order, A G^{-1} at finite M.
    inverse = gram_inverse(f)
    return speed[:, None] * inverse if speed.ndim == 1 else speed @ inverse


def backpropagated_gradient(
    f: Float[Array, "K M"], speed: Float[Array, "K *K"]
) -> Float[Array, "K M"]:
    r"""Return :math:`g_n` of Theorem 1, for which :math:`f_n \cdot g_n` is exactly `own_speed`."""
    return mixing(f, speed) @ f


def xi(f: Float[Array, "K M"], speed: Float[Array, "K *K"]) -> Float[Array, " K"]:
    r"""Return :math:`\xi_n = C_{nn} - f_n \cdot g_n`, to leading order
    :math:`\gamma_n \bigl( (G^{-1})_{nn} - 1 \bigr) \ge 0`."""
    return jnp.diagonal(mixing(f, speed)) - own_speed(speed)
