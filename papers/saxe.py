"""Deep linear networks (Saxe, McClelland, Ganguli, arXiv:1312.6120).

Inputs are white, the target has singular values s_k, and L square weight matrices start aligned
with it, each with singular values u_0^(1/L). Then every mode learns independently. With the time
tau, the sum of the learning rates,

    du/dtau = L u^(2 - 2/L) (s - u),

For two layers the solution is a sigmoid, and mode k grows from u_0 to u_f within

    tau = 1/(2 s) ln[u_f (s - u_0) / (u_0 (s - u_f))].
"""

import functools
import itertools
from typing import Annotated

import annotated_types as at
import jax
import jax.numpy as jnp

import dynsim
import odes


class DeepLinear(dynsim.Problem):
    """A deep linear network that learns the modes of its task one after the other.

    Attributes:
        modes: number of modes; each is half as strong as the one before.
        layers: number of weight matrices.
        u0: strength of every mode at the start.
        learned: strength of a mode in the weights.
    """

    RUN_DEFAULTS = {"rule": {"kind": "sgd", "eta": 0.05}, "steps": 1000, "batch": 64}

    modes: Annotated[int, at.Ge(1)] = 4
    layers: Annotated[int, at.Ge(1)] = 2
    u0: Annotated[float, at.Gt(0)] = 1e-3

    def strengths(self):
        return 2.0 ** -jnp.arange(self.modes)

    def init(self, key):
        # Orthogonal factors between layers cancel in the product, which is u0 times the identity.
        size, keys = self.u0 ** (1 / self.layers), jax.random.split(key, self.layers - 1)
        turns = [jnp.eye(self.modes)]
        turns += [jax.random.orthogonal(k, self.modes) for k in keys] + turns
        return [size * b @ a.T for a, b in itertools.pairwise(turns)]

    def product(self, weights):
        return functools.reduce(lambda below, W: W @ below, weights)

    def draw(self, key, batch):
        return jax.random.normal(key, (batch, self.modes))

    def loss(self, weights, x):
        miss = x @ (self.product(weights) - jnp.diag(self.strengths())).T
        return jnp.mean(jnp.sum(miss**2, axis=1)) / 2

    def population_loss(self, weights):
        return jnp.sum((self.product(weights) - jnp.diag(self.strengths())) ** 2) / 2

    def observables(self):
        return {"learned": lambda self, weights: jnp.diag(self.product(weights))}

    @classmethod
    def theories(cls):
        return (MODES,)


def field(t, u, training):
    L, s = training.problem.layers, training.problem.strengths()
    return training.rate(t) * L * u ** (2 - 2 / L) * (s - u)  # dtau = rate dt


MODES = odes.system(
    "modes",
    "mode by mode",
    "eta -> 0, batch -> infinity, aligned start",
    field,
    lambda training, _: jnp.full(training.problem.modes, training.problem.u0),
    lambda t, u, training: {
        "learned": u,
        "loss": jnp.sum((u - training.problem.strengths()) ** 2) / 2,
    },
    needs=(),
)
