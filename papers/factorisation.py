"""Factorisation of a matrix from a small start (Li, Luo, Lyu, arXiv:2012.09839).

Gradient flow on |U U^T - M|^2 / 4 has U' = (M - U U^T) U. From a small start, W = U U^T gains one
rank after the other, the largest eigenvalue s of M first. The part along an eigenvector grows as
alpha exp(2 s tau), so its rank is learned at

    tau = ln(1/alpha) / (2 s) + O(1).

W itself is known at all times, because its inverse obeys a linear equation. In the basis of M,

    W(tau)^-1 = exp(-M tau) W(0)^-1 exp(-M tau) + (1 - exp(-2 M tau)) / M.
"""

from typing import Annotated

import annotated_types as at
import jax
import jax.numpy as jnp

import dynsim
import odes


class Factorisation(dynsim.Problem):
    """A factorised symmetric matrix, whose rank grows step by step from a small start.

    Attributes:
        size: rows of the matrix; its eigenvalues fall from 1 in equal steps.
        alpha: size of U U^T at the start.
        noise: standard deviation of the entries of one observed matrix.
        learned: part of W along an eigenvector of the matrix.
        rank: effective rank of W, the square of its trace over the sum of its squared entries.
    """

    RUN_DEFAULTS = {"rule": {"kind": "sgd", "eta": 0.05}, "steps": 800, "batch": 1}

    size: Annotated[int, at.Ge(1)] = 4
    alpha: Annotated[float, at.Gt(0)] = 1e-6
    noise: Annotated[float, at.Ge(0)] = 0.0

    def strengths(self):
        return 1 - jnp.arange(self.size) / self.size  # in the basis of M

    def init(self, key):
        shape = (self.size, self.size)
        return jnp.sqrt(self.alpha / self.size) * jax.random.normal(key, shape)

    def draw(self, key, batch):
        errors = self.noise * jax.random.normal(key, (batch, self.size, self.size))
        return jnp.diag(self.strengths()) + errors

    def loss(self, U, matrices):
        return jnp.mean(jnp.sum((U @ U.T - matrices) ** 2, axis=(1, 2))) / 4

    def population_loss(self, U):
        noise = (self.noise * self.size) ** 2  # size^2 entries
        return (jnp.sum((U @ U.T - jnp.diag(self.strengths())) ** 2) + noise) / 4

    def observables(self):
        return {
            "learned": lambda self, U: jnp.diag(U @ U.T),
            "rank": lambda self, U: effective_rank(U @ U.T),
        }

    @classmethod
    def theories(cls):
        return (RICCATI,)


def effective_rank(W):
    return jnp.trace(W) ** 2 / jnp.sum(W**2)


def riccati(problem, U, time):
    s = problem.strengths()
    shrunk = jnp.exp(-s * time)
    # Invert U, because inverting W would square the condition number.
    half = jnp.linalg.inv(U) * shrunk[None]
    W = jnp.linalg.inv(half.T @ half + jnp.diag(-jnp.expm1(-2 * s * time) / s))
    loss = (jnp.sum((W - jnp.diag(s)) ** 2) + (problem.noise * problem.size) ** 2) / 4
    return {"learned": jnp.diag(W), "rank": effective_rank(W), "loss": loss}


RICCATI = odes.closed_form(
    "riccati", "Riccati equation", "eta -> 0, batch -> infinity", riccati, needs=("key",)
)
