"""What update rules at constant rates have in common, and the optax transformation they make.

Every number is a pytree leaf and the transformation is built inside the traced function, so that
one compilation serves a whole grid of learning rates.
"""

import abc
from typing import Literal, TypeVar

import equinox as eqx
import jax
import optax
from jaxtyping import PyTree, Real

from dynsim import checks
from dynsim.precision import Number, cast

Kind = Literal["sgd", "momentum", "adam"]
RatesT = TypeVar("RatesT", bound="ConstantRates")


class ConstantRates(eqx.Module):
    """An update rule but for its learning rates.

    Attributes:
        momentum: heavy-ball coefficient mu of v <- mu v + g, p <- p - eta v (PyTorch's and
            optax's convention).
        b1, b2, eps: Adam's decays and its epsilon, outside the square root.
        kind: which rule.
    """

    # Properties, because of an `eqx.AbstractVar` type checkers would make an argument before the
    # learning rates.
    @property
    @abc.abstractmethod
    def momentum(self) -> Real[Number, "*#P"]: ...

    @property
    @abc.abstractmethod
    def b1(self) -> Real[Number, "*#P"]: ...

    @property
    @abc.abstractmethod
    def b2(self) -> Real[Number, "*#P"]: ...

    @property
    @abc.abstractmethod
    def eps(self) -> Real[Number, "*#P"]: ...

    @property
    @abc.abstractmethod
    def kind(self) -> Kind: ...

    def __check_init__(self) -> None:
        checks.choice("kind", self.kind, ("sgd", "momentum", "adam"))
        for field in ("momentum", "b1", "b2"):
            checks.real(field, getattr(self, field), 0, 1, open_maximum=True)
        checks.real("eps", self.eps, 0, open_minimum=True)

    @abc.abstractmethod
    def descend(self, direction: PyTree, t: object = None, params: PyTree = None) -> PyTree:
        """Minus `direction`, each times its learning rate, which is the same at all times `t` and
        weights."""

    @property
    def jumps(self) -> tuple[()]:
        """Steps at which a rate jumps."""
        return ()

    def astype(self: RatesT, dtype: str) -> RatesT:
        """The same rule with its numbers as JAX arrays of `dtype`, Python integers included."""
        return jax.tree.map(lambda number: cast(number, dtype), self)

    def transformation(self) -> optax.GradientTransformation:
        """The optax transformation of a gradient. Call it inside the traced function."""
        if self.kind == "adam":
            direction = optax.scale_by_adam(self.b1, self.b2, self.eps)
        elif self.kind == "momentum":
            direction = optax.trace(self.momentum)
        else:
            direction = optax.identity()
        return optax.chain(direction, optax.stateless(lambda updates, _: self.descend(updates)))
