r"""Rules as theories use them: flows as initial value problems, and `Rescaled` rates of Y and Z.

Theories without inertia treat a rule of Y and Z as one with constant rates, in a rescaled time.
Along :math:`p' = -\eta(t)\, G/(1 - \mu)` a schedule only changes the speed. If the schedules of Y
and Z are proportional, the flow is the one at their peak rates in the time

.. math::

    u(t) = \frac{1}{\eta_\text{peak}} \int_0^t \eta(t')\, dt',

the number of steps at the peak rate with the same integral as t steps, in which nothing jumps.
Closed forms in :math:`\eta t` therefore hold with the integral of the rate instead. Theories read
rates from tables of whole steps, see `dynsim.schedules.Table`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, Real

from dynsim.precision import AnyArray, Number
from dynsim.schedules import Constant, Schedule, proportional
from dynsim.training.rule import Rule
from dynsim.training.rules import SGD, why_not_known

LONGEST_SEARCH = 2**22
"""Largest number of steps after which a time is searched for in a schedule."""
Params = TypeVar("Params")
AnyRule = TypeVar("AnyRule", bound=Rule, covariant=True)
Gradient = Callable[[PyTree, Params], Params]
SaveParams = Callable[[PyTree, Params, Array], PyTree]
"""(task, parameters, time of the flow) -> what to keep."""


def jumps(rule: Rule) -> Float[Array, " J"]:
    """Return the steps at which a rate jumps; inf stands for none."""
    of_groups = [schedule.jumps() for schedule in rule.schedules.values()]
    return jnp.concatenate(of_groups) if of_groups else jnp.zeros(0)


class GroupedRule(eqx.Module, Generic[AnyRule]):
    """The rule of a flow, with the names of groups of weights if it has rates by group."""

    rule: AnyRule
    groups: PyTree = eqx.field(static=True)

    def descend(
        self,
        direction: PyTree,
        t: Real[Number, ""] = 0.0,
        params: PyTree = None,
        step: Int[Number, ""] | None = None,
    ) -> PyTree:
        """Return minus the direction times the rates at time `t`, or of a whole `step`. If `params`
        are given, decoupled decay of them is included."""
        if self.rule.decoupled and params is not None:
            # p' = -eta (d + lambda p), past the averages of the rule.
            direction = self.rule.decayed(direction, params, self.groups)
        rates = self.rule.flow_rate(t) if step is None else self.rule.rate(step)
        return self.rule.descend(direction, rates, self.groups)


class InitialValueProblem(NamedTuple):
    """A flow as an initial value problem: the `state` at the start, parameters first; the `field`,
    its derivative from (t, state, args); its other arguments `args`, the task and the rule first;
    the `shift` by which the state after k steps is the flow at t = k + shift; and times at which
    the field jumps, besides those of the rates."""

    state: tuple[PyTree, ...]
    field: Callable[..., PyTree]
    args: tuple[PyTree, ...]
    shift: float = 0.0
    jumps: tuple[float, ...] = ()


Pose = Callable[[Gradient, PyTree, GroupedRule, PyTree], InitialValueProblem]
"""(gradient, task, driven, initial parameters) -> the initial value problem."""


@dataclasses.dataclass(frozen=True)
class Flow:
    """A flow of an update rule.

    Attributes:
        name: its name. Flows of other rules may have the same one.
        title: title for legends and tables.
        assumes: its assumptions in words, besides an infinite batch.
        rule: the class of rules that it belongs to.
        pose: its equations, as an initial value problem.
        describes: whether it describes a rule of that class.
        decays: names of decays that must not be zero, because the flow uses their logarithm.
        in_eta_time: whether a rate only changes the speed, so that a flow of a single rate is
            solved in the time in which it is constant.
        variant: whether another flow of these rules is more exact.

    Example:
        >>> from odes.solver import flows
        >>> isinstance(flows.FLOWS[0], odes.Flow)
        True
    """

    name: str
    title: str
    assumes: str
    rule: type[Rule]
    pose: Pose
    describes: Callable[[Any], bool] = lambda rule: True
    decays: tuple[str, ...] = ()
    variant: bool = False
    in_eta_time: bool = False


class Rescaled(eqx.Module):
    r"""Constant rates, and the time in which they are constant.

    Attributes:
        Y, Z: the rates of Y and of Z, proportional to one another.
        rate: factor on both, :math:`1/(1 - \mu)`, to which the geometric weights of momentum sum.
    """

    Y: Schedule
    Z: Schedule
    rate: Real[Number, "*#P"]

    @classmethod
    def of(cls, rule: Rule) -> "Rescaled":
        """Make the rates of a rule for which `why_not_described` returns None."""
        assert isinstance(rule, SGD)
        # Velocities of momentum sum to 1 / (1 - mu) times the gradient.
        rates = rule.of_groups("Y", "Z").schedules
        return cls(rates["Y"], rates["Z"], 1 / (1 - rule.mu))

    @property
    def eta_y(self) -> Real[Number, "*#P"]:
        """Peak rate of Y, without the factor."""
        return self.Y.peak

    @property
    def eta_z(self) -> Real[Number, "*#P"]:
        """Peak rate of Z, without the factor."""
        return self.Z.peak

    def flow_time(self, steps: Float[AnyArray, "*S"]) -> Float[Array, "*S"]:
        """u after `steps` optimiser steps, which never falls."""
        return jnp.asarray(self.Y.flow_time(steps))

    def steps_at(self, time: Real[AnyArray, "*S"]) -> Float[np.ndarray, "*S"]:
        """Optimiser steps after which `flow_time` is `time`; inf where that is never, or after more
        than `LONGEST_SEARCH` steps."""
        time = np.asarray(time, float)
        if isinstance(self.Y, Constant) and self.Y.warmup is None:
            return time
        # Sums of the rate over ever more steps, until they exceed the latest time.
        most, sums, steps = np.max(time, initial=0, where=np.isfinite(time)), np.zeros(1), 1024
        while sums[-1] < most and steps <= LONGEST_SEARCH:
            sums, steps = np.asarray(self.Y.flow_time(np.arange(steps + 1.0))), 8 * steps
        # The first step at whose end as much is learned; rates may be zero before it.
        end = np.clip(np.searchsorted(sums, time), 1, len(sums) - 1)
        # Within a step the rate is constant, so the sum is linear; `tiny` is for steps of rate 0.
        share = (time - sums[end - 1]) / np.maximum(sums[end] - sums[end - 1], np.finfo(float).tiny)
        return np.where(sums[-1] < time, np.inf, end - 1 + share)


def effective_rates(rule: Rule) -> tuple[Float[Array, "*P"], Float[Array, "*P"]]:
    r"""Return :math:`\eta_Y` and :math:`\eta_Z` over :math:`1 - \mu`, the rates in closed forms
    without inertia.

    Returns:
        The peak rates of both schedules, each in the shape of its numbers and of :math:`\mu`.

    Raises:
        ValueError: for a rule that closed forms do not describe, such as Adam.

    Example:
        >>> eta_y, eta_z = odes.effective_rates(dynsim.sgd(1.0, 0.5, momentum=0.75))
        >>> float(eta_y), float(eta_z)
        (4.0, 2.0)
    """
    if problem := why_not_described(rule, "the closed form"):
        raise ValueError(problem)
    # The peak rates belong to the time u of the schedule, see above.
    rescaled = Rescaled.of(rule)
    rate = jnp.asarray(rescaled.rate)
    return rate * jnp.asarray(rescaled.eta_y), rate * jnp.asarray(rescaled.eta_z)


def why_not_described(
    rule: Rule,
    theory: str,
    *,
    momentum: Literal["any", "heavy-ball", "none"] = "any",
    together: bool = True,
) -> str | None:
    """Return why a theory without inertia does not describe a rule, naming `theory`, or None.

    Args:
        momentum: kinds of momentum that the theory describes.
        together: whether the theory moves both Y and Z.
    """
    if reason := why_not_known(rule):
        return reason
    # Heavy-ball and Nesterov momentum have the same limit without inertia, and differ beyond it.
    sgd = isinstance(rule, SGD) and (momentum == "any" or not rule.nesterov)
    if not sgd or (momentum == "none" and rule.has_inertia):
        without = {"heavy-ball": " without Nesterov momentum", "none": " without momentum"}
        kinds = f"gradient descent{without.get(momentum, '')}"
        return f"optimizer = {rule.name}: {theory} describes {kinds} only"
    for name in ("decay", "clip", "noise"):
        if getattr(rule, name) is not None:
            return f"{name} = {getattr(rule, name)!r}: {theory} needs plain gradients"
    schedules = tuple(rule.schedules.values())
    if together and not all(proportional(schedules[0], other) for other in schedules[1:]):
        return f"eta: {theory} has one time for Y and Z; their schedules must be proportional"
    return None
