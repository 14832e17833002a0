r"""Growth of distinct tokens: relative gain, growth factor and its bound (Theorems 3 and 4).

For distinct tokens l, l' of class n under Scan and Snap's Eq. 10, and for the dominant token
:math:`l_0`,

.. math::

    r_{l/l' \mid n} = \frac{f_{nl}^2}{f_{nl'}^2} - 1, \qquad
    \chi_l = e^{2 (z_l(t) - z_l(0))}, \qquad r(t) = r(0)\, \chi_l(t), \qquad
    e^{2 f_{nl_0}(0)^2 B_n} \le \chi_{l_0} \le e^{2 B_n}.

Theorem 4 assumes one common token c with :math:`f_{nc}(0) = 1/\rho_0` in all classes, and weak
overlap.
With :math:`C_0 = \rho_0^4 / K` and :math:`\Gamma = \int_0^t \gamma` (`odes.decoder`)

.. math::

    B_n = -\frac{z_c}{q}
        = \frac{1}{4q} \ln \left( 1 + \frac{4\, q\, w\, \eta_Z\, \Gamma}{C_0} \right).

w is the weight of a class's drift: 1 in the paper's time convention and 1/K for SGD
(`odes.yz.eq10`). q is the number of classes per query [ours]. The paper has q = w = 1. See
`docs/theory/growth.md` and `common-token.md`. The printed (14), (124) and (129) are
:math:`\tfrac14 \ln(C_0 + \dots)`. They omit :math:`-\tfrac14 \ln C_0` and are not 0 at t = 0.
`printed=True` gives that form, for figures. All functions are elementwise and keep the precision of
their arguments; rates must be positive.

Example:
    >>> odes.growth.growth_factor(0.5, 0.0).round(3)
    Array(2.718, dtype=float32, weak_type=True)
"""

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Real

from dynsim import checks
from dynsim.precision import Number
from odes import decoder

Numbers = Real[Number, "..."]
Convention = Literal["sgd", "paper"]
"""Time convention, which sets the weight w above."""


class Bounds(NamedTuple):
    """Theorem 3: bounds on the growth factor of a dominant token."""

    lower: Float[Array, "..."]
    upper: Float[Array, "..."]


def growth_factor(z: Numbers, start: Numbers) -> Float[Array, "..."]:
    r"""Return :math:`\chi_l = e^{2 (z_l(t) - z_l(0))}`."""
    return jnp.exp(2 * (jnp.asarray(z) - start))


def growth_factor_bounds(f_dominant: Numbers, B: Numbers) -> Bounds:
    r"""Return :math:`e^{2 f_{nl_0}(0)^2 B_n}` and :math:`e^{2 B_n}`.

    `f_dominant` is :math:`f_{nl_0}` at the start. The upper bound requires only :math:`f_{nl_0} \le
    1`. The lower bound holds while :math:`f_{nl_0}` grows, that is unless another token of the
    class, distinct or common, gains more.
    """
    B = jnp.asarray(B)
    return Bounds(jnp.exp(2 * jnp.asarray(f_dominant) ** 2 * B), jnp.exp(2 * B))


@functools.partial(jax.jit, inline=True)
def other_logit(gain: Numbers, ratio: Numbers) -> Float[Array, "..."]:
    r"""Return a distinct token's gain :math:`z_l(t) - z_l(0)` from the dominant token's [ours].

    :math:`r = r(0)\, \chi` means that :math:`(1 - 1/\chi_l) / f_l(0)^2` is the same for all
    distinct tokens of a class, hence

    .. math::

        \frac{1}{\chi_l}
        = 1 - \frac{f_l(0)^2}{f_{l_0}(0)^2} \left( 1 - \frac{1}{\chi_{l_0}} \right).

    One number per class determines all gains.

    Args:
        gain: gain of the dominant token, :math:`z_{l_0}(t) - z_{l_0}(0) \ge 0`.
        ratio: :math:`f_l(0) / f_{l_0}(0)`, in [0, 1].
    """
    gain, ratio = jnp.broadcast_arrays(gain, ratio)
    # 1 / chi_l - 1 = -(f_l / f_l0)^2 (1 - 1 / chi_l0).
    shrunk = ratio**2 * jnp.expm1(-2 * gain)
    # At late times log1p cancels; sum 1/chi_l = (1 - ratio^2) + ratio^2 / chi_l0 in logs instead.
    late = (shrunk < -0.5) & (ratio < 1)
    r = jnp.where(late, ratio, 0.5)
    summed = jnp.logaddexp(jnp.log((1 - r) * (1 + r)), 2 * (jnp.log(r) - gain))
    early = jnp.log1p(jnp.where(late | (ratio >= 1), 0, shrunk))
    return jnp.where(ratio >= 1, gain, -jnp.where(late, summed, early) / 2)


def c0(rho_0: Numbers, K: Numbers) -> Float[Array, "..."]:
    r"""Return :math:`C_0 = \rho_0^4 / K`, where :math:`\rho_0 = 1 / f_{nc}(0)` is
    :math:`\lVert P(\cdot \mid n) \rVert_2 / P(c \mid n)`."""
    return jnp.asarray(rho_0) ** 4 / K


def class_weight(K: Numbers, convention: Convention) -> Float[Array, "..."]:
    """Return w: 1/K with convention "sgd", 1 with "paper". Other values raise `ValueError`."""
    checks.choice("convention", convention, ("sgd", "paper"))
    return 1 / jnp.asarray(K) if convention == "sgd" else jnp.ones_like(1 / jnp.asarray(K))


def bound_from_drive(
    driven: Numbers, *, c0: Numbers, classes_per_query: Numbers = 1, printed: bool = False
) -> Float[Array, "..."]:
    r"""Return :math:`B_n` of Theorem 4 from `driven`, :math:`w\, \eta_Z\, \Gamma`, for any
    :math:`\Gamma`."""
    # ln(1 + 4 q w eta_Z Gamma / C_0) / (4 q), or as printed ln(C_0 + ...), which is not 0 at first.
    q, c0 = jnp.asarray(classes_per_query), jnp.asarray(c0)
    inner = 4 * q * jnp.asarray(driven)
    return (jnp.log(c0 + inner) if printed else jnp.log1p(inner / c0)) / (4 * q)


def bound(
    t: Numbers,
    eta_y: Numbers,
    eta_z: Numbers,
    K: Numbers,
    M: Numbers,
    *,
    c0: Numbers,
    convention: Convention = "sgd",
    classes_per_query: Numbers = 1,
    printed: bool = False,
) -> Float[Array, "..."]:
    r"""Return :math:`B_n(t)` of Theorem 4 at step `t`, from the exact :math:`\Gamma` (Eq. 128)."""
    K = jnp.asarray(K)
    gamma = decoder.gamma_integral(jnp.asarray(t) / K, eta_y, jnp.asarray(M), K)
    driven = class_weight(K, convention) * eta_z * gamma
    return bound_from_drive(driven, c0=c0, classes_per_query=classes_per_query, printed=printed)


def bound_at_snap(K: Numbers, M: Numbers, nu: Numbers, **options: Any) -> Float[Array, "..."]:
    r"""Return :math:`B_n(t_0)`, which depends only on the ratio of the learning rates (Fig. 9).

    With :math:`\nu = \eta_Y / \eta_Z`, :math:`\eta_Y t_0 / K = 2 (1 + w_1) \ln M` is a function of
    M, and :math:`\eta_Z \Gamma(t_0)` is :math:`K / \nu` times another.
    It is NaN for M <= 3, where :math:`t_0` is undefined (see `odes.decoder.Stages`). `options`
    are the keyword arguments of `bound`.
    """
    return bound(decoder.stages(1.0, K, M).snap, 1.0, 1 / jnp.asarray(nu), K, M, **options)
