"""Any problem on a fixed set of examples, all of them in every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from dynsim import checks
from dynsim.problem.base import Measured, Problem
from dynsim.training.rule import UpdateRule


class FullBatch(Problem):
    """A problem whose population is a fixed set of examples. Build one with `dynsim.full_batch`.

    It has a `population_loss`, so that flows and the central flow apply, and training with
    `batch=math.inf` descends the mean over the set. A finite batch draws from it with replacement.

    Attributes:
        problem: the model and its loss.
        data: examples as `problem.draw` returns them, with a leading axis.
    """

    problem: Problem
    data: PyTree

    def build(self, rule: UpdateRule) -> FullBatch:
        """The same examples, for the problem that is trained by the rule."""
        return FullBatch(self.problem.build(rule), self.data)

    def init(self, key: PRNGKeyArray) -> PyTree:
        """The starting weights of the problem."""
        return self.problem.init(key)

    def draw(self, key: PRNGKeyArray, batch: int) -> PyTree:
        """Examples of the set, drawn with replacement."""
        number = len(jax.tree.leaves(self.data)[0])
        chosen = jax.random.randint(key, (batch,), 0, number)
        return jax.tree.map(lambda leaf: leaf[chosen], self.data)

    def loss(self, params: PyTree, data: PyTree) -> Float[Array, ""]:
        """That of the problem."""
        return self.problem.loss(params, data)

    def population_loss(self, params: PyTree) -> Float[Array, ""]:
        """The mean loss of all examples."""
        return self.problem.loss(params, self.data)

    def observables(self) -> Mapping[str, Measured]:
        """Those of the problem."""
        return self.problem.observables()

    def snapshot(self, params: PyTree) -> tuple[Any, ...]:
        """That of the problem."""
        return self.problem.snapshot(params)

    def groups(self, params: PyTree) -> PyTree:
        """Those of the problem."""
        return self.problem.groups(params)

    def is_frozen(self, params: PyTree) -> PyTree:
        """Those of the problem."""
        return self.problem.is_frozen(params)


def full_batch(problem: Problem, key: PRNGKeyArray, size: int) -> FullBatch:
    """A problem on `size` examples that are drawn once.

    Use it for a problem without a `population_loss`, to compare its training with flows, or for
    questions about descent on a training set, such as where the edge of stability lies.

    Args:
        problem: a problem with `draw` and `loss`.
        key: random key of the examples.
        size: number of examples, >= 1.

    Raises:
        ValueError: naming the argument, for a problem without these methods, or a size below 1.

    Example:
        >>> fixed = dynsim.full_batch(DeepLinear(), jax.random.key(1), 64)
        >>> options = {"steps": 10, "batch": math.inf, "record": ["loss", "sharpness"]}
        >>> run = dynsim.train(fixed, dynsim.sgd(0.1), jax.random.key(0), **options)
    """
    checks.kind("problem", problem, Problem)
    checks.key("key", key)
    size = checks.integer("size", size, 1)
    for method in ("draw", "loss"):
        if not problem.has(method):
            raise ValueError(f"{type(problem).__name__}: has no method {method!r}, which it needs")
    with jax.enable_x64(False):
        return FullBatch(problem, problem.draw(key, size))
