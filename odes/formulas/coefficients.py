"""Coefficients of the backpropagated gradient (Scan and Snap, Theorem 1, Eqs. 86-93).

With G = F F^T = I + E and G^{-1} = I - E' (Lemma 14), to leading order in 1/M:

    g_n  = gamma (iota_n f_n - sum_{n' != n} beta_nn' f_n')
    iota_n = 1 - E'_nn = (G^{-1})_nn,     beta_nn' = E'_n'n = -(G^{-1})_n'n
    xi_n = gamma sum_{n' != n} beta_nn' f_n . f_n' = gamma ((G^{-1})_nn - 1)

At finite M (Eqs. 86, 88): the decoder is Y = F^T G^{-1} W with w_n = (M-1) h_n zeta_n, its residual
is e_n - alpha_n = (M-1) / ((M-1) + e^{M h_n}) zeta_n, and the zeta overlap,

    zeta_n . zeta_n = q1 = 1 + 1/(M-1),    zeta_n . zeta_n' = q0 = -M/(M-1)^2.

So g_n = Y (e_n - alpha_n) = sum_n' (A G^{-1})_nn' f_n' with

    A_nn' = (zeta_n . zeta_n') (M-1)^2 h_n' / ((M-1) + e^{M h_n}),

which for equal h reads

    iota_n   = q1 (1 - E'_nn) - q0 sum_{k != n} E'_kn
    beta_nn' = q1 E'_n'n - q0 (1 - sum_{k != n} E'_kn').

A = diag(gamma) gives the leading order back. Functions here take either: `speed` is gamma (K,),
or A (K, K) from `finite_m_speed`.

Assumes that the f_n are linearly independent, so that G can be inverted. (The paper's list of
notation gives E' the opposite sign; Lemma 14's is the consistent one.)
"""

import jax.numpy as jnp
from jaxtyping import Array, Float


def gram_inverse(f: Float[Array, "K M"]) -> Float[Array, "K K"]:
    """(F F^T)^{-1} of normalised attention `f`; symmetric."""
    return jnp.linalg.inv(f @ f.T)


def finite_m_speed(h: Float[Array, " K"], M: int) -> Float[Array, "K K"]:
    """A_nn' above from each class's h; its diagonal is q1 gamma_n."""
    decayed = jnp.exp(-M * h)
    residual = (M - 1) * decayed / ((M - 1) * decayed + 1)
    q1, q0 = M / (M - 1), -M / (M - 1) ** 2
    overlap = jnp.where(jnp.eye(h.shape[0], dtype=bool), q1, q0).astype(h.dtype)
    return residual[:, None] * overlap * ((M - 1) * h)[None, :]


def own_speed(speed: Float[Array, "K *K"]) -> Float[Array, " K"]:
    """f_n . g_n: gamma_n, or q1 gamma_n at finite M."""
    return speed if speed.ndim == 1 else jnp.diagonal(speed)


def mixing(f: Float[Array, "K M"], speed: Float[Array, "K *K"]) -> Float[Array, "K K"]:
    """C with g = C F: gamma_n iota_n on its diagonal, -gamma_n beta_nn' off it."""
    inverse = gram_inverse(f)
    return speed[:, None] * inverse if speed.ndim == 1 else speed @ inverse


def backpropagated_gradient(
    f: Float[Array, "K M"], speed: Float[Array, "K *K"]
) -> Float[Array, "K M"]:
    """g_n of Theorem 1; f_n . g_n is then exactly `own_speed`."""
    return mixing(f, speed) @ f


def xi(f: Float[Array, "K M"], speed: Float[Array, "K *K"]) -> Float[Array, " K"]:
    """xi_n = C_nn - f_n . g_n, which is gamma_n ((G^{-1})_nn - 1) >= 0 to leading order."""
    return jnp.diagonal(mixing(f, speed)) - own_speed(speed)
