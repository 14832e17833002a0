"""Phase retrieval by online descent (Arnaboldi, Krzakala, Loureiro, Stephan, arXiv:2305.18502).

The target y = (v.x)^2 with |v| = 1 and normal x does not contain the sign of the projection. With
the student (w.x)^2, the loss ((w.x)^2 - y)^2 / 4, and N inputs, the dynamics depend only on
m = w.v and q = w.w:

    m' = 3 eta m (1 - q),
    q' = 2 eta (q - 3 q^2 + 2 m^2) + eta^2 N/B (15 q^3 - 6 q^2 + 3 q - 24 q m^2 + 12 m^2),

where the second term of q' is the noise of B examples per step, for large N. From a random start,
m is of order N^(-1/2). First q settles while m grows exponentially; training escapes after
ln N / (6 eta (1 - q)) steps, which is of order N ln N for a rate of order 1/N. For single examples
this needs a rate below (sqrt(10) - 1) / (6 N) = 0.3604 / N: above it q grows without bound. The
teacher, m = q = 1, is stable below 1 / (3 N).
"""

from typing import Annotated

import annotated_types as at
import jax
import jax.numpy as jnp

import dynsim
import odes


class PhaseRetrieval(dynsim.Problem):
    """A direction that is learned from squared projections.

    Attributes:
        N: number of inputs.
        start: length of the weights at the start.
        spike: overlap with the teacher at the start; 0 for that of a random direction.
        m: overlap of the weights with the teacher, up to its sign.
        q: squared length of the weights.
    """

    RUN_DEFAULTS = {"rule": {"kind": "sgd", "eta": 1e-3}, "steps": 6000, "batch": 1}

    N: Annotated[int, at.Ge(1)] = 200
    start: Annotated[float, at.Ge(0)] = 0.5
    spike: float = 0.0

    def init(self, key):
        w = jax.random.normal(key, (self.N,))
        w = self.start * w / jnp.linalg.norm(w)
        return w.at[0].add(jnp.where(self.spike == 0, 0, self.spike - w[0]))  # v is the first axis

    def draw(self, key, batch):
        return jax.random.normal(key, (batch, self.N))

    def loss(self, w, x):
        return jnp.mean(((x @ w) ** 2 - x[:, 0] ** 2) ** 2) / 4

    def population_loss(self, w):
        return generalisation(w[0], w @ w)

    def observables(self):
        return {"m": lambda self, w: jnp.abs(w[0]), "q": lambda self, w: w @ w}

    @classmethod
    def theories(cls):
        return (OVERLAPS,)


def generalisation(m, q):
    return (3 * q**2 - 2 * q + 3 - 4 * m**2) / 4  # moments of two normal projections


def field(t, state, training):
    m, q, eta = state["m"], state["q"], training.rate(t)
    noise = 15 * q**3 - 6 * q**2 + 3 * q - 24 * q * m**2 + 12 * m**2
    scatter = eta**2 * training.problem.N / training.batch * noise
    return {"m": 3 * eta * m * (1 - q), "q": 2 * eta * (q - 3 * q**2 + 2 * m**2) + scatter}


OVERLAPS = odes.system(
    "overlaps",
    "order parameters",
    "N -> infinity, fresh examples",
    field,
    lambda training, w: {"m": jnp.abs(w[0]), "q": w @ w},
    lambda t, state, training: {**state, "loss": generalisation(**state)},
)
