"""Any optax optimiser as an update rule of training."""

import inspect
from collections.abc import Callable

import equinox as eqx
import jax
import optax
from jaxtyping import Array, Int, PyTree, Real

from dynsim import checks
from dynsim.precision import Number, cast
from dynsim.schedules.schedule import Schedule
from dynsim.training.rule import Rule


class OptaxRule(eqx.Module):
    """An optax transformation as a rule. Build one with `dynsim.from_optax`.

    Attributes:
        make: returns the transformation from `numbers` as keywords.
        numbers: its traced numbers by name.
    """

    make: Callable[..., optax.GradientTransformation] = eqx.field(static=True)
    numbers: dict[str, Real[Number, "*#P"]]

    @property
    def schedules(self) -> dict[str, Schedule]:
        """None that are known."""
        return {}

    @property
    def noise(self) -> None:
        """The transformation draws its own."""

    @property
    def is_elementwise(self) -> bool:
        """Not known."""
        return False

    def of_groups(self, *groups: str) -> "OptaxRule":
        """The same rule: its rates are its own."""
        del groups
        return self

    def astype(self, dtype: str) -> "OptaxRule":
        """The same rule with its numbers as JAX arrays of `dtype`."""
        return jax.tree.map(lambda number: cast(number, dtype), self)

    def init(self, params: PyTree) -> PyTree:
        """The memory before the first step."""
        return self.make(**self.numbers).init(params)

    def update(
        self,
        gradient: PyTree,
        memory: PyTree,
        params: PyTree,
        step: Int[Array, ""],
        noise: PyTree = None,
        groups: PyTree = None,
    ) -> tuple[PyTree, PyTree]:
        """As `Rule.update`; the transformation counts steps itself.

        Raises:
            ValueError: for a transformation that needs more than the gradient and the weights.
        """
        del step, noise, groups
        try:
            return self.make(**self.numbers).update(gradient, memory, params)
        except TypeError as error:
            raise ValueError(
                f"from_optax({getattr(self.make, '__name__', self.make)}): its update needs more "
                f"than the gradient and the weights, which is not supported ({error})"
            ) from None


AnyRule = Rule | OptaxRule


def from_optax(
    make: Callable[..., optax.GradientTransformation], **numbers: Real[Number, "*#P"]
) -> OptaxRule:
    """Any optax optimiser as a rule for training; theories do not know what it does.

    Args:
        make: such as `optax.lion`, or a function of yours that chains transformations. It is
            called inside the compiled program, where `numbers` are traced.
        **numbers: its keyword arguments that are numbers, each a possible axis of a sweep.

    Raises:
        ValueError: for something that cannot be called, or not with these arguments, or a number
            that is not finite.

    Example:
        >>> rule = dynsim.from_optax(optax.lion, learning_rate=1e-3, weight_decay=0.1)
    """
    if not callable(make):
        raise ValueError(f"make = {make!r}: must be a function that returns an optax optimiser")
    try:
        inspect.signature(make).bind(**numbers)
    except TypeError as error:
        raise ValueError(f"make = {getattr(make, '__name__', make)}: {error}") from None
    for name, value in numbers.items():
        checks.real(name, value)
    return OptaxRule(make, numbers)
