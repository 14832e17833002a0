r"""Noisy SGD with weight decay, annealed from a large learning rate to a small one.

This is the algorithm of the two-stage dynamics (arXiv:2502.20681, after arXiv:1907.04595), on
weights U with xi_t ~ N(0, noise^2) in every entry:

    U_{t+1} = (1 - eta lambda) U_t - eta (grad_t + xi_t),   U_0 ~ N(0, tau_0^2)

with eta = eta_1 for t_1 steps and eta_2 for t_2 more, while the noise stays the same. The
natural time variable is eta-time, the sum of the learning rates so far.
"""

from __future__ import annotations

from typing import Literal, get_args

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Real

from dynsim import checks, decoding
from dynsim.precision import AnyArray, AnyNotNegative, AnyPositive, AnyReal, Number
from dynsim.schedules import Steps, steps
from dynsim.training.rule import Rule, UpdateRule
from dynsim.training.rules import SGD, why_not_known

Control = Literal["none", "forever", "small", "smallinit"]


class Annealed(UpdateRule):
    r"""Noisy SGD with weight decay, annealed from a large learning rate to a small one.

    It is SGD with coupled decay and the gradient noise
    :math:`\tau_\xi = \tau \sqrt{1 - (1 - \eta_1 \lambda)^2} / \eta_1`, for the groups of weights of
    `dynsim.Prompts`: gradients move "signal", noise moves "noise", and both decay. Its learning
    rate changes at the end of the first stage.

    Attributes:
        eta_1: learning rate of the first stage.
        eta_2: learning rate of the second stage.
        decay: weight decay lambda, per unit of eta-time.
        tau: stationary standard deviation of a weight's noise at eta_1.
        stage_1: length of the first stage in eta-time, in units of 1/lambda; Theorem 1 anneals
            after 1/(4 lambda).
        stage_2: length of the second stage, in the same unit.
        control: an experiment of the same length in eta-time and the same gradient noise: forever
            keeps the large rate to the end; small uses the small rate from the start; smallinit
            also starts from weights that are stationary for the small rate.

    Raises:
        ValueError: for rates, decay or stages that are not positive, a negative standard
            deviation, rates at which decay overshoots in a step, or more than 2^31 - 1 steps.

    Example:
        >>> task = dynsim.Prompts(d=8, length=17, r=1.6, pool=32, num_test=32)
        >>> rule = dynsim.Annealed(eta_1=0.2, eta_2=0.1, decay=0.1, tau=0.3, stage_2=0.5)
        >>> times = rule.stages.times(8)
        >>> key = jax.random.key(0)
        >>> run = dynsim.train(task, rule, key, steps=None, times=times, batch=16)
    """

    eta_1: AnyPositive = 0.2
    eta_2: AnyPositive = 0.01
    decay: AnyPositive = 0.025
    tau: AnyNotNegative = 0.25
    stage_1: AnyPositive = 0.25
    stage_2: AnyPositive = 3.0
    control: Control = eqx.field(static=True, default="none")

    def __check_init__(self) -> None:
        checks.choice("control", self.control, get_args(Control))
        decoding.check_annotations(self)
        for name, eta in (("eta_1", self.eta_1), ("eta_2", self.eta_2)):
            if not checks.is_traced((eta, self.decay)):
                shrinkage = np.multiply(eta, self.decay)
                checks.real(f"{name} * decay", shrinkage, 0, 1, open_maximum=True)
        last = self.ends[-1]
        # Not `>=`, because NaN is an error too.
        if not checks.is_traced(last) and not np.max(last) < 2**31:
            raise ValueError(
                f"eta_1, eta_2, decay, stage_1, stage_2: give {np.max(last):.3g} steps; at most "
                f"{2**31 - 1} are possible"
            )

    @property
    def rates(self) -> tuple[AnyReal, AnyReal]:
        """Learning rates of the two stages, for the chosen control."""
        first = self.eta_1 if self.control in ("none", "forever") else self.eta_2
        return first, self.eta_1 if self.control == "forever" else self.eta_2

    @property
    def ends(self) -> tuple[AnyReal, AnyReal]:
        """Steps at which the two stages end."""
        numbers = (
            jnp if checks.is_traced((self.rates, self.decay, self.stage_1, self.stage_2)) else np
        )
        with np.errstate(over="ignore", divide="ignore"):
            spans = self.stage_1 / self.decay, self.stage_2 / self.decay
            first, second = (
                # Each stage has at least one step.
                numbers.maximum(numbers.rint(numbers.asarray(span) / eta), 1)
                for span, eta in zip(spans, self.rates, strict=True)
            )
            return first, first + second

    @property
    def tau_0(self) -> AnyReal:
        """Standard deviation of the stationary starting weights: `tau`, or the one for the small
        learning rate with the control "smallinit"."""
        if self.control != "smallinit":
            return self.tau
        return self.stages.stationary(self.stages.eta_1)

    @property
    def stages(self) -> Annealing:
        """The two stages: their rates, their ends, and steps at which to record."""
        return Annealing.of(self)

    def build(self) -> Rule:
        """Return the `dynsim.SGD` that is used for training."""
        # The noise at which tau is the stationary standard deviation at eta_1.
        noise = self.tau * (1 - (1 - self.eta_1 * self.decay) ** 2) ** 0.5 / self.eta_1
        first, second = self.rates
        # The second jump changes nothing: it is where the run ends.
        ratio = second / first
        eta = steps(first, self.ends, (ratio, ratio))
        # Not for the group "bias".
        decay = {"noise": self.decay, "signal": self.decay}
        return SGD(eta, decay=decay, noise={"noise": noise})

    @staticmethod
    def spread(rule: Rule, num: int) -> Float[AnyArray, " S"]:
        """Call `Annealing.spread` for a built rule."""
        return Annealing.of(rule).spread(num)


def why_not_annealed(rule: Rule) -> str | None:
    """Explain why `Annealing.of` cannot read a rule, or return None."""
    if reason := why_not_known(rule):
        return reason
    plain = type(rule) is SGD and not rule.has_inertia and rule.clip is None and not rule.decoupled
    groups = [set(part) if isinstance(part, dict) else None for part in (rule.decay, rule.noise)]
    if plain and groups == [{"noise", "signal"}, {"noise"}] and isinstance(rule.eta, Steps):
        return None
    return f"rule = {rule!r}: must be a `dynsim.Annealed`, or what it built"


class Annealing(eqx.Module):
    r"""The two stages of an `Annealed` rule.

    Attributes:
        eta_1, eta_2: learning rates of the stages, 1/step.
        decay: weight decay :math:`\lambda`, per unit of eta-time.
        noise: standard deviation :math:`\tau_\xi` of the gradient noise in every entry.
        first, last: steps at which the stages end.

    Raises:
        ValueError: from `of`, for a rule that is not a `dynsim.Annealed`.

    Example:
        >>> dynsim.Annealed(eta_1=0.1, eta_2=0.01).stages.steps
        (100, 12000)
    """

    eta_1: AnyReal
    eta_2: AnyReal
    decay: AnyReal
    noise: AnyReal
    first: AnyReal
    last: AnyReal

    @classmethod
    def of(cls, rule: UpdateRule) -> Annealing:
        """Return the stages of an `Annealed`, or of the rule built from it; `ValueError` for any
        other rule."""
        # A built rule is an `UpdateRule` too, and builds itself.
        rule = rule.build() if isinstance(rule, UpdateRule) else rule
        if reason := why_not_annealed(rule):
            raise ValueError(reason)
        eta, decay, noise = rule.eta, rule.decay, rule.noise
        assert isinstance(eta, Steps)
        assert isinstance(decay, dict)
        assert isinstance(noise, dict)
        rates = eta.peak, eta.peak * eta.factors[0]
        return cls(*rates, decay["noise"], noise["noise"], eta.at[0], eta.at[-1])

    @property
    def steps(self) -> tuple[int, int]:
        """Optimiser steps (t_1, t_2) of the two stages; not for traced numbers."""
        return int(self.first), int(self.last) - int(self.first)

    def flow_time(self, steps: Real[Number, "*S"]) -> Float[Array, "*S"]:
        """Return the eta-time after `steps` optimiser steps, the reduced ODE's time variable."""
        first = jnp.minimum(steps, self.first)
        return first * self.eta_1 + (steps - first) * self.eta_2

    def stationary(self, eta: AnyReal) -> AnyReal:
        r"""Return the stationary standard deviation of a weight's noise part at learning rate
        `eta`: :math:`\tau(\eta)^2 = \eta\, \tau_\xi^2 / (\lambda (2 - \eta\lambda))`."""
        return self.noise * (eta / (self.decay * (2 - eta * self.decay))) ** 0.5

    def spread(self, num: int) -> Float[AnyArray, " S"]:
        """Return `num` optimiser steps, not rounded, evenly spaced in eta-time within each stage, a
        third of them in the first. If `num` is too small for both ends of both stages, the end of
        the run has priority, then the end of the first stage."""
        numbers = jnp if checks.is_traced(self) else np
        # In units of stages: the first is [0, 1], the second [1, 2].
        before = np.linspace(0, 1, max(num // 3, 1) + 1) if num > 2 else np.ones(num - 1)
        after = np.linspace(1, 2, num - before.size + 1)[1:]
        stages = numbers.asarray(np.concatenate([before, after]), jnp.result_type(self.decay))
        second = self.last - self.first
        return numbers.where(stages <= 1, stages * self.first, self.first + (stages - 1) * second)

    def times(self, num: int = 128) -> Int[np.ndarray, " S"]:
        """Return about `num` whole steps spaced as in `spread`, including both ends of the second
        stage; not for traced numbers."""
        return np.unique(np.rint(self.spread(checks.integer("num", num, 1)))).astype(np.int64)
