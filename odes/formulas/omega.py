r"""Wright's omega function on the real line.

:math:`\omega(x)` solves :math:`\omega + \ln \omega = x`, so :math:`\omega(x) = W_0(e^x)` with
Lambert's W; unlike the latter it does not overflow. Neither JAX nor `jax.scipy` ships one of the
two.

Example:
    >>> float(odes.omega.wrightomega(jnp.asarray(1.0)))
    1.0
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Below this, omega(x) = e^x up to a relative e^x, which no precision here resolves.
_EXPONENTIAL = -50.0
_ITERATIONS = 3


@jax.custom_jvp
@functools.partial(jax.jit, inline=True)
def wrightomega(x: Float[Array, "..."]) -> Float[Array, "..."]:
    r"""The :math:`\omega > 0` with :math:`\omega + \ln \omega = x`, elementwise.

    It is computed in the precision of `x`.

    Starts from the leading asymptotic form and applies the fourth-order iteration of
    Fritsch, Shafer and Crowley (1973), as Lawrence, Corless and Jeffrey (2012, ACM TOMS
    algorithm 917) do. The derivative is :math:`\omega / (1 + \omega)`.
    """
    x = jnp.asarray(x)
    inner = jnp.maximum(x, _EXPONENTIAL)
    safe = jnp.maximum(inner, 1.0)
    w = jnp.where(inner > 1, safe - jnp.log(safe), jnp.exp(jnp.minimum(inner, 1.0) - 0.4))
    w = jnp.where(inner < -1, jnp.exp(jnp.minimum(inner, 0.0)), w)
    for _ in range(_ITERATIONS):
        r = inner - w - jnp.log(w)
        q = (1 + w) * (1 + w + 2 * r / 3)
        w = w * (1 + r / (1 + w) * (q - r / 2) / (q - r))
    return jnp.where(x < _EXPONENTIAL, jnp.exp(x), w)


@wrightomega.defjvp
def _wrightomega_jvp(
    primals: tuple[Float[Array, "..."]], tangents: tuple[Float[Array, "..."]]
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    w = wrightomega(primals[0])
    return w, w / (1 + w) * tangents[0]
