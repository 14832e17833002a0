"""A sigmoidal unit learns another one online (Biehl and Schwarze, J. Phys. A 28, 643, 1995).

Student and teacher are erf(h / sqrt 2) with h = J.x and h = B.x, |B| = 1 and normal x. For many
inputs N and the rate eta / N, with time in units of N examples, R = J.B and Q = J.J obey

    R' = 2 eta / pi / (1 + Q) [(1 + Q - R^2) / sqrt(2 (1 + Q) - R^2) - R / sqrt(1 + 2 Q)],
    Q' = 4 eta / pi / (1 + Q) [R / sqrt(2 (1 + Q) - R^2) - Q / sqrt(1 + 2 Q)]
         + 4 eta^2 / pi^2 / sqrt(1 + 2 Q) [arcsin(Q / (1 + 3 Q)) + arcsin((1 + 2 Q - 2 R^2) / D^2)
           - 2 arcsin(R / sqrt(1 + 3 Q) / D)],    D^2 = 2 (1 + 2 Q - R^2).

The generalisation error decays exponentially for eta below sqrt(15) pi / 3 = 4.06, and R = Q = 1
is unstable above it. Label noise of standard deviation sigma adds 2 eta^2 sigma^2 / pi /
sqrt(1 + 2 Q) to Q' and leaves a residual error. We derived this term.
"""

from typing import Annotated

import annotated_types as at
import jax
import jax.numpy as jnp

import dynsim
import odes


class Unit(dynsim.Problem):
    """An erf unit that learns another erf unit from fresh examples.

    Attributes:
        N: number of inputs.
        sigma: standard deviation of the noise of labels.
        R: overlap with the teacher.
        Q: squared length of the weights.
    """

    RUN_DEFAULTS = {"rule": {"kind": "sgd", "eta": 2e-3}, "steps": 10_000, "batch": 1}

    N: Annotated[int, at.Ge(1)] = 500
    sigma: Annotated[float, at.Ge(0)] = 0.0

    def init(self, key):
        return jax.random.normal(key, (self.N,)) / (2 * self.N**0.5)

    def draw(self, key, batch):
        inputs, noise = jax.random.split(key)
        x = jax.random.normal(inputs, (batch, self.N))
        return x, unit(x[:, 0]) + self.sigma * jax.random.normal(noise, (batch,))

    def loss(self, J, data):
        return jnp.mean((unit(data[0] @ J) - data[1]) ** 2) / 2

    def population_loss(self, J):
        return generalisation(J[0], J @ J) + self.sigma**2 / 2

    def observables(self):
        return {"R": lambda self, J: J[0], "Q": lambda self, J: J @ J}

    @classmethod
    def theories(cls):
        return (OVERLAPS,)


def unit(h):
    return jax.lax.erf(h / 2**0.5)


def generalisation(R, Q):
    crossed = 2 * jnp.arcsin(R / jnp.sqrt(2 * (1 + Q)))
    return (jnp.arcsin(Q / (1 + Q)) + jnp.pi / 6 - crossed) / jnp.pi


def field(t, state, training):
    R, Q, eta = state["R"], state["Q"], training.rate(t)
    own, both = jnp.sqrt(1 + 2 * Q), jnp.sqrt(2 * (1 + Q) - R**2)
    slope = 2 * eta / jnp.pi / (1 + Q)
    D2 = 2 * (1 + 2 * Q - R**2)  # D^2
    crossed = jnp.arcsin(R / jnp.sqrt((1 + 3 * Q) * D2))
    square = jnp.arcsin(Q / (1 + 3 * Q)) + jnp.arcsin((1 + 2 * Q - 2 * R**2) / D2) - 2 * crossed
    noise = (4 / jnp.pi**2 * square + 2 / jnp.pi * training.problem.sigma**2) / own  # ours: sigma
    scatter = eta**2 * training.problem.N / training.batch * noise  # terms of order eta^2
    return {
        "R": slope * ((1 + Q - R**2) / both - R / own),
        "Q": 2 * slope * (R / both - Q / own) + scatter,
    }


OVERLAPS = odes.system(
    "overlaps",
    "order parameters",
    "N -> infinity, fresh examples",
    field,
    lambda training, J: {"R": J[0], "Q": J @ J},
    lambda t, state, training: {
        **state,
        "loss": generalisation(**state) + training.problem.sigma**2 / 2,
    },
)
