"""When Q can be learned under noise, and other scalars of the two stages (arXiv:2502.20681).

With noise of standard deviation tau in every weight, and hence sigma in x_i^T V x_L,

    b' = g b,  g = kappa r^4 [c_0/sigma - 1/(32 L)] - lambda,  c_0 = sqrt(2/pi)/16
    sigma = tau s2 sqrt((d-1) (s2^2 (d-1) + r^2))

about b = 0, so that Q is learned where g > 0, below a critical noise tau_c. Within the eta-time T
it is where b gets from tau to sigma/r^2, g T > ln(sigma / (r^2 tau)).

Assumes c = 0 unless a function says otherwise; for the closed forms also a row V[0,1:] that
shifts the logits by less than sigma, r s2 sqrt(d-1) tau << sigma. Rates are per unit of eta-time.
The paper was at hand in fragments: this is a reconstruction derived by us.

No function checks its numbers, which may be traced; `task` and `optimizer` were checked when
they were built. Noise, decay and eta-time must be positive.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Real

from dynsim import checks
from dynsim.precision import Number
from dynsim.two_stage.noisy_sgd import NoisySGD
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
    """Growth rate g of b at noise `tau`, in closed form, elementwise; about 10 % from
    `growth_rate_hessian`.

    Args:
        tau: standard deviation of the noise weights, such as `optimizer.stationary(eta)`.
        decay: weight decay lambda.
        drive: what the rest of the layer leaves of the residuals of Q: 1 for c = 0, and
            2 E[sigmoid(-y N_W)] for c = 1, which the learning of P starves.
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
    """Growth rate -d^2 Loss/db^2 - lambda of b at b = 0 and noise `tau`, by quadrature: with the
    row V[0,1:] and for any coupling, at the amplitude a = `signal` of P."""
    square = jnp.asarray(tau) ** 2
    rest = 5 * (square,)

    def loss(b: Float[Array, ""]) -> Float[Array, ""]:
        a = jnp.asarray(signal, square.dtype)
        return total(ReducedState(a, b, *rest), task, rule=rule)

    return -jax.grad(jax.grad(loss))(jnp.zeros_like(square)) - decay


def critical_noise(task: Prompts, decay: Real[Number, "..."]) -> Float[Array, "..."]:
    """tau_c: the closed form of g is positive below it and negative above; elementwise."""
    return finite_time_boundary(task, decay, math.inf, task.r)


def critical_rate(task: Prompts, optimizer: NoisySGD) -> Float[Array, ""]:
    """Learning rate eta_c = 2 lambda tau_c^2 / tau_xi^2 whose noise is critical."""
    tau = critical_noise(task, optimizer.decay)
    return tau**2 * (2 * optimizer.decay) / jnp.asarray(optimizer.noise) ** 2


@checks.renamed
def finite_time_boundary(
    task: Prompts,
    decay: Real[Number, "..."],
    eta_time: Real[Number, "..."],
    r: Real[Number, "..."],
) -> Float[Array, "..."]:
    """Noise tau below which Q is learned within the eta-time `eta_time`, elementwise in `r`, which
    stands in for `task.r`: the root of g T = ln(sigma / (r^2 tau)).

    The right-hand side does not depend on tau, which makes this a closed form.
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
    """Eta-time in which b gets from tau to sigma/r^2 at noise `tau`, ln(sigma / (r^2 tau)) / g,
    elementwise; `inf` where the noise is above critical."""
    rate = growth_rate(task, tau, decay)
    needed = jnp.log(_logit_noise(task, task.r) / jnp.asarray(task.r) ** 2)
    return jnp.where(rate > 0, needed / jnp.where(rate > 0, rate, 1), jnp.inf)


def early_signal(task: Prompts, t: Real[Number, "..."]) -> Float[Array, "..."]:
    """a ~ kappa pbar^2 t / 4 at small eta-time t, from a = 0 and with unsaturated outputs."""
    return jnp.asarray(t) * (task.kappa * task.mean_margin**2) / 4


def unsaturated_margin(task: Prompts, decay: Real[Number, "..."]) -> Float[Array, "..."]:
    """Mean of y N_W at the end of a first stage of eta-time 1/(4 lambda) if the outputs did not
    saturate: kappa^2 pbar^4 / (32 lambda). P is learned in it if this is large against 1."""
    return jnp.asarray((task.kappa * task.mean_margin**2) ** 2 / (32 * jnp.asarray(decay)))


def stationary_signal(
    task: Prompts, decay: Real[Number, ""], *, rule: Rule | None = None
) -> Signal:
    """Where a and |b| end for c = 0, without noise and at L = infinity in all but kappa:

        lambda a* = (kappa/2) pbar E[sigmoid(-(kappa/2) pbar p a*) p]
        lambda b* = (kappa/8) r^2 sigmoid(-kappa r^2 b*/4)

    The trace of V ends above that of W where b* > a*.
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


def noise_variance(optimizer: NoisySGD, times: Real[Number, "*S"]) -> Float[Array, "*S"]:
    """Variance of the noise weights after `times` optimiser steps, where the loss does not act on
    them: v' = -2 lambda v + eta tau_xi^2 from init^2, stage by stage."""
    first, second = optimizer.eta_1, optimizer.eta_2
    switch = optimizer.steps[0]
    before = jnp.minimum(jnp.asarray(times), switch) * first
    after = jnp.maximum(jnp.asarray(times) - switch, 0) * second

    def relax(
        start: Real[Number, "*S"], eta: Real[Number, ""], elapsed: Float[Array, "*S"]
    ) -> Float[Array, "*S"]:
        end = eta * optimizer.noise**2 / (2 * optimizer.decay)
        return jnp.exp(-2 * optimizer.decay * elapsed) * (start - end) + end

    return relax(relax(optimizer.init**2, first, before), second, after)


def waiting_time(decay: Real[Number, "..."]) -> Float[Array, "..."]:
    """Eta-time 1/(2 lambda) in which the surplus of noise decays by e after the annealing, for
    which the onset of Q waits."""
    return 1 / (2 * jnp.asarray(decay))
