"""A flow as an initial value problem, and what drives it: shared by the flows of all rules."""

import dataclasses
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import equinox as eqx
from jaxtyping import PyTree

from dynsim.training.rule import Rule

Params = TypeVar("Params")
AnyRule = TypeVar("AnyRule", bound=Rule, covariant=True)
Gradient = Callable[[Any, Params], Params]
Save = Callable[[Any, Params, Any], PyTree]
"""(task, parameters, time of the flow) -> what to keep."""


class Driven(eqx.Module, Generic[AnyRule]):
    """What drives a flow: a rule, and names of groups of weights where it has rates by group."""

    rule: AnyRule
    groups: PyTree = eqx.field(static=True)

    @property
    def jumps(self) -> tuple[Any, ...]:
        """Steps at which a rate, or its slope, jumps."""
        return tuple(step for each in self.rule.schedules.values() for step in each.jumps())

    def descend(self, direction: PyTree, t: Any = None, params: PyTree = None) -> PyTree:
        """Minus the direction times the rates at `t`; where `params` are given, decoupled decay of
        them is part of it."""
        if self.rule.decoupled and params is not None:
            direction = self.rule.decayed(direction, params, self.groups)
        return self.rule.descend(direction, self.rule.flow_rate(t), self.groups)


class Posed(NamedTuple):
    """A flow as an initial value problem: the `state` at the start, parameters first; the `field`,
    its derivative from (t, state, args); what the field needs, the task and the rule first; the
    `shift` by which the state after k steps is the flow at t = k + shift; and times at which the
    field jumps, besides those of the rates."""

    state: tuple[PyTree, ...]
    field: Callable[..., PyTree]
    args: tuple[Any, ...]
    shift: float = 0.0
    jumps: tuple[float, ...] = ()


Pose = Callable[[Gradient, Any, Driven, PyTree], Posed]
"""(gradient, task, driven, initial parameters) -> the initial value problem."""


@dataclasses.dataclass(frozen=True)
class Flow:
    """A flow of an update rule.

    Attributes:
        name: by which it is asked for. Flows of other rules may have it too.
        title: for legends and tables.
        assumes: in words, besides an infinite batch.
        rule: the class of rules that it belongs to.
        pose: its equations, as an initial value problem.
        describes: whether it describes a rule of that class.
        decays: names of decays of which it takes the logarithm, which must not be zero.
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
