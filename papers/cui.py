"""Positional and semantic attention (Cui, Behrens, Krzakala, Zdeborova, arXiv:2402.03902).

Two tokens x with D entries of standard deviation sigma = 1/2 are mixed by A = softmax(h h^T). A
student has scores h = (x +- p).w with positions +p and -p. Its target is mixed by (1 - omega) A +
omega (0.6, 0.4; 0.4, 0.6) with h = x.teacher. On alpha D examples the loss, a sum of
|output - target|^2 / (2 D^2) plus 0.005 |w|^2, has two minima: one uses positions, m = w.p, the
other meaning, theta = w.teacher / 4. For large D the authors' state evolution has both.
"""

from typing import Annotated

import annotated_types as at
import jax
import jax.numpy as jnp
import numpy as np

import dynsim
import odes

SIGMA, RIDGE, SIGN, NODES = 0.5, 0.01, [[1.0], [-1.0]], 4096


class Attention(dynsim.Problem):
    """Two students with the same examples: one starts at the positions, the other at the teacher.

    Attributes:
        D: number of inputs.
        examples: number of examples, alpha D; each run has its own.
        omega: share of fixed attention in the target.
        train: loss of each student.
        gap: loss of the first student less that of the second; positive if meaning is better.
        m: overlap of each student with the positions.
        theta: overlap of each student with the teacher.
    """

    RUN_DEFAULTS = {"rule": {"kind": "sgd", "eta": 2.0}, "steps": 500, "batch": "inf"}
    D: Annotated[int, at.Ge(2)] = 200
    examples: Annotated[int, at.Ge(1)] = 300
    omega: Annotated[float, at.Ge(0), at.Le(1)] = 0.3

    def init(self, key):
        shape = 2, self.examples, self.D
        return {"w": jnp.eye(2, self.D) / 2, "x": jax.random.normal(key, shape)}

    def is_frozen(self, params):
        return {"w": False, "x": True}

    def target(self, h):
        return (1 - self.omega) * attention(h) + self.omega * 0.6

    def losses(self, params):
        x, mix = SIGMA * params["x"], lambda own, x: x[::-1] + own[..., None] * (x - x[::-1])
        right, seen = mix(self.target(x[..., 1]), x), x.at[..., 0].add(jnp.array(SIGN))
        miss = [jnp.sum((mix(attention(seen @ w), seen) - right) ** 2) for w in params["w"]]
        return jnp.stack(miss) / (2 * self.D**2) + RIDGE / 2 * jnp.sum(params["w"] ** 2, axis=1)

    def population_loss(self, params):
        return self.losses(params).sum()

    def observables(self):
        return {
            "train": lambda self, params: self.losses(params),
            "gap": lambda self, params: -jnp.diff(self.losses(params))[0],
            "m": lambda self, params: abs(params["w"][:, 0]),
            "theta": lambda self, params: SIGMA**2 * abs(params["w"][:, 1]),
        }

    @classmethod
    def theories(cls):
        return (odes.closed_form("minima", "two minima", "D -> infinity, after training", minima),)


def attention(h):
    return jax.nn.sigmoid(h * (h - h[::-1]))  # attention of each token to itself


def minima(problem, init=None, time=None):
    """State evolution, on even points with all signs, as scores jump where fields change sign."""
    even = (0.5 + np.outer(1.1673039782614187 ** -np.arange(1.0, 5), range(NODES))) % 1
    signs = jnp.array([[1, 1, -1, -1], [1, -1, 1, -1]])[:, None, :, None]
    xi, zeta = (jax.scipy.special.ndtri(even).reshape(2, 2, 1, -1) * signs).reshape(2, 2, -1)
    v, alpha, sign = SIGMA**2, problem.examples / problem.D, jnp.array(SIGN)

    def step(state, _):
        q, m, V, theta = state  # a field h costs (h - c)^2 / (2 V)
        c, free = jnp.sqrt(q) * xi + m * sign, jnp.sqrt(v - theta**2 / q)
        h, y = c, problem.target(free * zeta + theta / jnp.sqrt(q) * xi)
        for _ in range(12):  # Newton's method for the proximal fields h of both tokens
            s = attention(h)
            own, cross = s * (1 - s) * (2 * h - h[::-1]), -s * (1 - s) * h
            force = (h - c) / V + 2 * v * (own * (s - y) + (cross * (s - y))[::-1])
            a = 1 / V + 2 * v * (own**2 + cross[::-1] ** 2 + 0.2 * (abs(s - y) + abs(s - y)[::-1]))
            b = 2 * v * (own * cross + (own * cross)[::-1])
            h -= (a[::-1] * force - b * force[::-1]) / (a * a[::-1] - b**2)
        f, miss = (h - c) / V, (attention(h) - y) ** 2
        means = jnp.stack([sign * f, f * zeta / free, f * xi, f**2, miss]).sum(1).mean(1)
        to_m, to_theta, response, square, error = alpha * means  # means over examples
        stiff = RIDGE + v * (theta * to_theta / q - response / jnp.sqrt(q))
        length = (v * square + to_m**2 + (v * to_theta) ** 2) / stiff
        new = jnp.stack([v * length, to_m, v, v**2 * to_theta]) / stiff
        return 0.8 * state + 0.2 * new, v * error + RIDGE * q / (2 * v)  # damped

    start = jnp.array([[0.05, 0.25, 12, 0], [0.1, 0, 12, 0.15]])
    end, loss = jax.lax.scan(jax.vmap(step), start, jnp.zeros((120, 2)))
    return {"train": loss[-1], "gap": -jnp.diff(loss[-1])[0], "m": end[:, 1], "theta": end[:, 3]}
