"""Descent of a problem from some weights, and the noise that its batches add."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from dynsim import Problem
from dynsim.problem.base import FullBatch, ask, examples, narrowed
from dynsim.problem.checks import (
    Parts,
    check_draw,
    check_groups,
    check_loss,
    has_population,
    measured,
    population_of,
)
from dynsim.problem.train import highest_loss, problem_in
from dynsim.training.recording import BATCH_LOSS, Recording
from dynsim.training.rule import Rule
from odes.solver import linear_noise as solver

BATCHES = 32
"""Number of batches drawn in each step to estimate the covariance of their squared noise."""


class Asked(NamedTuple):
    """Hashable description of the recording: names of standard deviations requested as observables,
    names of observables returned only as standard deviations, the problem's recording, and whether
    the loss of the next batch is recorded too."""

    stds: tuple[str, ...]
    hidden: tuple[str, ...]
    recording: Recording
    batch_loss: bool


class Reached(NamedTuple):
    """Results from one start: (S, P) numbers, (S, P, P) their covariance, and validity."""

    values: Float[Array, "S P"]
    covariance: Float[Array, "S P P"]
    valid: Bool[Array, " S"]


class Noise:
    """Descent of a problem from some weights, and the noise of its batches."""

    def __init__(
        self,
        given: Problem,
        parts: Parts,
        rule: Rule,
        key: PRNGKeyArray,
        batch: Float[Array, ""],
        asked: Asked,
        examples: int,
    ) -> None:
        self.dtype: Any = batch.dtype.name
        self.problem = problem_in(given, self.dtype)
        self.narrow = problem_in(given, "float32")
        self.parts, self.rule, self.key, self.batch = parts, rule, key, batch
        self.asked, self.examples = asked, examples
        self.fixed = self.problem.data if isinstance(self.problem, FullBatch) else None
        self.population = population_of(self.problem, parts) if has_population(given) else None
        if self.fixed is None:
            check_draw(self.narrow, key, examples)
        else:
            self.examples = len(jax.tree.leaves(self.fixed)[0])
        # Degrees of freedom: E - 1 for sampled examples, E for a whole population.
        self.free = self.examples - (self.fixed is None)

    def drawn(self, key: PRNGKeyArray) -> PyTree:
        """Return the examples of a step."""
        if self.fixed is not None:
            return self.fixed
        with jax.enable_x64(False):
            found = examples(self.narrow, key, self.examples)
        return narrowed(found, self.dtype)

    def of_step(self, k: Int[Array, ""]) -> PyTree:
        return self.drawn(jax.random.fold_in(self.key, k))

    def loss(self, params: PyTree, example: PyTree) -> Float[Array, ""]:
        """Return the loss of a single example."""
        batch = jax.tree.map(lambda leaf: leaf[None], example)
        found = ask(self.problem, "loss", self.parts.whole(params), batch)
        return check_loss(self.problem, "loss", found, self.dtype)

    def losses(self, params: PyTree, data: PyTree) -> Float[Array, " E"]:
        return jax.vmap(lambda example: self.loss(params, example))(data)

    def spread(self, each: Array) -> Array:
        """Return the variance of the mean over a batch, from values (E, ...) of examples."""
        centred = each - jnp.mean(each, axis=0, keepdims=True)
        return jnp.sum(centred**2, axis=0) / self.free / self.batch

    def derive(self, params: PyTree, k: Int[Array, ""]) -> tuple[PyTree, Float[Array, " E"]]:
        """Return the mean gradient, and the losses of the examples of step k."""
        losses, pull = jax.vjp(functools.partial(self.losses, data=self.of_step(k)), params)
        if self.population is not None:
            return self.population(params)[1], losses
        return pull(jnp.full_like(losses, 1 / self.examples))[0], losses

    def covariance(self, along: Float[Array, "P E"]) -> Float[Array, "P P"]:
        """Return a batch's covariance from derivatives of the examples' losses along P vectors."""
        centred = along - jnp.mean(along, axis=1, keepdims=True)
        return centred @ centred.T / self.free / self.batch

    def variance(self, params: PyTree, k: Int[Array, ""]) -> PyTree:
        """Return the variance of each entry of the gradient of a batch."""
        return jax.tree.map(self.spread, self.gradients(params, k))

    def gradients(self, params: PyTree, k: Int[Array, ""]) -> PyTree:
        """Return the gradient of each example of step k."""
        return jax.vmap(jax.grad(self.loss), (None, 0))(params, self.of_step(k))

    def squares(self, params: PyTree, k: Int[Array, ""], along: PyTree) -> Float[Array, "P P"]:
        """Return the covariance along P vectors of a batch's squared noise, by sampling."""
        each = jax.vmap(lambda g: ravel_pytree(g)[0])(self.gradients(params, k))
        push = jax.vmap(lambda mu: ravel_pytree(mu)[0])(along)
        key = jax.random.fold_in(jax.random.split(self.key)[0], k)
        normal = jax.random.normal(key, (BATCHES, self.examples), each.dtype)
        centred = each - jnp.mean(each, axis=0, keepdims=True)
        noise = normal @ centred / jnp.sqrt(self.free * self.batch)
        found = noise**2 @ push.T
        centred = found - jnp.mean(found, axis=0, keepdims=True)
        return centred.T @ centred / (BATCHES - 1)

    def sample(self, params: PyTree, key: PRNGKeyArray) -> PyTree:
        """Draw normal noise with the covariance of a batch gradient."""
        drawn, normal = jax.random.split(key)
        losses, pull = jax.vjp(functools.partial(self.losses, data=self.drawn(drawn)), params)
        xi = jax.random.normal(normal, losses.shape, losses.dtype)
        return pull((xi - jnp.mean(xi)) / jnp.sqrt(self.free * self.batch))[0]

    def seen(
        self, params: PyTree, k: Int[Array, ""]
    ) -> tuple[dict[str, Array], dict[str, Array], Array]:
        """Return the observables recorded after k steps, their variance from the next batch alone,
        and the loss that decides whether a run diverged."""
        population, losses = self.population, jnp.zeros(0)
        if self.asked.batch_loss or population is None:
            losses = self.losses(params, self.of_step(k))
        weights = self.parts.whole(params)
        found = measured(self.problem, self.asked.recording, weights)
        values = {name: jnp.asarray(each, self.dtype) for name, each in found.items()}
        own = jax.tree.map(jnp.zeros_like, values)
        if self.asked.batch_loss:
            values[BATCH_LOSS] = jnp.mean(losses)
            own[BATCH_LOSS] = self.spread(losses)
        return values, own, jnp.mean(losses) if population is None else population(params)[0]

    def observe(self, params: PyTree, k: Int[Array, ""]) -> tuple[Array, tuple[Array, Array]]:
        values, own, loss = self.seen(params, k)
        return ravel_pytree(values)[0], (loss, ravel_pytree(own)[0])

    def reached(
        self, steps: tuple[int, ...], squares: bool, passes: int, draws: int
    ) -> tuple[Reached, ...]:
        """Return the results of descent with linear noise, and of the next order with `draws`."""
        descent = solver.Descent(
            self.rule,
            self.derive,
            self.covariance,
            self.observe,
            groups=check_groups(self.problem, self.rule, self.parts),
            variance=self.variance if squares else None,
            squares=self.squares,
        )
        start = self.parts.params
        some = np.unique(np.rint(np.linspace(0, len(steps) - 1, passes)).astype(int))
        found = solver.spread(descent, start, tuple(steps[i] for i in some))
        covariance, values = found.covariance, found.values
        loss, own = found.beside
        if len(some) < len(steps):
            values, (loss, own) = solver.followed(descent, start, steps)
            covariance = _between(np.log1p(np.asarray(steps)), some, covariance)
        covariance += jax.vmap(jnp.diag)(own)
        absurd = highest_loss(jnp.abs(self.observe(start, jnp.int32(0))[1][0]))
        linear = Reached(values, covariance, jnp.isfinite(values).all(axis=1) & (loss <= absurd))
        if not draws:
            return (linear,)
        drawn = jax.random.split(self.key)[1]
        added = solver.drift(descent, self.sample, start, steps, drawn, draws, True)
        values, covariance = values + added.drift, covariance + added.covariance
        valid = jnp.isfinite(values).all(axis=1) & linear.valid
        return linear, Reached(values, covariance, valid)


def _between(
    at: np.ndarray, some: np.ndarray, known: Float[Array, "s P P"]
) -> Float[Array, "S P P"]:
    """Interpolate linearly in `at` between the values `known` at the indices `some`."""
    right = np.clip(np.searchsorted(some, np.arange(len(at))), 1, len(some) - 1)
    first, last = at[some[right - 1]], at[some[right]]
    share = jnp.asarray((at - first) / (last - first), known.dtype)[:, None, None]
    return (1 - share) * known[right - 1] + share * known[right]
