"""A two-layer linear network on one example, whose descent is an exact map of two numbers.

f = u.v / sqrt(n), loss f^2 / 2, l = (|u|^2 + |v|^2) / n, the sharpness at f = 0. A step of gradient
descent is (Lewkowycz et al. 2020, arXiv:2003.02218)

    f <- f (1 - eta l + eta^2 f^2 / n),     l <- l + (eta f^2 / n) (eta l - 4)

so that from a small f the loss falls for eta l < 2; up to 4 it rises until l has fallen below 2 /
eta, a catapult; and beyond 4 both diverge.
"""

from typing import Annotated

import annotated_types as at
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import dynsim

WIDTH = 16
"""n of the network."""


class Catapult(dynsim.Problem):
    """A two-layer linear network on one example.

    Attributes:
        norm: l at the start.
        output: f at the start, small next to norm times 2.
    """

    norm: Annotated[float, at.Gt(0)] = 1.0
    output: float = 0.01

    def init(self, key: PRNGKeyArray) -> dict[str, Array]:
        del key
        size = jnp.sqrt(WIDTH * self.norm / 2)
        # u.v = size^2 sine.
        sine = self.output * WIDTH**0.5 / size**2
        cosine = jnp.sqrt(1 - sine**2)
        u, v = jnp.zeros(WIDTH).at[0].set(size), jnp.zeros(WIDTH)
        return {"u": u, "v": v.at[0].set(size * sine).at[1].set(size * cosine)}

    def population_loss(self, params: dict[str, Array]) -> Float[Array, ""]:
        return (params["u"] @ params["v"]) ** 2 / (2 * WIDTH)


def descended(eta: float, norm: float, output: float, steps: int) -> np.ndarray:
    """(steps + 1, 2) f and l of the map."""
    found = [(output, norm)]
    for _ in range(steps):
        f, lam = found[-1]
        push = eta * f**2 / WIDTH
        found.append((f * (1 - eta * lam + eta * push), lam + push * (eta * lam - 4)))
    return np.array(found)
