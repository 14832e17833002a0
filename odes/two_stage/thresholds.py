r"""When Q can be learned under noise, and other scalars of the two stages (arXiv:2502.20681).

With noise of standard deviation :math:`\tau` in every weight, and hence :math:`\sigma` in
:math:`x_i^\top V x_L`,

.. math::

    \begin{align*}
    b' &= g\, b, \qquad g = \kappa\, r^4 \left[ \frac{c_0}{\sigma} - \frac{1}{32 L} \right]
        - \lambda, \qquad c_0 = \frac{\sqrt{2/\pi}}{16} \\
    \sigma &= \tau s_2 \sqrt{(d-1) \bigl( s_2^2 (d-1) + r^2 \bigr)}
    \end{align*}

about b = 0, so that Q is learned where g > 0, below a critical noise :math:`\tau_c`. Within the
eta-time T it is where b gets from :math:`\tau` to :math:`\sigma/r^2`,
:math:`g\, T > \ln(\sigma / (r^2 \tau))`.

Assumes c = 0 unless a function says otherwise; for the closed forms also a row V[0,1:] that
shifts the logits by less than :math:`\sigma`, :math:`r s_2 \sqrt{d-1}\, \tau \ll \sigma`. Rates are
per unit of eta-time. We reconstructed these equations from fragments of the paper and derived them
ourselves; they are not the authors' text.

No function checks its numbers, which may be traced: those of `task` and `stages` were checked
before. Noise, decay and eta-time must be positive.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Real

from dynsim.precision import Number
from dynsim.two_stage.annealing import Annealing
from dynsim.two_stage.task import Prompts
from odes.two_stage.loss import Rule, half_normal_nodes, total
from odes.two_stage.state import ReducedState

_C0 = math.sqrt(2 / math.pi) / 16
_BISECTIONS = 64
_NEWTON_STEPS = 2


class Signal(NamedTuple):
    """Stationary amplitudes; all of shape ()."""

    a: Float[Array, ""]
    b: Float[Array, ""]


def _logit_noise(task: Prompts, r: Real[Number, "..."]) -> Float[Array, "..."]:
    """sigma / tau at shift `r`, elementwise."""
    others = task.d - 1
    return jnp.sqrt(others * (task.s2**2 * others + jnp.asarray(r) ** 2)) * task.s2


def growth_rate(
    task: Prompts,
    tau: Real[Number, "..."],
    decay: Real[Number, "..."],
    drive: Real[Number, "..."] = 1.0,
) -> Float[Array, "..."]:
    r"""Growth rate g of b at noise `tau`, in closed form, elementwise; about 10 % from
    `growth_rate_hessian`.

    Args:
        tau: standard deviation of the noise weights, such as `stages.stationary(eta)`.
        decay: weight decay :math:`\lambda`.
        drive: what the rest of the layer leaves of the residuals of Q: 1 for c = 0, and
            :math:`2\, \mathbb E[\operatorname{sigmoid}(-y N_W)]` for c = 1, which the learning of P
            starves.
    """
    sigma = jnp.asarray(tau) * _logit_noise(task, task.r)
    share = jnp.asarray(drive * _C0 / sigma)
    return (share - 1 / (32 * task.length)) * (task.kappa * task.r**4) - decay


def growth_rate_hessian(
    task: Prompts,
    tau: Real[Number, ""],
    decay: Real[Number, ""],
    signal: Real[Number, ""] = 0.0,
    *,
    rule: Rule | None = None,
) -> Float[Array, ""]:
    r"""Growth rate of b at b = 0 and noise `tau`, by quadrature:

    .. math::

        -\frac{\partial^2 \text{Loss}}{\partial b^2} - \lambda,

    with the row V[0,1:] and for any coupling, at the amplitude a = `signal` of P.
    """
    square = jnp.asarray(tau) ** 2
    rest = 5 * (square,)

    def loss(b: Float[Array, ""]) -> Float[Array, ""]:
        a = jnp.asarray(signal, square.dtype)
        return total(ReducedState(a, b, *rest), task, rule=rule)

    return -jax.grad(jax.grad(loss))(jnp.zeros_like(square)) - decay


def critical_noise(task: Prompts, decay: Real[Number, "..."]) -> Float[Array, "..."]:
    r"""The noise :math:`\tau_c` below which the closed form of g is positive; elementwise."""
    return finite_time_boundary(task, decay, math.inf, task.r)


def critical_rate(task: Prompts, stages: Annealing) -> Float[Array, ""]:
    r"""Learning rate whose noise is critical, :math:`\eta_c = 2 \lambda \tau_c^2 / \tau_\xi^2`."""
    tau = critical_noise(task, stages.decay)
    return tau**2 * (2 * stages.decay) / jnp.asarray(stages.noise) ** 2


def finite_time_boundary(
    task: Prompts,
    decay: Real[Number, "..."],
    eta_time: Real[Number, "..."],
    r: Real[Number, "..."],
) -> Float[Array, "..."]:
    r"""Noise below which Q is learned within the eta-time `eta_time`.

    It is the root :math:`\tau` of :math:`g\, T = \ln(\sigma / (r^2 \tau))`, elementwise in `r`,
    which stands in for `task.r`. The right-hand side does not depend on :math:`\tau`, which makes
    this a closed form.
    """
    r = jnp.asarray(r)
    strength = task.kappa * r**4
    per_tau = _logit_noise(task, r)
    needed = jnp.log(per_tau / r**2) / jnp.asarray(eta_time)
    least = jnp.asarray(decay) + needed + strength / (32 * task.length)
    return strength * _C0 / (per_tau * least)


def growth_time(
    task: Prompts, tau: Real[Number, "..."], decay: Real[Number, "..."]
) -> Float[Array, "..."]:
    r"""Eta-time in which b gets from :math:`\tau` to :math:`\sigma/r^2` at noise `tau`.

    It is :math:`\ln(\sigma / (r^2 \tau)) / g`, elementwise; `inf` where the noise is above
    critical.
    """
    rate = growth_rate(task, tau, decay)
    needed = jnp.log(_logit_noise(task, task.r) / jnp.asarray(task.r) ** 2)
    return jnp.where(rate > 0, needed / jnp.where(rate > 0, rate, 1), jnp.inf)


def early_signal(task: Prompts, t: Real[Number, "..."]) -> Float[Array, "..."]:
    r""":math:`a \sim \kappa \bar p^2 t / 4` at small eta-time t, from a = 0 and with unsaturated
    outputs."""
    return jnp.asarray(t) * (task.kappa * task.mean_margin**2) / 4


def unsaturated_margin(task: Prompts, decay: Real[Number, "..."]) -> Float[Array, "..."]:
    r"""Mean of :math:`y N_W` at the end of the first stage if the outputs did not saturate.

    After the eta-time :math:`1/(4\lambda)` it is :math:`\kappa^2 \bar p^4 / (32 \lambda)`. P is
    learned in this stage if it is large against 1.
    """
    return jnp.asarray((task.kappa * task.mean_margin**2) ** 2 / (32 * jnp.asarray(decay)))


def stationary_signal(
    task: Prompts, decay: Real[Number, ""], *, rule: Rule | None = None
) -> Signal:
    r"""Where a and :math:`|b|` end for c = 0, without noise and at L = infinity in all but
    :math:`\kappa`:

    .. math::

        \begin{align*}
        \lambda a^* &= \tfrac{\kappa}{2}\, \bar p\,
            \mathbb E \bigl[ \operatorname{sigmoid}(-\tfrac{\kappa}{2}\, \bar p\, p\, a^*)\, p
            \bigr] \\
        \lambda b^* &= \tfrac{\kappa}{8}\, r^2
            \operatorname{sigmoid}(-\tfrac{\kappa}{4}\, r^2 b^*)
        \end{align*}

    The trace of V ends above that of W where
    :math:`b^* > a^*`.
    """
    g, weight = half_normal_nodes((rule or Rule()).g)
    decay = jnp.asarray(decay)
    p = jnp.asarray(g, decay.dtype) * task.s1 + task.gamma0
    slope = p * (task.kappa / 2 * task.mean_margin)
    share = jnp.asarray(weight, decay.dtype)
    single = jnp.asarray(task.kappa / 4 * task.r**2, decay.dtype)[None]
    return Signal(
        _balance(slope, share, decay), _balance(single, jnp.full_like(single, 0.5), decay)
    )


def _balance(
    slope: Float[Array, " n"], share: Float[Array, " n"], decay: Float[Array, ""]
) -> Float[Array, ""]:
    """The root x >= 0 of lambda x = sum share slope sigmoid(-slope x)."""

    def excess(x: Float[Array, ""]) -> Float[Array, ""]:
        return decay * x - jnp.sum(share * slope * jax.nn.sigmoid(-slope * x))

    def halve(
        _: Int[Array, ""], bounds: tuple[Float[Array, ""], Float[Array, ""]]
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        low, high = bounds
        middle = (low + high) / 2
        above = excess(middle) > 0
        return jnp.where(above, low, middle), jnp.where(above, middle, high)

    # At x = 0 every sigmoid is 1/2, its largest value: that bounds the root.
    bounds = jnp.zeros_like(decay), jnp.sum(share * slope) / (2 * decay)
    x = jax.lax.stop_gradient(jax.lax.fori_loop(0, _BISECTIONS, halve, bounds)[1])
    # Bisection has no derivatives; Newton steps at the root have those of the root.
    for _ in range(_NEWTON_STEPS):
        x = x - excess(x) / jax.grad(excess)(x)
    return x


def noise_variance(
    task: Prompts, stages: Annealing, times: Real[Number, "*S"]
) -> Float[Array, "*S"]:
    r"""Variance of the noise weights after `times` optimiser steps, where the loss does not act on
    them: :math:`v' = -2 \lambda v + \eta\, \tau_\xi^2` from :math:`\tau_0^2`, stage by stage."""
    first, second = stages.eta_1, stages.eta_2
    switch = stages.first
    before = jnp.minimum(jnp.asarray(times), switch) * first
    after = jnp.maximum(jnp.asarray(times) - switch, 0) * second

    def relax(
        start: Real[Number, "*S"], eta: Real[Number, ""], elapsed: Float[Array, "*S"]
    ) -> Float[Array, "*S"]:
        end = eta * stages.noise**2 / (2 * stages.decay)
        return jnp.exp(-2 * stages.decay * elapsed) * (start - end) + end

    return relax(relax(task.starting_noise**2, first, before), second, after)


def waiting_time(decay: Real[Number, "..."]) -> Float[Array, "..."]:
    r"""Eta-time :math:`1/(2\lambda)` in which the surplus of noise decays by e after the annealing,
    for which the onset of Q waits."""
    return 1 / (2 * jnp.asarray(decay))
