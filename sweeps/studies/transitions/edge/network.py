"""Small networks whose Hessian can be written out, to test the sharpness and central flow on."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from dynsim import Problem

Activation = Literal["tanh", "linear"]
ACTIVATIONS = {"tanh": jnp.tanh, "linear": lambda x: x}


class Network(Problem):
    """A network with hidden layers of one width on inputs that are normal. Its population is a
    fixed set of examples.

    Attributes:
        inputs: number of inputs.
        width: units of each hidden layer.
        depth: number of hidden layers.
        activation: activation of the hidden layers; "linear" for a deep linear network.
        scale: scale of the starting weights, in units of 1 / sqrt(fan-in).
        examples: size of the set.
    """

    inputs: int = 3
    width: int = 10
    depth: int = 1
    activation: Activation = "tanh"
    scale: float = 1.0
    examples: int = 24

    def init(self, key: PRNGKeyArray) -> list[Float[Array, "m n"]]:
        """Weights of the layers, normal with standard deviation scale / sqrt(fan-in)."""
        sizes = (self.inputs, *(self.width for _ in range(self.depth)), 1)
        keys = jax.random.split(key, len(sizes) - 1)
        return [
            jax.random.normal(key, (m, n)) * self.scale / np.sqrt(m)
            for key, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)
        ]

    def population_loss(self, params: list[Array]) -> Float[Array, ""]:
        """The loss on all examples: normal inputs, and the target sin(2 x_1) + x_1 x_2 / 2."""
        x = np.random.default_rng(1).normal(size=(self.examples, self.inputs))
        data = x, np.sin(2 * x[:, 0]) + x[:, 0] * x[:, 1] / 2
        x, y = (jnp.asarray(each, params[0].dtype) for each in data)
        for weights in params[:-1]:
            x = ACTIVATIONS[self.activation](x @ weights)
        return jnp.mean(((x @ params[-1])[:, 0] - y) ** 2) / 2
