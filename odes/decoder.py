r"""Decoder dynamics in closed form: h, gamma and its integral, the peak, the two stages, and h*.

These are Scan and Snap's Lemmas 6, 8 and 9 and Theorem 1. With the modified update of Lemma 3,
only row n of W = F Y moves when class n is drawn. After s visits it is
:math:`w_n = (M-1)\, h(s)\, \zeta_n` with

.. math::

    \begin{align*}
    h' &= \frac{\eta_Y}{(M-1) + e^{M h}}, \quad h(0) = 0 \tag{Lemma 6} \\
    e^{M h} + (M-1)\, M h &= M \eta_Y s + 1 \tag{45}
    \end{align*}

Assumes :math:`T \to \infty`, fixed attention, Y = 0 at the start, and the update of Lemma 3. The
implicit (45) is solved in closed form with Wright's omega function, :math:`\omega + \ln \omega =
x`. This equals :math:`W_0(e^x)` with Lambert's W, but does not overflow; JAX has neither function.
Times are optimiser steps. At step t, class n has been visited :math:`\pi(n)\, t` times, which is
t/K in the paper.

With discrete steps, s visits lead to :math:`h^*(s)` instead of h(s):

.. math::

    h^*(s) = h^*(s-1) + \frac{\eta_Y}{(M-1) + e^{M h^*(s-1)}}, \qquad h^*(0) = 0. \tag{Lemma 5}

Its small-step limit is h: :math:`0 \le h^* - h \le 2 \eta_Y / M` (Lemma 7). With heavy-ball
momentum [ours] the increment is :math:`\eta_Y v` with
:math:`v \leftarrow \mu v + 1 / ((M-1) + e^{M h^*})`, which is exact like Lemma 5.

Example:
    >>> round(float(odes.decoder.gamma(10.0, 1.0, 34)), 3)
    0.806
    >>> stages = odes.decoder.stages(eta_y=1.0, K=2, M=34)
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Real

from dynsim import checks
from dynsim.precision import Number

# Below this, omega(x) = e^x up to a relative error of e^x, which is below float64 rounding.
_EXPONENTIAL = -50.0
_ITERATIONS = 3


@jax.custom_jvp
@functools.partial(jax.jit, inline=True)
def wrightomega(x: Float[Array, "..."]) -> Float[Array, "..."]:
    r"""Return the :math:`\omega > 0` with :math:`\omega + \ln \omega = x`, elementwise.

    It is computed in the precision of `x`.

    Starts from the leading asymptotic form and applies the fourth-order iteration of
    Fritsch, Shafer and Crowley (1973), as Lawrence, Corless and Jeffrey (2012, ACM TOMS
    algorithm 917) do. The derivative is :math:`\omega / (1 + \omega)`.
    """
    x = jnp.asarray(x)
    inner = jnp.maximum(x, _EXPONENTIAL)
    safe = jnp.maximum(inner, 1.0)
    # omega ~ x - ln x for large x, e^x for small x, and e^{x - 0.4} in between.
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
    # omega' (1 + 1 / omega) = 1.
    w = wrightomega(primals[0])
    return w, w / (1 + w) * tangents[0]


_NEWTON_STEPS = 2


class Stages(NamedTuple):
    r"""Predicted stages of a run; times in optimiser steps.

    Attributes:
        rise_end: :math:`t_0' = K \ln(M) / \eta_Y`, until which :math:`\gamma \sim \eta_Y t / K`
            (Theorem 1b).
        peak: exact time of the maximum of :math:`\gamma`.
        peak_gamma: :math:`\gamma` at that time.
        snap: :math:`t_0 = 2 (1 + w_1) K \ln(M) / \eta_Y`, from which :math:`\gamma` decays as
            :math:`K \ln(M \eta_Y t / K) / (\eta_Y t)`. NaN for M <= 3, where
            :math:`e^x = (M-1)\, x`, which defines it, has no root.
    """

    rise_end: Float[Array, "..."]
    peak: Float[Array, "..."]
    peak_gamma: Float[Array, "..."]
    snap: Float[Array, "..."]

    def at(self, steps_at: Callable[[Array], ArrayLike]) -> "Stages":
        """Convert times from steps at the peak rate to steps of a schedule."""
        names = ("rise_end", "peak", "snap")
        times = {name: jnp.asarray(steps_at(getattr(self, name))) for name in names}
        return self._replace(**times)


@functools.partial(jax.jit, inline=True)
def scaled_h(tau: Real[Number, "..."], M: Real[Number, "..."]) -> Float[Array, "..."]:
    r"""Return u = M h at :math:`\tau = \eta_Y s`, the solution of Eq. 45.

    Eq. 45 is :math:`e^u + (M-1)\, u = M \tau + 1`. With :math:`\omega = e^u / (M-1)` it becomes
    :math:`\omega + \ln \omega = A - \ln(M-1)`, where :math:`A = (M \tau + 1)/(M-1)`; hence

    .. math::

        u = \ln(M-1) + \ln \omega\bigl( A - \ln(M-1) \bigr) = A - \omega\bigl( A - \ln(M-1) \bigr).

    Both forms suffer from cancellation somewhere. Newton steps on the equation written with `expm1`
    restore full relative precision from :math:`\tau` = 0 to 1e14, also in float32. The derivatives
    come from the Newton steps (two steps: exact to second order).
    """
    tau, M = jnp.asarray(tau), jnp.asarray(M)
    # u = ln(M-1) + ln omega(A - ln(M-1)).
    log_m = jnp.log(M - 1)
    u = log_m + jnp.log(wrightomega((M * tau + 1) / (M - 1) - log_m))

    def newton(u: Float[Array, "..."]) -> Float[Array, "..."]:
        return u - (jnp.expm1(u) + (M - 1) * u - M * tau) / (jnp.exp(u) + M - 1)

    u = jax.lax.stop_gradient(newton(u))
    for _ in range(_NEWTON_STEPS):
        u = newton(u)
    return u


def h(
    s: Real[Number, "..."], eta_y: Real[Number, "..."], M: Real[Number, "..."]
) -> Float[Array, "..."]:
    """Return h(s) of Lemma 6 after `s` visits to the class, elementwise in `s`."""
    return scaled_h(jnp.asarray(s) * eta_y, M) / M


def gamma(
    s: Real[Number, "..."], eta_y: Real[Number, "..."], M: Real[Number, "..."]
) -> Float[Array, "..."]:
    r"""Return the speed coefficient after `s` visits, :math:`\pi(n)\, t` at step t:

    .. math::

        \gamma = \frac{(M-1)^2\, h}{(M-1) + e^{M h}}. \tag{85}
    """
    return speed(h(s, eta_y, M), M)


@functools.partial(jax.jit, inline=True)
def speed(h: Real[Number, "..."], M: Real[Number, "..."]) -> Float[Array, "..."]:
    r"""Return :math:`\gamma` of Eq. 85 from h (or :math:`h^*`), elementwise.

    It uses :math:`e^{-M h}`, which cannot overflow even after a huge first discrete step.
    """
    h, M = jnp.asarray(h), jnp.asarray(M)
    decayed = (M - 1) * jnp.exp(-M * h)
    # This order avoids the integer (M - 1)^2, which would overflow 32 bits for large M.
    return (M - 1) * h * decayed / (decayed + 1)


@functools.partial(jax.jit, inline=True)
def gamma_integral(
    s: Real[Number, "..."],
    eta_y: Real[Number, "..."],
    M: Real[Number, "..."],
    K: Real[Number, "..."] = 1,
) -> Float[Array, "..."]:
    r"""Return the exact integral of :math:`\gamma` over time, at `s` = t/K visits:

    .. math::

        \Gamma(t) = \int_0^t \gamma = \frac{K (M-1)^2\, h^2}{2 \eta_Y}. \tag{128}

    For unequal priors K is :math:`1/\pi(n)`. `eta_y` must be positive.
    """
    # gamma dt = K (M-1)^2 h dh / eta_Y, by Lemma 6.
    return jnp.asarray(K) * ((M - 1) * h(s, eta_y, M)) ** 2 / (2 * jnp.asarray(eta_y))


@functools.partial(jax.jit, inline=True)
def stages(eta_y: Real[Number, "..."], K: Real[Number, "..."], M: Real[Number, "..."]) -> Stages:
    r"""Return the stages of a run (Theorem 1b, Lemma 9) and the exact peak of :math:`\gamma`.

    The peak is where :math:`M h = x^* = 1 + W_0((M-1)/e)`, reached at

    .. math::

        t = \frac{K \bigl( e^{x^*} + (M-1)\, x^* - 1 \bigr)}{M \eta_Y}.

    K is the inverse of a class's prior.

    Raises:
        ValueError: unless eta_y >= 0, K >= 1 and M >= 2; traced values are not checked.
    """
    checks.real("eta_y", eta_y, 0)
    checks.real("K", K, 1)
    checks.real("M", M, 2)
    eta_y, K, M = jnp.asarray(eta_y), jnp.asarray(K), jnp.asarray(M)
    log_m = jnp.log(M - 1)
    # x* = 1 + W_0((M-1)/e), and its time from Eq. 45.
    x = 1 + wrightomega(log_m - 1)
    peak = K * (jnp.expm1(x) + (M - 1) * x) / (M * eta_y)
    peak_gamma = speed(x / M, M)
    # Largest root of e^x = (M-1) x. From above, x <- ln(M-1) + ln(x) decreases towards it; Newton
    # on x - ln(x) - ln(M-1), which is convex, then converges from any start x > 1.
    root = 2 * log_m + 1
    for _ in range(8):
        root = root - (root - jnp.log(root) - log_m) / (1 - 1 / root)
    snap = 2 * K * jnp.where(log_m >= 1, root, jnp.nan) / eta_y
    return Stages(K * jnp.log(M) / eta_y, peak, peak_gamma, snap)


def h_star(
    eta_y: Real[Number, "*B"],
    M: Real[Number, ""],
    visits: int,
    momentum: Real[Number, ""] = 0.0,
    *,
    pace: Float[Array, "{visits}"] | None = None,
) -> Float[Array, "{visits}+1 *B"]:
    r"""Return :math:`h^*(0), \dots, h^*(S)` for S = `visits`, elementwise in `eta_y` and in its
    precision.

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
        # e^{M h} could overflow after a large first step; e^{-M h} cannot.
        decayed = jnp.exp(-M * h)
        velocity = momentum * velocity + decayed / ((M - 1) * decayed + 1)
        rate = eta_y if pace is None else pace * eta_y
        return ((h + rate * velocity).astype(start.dtype), velocity.astype(start.dtype)), h

    (last, _), before = jax.lax.scan(visit, (start, start), pace, length=visits)
    return jnp.concatenate([before, last[None]])
