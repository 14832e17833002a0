"""The clock that ties optimiser steps and learning rates to the time of an ODE."""

from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Real

from dynsim import checks
from dynsim.precision import AnyArray, Number
from dynsim.training.constant.optim import Optimizer

Convention = Literal["sgd", "paper"]


class Clock(eqx.Module):
    r"""How optimiser steps and learning rates enter a theory. t = 1 is one optimiser step.

    Attributes:
        rate: factor on both learning rates. A theory without inertia reads momentum descent
            with :math:`\eta/(1 - \mu)`, to which the sum of its geometric weights amounts.
        shift: the state after k >= 1 steps is the flow at t = k + shift; before the first
            step it is the starting point.
    """

    rate: Real[Number, "*#P"] = 1.0
    shift: Real[Number, ""] = 0.0

    def flow_time(self, steps: Float[AnyArray, "*S"]) -> Float[Array, "*S"]:
        """ODE time at which the state after `steps` optimiser steps is read."""
        return jnp.where(steps > 0, steps + self.shift, jnp.zeros_like(steps))


class ClassClock(Clock):
    """The clock of a theory that sums over classes.

    Attributes:
        class_weight: (K,) weight of each class's drift of Z per unit of time.
    """

    class_weight: Float[Array, " K"] = eqx.field(kw_only=True)


def without_inertia(
    optimizer: Optimizer, prior: Float[AnyArray, " K"], convention: Convention = "sgd"
) -> ClassClock:
    r"""The clock by which a flow without inertia reads `optimizer`: rates :math:`\eta/(1 - \mu)`.

    Args:
        optimizer: `sgd` or `momentum`.
        prior: (K,) :math:`\pi(n)`. The decoder of class n always runs at :math:`\pi(n)\, t` visits.
        convention: "sgd": class n is drawn with probability :math:`\pi(n)`, so a step moves Z by
            the average of the classes' drifts. "paper": Eq. 10 as printed adds them up (Figs. 3
            and 9).

    Raises:
        ValueError: for Adam, which no rescaled plain flow describes, or an unknown convention.
    """
    checks.choice("clock", convention, ("sgd", "paper"))
    if optimizer.kind == "adam":
        raise ValueError("optimizer = adam: a flow without inertia reads sgd or momentum only")
    weight = jnp.asarray(prior) if convention == "sgd" else jnp.ones_like(prior)
    return ClassClock(1 / (1 - jnp.asarray(optimizer.momentum)), 0.0, class_weight=weight)
