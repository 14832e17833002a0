r"""Noisy SGD with weight decay, annealed from a large learning rate to a small one.

The algorithm of the two-stage dynamics (arXiv:2502.20681, after arXiv:1907.04595), on weights
U with xi_t ~ N(0, noise^2) in every entry:

    U_{t+1} = (1 - eta lambda) U_t - eta (grad_t + xi_t),   U_0 ~ N(0, tau_0^2)

with eta = eta_1 for t_1 steps and eta_2 for t_2 more, while the noise stays the same. The
natural clock is eta-time, the sum of the learning rates so far.

As a rule it is SGD with a rate that jumps, coupled decay, and gradient noise: gradients move the
group "signal" of the weights, noise moves the group "noise", and both decay.
"""

from __future__ import annotations

from typing import Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Real

from dynsim import checks
from dynsim.precision import AnyArray, Number
from dynsim.schedules import steps
from dynsim.schedules.shapes import Steps
from dynsim.training.rule import Rule
from dynsim.training.rules import SGD, unread

Control = Literal["none", "forever", "small", "smallinit"]
Some = Real[Number, "*#P"]


def noisy_sgd(
    eta_1: Some = 0.2,
    eta_2: Some = 0.01,
    decay: Some = 0.025,
    tau: Some = 0.25,
    *,
    stage_2: Some = 3.0,
    control: Control = "none",
) -> Rule:
    r"""Two-stage noisy SGD: `eta_1` for the eta-time :math:`1/(4\lambda)`, then `eta_2` for
    `stage_2` times :math:`1/\lambda`.

    Args:
        eta_1, eta_2: learning rates of the stages, per step on the batch-*mean* loss.
        decay: weight decay :math:`\lambda`, per unit of eta-time.
        tau: stationary standard deviation :math:`\tau_1` of a noise weight at eta_1, from which the
            gradient noise :math:`\tau_\xi = \tau_1 \sqrt{1 - (1 - \eta_1 \lambda)^2} / \eta_1`
            follows.
        stage_2: length of the second stage in units of :math:`1/\lambda`.
        control: an experiment of the same length in eta-time and the same gradient noise: "forever"
            keeps the large learning rate; "small" and "smallinit" have the small one from the
            start.

    Returns:
        A rule for the groups of weights of `dynsim.Prompts`. The schedule's boundaries are the end
        of the first stage and that of the run.

    Raises:
        ValueError: for rates, decay or stage_2 that are not positive, a negative deviation, or
            rates at which decay overshoots in a step; and for more than 2^31 - 1 steps.
    """
    checks.choice("control", control, ("none", "forever", "small", "smallinit"))
    given = {"eta_1": eta_1, "eta_2": eta_2, "decay": decay, "stage_2": stage_2}
    for name, value in given.items():
        checks.real(name, value, 0, open_minimum=True)
    checks.real("tau", tau, 0)
    for name, eta in (("eta_1", eta_1), ("eta_2", eta_2)):
        if not checks.is_traced((eta, decay)):
            checks.real(f"{name} * decay", np.multiply(eta, decay), 0, 1, open_maximum=True)
    noise = tau * (1 - (1 - eta_1 * decay) ** 2) ** 0.5 / eta_1
    first = eta_1 if control in ("none", "forever") else eta_2
    second = eta_1 if control == "forever" else eta_2
    numbers = jnp if checks.is_traced((first, second, decay, stage_2)) else np
    with np.errstate(over="ignore", divide="ignore"):
        lengths = [
            numbers.maximum(numbers.rint(numbers.asarray(span) / eta), 1)
            for span, eta in ((1 / (4 * decay), first), (stage_2 / decay, second))
        ]
    if numbers is np and not (most := np.max(lengths[0] + lengths[1])) < 2**31:
        raise ValueError(
            f"eta_1, eta_2, decay, stage_2: make {most:.3g} steps, at most {2**31 - 1} are possible"
        )
    ratio = second / first
    at = lengths[0], lengths[0] + lengths[1]
    eta = steps(first, at, (ratio, ratio))
    return SGD(eta, decay={"noise": decay, "signal": decay}, noise={"noise": noise})


def refused(rule: Rule) -> str | None:
    """Why `Annealing.of` cannot read a rule, or None."""
    if reason := unread(rule):
        return reason
    plain = type(rule) is SGD and not rule.has_inertia and rule.clip is None and not rule.decoupled
    parts = [set(each) if isinstance(each, dict) else None for each in (rule.decay, rule.noise)]
    if plain and parts == [{"noise", "signal"}, {"noise"}] and isinstance(rule.eta, Steps):
        return None
    return f"rule = {rule!r}: must be one of `dynsim.noisy_sgd`"


class Annealing(eqx.Module):
    r"""What a rule of `noisy_sgd` says of the two stages.

    Attributes:
        eta_1, eta_2: learning rates of the stages, 1/step.
        decay: weight decay :math:`\lambda`, per unit of eta-time.
        noise: standard deviation :math:`\tau_\xi` of the gradient noise in every entry.
        first, last: steps at which the stages end.
    """

    eta_1: Some
    eta_2: Some
    decay: Some
    noise: Some
    first: Some
    last: Some

    @classmethod
    def of(cls, rule: Rule) -> Annealing:
        """Raises `ValueError` for another rule."""
        if reason := refused(rule):
            raise ValueError(reason)
        eta = rule.eta
        assert isinstance(eta, Steps)
        assert isinstance(rule.decay, dict)
        assert isinstance(rule.noise, dict)
        rates = eta.peak, eta.peak * eta.factors[0]
        return cls(*rates, rule.decay["noise"], rule.noise["noise"], eta.at[0], eta.at[-1])

    @property
    def steps(self) -> tuple[int, int]:
        """Optimiser steps (t_1, t_2) of the two stages, for numbers that are not traced."""
        return int(self.first), int(self.last) - int(self.first)

    def flow_time(self, steps: Real[Number, "*S"]) -> Float[Array, "*S"]:
        """Eta-time after `steps` optimiser steps, the clock of the reduced ODE."""
        first = jnp.minimum(steps, self.first)
        return first * self.eta_1 + (steps - first) * self.eta_2

    def stationary(self, eta: Some) -> Some:
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
        before = np.linspace(0, 1, max(num // 3, 1) + 1) if num > 2 else np.ones(num - 1)
        after = np.linspace(1, 2, num - before.size + 1)[1:]
        stages = numbers.asarray(np.concatenate([before, after]), jnp.result_type(self.decay))
        second = self.last - self.first
        return numbers.where(stages <= 1, stages * self.first, self.first + (stages - 1) * second)

    def times(self, num: int = 128) -> Int[np.ndarray, " S"]:
        """About `num` whole steps like those of `spread`, with both ends of the second stage among
        them; for numbers that are not traced."""
        return np.unique(np.rint(self.spread(checks.integer("num", num, 1)))).astype(np.int64)
