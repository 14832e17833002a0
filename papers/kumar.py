"""Grokking from lazy to rich training (Kumar, Bordelon, Gershman, Pehlevan, arXiv:2310.06110).

Without regularisation, a network f = alpha / width sum_i phi(w_i.x), phi(h) = h + epsilon h^2 / 2,
learns y = (b.x)^2 / 2 from a fixed set of examples, by descent on (f - y)^2 / (2 alpha^2) with a
rate proportional to the width. A large alpha makes training lazy: the network fits the examples
with its initial features, and generalises later. The output depends only on two averages,

    f = alpha (a.x + epsilon x.M x / 2),  a = <w>,  M = <w w^T>,

which obey a closed system at any width. With r = (y - f) / alpha, the means g of r x and G of
r x x^T over the examples, and the time tau, the sum of the rates divided by the width,

    a' = g + epsilon G a,  M' = g a^T + a g^T + epsilon (G M + M G).
"""

from typing import Annotated

import annotated_types as at
import jax
import jax.numpy as jnp

import dynsim
import odes


class LazyToRich(dynsim.Problem):
    """A network that fits its examples first and generalises later.

    Attributes:
        D: number of inputs.
        width: number of hidden units.
        examples: number of examples that it is trained on.
        alpha: scale of the output; a large one makes training lazy.
        epsilon: weight of the quadratic part of the units.
        train: error on the examples.
        test: error on new inputs.
        alignment: share of the direction of the target in M.
    """

    RUN_DEFAULTS = {"rule": {"kind": "sgd", "eta": 10.0}, "steps": 5000, "batch": "inf"}

    D: Annotated[int, at.Ge(1)] = 20
    width: Annotated[int, at.Ge(1)] = 100
    examples: Annotated[int, at.Ge(1)] = 150
    alpha: Annotated[float, at.Gt(0)] = 5.0
    epsilon: Annotated[float, at.Ge(0)] = 0.25

    def inputs(self):
        """Inputs, equal in every run and precision; the target is half the first one squared."""
        return jax.random.normal(jax.random.key(0), (self.examples, self.D), "float32")

    def init(self, key):
        return jax.random.normal(key, (self.width, self.D)) / self.D**0.5

    def population_loss(self, w):
        return self.measured(averages(w))["loss"]

    def residual(self, state):
        x = self.inputs()
        square = jnp.sum(x @ state["M"] * x, axis=1)
        return x[:, 0] ** 2 / 2 - self.alpha * (x @ state["a"] + self.epsilon / 2 * square)

    def measured(self, state):
        a, M = state["a"], state["M"]
        train = jnp.mean(self.residual(state) ** 2) / 2
        S = (jnp.zeros_like(M).at[0, 0].set(1) - self.alpha * self.epsilon * M) / 2
        test = (jnp.trace(S) ** 2 + 2 * jnp.sum(S**2) + self.alpha**2 * a @ a) / 2  # by Isserlis
        share = M[0, 0] / jnp.trace(M)  # b is the first axis
        return {"loss": train / self.alpha**2, "train": train, "test": test, "alignment": share}

    def observables(self):
        names = "train", "test", "alignment"
        return {n: lambda self, w, n=n: self.measured(averages(w))[n] for n in names}

    @classmethod
    def theories(cls):
        return (AVERAGES,)


def averages(w):
    return {"a": w.mean(0), "M": w.T @ w / len(w)}


def field(t, state, training):
    problem, a, M = training.problem, state["a"], state["M"]
    x, r = problem.inputs(), problem.residual(state) / problem.alpha
    g, G = r @ x / len(x), x.T @ (r[:, None] * x) / len(x)
    push = jnp.outer(g, a) + problem.epsilon * G @ M  # M' is the sum of this and its transpose
    rate = training.rate(t) / problem.width
    return {"a": rate * (g + problem.epsilon * G @ a), "M": rate * (push + push.T)}


AVERAGES = odes.system(
    "averages",
    "averages over units",
    "eta -> 0, all examples in every step",
    field,
    lambda training, w: averages(w),
    lambda t, state, training: training.problem.measured(state),
)
