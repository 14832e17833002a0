r"""Rules as theories use them: flows as initial value problems, and `Rescaled` rates of Y and Z.

Theories without inertia treat a rule of Y and Z as one with constant rates, in a rescaled time.
Along :math:`p' = -\eta(t)\, G/(1 - \mu)` a schedule only changes the speed. If the schedules of Y
and Z are proportional, the flow is the one at their peak rates in the time

.. math::

    u(t) = \frac{1}{\eta_\text{peak}} \int_0^t \eta(t')\, dt',

the number of steps at the peak rate with the same integral as t steps. Closed forms in
:math:`\eta t` therefore hold with the integral of the rate instead.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Real

from dynsim.precision import AnyArray, Number
from dynsim.schedules import Constant, OfStep, Schedule, proportional
from dynsim.training.rule import Rule
from dynsim.training.rules import SGD, why_not_known

Params = TypeVar("Params")
AnyRule = TypeVar("AnyRule", bound=Rule, covariant=True)
Gradient = Callable[[Any, Params], Params]
Save = Callable[[Any, Params, Any], PyTree]
"""(task, parameters, time of the flow) -> what to keep."""


class GroupedRule(eqx.Module, Generic[AnyRule]):
    """The rule of a flow, with the names of groups of weights if it has rates by group."""

    rule: AnyRule
    groups: PyTree = eqx.field(static=True)

    @property
    def jumps(self) -> tuple[Any, ...]:
        """Steps at which a rate, or its slope, jumps."""
        return tuple(step for each in self.rule.schedules.values() for step in each.jumps())

    def descend(self, direction: PyTree, t: Any = None, params: PyTree = None) -> PyTree:
        """Return minus the direction times the rates at `t`. If `params` are given, decoupled decay
        of them is included."""
        if self.rule.decoupled and params is not None:
            direction = self.rule.decayed(direction, params, self.groups)
        return self.rule.descend(direction, self.rule.flow_rate(t), self.groups)


class InitialValueProblem(NamedTuple):
    """A flow as an initial value problem: the `state` at the start, parameters first; the `field`,
    its derivative from (t, state, args); its other arguments `args`, the task and the rule first;
    the `shift` by which the state after k steps is the flow at t = k + shift; and times at which
    the field jumps, besides those of the rates."""

    state: tuple[PyTree, ...]
    field: Callable[..., PyTree]
    args: tuple[Any, ...]
    shift: float = 0.0
    jumps: tuple[float, ...] = ()


Pose = Callable[[Gradient, Any, GroupedRule, PyTree], InitialValueProblem]
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
        u = jnp.asarray(self.Y.peak_steps(steps))
        # Where the rate vanishes, a difference of integrals may round downwards.
        return u if u.ndim == 0 else jax.lax.cummax(u)

    def steps_at(self, time: Real[Number, "*S"]) -> Float[Array, "*S"]:
        """Optimiser steps after which `flow_time` is `time`; inf where it never is."""
        if isinstance(self.Y, Constant) and self.Y.warmup is None:
            return jnp.asarray(time, float)
        low = jnp.zeros(jnp.shape(time))
        high = last = jnp.full(jnp.shape(time), 2.0**31)
        # Bisection to the last bit of a step's number.
        for _ in range(84):
            middle = (low + high) / 2
            before = self.Y.peak_steps(middle) < time
            low, high = jnp.where(before, middle, low), jnp.where(before, high, middle)
        return jnp.where(self.Y.peak_steps(last) < time, jnp.inf, high)


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
    sgd = isinstance(rule, SGD) and (momentum == "any" or not rule.nesterov)
    if not sgd or (momentum == "none" and rule.has_inertia):
        without = {"heavy-ball": " without Nesterov momentum", "none": " without momentum"}
        kinds = f"gradient descent{without.get(momentum, '')}"
        return f"optimizer = {rule.name}: {theory} describes {kinds} only"
    for name in ("decay", "clip", "noise"):
        if getattr(rule, name) is not None:
            return f"{name} = {getattr(rule, name)!r}: {theory} needs plain gradients"
    schedules = tuple(rule.schedules.values())
    for each in schedules:
        if isinstance(each, OfStep):
            return f"eta = {each.function!r}: {theory} needs its integral; use a Schedule"
    if together and not all(proportional(schedules[0], each) for each in schedules[1:]):
        return f"eta: {theory} has one time for Y and Z; their schedules must be proportional"
    return None
