r"""Noise threshold for learning Q, and other scalars of the two stages (arXiv:2502.20681).

With noise of standard deviation :math:`\tau` in every weight, and hence :math:`\sigma` in
:math:`x_i^\top V x_L`,

.. math::

    \begin{align*}
    b' &= g\, b, \qquad g = \kappa\, r^4 \left[ \frac{c_0}{\sigma} - \frac{1}{32 L} \right]
        - \lambda, \qquad c_0 = \frac{\sqrt{2/\pi}}{16} \\
    \sigma &= \tau s_2 \sqrt{(d-1) \bigl( s_2^2 (d-1) + r^2 \bigr)}
    \end{align*}

near b = 0. Q is therefore learned if g > 0, that is below a critical noise :math:`\tau_c`. It is
learned within the eta-time T if b grows from :math:`\tau` to :math:`\sigma/r^2` in that time,
:math:`g\, T > \ln(\sigma / (r^2 \tau))`.

Assumes c = 0 except where noted. The closed forms also assume that the row V[0,1:] shifts the
logits by much less than :math:`\sigma`, :math:`r s_2 \sqrt{d-1}\, \tau \ll \sigma`. Rates are per
unit of eta-time. The equations are derived here, from a reconstruction of the paper's model (see
`odes.two_stage`). Arguments may be traced and are not checked; `task` and `stages` were checked
when they were made. Noise, decay and eta-time must be positive.

`gradient_variance` is the variance over random prompts of the gradients with respect to a and b
[ours]. The gradient of one prompt with the margin M = y N is
:math:`G = -\sigma(-M)\, \partial M/\partial a`, with :math:`\sigma` the logistic function. For a
given query, M and :math:`\partial M/\partial a` are jointly normal over contexts, with the
covariance :math:`\tfrac12\, \partial \operatorname{Var} M / \partial a`. Writing
:math:`M = \mu + \varsigma f`, with mean :math:`\mu`, standard deviation :math:`\varsigma` and
normal f, the mean of :math:`\partial M/\partial a` given f is the derivative of this expression.
Hence

.. math::

    C = \operatorname{Var} G = \mathbb E \left[ \sigma(-M)^2 \left(
    \left( \frac{\partial M}{\partial a} \right)^2
    + \operatorname{Var} \frac{\partial M}{\partial a}
    - \left( \frac{\partial \varsigma}{\partial a} \right)^2 \right) \right]
    - \left( \frac{\partial \text{Loss}}{\partial a} \right)^2

and likewise for b. The variances over contexts are exact, because tokens come in pairs: (x, y) and
-(x, y) for P, both signs of :math:`\zeta` for Q. The ReLU passes one of each pair:

.. math::

    \begin{align*}
    \operatorname{Var} \frac{\partial M}{\partial a} &= p^2\, \frac{\kappa}{L}
        \left( \frac{p_2}{2} - \frac{\bar p^2}{4} \right) \\
    \operatorname{Var} \frac{\partial M}{\partial b} &= r^4\, \frac{\kappa}{L}
        \left( \frac14 - \frac{1}{16} \operatorname{erf}\Bigl( \frac{m}{s \sqrt2} \Bigr)^2 \right)
        \quad \text{for } y = -1, \text{ else } 0
    \end{align*}

A batch of B prompts adds noise of variance C/B to :math:`\tau_\xi^2`. A pool of N prompts adds a
force of variance C/N that is constant during a run.

The assumptions of `odes.two_stage.loss` apply, and c = 0 for `gradient_variance`.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Real

from dynsim.precision import AnyArray, Number
from dynsim.two_stage.annealing import Annealing
from dynsim.two_stage.task import Prompts
from odes.two_stage.loss import (
    Numbers,
    ReducedState,
    Rule,
    half_normal_nodes,
    node_weights,
    normal_nodes,
    outputs,
    root,
    total,
)

_C0 = math.sqrt(2 / math.pi) / 16
_NEWTON_STEPS = 64


class Amplitudes(NamedTuple):
    """Stationary amplitudes, both of shape ()."""

    a: Float[Array, ""]
    b: Float[Array, ""]


def _logit_noise(task: Prompts, r: Numbers) -> Float[Array, "..."]:
    # sigma / tau = s_2 sqrt((d-1) (s_2^2 (d-1) + r^2)).
    others = task.d - 1
    return jnp.sqrt(others * (task.s2**2 * others + jnp.asarray(r) ** 2)) * task.s2


def growth_rate(
    task: Prompts, tau: Numbers, decay: Numbers, drive: Numbers = 1.0
) -> Float[Array, "..."]:
    r"""Return the growth rate g of b at noise `tau` in closed form, elementwise. It agrees with
    `growth_rate_hessian` to about 10 %.

    Args:
        tau: standard deviation of the weights due to noise, such as `stages.stationary(eta)`.
        decay: weight decay :math:`\lambda`.
        drive: factor by which the rest of the layer reduces the residuals of Q: 1 for c = 0, and
            :math:`2\, \mathbb E[\operatorname{sigmoid}(-y N_W)]` for c = 1, which decreases as P is
            learned.
    """
    # g = kappa r^4 (c_0 / sigma - 1 / (32 L)) - lambda.
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
    r"""Return the growth rate :math:`-\partial^2 \text{Loss}/\partial b^2 - \lambda` of b at b = 0
    and noise `tau`, by quadrature. It includes the row V[0,1:], for any coupling and P at the
    amplitude a = `signal`."""
    # All five blocks have the noise tau.
    square = jnp.asarray(tau) ** 2
    a = jnp.asarray(signal, square.dtype)

    def loss(b: Float[Array, ""]) -> Float[Array, ""]:
        return total(ReducedState(a, b, *(5 * (square,))), task, rule=rule)

    return -jax.grad(jax.grad(loss))(jnp.zeros_like(square)) - decay


def critical_noise(task: Prompts, decay: Numbers) -> Float[Array, "..."]:
    r"""Return, elementwise, the :math:`\tau_c` below which the closed form of g is positive."""
    return finite_time_boundary(task, decay, math.inf, task.r)


def critical_rate(task: Prompts, stages: Annealing) -> Float[Array, ""]:
    r"""Return the learning rate whose noise is critical,
    :math:`\eta_c = 2 \lambda \tau_c^2 / \tau_\xi^2`."""
    # tau^2 = eta tau_xi^2 / (2 lambda) at rest.
    tau = critical_noise(task, stages.decay)
    return tau**2 * (2 * stages.decay) / jnp.asarray(stages.noise) ** 2


def finite_time_boundary(
    task: Prompts, decay: Numbers, eta_time: Numbers, r: Numbers
) -> Float[Array, "..."]:
    r"""Return the noise below which Q is learned within the eta-time T = `eta_time`: the root
    :math:`\tau` of :math:`g\, T = \ln(\sigma / (r^2 \tau))`, whose right-hand side does not depend
    on :math:`\tau`. Elementwise in `r`, which replaces `task.r`."""
    # tau = kappa r^4 c_0 / (sigma/tau (lambda + ln(sigma / (r^2 tau)) / T + kappa r^4 / (32 L))).
    r = jnp.asarray(r)
    strength = task.kappa * r**4
    per_tau = _logit_noise(task, r)
    needed = jnp.log(per_tau / r**2) / jnp.asarray(eta_time)
    least = jnp.asarray(decay) + needed + strength / (32 * task.length)
    return strength * _C0 / (per_tau * least)


def growth_time(task: Prompts, tau: Numbers, decay: Numbers) -> Float[Array, "..."]:
    r"""Return the eta-time :math:`\ln(\sigma / (r^2 \tau)) / g` in which b grows from :math:`\tau`
    to :math:`\sigma/r^2` at noise `tau`, elementwise; `inf` where the noise is above critical."""
    rate = growth_rate(task, tau, decay)
    needed = jnp.log(_logit_noise(task, task.r) / jnp.asarray(task.r) ** 2)
    return jnp.where(rate > 0, needed / jnp.where(rate > 0, rate, 1), jnp.inf)


def unsaturated_margin(task: Prompts, span: Numbers) -> Float[Array, "..."]:
    r"""Return the mean :math:`\kappa^2 \bar p^4 T / 8` of :math:`y N_W` after the eta-time `span`,
    :math:`T`, if outputs did not saturate; :math:`T = 1/(4\lambda)` in Theorem 1. P is learned by
    then if the mean is much larger than 1."""
    return jnp.asarray((task.kappa * task.mean_margin**2) ** 2 * jnp.asarray(span) / 8)


def stationary_signal(
    task: Prompts, decay: Real[Number, ""], *, rule: Rule | None = None
) -> Amplitudes:
    r"""Return the final a and :math:`|b|` for c = 0, without noise, and with L infinite except in
    :math:`\kappa`:

    .. math::

        \begin{align*}
        \lambda a^* &= \tfrac{\kappa}{2}\, \bar p\,
            \mathbb E \bigl[ \operatorname{sigmoid}(-\tfrac{\kappa}{2}\, \bar p\, p\, a^*)\, p
            \bigr] \\
        \lambda b^* &= \tfrac{\kappa}{8}\, r^2
            \operatorname{sigmoid}(-\tfrac{\kappa}{4}\, r^2 b^*)
        \end{align*}

    The trace of V ends above the trace of W if :math:`b^* > a^*`.
    """
    # Roots of lambda x = sum_i w_i s_i sigmoid(-s_i x): over the margins p for P, one term for Q.
    g, weight = half_normal_nodes((rule or Rule()).g)
    decay = jnp.asarray(decay)
    p = jnp.asarray(g, decay.dtype) * task.s1 + task.gamma0
    slope = p * (task.kappa / 2 * task.mean_margin)
    share = jnp.asarray(weight, decay.dtype)
    single = jnp.asarray(task.kappa / 4 * task.r**2, decay.dtype)[None]
    return Amplitudes(
        _balance(slope, share, decay), _balance(single, jnp.full_like(single, 0.5), decay)
    )


def _balance(
    slope: Float[Array, " n"], share: Float[Array, " n"], decay: Float[Array, ""]
) -> Float[Array, ""]:
    def excess(x: Float[Array, ""]) -> Float[Array, ""]:
        return decay * x - jnp.sum(share * slope * jax.nn.sigmoid(-slope * x))

    def newton(x: Float[Array, ""]) -> Float[Array, ""]:
        return x - excess(x) / jax.grad(excess)(x)

    # `excess` is concave and increasing for x >= 0, so steps from 0 approach the root from below.
    x = jax.lax.fori_loop(0, _NEWTON_STEPS, lambda _, x: newton(x), jnp.zeros_like(decay))
    # Two more steps at the root supply its derivatives.
    return newton(newton(jax.lax.stop_gradient(x)))


def waiting_time(decay: Numbers) -> Float[Array, "..."]:
    r"""Return the eta-time :math:`1/(2\lambda)` in which the excess noise decays by e after the
    annealing, which delays the onset of Q."""
    return 1 / (2 * jnp.asarray(decay))


class GradientVariance(NamedTuple):
    """Variance over prompts of the derivatives of the loss with respect to a and b, both ()."""

    a: Float[Array, ""]
    b: Float[Array, ""]


@functools.partial(jax.jit, static_argnames=("task", "rule"))
def gradient_variance(
    state: ReducedState, task: Prompts, *, rule: Rule | None = None
) -> GradientVariance:
    """Return C of the entries a = W[0,0] and b = V[0,0] in the reduced state, for c = 0. Neglected
    terms are smaller by O(1/L); for b they are 13 % at L = 33 and 2.5 % at L = 129."""
    rule = rule or Rule()
    # One forward pass along a and b together: P depends on a only, Q on b only.
    unit = ReducedState(*(jnp.full_like(x, i < 2) for i, x in enumerate(jax.tree.leaves(state))))

    def moments(state: ReducedState) -> tuple[tuple[tuple[Array, Array], ...], PyTree]:
        P, (_, Q) = outputs(state, task, True, rule)
        return tuple((output.mean, root(output.variance)) for output in (P, Q)), Q

    (of_P, of_Q), (by_a, by_b), Q = jax.jvp(moments, (state,), (unit,), has_aux=True)
    # Var dM/da = p^2 kappa/L (p_2 / 2 - pbar^2 / 4); Var dM/db = r^4 kappa/L (1/4 - erf^2 / 16).
    p = task.gamma0 + task.s1 * half_normal_nodes(rule.g)[0][:, None]
    per_token = task.kappa / task.length
    square = (task.mean_square_margin / 2 - task.mean_margin**2 / 4) * p**2
    passed = jax.lax.erf(Q.m / Q.s / math.sqrt(2)) / 4
    weight_P, weight_Q = node_weights(rule, of_P[0].dtype)
    a = _moments(of_P, by_a, per_token * square, weight_P, rule)
    b = _moments(of_Q, by_b, per_token * task.r**4 * (1 / 4 - passed**2), weight_Q, rule)
    # Queries of the other class, half of all, have no gradient along zeta.
    return GradientVariance(a[1] - a[0] ** 2, b[1] / 2 - (b[0] / 2) ** 2)


def _moments(
    margin: tuple[Array, Array],
    slope: tuple[Array, Array],
    variance: Float[AnyArray, "*#n"],
    weight: Float[AnyArray, "*n"],
    rule: Rule,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the mean and mean square of the gradient. `margin` has the mean and standard deviation
    over contexts, `slope` their derivatives."""
    # G = -sigma(-M) dM/da with M = mu + varsigma f; given f, dM/da has the mean mu' + varsigma' f
    # and the variance Var dM/da - varsigma'^2.
    f, of_f = (values.astype(margin[0].dtype) for values in normal_nodes(rule.f))
    f = f[(None,) * margin[0].ndim]
    gate = jax.nn.sigmoid(-(margin[0][..., None] + margin[1][..., None] * f))
    along = slope[0][..., None] + slope[1][..., None] * f
    left = (variance - slope[1] ** 2)[..., None]
    mean = jnp.sum(weight * ((gate * along) @ of_f))
    return -mean, jnp.sum(weight * ((gate**2 * (along**2 + left)) @ of_f))
