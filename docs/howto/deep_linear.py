"""Deep linear networks (Saxe, McClelland, Ganguli, arXiv:1312.6120)."""

import jax
import jax.numpy as jnp

import dynsim
import odes


class DeepLinear(dynsim.Problem):
    """A two-layer linear network that learns the modes of its task one after the other.

    Attributes:
        modes: number of modes; each is half as strong as the one before.
        u0: strength of every mode at the start.
        learned: strength of a mode in the weights.
    """

    modes: int = 4
    u0: float = 1e-3

    def strengths(self):
        return 2.0 ** -jnp.arange(self.modes)

    def init(self, key):
        R = jnp.sqrt(self.u0) * jax.random.orthogonal(key, self.modes)
        return {"W1": R, "W2": R.T}

    def draw(self, key, batch):
        x = jax.random.normal(key, (batch, self.modes))
        return x, x @ jnp.diag(self.strengths())

    def loss(self, params, data):
        x, y = data
        return jnp.mean(jnp.sum((x @ params["W1"].T @ params["W2"].T - y) ** 2, 1)) / 2

    def population_loss(self, params):
        return jnp.sum((params["W2"] @ params["W1"] - jnp.diag(self.strengths())) ** 2) / 2

    def observables(self):
        return {"learned": lambda self, params: jnp.diag(params["W2"] @ params["W1"])}

    @classmethod
    def theories(cls):
        return (MODES,)


def by_mode(problem, init, time):
    """Strength of each mode after this much learning: u' = 2 u (s - u)."""
    s = problem.strengths()
    u = s / (1 + (s / problem.u0 - 1) * jnp.exp(-2 * s * time))
    return {"learned": u, "loss": jnp.sum((u - s) ** 2) / 2}


MODES = odes.closed_form("modes", "mode by mode", "eta -> 0, batch -> infinity", by_mode)
