"""Descent with one learning rate for all weights, whatever their structure.

As in `dynsim.training.optim` every number is a pytree leaf, so that one compilation serves a whole
grid.
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import ArrayLike, Float

from dynsim import checks

Kind = Literal["sgd", "momentum", "adam"]


class Descent(eqx.Module):
    """An update rule with one learning rate.

    Attributes:
        eta: learning rate per step on the batch-mean loss.
        momentum: heavy-ball coefficient mu of v <- mu v + g, p <- p - eta v; read by "momentum".
        b1, b2, eps: Adam's decays and its epsilon; read by "adam".
        clip: largest Euclidean norm of the gradient of all weights together; a longer one is
            shortened to it before anything else. None leaves the gradient alone.
        kind: which rule.

    Raises:
        ValueError: for a number out of its range, naming the field.
    """

    eta: Float[ArrayLike, ""]
    momentum: Float[ArrayLike, ""] = 0.9
    b1: Float[ArrayLike, ""] = 0.9
    b2: Float[ArrayLike, ""] = 0.999
    eps: Float[ArrayLike, ""] = 1e-8
    clip: Float[ArrayLike, ""] | None = None
    kind: Kind = eqx.field(static=True, default="sgd")

    def __check_init__(self) -> None:
        checks.choice("kind", self.kind, ("sgd", "momentum", "adam"))
        checks.real("eta", self.eta, 0)
        for field in ("momentum", "b1", "b2"):
            checks.real(field, getattr(self, field), 0, 1, open_maximum=True)
        checks.real("eps", self.eps, 0, open_minimum=True)
        if self.clip is not None:
            checks.real("clip", self.clip, 0, open_minimum=True)

    def astype(self, dtype: str) -> "Descent":
        """The same rule with its numbers as JAX arrays of `dtype`."""
        return jax.tree.map(lambda number: jnp.asarray(number, dtype), self)

    def transformation(self) -> optax.GradientTransformation:
        """The optax transformation of a gradient. Call it inside the traced function."""
        if self.kind == "adam":
            direction = optax.scale_by_adam(self.b1, self.b2, self.eps)
        elif self.kind == "momentum":
            direction = optax.trace(self.momentum)
        else:
            direction = optax.identity()
        parts = [direction, optax.stateless(lambda g, _: jax.tree.map(lambda x: -self.eta * x, g))]
        if self.clip is not None:
            parts.insert(0, optax.clip_by_global_norm(self.clip))
        return optax.chain(*parts)
