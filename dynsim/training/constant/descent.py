"""Descent with one constant learning rate for all weights, whatever their structure.

Every number is a pytree leaf and the transformation is built inside the traced function, so that
one compilation serves a whole grid of learning rates.
"""

from typing import Literal

import equinox as eqx
import jax
import optax
from jaxtyping import PyTree, Real

from dynsim import checks
from dynsim.precision import Number, cast

Kind = Literal["sgd", "momentum", "adam"]


class Descent(eqx.Module):
    r"""An update rule with one learning rate.

    Attributes:
        eta: learning rate per step on the batch-mean loss.
        momentum: heavy-ball coefficient :math:`\mu` of :math:`v \leftarrow \mu v + g`,
            :math:`p \leftarrow p - \eta v`; read by "momentum".
        b1, b2, eps: Adam's decays and its epsilon, outside the square root; read by "adam".
        clip: largest Euclidean norm of the gradient of all weights together; a longer one is
            shortened to it before anything else. None leaves the gradient alone.
        kind: which rule.

    Raises:
        ValueError: for a number out of its range, naming the field.
    """

    eta: Real[Number, "*#P"]
    momentum: Real[Number, "*#P"] = 0.9
    b1: Real[Number, "*#P"] = 0.9
    b2: Real[Number, "*#P"] = 0.999
    eps: Real[Number, "*#P"] = 1e-8
    clip: Real[Number, "*#P"] | None = None
    kind: Kind = eqx.field(static=True, default="sgd")

    def __check_init__(self) -> None:
        checks.choice("kind", self.kind, ("sgd", "momentum", "adam"))
        for field in ("momentum", "b1", "b2"):
            checks.real(field, getattr(self, field), 0, 1, open_maximum=True)
        checks.real("eps", self.eps, 0, open_minimum=True)
        checks.real("eta", self.eta, 0)
        if self.clip is not None:
            checks.real("clip", self.clip, 0, open_minimum=True)

    def descend(self, direction: PyTree, t: object = None, params: PyTree = None) -> PyTree:
        """Minus `direction` times the learning rate, which is the same at all times `t`."""
        return jax.tree.map(lambda leaf: -self.eta * leaf, direction)

    @property
    def jumps(self) -> tuple[()]:
        """Steps at which the rate jumps."""
        return ()

    def astype(self, dtype: str) -> "Descent":
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
        rule = optax.chain(direction, optax.stateless(lambda updates, _: self.descend(updates)))
        return (
            rule if self.clip is None else optax.chain(optax.clip_by_global_norm(self.clip), rule)
        )
