"""Flows of an optimiser: continuous time for any gradient, plain, with momentum and Adam's.

The parameters are any pytree with fields `Y` and `Z`, each with its learning rate: a `YZ` in
`odes.population`, a handful of numbers in `odes.symmetric`. G is the gradient of the
population loss, t = 1 is one optimiser step. Assumes eta -> 0 at fixed decays.

    plain         p' = -eta G                                       exact for mu = 0
    rescaled      p' = -eta/(1-mu) G                                no inertia
    heavy-ball    v' = G - (1-mu) v,               p' = -eta v      first order in 1-mu
    matched       v' = -ln(mu) (G/(1-mu) - v),     p' = -eta v      read half a step later
    adam          m' = l1 (G - m),  v' = l2 (G^2 - v),  p' = -eta m_hat / (sqrt(v_hat) + eps),
                  l = 1 - b,  m_hat = m / (1 - exp(-l1 t)),  v_hat alike
    matched-adam  the same with l = -ln b, and p at rest until t = 1/2, read half a step later

A matched flow's averages decay over one unit of time exactly as over one step, and reading it
at t = k + 1/2 makes its integral the midpoint rule of the sum that descent forms. Momentum
starts from rest and hardly moves in the first half step. Adam moves at full speed at once, so
its flow waits: up to t = 1/2 it sees the gradient at the starting point, which also settles
m_hat = G there. In the code its time is t - 1/2.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from dynsim import checks
from dynsim.optim import Clock, Optimizer
from odes.solve import Derivatives, Solved, Tolerances, integrate

Flow = Literal["plain", "rescaled", "heavy-ball", "matched", "adam", "matched-adam"]
FLOWS: tuple[Flow, ...] = ("plain", "rescaled", "heavy-ball", "matched", "adam", "matched-adam")

_FLOWS_OF: dict[str, tuple[Flow, ...]] = {
    "sgd": ("plain", "rescaled", "heavy-ball", "matched"),
    "momentum": ("matched", "heavy-ball", "rescaled"),
    "adam": ("matched-adam", "adam"),
}

Params = TypeVar("Params")
Gradient = Callable[[Any, Params], Params]
