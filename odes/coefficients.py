"""Coefficients of the backpropagated gradient (Scan and Snap, Theorem 1, Eqs. 91-93).

With G = F F^T = I + E and G^{-1} = I - E' (Lemma 14), to leading order in 1/M:

    g_n  = gamma (iota_n f_n - sum_{n' != n} beta_nn' f_n')
    iota_n = 1 - E'_nn = (G^{-1})_nn,     beta_nn' = E'_n'n = -(G^{-1})_n'n
    xi_n = gamma sum_{n' != n} beta_nn' f_n . f_n' = gamma ((G^{-1})_nn - 1)

Assumes that the f_n are linearly independent, so that G can be inverted. (The paper's list of
notation gives E' the opposite sign; Lemma 14's is the consistent one.)
"""

import jax.numpy as jnp
from jaxtyping import Array, Float


def gram_inverse(f: Float[Array, "K M"]) -> Float[Array, "K K"]:
    """(F F^T)^{-1} of normalised attention `f`; symmetric."""
    return jnp.linalg.inv(f @ f.T)


def backpropagated_gradient(
    f: Float[Array, "K M"], gamma: Float[Array, " K"]
) -> Float[Array, "K M"]:
    """g_n = gamma_n sum_n' (G^{-1})_n'n f_n', the two sums of Theorem 1 in one; f_n . g_n is
    then exactly gamma_n."""
    return gamma[:, None] * (gram_inverse(f) @ f)


def xi(f: Float[Array, "K M"], gamma: Float[Array, " K"]) -> Float[Array, " K"]:
    """xi_n = gamma_n ((G^{-1})_nn - 1) >= 0."""
    return gamma * (jnp.diagonal(gram_inverse(f)) - 1)
