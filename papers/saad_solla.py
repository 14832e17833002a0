"""Online learning in a soft committee machine (Saad and Solla, Phys. Rev. E 52, 4225, 1995).

Student and teacher are sums of K units erf(h / sqrt 2). For many inputs, the overlaps Q between the
student's units and R with the teacher's obey closed equations. They stay on a plateau of equal
units before these specialise: Q = 1 / (2 K - 1), R = sqrt(Q / K) for a small rate. The teacher is
unstable above a rate of 2.30683 / N for K = 2, 1.62067 / N for 3 and 1.24939 / N for 4.
"""

from typing import Annotated

import annotated_types as at
import jax
import jax.numpy as jnp

import dynsim
import odes


class Committee(dynsim.Problem):
    """A committee of erf units that learns an orthonormal one from fresh examples.

    Attributes:
        N: number of inputs.
        K: number of hidden units, of the student and of the teacher; at most N.
        Q: overlaps of the student's units.
        R: overlaps of the student's units with the teacher's.
    """

    RUN_DEFAULTS = {"rule": {"kind": "sgd", "eta": 2e-3}, "steps": 20_000, "batch": 1}

    N: Annotated[int, at.Ge(1)] = 500
    K: Annotated[int, at.Ge(1)] = 2

    def __check_init__(self):
        if self.K > self.N > 0:
            raise ValueError(f"K = {self.K}: must be at most N = {self.N}")

    def init(self, key):
        return jax.random.normal(key, (self.K, self.N)) / (2 * self.N**0.5)

    def draw(self, key, batch):
        return jax.random.normal(key, (batch, self.N))

    def loss(self, J, x):
        student, teacher = (jax.lax.erf(h / 2**0.5).sum(1) for h in (x @ J.T, x[:, : self.K]))
        return jnp.mean((student - teacher) ** 2) / 2

    def population_loss(self, J):
        return generalisation({"Q": J @ J.T, "R": J[:, : self.K]})

    def observables(self):
        return {"Q": lambda self, J: J @ J.T, "R": lambda self, J: J[:, : self.K]}

    @classmethod
    def theories(cls):
        return (OVERLAPS,)


def covariance(Q, R):
    """Covariance of the fields of all units, student first, and the signs of their outputs."""
    return jnp.block([[Q, R], [R.T, jnp.eye(len(R))]]), jnp.repeat(jnp.array([-1.0, 1.0]), len(R))


def generalisation(state):
    C, sign = covariance(**state)
    scale = jnp.sqrt(1 + jnp.diag(C))  # <erf erf> = 2 / pi arcsin
    return sign @ jnp.arcsin(C / jnp.outer(scale, scale)) @ sign / jnp.pi


def field(t, state, training):
    """Equations of motion of Q and R, per step."""
    (C, sign), K = covariance(**state), training.problem.K
    i, k, a, b = jnp.ix_(*(jnp.arange(n) for n in (K, K, 2 * K, 2 * K)))
    D = 1 + jnp.diag(C)
    # I_3 is <delta_i h_b> for the output of one unit a, I_4 is <delta_i delta_k> for two.
    I_3 = (C[a, b] * D[i] - C[i, a] * C[i, b]) / (D[i] * jnp.sqrt(D[i] * D[a] - C[i, a] ** 2))
    force = 2 / jnp.pi * jnp.einsum("ikab,a->ib", I_3, sign)
    L4 = D[i] * D[k] - C[i, k] ** 2  # Lambda_4

    def L(x, y, c):  # Lambda_0, and Lambda_1 and Lambda_2 for x = y
        crossed = C[i, k] * (C[i, x] * C[k, y] + C[i, y] * C[k, x])
        return L4 * c - C[k, x] * C[k, y] * D[i] - C[i, x] * C[i, y] * D[k] + crossed

    I_4 = jnp.arcsin(L(a, b, C[a, b]) / jnp.sqrt(L(a, a, D[a]) * L(b, b, D[b]))) / jnp.sqrt(L4)
    noise = 4 / jnp.pi**2 * jnp.einsum("ikab,a,b->ik", I_4, sign, sign)
    eta = training.rate(t)
    scatter = eta**2 * training.problem.N / training.batch * noise  # terms of order eta^2
    return {"Q": eta * (force[:, :K] + force[:, :K].T) + scatter, "R": eta * force[:, K:]}


OVERLAPS = odes.system(
    "overlaps",
    "order parameters",
    "N -> infinity, fresh examples",
    field,
    lambda training, J: {"Q": J @ J.T, "R": J[:, : training.problem.K]},
    lambda t, state, training: {**state, "loss": generalisation(state)},
)
