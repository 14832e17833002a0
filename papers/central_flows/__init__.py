r"""Central flows (Cohen, Damian, Talwalkar, Kolter, Lee, arXiv:2410.24206).

Gradient descent with a large rate raises the sharpness to 2 / eta and then oscillates there. Its
average over the oscillations follows a flow: that of the gradient, with the covariance of the
oscillation chosen such that no eigenvalue of the Hessian exceeds 2 / eta (`odes.central_flow`).

`dynsim figure edge` compares training, gradient flow and central flow. Without another problem it
does so on this small network.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

import dynsim

ACTIVATIONS = {"tanh": jnp.tanh, "linear": lambda x: x}


class Network(dynsim.Problem):
    """A network with hidden layers of equal width, on a fixed set of examples with normal inputs.

    Attributes:
        inputs: number of inputs.
        width: units of each hidden layer.
        depth: number of hidden layers.
        activation: activation of the hidden layers; "linear" for a deep linear network.
        scale: scale of the starting weights, in units of 1 / sqrt(fan-in).
        examples: size of the set.
    """

    RUN_DEFAULTS = {"rule": {"kind": "sgd", "eta": 0.1}, "steps": 3000, "batch": "inf"}

    inputs: int = 3
    width: int = 10
    depth: int = 1
    activation: Literal["tanh", "linear"] = "tanh"
    scale: float = 1.0
    examples: int = 24

    def init(self, key):
        sizes = (self.inputs, *(self.width for _ in range(self.depth)), 1)
        keys = jax.random.split(key, len(sizes) - 1)
        return [
            jax.random.normal(key, (m, n)) * self.scale / np.sqrt(m)
            for key, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)
        ]

    def population_loss(self, params):
        # The target is sin(2 x_1) + x_1 x_2 / 2.
        x = np.random.default_rng(1).normal(size=(self.examples, self.inputs))
        data = x, np.sin(2 * x[:, 0]) + x[:, 0] * x[:, 1] / 2
        x, y = (jnp.asarray(each, params[0].dtype) for each in data)
        for weights in params[:-1]:
            x = ACTIVATIONS[self.activation](x @ weights)
        return jnp.mean(((x @ params[-1])[:, 0] - y) ** 2) / 2
