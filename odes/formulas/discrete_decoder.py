r"""The decoder in discrete steps: h*(s) of Lemma 5 (Scan and Snap).

With the modified update of Lemma 3 and fixed attention, s visits to class n take its row of W = F Y
from 0 to :math:`w_n = (M-1)\, h^*(s)\, \zeta_n`, with

.. math::

    h^*(s) = h^*(s-1) + \frac{\eta_Y}{(M-1) + e^{M h^*(s-1)}}, \qquad h^*(0) = 0.

Its limit of small steps is the h of `odes.formulas.decoder`, :math:`0 \le h^* - h \le 2 \eta_Y / M`
(Lemma 7). With heavy-ball momentum [ours] the increment is :math:`\eta_Y v` with
:math:`v \leftarrow \mu v + 1 / ((M-1) + e^{M h^*})`, exact for the same reason that Lemma 5 is.

Example:
    >>> odes.discrete_decoder.h_star(jnp.asarray(1.0), 34, visits=3).shape
    (4,)
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Real

from dynsim import checks
from dynsim.precision import Number


def h_star(
    eta_y: Real[Number, "*B"],
    M: Real[Number, ""],
    visits: int,
    momentum: Real[Number, ""] = 0.0,
    *,
    pace: Float[Array, "{visits}"] | None = None,
) -> Float[Array, "{visits}+1 *B"]:
    r""":math:`h^*(0), \dots, h^*(S)` for S = `visits`, elementwise in `eta_y`, in its precision.

    Args:
        eta_y: learning rate of a visit, >= 0; may be traced, like M and `momentum`.
        M: number of outputs, >= 2.
        visits: number of visits S, a Python integer >= 0.
        momentum: heavy-ball coefficient :math:`\mu` in [0, 1).
        pace: factor on the learning rate of each visit; 1 if omitted.

    Raises:
        ValueError: if `visits` is not an integer >= 0.
    """
    checks.integer("visits", visits, 0)
    eta_y, M, momentum = jnp.asarray(eta_y), jnp.asarray(M), jnp.asarray(momentum)
    start = jnp.zeros(eta_y.shape, jnp.result_type(eta_y, M, momentum, float))

    def visit(
        state: tuple[Float[Array, "*B"], Float[Array, "*B"]], pace: Float[Array, ""] | None
    ) -> tuple[tuple[Float[Array, "*B"], Float[Array, "*B"]], Float[Array, "*B"]]:
        h, velocity = state
        # With e^{-M h} in place of e^{M h}, which overflows after a first step of any size.
        decayed = jnp.exp(-M * h)
        velocity = momentum * velocity + decayed / ((M - 1) * decayed + 1)
        rate = eta_y if pace is None else pace * eta_y
        return ((h + rate * velocity).astype(start.dtype), velocity.astype(start.dtype)), h

    (last, _), before = jax.lax.scan(visit, (start, start), pace, length=visits)
    return jnp.concatenate([before, last[None]])
