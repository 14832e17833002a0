"""A flow as an initial value problem, and what drives it: shared by the flows of all rules."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, get_args, runtime_checkable

from jaxtyping import PyTree

Flow = Literal[
    "plain",
    "corrected",
    "rescaled",
    "heavy-ball",
    "matched",
    "adam",
    "matched-adam",
    "rmsprop",
    "matched-rmsprop",
]
"""Names of the flows that optimisers follow, see `odes.solver.flows`."""
FLOWS: tuple[Flow, ...] = get_args(Flow)

Params = TypeVar("Params")
Gradient = Callable[[Any, Params], Params]
Save = Callable[[Any, Params], PyTree]


@runtime_checkable
class Driver(Protocol):
    """What drives a flow: a rule at constant rates, or one whose rates depend on time."""

    @property
    def kind(self) -> str: ...
    @property
    def momentum(self) -> Any: ...
    @property
    def b1(self) -> Any: ...
    @property
    def b2(self) -> Any: ...
    @property
    def eps(self) -> Any: ...

    @property
    def jumps(self) -> tuple[Any, ...]:
        """Steps at which a rate, or its slope, jumps."""
        ...

    def descend(self, direction: PyTree, t: Any = None, params: PyTree = None) -> PyTree:
        """Minus the direction times the rates at `t`, and decoupled decay of `params` if given."""
        ...


class Posed(NamedTuple):
    """A flow as an initial value problem.

    Attributes:
        state: at the start; the parameters come first.
        field: its derivative, from (t, state, args).
        args: the task, the rule, and what else the field needs.
        shift: the state after k steps is the flow at t = k + shift.
        jumps: times at which the field jumps, besides those of the rates.
    """

    state: tuple[PyTree, ...]
    field: Callable[..., PyTree]
    args: tuple[Any, ...]
    shift: float = 0.0
    jumps: tuple[float, ...] = ()
