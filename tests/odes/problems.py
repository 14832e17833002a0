"""What problems of these tests have in common."""

import jax
import jax.numpy as jnp

import dynsim


class Example(dynsim.Problem):
    """Starts at `start`, draws normal numbers and records its weights."""

    start, shape = (1.0,), ()

    def init(self, key):
        return jnp.asarray(self.start, "float32")

    def draw(self, key, batch):
        return jax.random.normal(key, (batch, *self.shape))

    def observables(self):
        return {"weights": lambda self, params: params}
