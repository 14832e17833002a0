"""Rates beyond 2 / lambda catapult descent to flatter minima (Lewkowycz et al., arXiv:2003.02218).

A two-layer linear network f = u.v / sqrt(n) learns f = 0 from one example. Its curvature at f = 0
is lambda = (|u|^2 + |v|^2) / n. The paper claims, for a wide network from an f of order one,

    eta < 2 / lambda                lambda stays what it was (lazy)
    2 / lambda < eta < 4 / lambda   the loss grows until lambda is below 2 / eta (catapult)
    4 / lambda < eta                training diverges

A step of descent is exactly

    f <- f (1 - eta lambda + eta^2 f^2 / n),  lambda <- lambda + (eta f^2 / n) (eta lambda - 4).
"""

from typing import Annotated

import annotated_types as at
import jax.numpy as jnp

import dynsim
import odes


class Network(dynsim.Problem):
    """A two-layer linear network on one example, whose descent is a map of two numbers.

    Attributes:
        norm: curvature lambda at the start.
        output: f at the start, at most norm sqrt(width) / 2; small for a wide network.
        width: number n of hidden units.
        curvature: curvature lambda of the loss at f = 0.
    """

    RUN_DEFAULTS = {"rule": {"kind": "sgd", "eta": 3.0}, "steps": 40, "batch": "inf"}

    norm: Annotated[float, at.Gt(0)] = 1.0
    output: Annotated[float, at.Ge(0)] = 0.01
    width: Annotated[int, at.Ge(2)] = 16

    def init(self, key):
        length = jnp.sqrt(self.width * self.norm / 2)
        sine = self.output * self.width**0.5 / length**2  # f = |u| |v| sine / sqrt(n)
        u = jnp.zeros(self.width).at[0].set(length)
        v = jnp.zeros(self.width).at[0].set(length * sine).at[1].set(length * jnp.sqrt(1 - sine**2))
        return {"u": u, "v": v}

    def population_loss(self, params):
        return (params["u"] @ params["v"]) ** 2 / (2 * self.width)

    def observables(self):
        return {"curvature": lambda self, params: start(self, params)["curvature"]}

    @classmethod
    def theories(cls):
        return (MAP,)


def start(problem, params):
    u, v, n = params["u"], params["v"], problem.width
    return {"f": u @ v / n**0.5, "curvature": (u @ u + v @ v) / n}


def change(t, state, training):
    f, curvature, eta = state["f"], state["curvature"], training.rate(t)
    push = eta * f**2 / training.problem.width  # eta f^2 / n
    return {"f": eta * f * (push - curvature), "curvature": push * (eta * curvature - 4)}  # steps


MAP = odes.system(
    "map",
    "exact map of f and lambda",
    "descent on the population loss",
    change,
    lambda training, params: start(training.problem, params),
    lambda t, state, training: {"curvature": state["curvature"], "loss": state["f"] ** 2 / 2},
    names=("curvature", "loss"),
    discrete=True,
)
