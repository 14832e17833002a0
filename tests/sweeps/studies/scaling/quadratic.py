"""Quadratic losses, on which descent diverges from the rate 2 / (largest curvature) on."""

import jax
import jax.numpy as jnp

import dynsim


class Quadratic(dynsim.Problem):
    """One weight, whose start scatters by seed; after t steps its square has grown by the factor
    (1 - curvature eta)^(2 t).

    Attributes:
        curvature: of the loss.
        escaped: square of the weight over 1 plus itself: from 0 to 1.
    """

    curvature: float = 2.0

    def init(self, key):
        return {"w": jnp.exp(jax.random.normal(key, ()) / 2)}

    def draw(self, key, batch):
        return jnp.zeros(batch)

    def loss(self, params, data):
        return self.curvature * params["w"] ** 2 / 2

    def observables(self):
        return {"escaped": lambda self, params: 1 / (1 + params["w"] ** -2)}


class Bowl(dynsim.Problem):
    """Three weights in a quadratic bowl.

    Attributes:
        bend: curvature of two directions.
        other: curvature of the third one.
    """

    bend: float = 2.0
    other: float = 2.0

    def init(self, key):
        return jnp.ones(3)

    def population_loss(self, params):
        return jnp.sum(jnp.array([self.bend, self.bend, self.other]) * params**2) / 2

    def groups(self, params):
        return "all"
