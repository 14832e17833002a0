"""Noisy SGD with weight decay, and its annealing from a large learning rate to a small one.

The algorithm of the two-stage dynamics (arXiv:2502.20681, after arXiv:1907.04595), on weights
U with xi_t ~ N(0, noise^2) in every entry:

    U_{t+1} = (1 - eta lambda) U_t - eta (grad_t + xi_t),   U_0 ~ N(0, init^2)

with eta = eta_1 for t_1 steps and eta_2 for t_2 more, while the noise stays the same. The
natural clock is eta-time, the sum of the learning rates so far.
"""

import dataclasses
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Real

from dynsim import checks
from dynsim.precision import AnyArray, Number, cast

Control = Literal["none", "forever", "small", "smallinit"]


class NoisySGD(eqx.Module):
    r"""The schedule and the noise. Build it with `noisy_sgd`.

    Attributes:
        eta_1, eta_2: learning rates of the two stages, per step on the batch-*mean* loss.
        decay: weight decay :math:`\lambda`, per unit of eta-time.
        noise: standard deviation :math:`\tau_\xi` of the gradient noise in every entry.
        init: standard deviation :math:`\tau_0` of the starting weights.
        span_1, span_2: length of the stages in eta-time.
    """

    eta_1: Real[Number, "*#P"]
    eta_2: Real[Number, "*#P"]
    decay: Real[Number, "*#P"]
    noise: Real[Number, "*#P"]
    init: Real[Number, "*#P"]
    span_1: Real[Number, "*#P"]
    span_2: Real[Number, "*#P"]

    def astype(self, dtype: str) -> "NoisySGD":
        """The same with its numbers as JAX arrays of `dtype`."""
        return jax.tree.map(lambda number: cast(number, dtype), self)

    @property
    def steps(self) -> tuple[Int[AnyArray | np.int32, "*#P"], Int[AnyArray | np.int32, "*#P"]]:
        """Optimiser steps (t_1, t_2) of the two stages, at least one each."""
        numbers = jnp if checks.is_traced(self) else np
        one = numbers.rint(numbers.asarray(self.span_1) / self.eta_1).astype(np.int32)
        two = numbers.rint(numbers.asarray(self.span_2) / self.eta_2).astype(np.int32)
        return numbers.maximum(one, 1), numbers.maximum(two, 1)

    @property
    def total_steps(self) -> Int[AnyArray | np.int32, "*#P"]:
        """Optimiser steps of a whole run."""
        return self.steps[0] + self.steps[1]

    def rate(self, step: Int[Number, "*S"]) -> Float[Array, "*S"]:
        """Learning rate of the update after `step` steps."""
        return jnp.where(step < self.steps[0], self.eta_1, self.eta_2)

    def flow_time(self, steps: Real[Number, "*S"]) -> Float[Array, "*S"]:
        """Eta-time after `steps` optimiser steps, the clock of the reduced ODE."""
        first = jnp.minimum(steps, self.steps[0])
        return first * self.eta_1 + (steps - first) * self.eta_2

    def stationary(self, eta: Real[Number, "*#P"]) -> Real[Number, "*#P"]:
        r"""Stationary standard deviation of the noise part of a weight at learning rate `eta`:

        .. math::

            \tau(\eta)^2 = \frac{\eta\, \tau_\xi^2}{\lambda (2 - \eta\lambda)}.
        """
        return self.noise * (eta / (self.decay * (2 - eta * self.decay))) ** 0.5

    def spread(self, num: int) -> Float[AnyArray, " S"]:
        """`num` optimiser steps, not whole ones, evenly spread in eta-time over either stage: a
        third of them over the first. The last one is the end, before it comes the end of the
        first stage, before that the start, as far as `num` goes."""
        numbers = jnp if checks.is_traced(self) else np
        first, second = self.steps
        before = np.linspace(0, 1, max(num // 3, 1) + 1) if num > 2 else np.ones(num - 1)
        after = np.linspace(1, 2, num - before.size + 1)[1:]
        stages = numbers.asarray(np.concatenate([before, after]), jnp.result_type(self.span_1))
        return numbers.where(stages <= 1, stages * first, first + (stages - 1) * second)

    def times(self, num: int) -> Int[np.ndarray, " S"]:
        """About `num` whole steps like those of `spread`, with both ends of the second stage among
        them; for numbers that are not traced."""
        return np.unique(np.rint(self.spread(checks.integer("num", num, 1)))).astype(np.int64)


def noisy_sgd(
    eta_1: Real[Number, "*#P"] = 0.2,
    eta_2: Real[Number, "*#P"] = 0.01,
    decay: Real[Number, "*#P"] = 0.025,
    tau: Real[Number, "*#P"] = 0.25,
    *,
    init: Real[Number, "*#P"] | None = None,
    stage_2: Real[Number, "*#P"] = 3.0,
) -> NoisySGD:
    r"""Two-stage noisy SGD: `eta_1` for the eta-time :math:`1/(4\lambda)`, then `eta_2` for
    `stage_2` times :math:`1/\lambda`.

    Args:
        eta_1, eta_2: learning rates of the stages, per step.
        decay: weight decay :math:`\lambda`.
        tau: stationary standard deviation :math:`\tau_1` of a noise weight at eta_1, from which the
            gradient noise :math:`\tau_\xi = \tau_1 \sqrt{1 - (1 - \eta_1 \lambda)^2} / \eta_1`
            follows.
        init: standard deviation of the starting weights; `tau` if None, so that the noise
            starts stationary.
        stage_2: length of the second stage in units of :math:`1/\lambda`.

    Raises:
        ValueError: for rates, decay or stage_2 that are not positive, negative deviations, or
            :math:`\eta\lambda \ge 1` (the first stage has then no step in it), or more steps
            than 32 bits count.
    """
    for name, value in (("eta_1", eta_1), ("eta_2", eta_2), ("decay", decay), ("stage_2", stage_2)):
        checks.real(name, value, 0, open_minimum=True)
    checks.real("tau", tau, 0)
    if init is not None:
        checks.real("init", init, 0)
    for name, eta in (("eta_1", eta_1), ("eta_2", eta_2)):
        if not checks.is_traced((eta, decay)):
            checks.real(f"{name} * decay", np.multiply(eta, decay), 0, 1, open_maximum=True)
    if not checks.is_traced((eta_1, eta_2, decay, stage_2)):
        with np.errstate(over="ignore", divide="ignore"):
            first = np.divide(0.25, np.multiply(decay, eta_1))
            steps = np.max(first + np.divide(stage_2, np.multiply(decay, eta_2)))
        if not steps < 2**31:
            raise ValueError(
                f"eta_1, eta_2, decay, stage_2: make {steps:.3g} steps, at most {2**31 - 1} are "
                "possible"
            )
    noise = tau * (1 - (1 - eta_1 * decay) ** 2) ** 0.5 / eta_1
    init = tau if init is None else init
    return NoisySGD(eta_1, eta_2, decay, noise, init, 1 / (4 * decay), stage_2 / decay)


def controlled(optimizer: NoisySGD, control: Control) -> NoisySGD:
    """The `control` experiment to a two-stage schedule, of the same length in eta-time.

    "forever" keeps the large learning rate; "small" has the small one from the start, with the
    large starting weights; "smallinit" starts from weights that are stationary for it.
    """
    checks.choice("control", control, ("none", "forever", "small", "smallinit"))
    if control == "forever":
        return dataclasses.replace(optimizer, eta_2=optimizer.eta_1)
    if control in ("small", "smallinit"):
        small = dataclasses.replace(optimizer, eta_1=optimizer.eta_2)
        if control == "smallinit":
            return dataclasses.replace(small, init=optimizer.stationary(optimizer.eta_2))
        return small
    return optimizer
