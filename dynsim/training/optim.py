"""Optimisers with traced rates, and the clock that ties optimiser steps to ODE time.

Every number in an `Optimizer` is a pytree leaf and the optax transformation is built inside
the traced function, so one compilation serves a whole grid of learning rates.
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, ArrayLike, Float, PyTree

from dynsim import checks

Kind = Literal["sgd", "momentum", "adam"]
Convention = Literal["sgd", "paper"]


class Optimizer(eqx.Module):
    """An update rule with separate learning rates for Y and Z. Build it with `sgd`,
    `momentum` or `adam`.

    Attributes:
        eta_y, eta_z: learning rates of Y and of Z, per step on the batch-*mean* loss.
        momentum: heavy-ball coefficient mu of v <- mu v + g, p <- p - eta v (PyTorch's and
            optax's convention); 0 unless `kind` is "momentum".
        b1, b2, eps: Adam's decays and its epsilon.
        kind: which rule.
    """

    eta_y: Float[ArrayLike, ""]
    eta_z: Float[ArrayLike, ""]
    momentum: Float[ArrayLike, ""] = 0.0
    b1: Float[ArrayLike, ""] = 0.9
    b2: Float[ArrayLike, ""] = 0.999
    eps: Float[ArrayLike, ""] = 1e-8
    kind: Kind = eqx.field(static=True, default="sgd")

    def __check_init__(self) -> None:
        checks.choice("kind", self.kind, ("sgd", "momentum", "adam"))
        for field in ("eta_y", "eta_z"):
            checks.real(field, getattr(self, field), 0)
        for field in ("momentum", "b1", "b2"):
            checks.real(field, getattr(self, field), 0, 1, open_maximum=True)
        checks.real("eps", self.eps, 0, open_minimum=True)

    def astype(self, dtype: str) -> "Optimizer":
        """The same rule with its numbers as JAX arrays of `dtype`, Python integers included."""
        return jax.tree.map(lambda number: jnp.asarray(number, dtype), self)

    def transformation(self) -> optax.GradientTransformation:
        """The optax transformation of a gradient with fields `Y` and `Z`. Call it inside the
        traced function."""
        if self.kind == "adam":
            direction = optax.scale_by_adam(self.b1, self.b2, self.eps)
        elif self.kind == "momentum":
            direction = optax.trace(self.momentum)
        else:
            direction = optax.identity()
        return optax.chain(direction, optax.stateless(lambda updates, _: self.descend(updates)))

    def descend(self, updates: PyTree) -> PyTree:
        """Minus `updates`, a pytree with fields `Y` and `Z`, each times its learning rate."""

        def scale(rate: ArrayLike, part: PyTree) -> PyTree:
            return jax.tree.map(lambda leaf: -rate * leaf, part)

        scaled = scale(self.eta_y, updates.Y), scale(self.eta_z, updates.Z)
        return eqx.tree_at(lambda tree: (tree.Y, tree.Z), updates, scaled)

    def __repr__(self) -> str:
        extra = {"momentum": ("momentum",), "adam": ("b1", "b2", "eps")}.get(self.kind, ())
        shown = (f"{name}={getattr(self, name)}" for name in ("eta_y", "eta_z", *extra))
        return f"{self.kind}({', '.join(shown)})"


def sgd(eta_y: ArrayLike, eta_z: ArrayLike) -> Optimizer:
    """Plain (stochastic) gradient descent.

    Raises:
        ValueError: for a learning rate that is negative or not finite.
    """
    return Optimizer(eta_y, eta_z)


def momentum(eta_y: ArrayLike, eta_z: ArrayLike, momentum: ArrayLike = 0.9) -> Optimizer:
    """Heavy-ball momentum, v <- mu v + g, p <- p - eta v.

    Raises:
        ValueError: for a negative or non-finite learning rate, or mu outside [0, 1).
    """
    return Optimizer(eta_y, eta_z, momentum, kind="momentum")


def adam(
    eta_y: ArrayLike,
    eta_z: ArrayLike,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-8,
) -> Optimizer:
    """Adam with bias correction, epsilon outside the square root.

    Raises:
        ValueError: for a negative or non-finite learning rate, a decay outside [0, 1), or
            eps <= 0.
    """
    return Optimizer(eta_y, eta_z, b1=b1, b2=b2, eps=eps, kind="adam")


class Clock(eqx.Module):
    """How optimiser steps and learning rates enter a theory. t = 1 is one optimiser step.

    Attributes:
        rate: factor on both learning rates. A theory without inertia reads momentum descent
            with eta / (1 - mu), to which the sum of its geometric weights amounts.
        shift: the state after k >= 1 steps is the flow at t = k + shift; before the first
            step it is the starting point.
        class_weight: (K,) weight of each class's drift of Z per unit of time.
    """

    rate: Float[ArrayLike, ""] = 1.0
    shift: Float[ArrayLike, ""] = 0.0
    class_weight: Float[Array, " K"] | None = None

    def flow_time(self, steps: Float[Array, "*S"]) -> Float[Array, "*S"]:
        """ODE time at which the state after `steps` optimiser steps is read."""
        return jnp.where(steps > 0, steps + self.shift, jnp.zeros_like(steps))


def without_inertia(
    optimizer: Optimizer, prior: Float[Array, " K"], convention: Convention = "sgd"
) -> Clock:
    """The clock by which a flow without inertia reads `optimizer`: rates eta / (1 - mu).

    Args:
        optimizer: `sgd` or `momentum`.
        prior: (K,) pi(n). The decoder of class n always runs at pi(n) t visits.
        convention: "sgd": class n is drawn with probability pi(n), so a step moves Z by the
            average of the classes' drifts. "paper": Eq. 10 as printed adds them up (Figs. 3
            and 9).

    Raises:
        ValueError: for Adam, which no rescaled plain flow describes, or an unknown convention.
    """
    checks.choice("clock", convention, ("sgd", "paper"))
    if optimizer.kind == "adam":
        raise ValueError("optimizer = adam: a flow without inertia reads sgd or momentum only")
    prior = jnp.asarray(prior)
    weight = prior if convention == "sgd" else jnp.ones_like(prior)
    return Clock(1 / (1 - jnp.asarray(optimizer.momentum)), 0.0, weight)
