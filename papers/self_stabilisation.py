r"""Self-stabilisation at the edge of stability (Damian, Nichani, Lee, arXiv:2209.15594).

The sharpness rises to 2 / eta and stays there. Gradient descent oscillates along the sharpest
direction, which pushes it to flatter weights. On average it follows the gradient projected such
that the sharpness is at most 2 / eta.

Here a linear network f = a.(w x + v z) learns x from the inputs x and z with mean squares 1 and
strength; z is irrelevant, as in the example of Liu et al. (arXiv:2503.02809):

    L = (1 - p)^2 / 2 + strength u^2 / 2,  p = a.w, u = a.v.

At v = 0 the sharpness is S = strength A, A = |a|^2, and rises as the network learns. The projected
gradient flow is closed in A, B = |w|^2 and p. With r = 1 - p, per unit of eta (derived by us),

    A' = 2 r p - 2 m A,  B' = 2 r p,  p' = r (A + B) - m p,  m = r p / A at the edge, 0 below it.

The oscillation has the mean square u^2 = m A / strength. With one unit, r decays at the edge as
exp(-2 t / strength) in the number of steps t, for any rate.
"""

from typing import Annotated

import annotated_types as at
import jax
import jax.numpy as jnp

import dynsim
import odes


class Network(dynsim.Problem):
    """A linear network whose sharpness rises while it learns, up to the edge of stability.

    Attributes:
        width: number of hidden units.
        strength: mean square of the irrelevant input; that of the relevant one is 1.
        scale: root mean square of the lengths of a and w at the start; v is shorter.
        learned: response to the relevant input, which tends to 1.
        curvature: curvature of the loss along the weights of the irrelevant input; 2 / eta at
            the edge.
    """

    RUN_DEFAULTS = {"rule": {"kind": "sgd", "eta": 1e-3}, "steps": 12_000, "batch": "inf"}

    width: Annotated[int, at.Ge(1)] = 10
    strength: Annotated[float, at.Gt(0)] = 4000.0
    scale: Annotated[float, at.Gt(0)] = 0.3

    def init(self, key):
        a, w, v = self.scale / self.width**0.5 * jax.random.normal(key, (3, self.width))
        return {"a": a, "w": w, "v": v / 100}

    def population_loss(self, params):
        p, u = params["a"] @ params["w"], params["a"] @ params["v"]
        return ((1 - p) ** 2 + self.strength * u**2) / 2

    def observables(self):
        return {
            "learned": lambda self, params: params["a"] @ params["w"],
            "curvature": lambda self, params: self.strength * params["a"] @ params["a"],
        }

    @classmethod
    def theories(cls):
        return (PROJECTED,)


def push(state, training, t):
    """m, with a term that returns A to the edge within some steps if the edge has moved."""
    A, p, rate = state["A"], state["p"], training.rate(t)
    beyond = A - 2 / (rate * training.problem.strength)  # S = strength A is 2 / eta at the edge
    return jnp.where(beyond < 0, 0, jnp.maximum((1 - p) * p + beyond / (2 * rate), 0) / A)


def field(t, state, training):
    A, B, p, m = *(state[name] for name in "ABp"), push(state, training, t)
    both = 2 * (1 - p) * p
    speeds = {"A": both - 2 * m * A, "B": both, "p": (1 - p) * (A + B) - m * p}
    return {name: training.rate(t) * speed for name, speed in speeds.items()}


def observe(t, state, training):
    A, p, m = state["A"], state["p"], push(state, training, t)
    loss = ((1 - p) ** 2 + m * A) / 2  # strength u^2 = m A
    return {"learned": p, "curvature": training.problem.strength * A, "loss": loss}


PROJECTED = odes.system(
    "projected",
    "projected gradient",
    "sharpness of at most 2 / eta, slow against the oscillation",
    field,
    lambda training, w: {"A": w["a"] @ w["a"], "B": w["w"] @ w["w"], "p": w["a"] @ w["w"]},
    observe,
    names=("learned", "curvature", "loss"),
    stop=lambda t, s, training: training.rate(t) * training.problem.strength * s["A"] > 2.2,
)
