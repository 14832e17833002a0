"""Descent of a problem from some weights, and the noise that its batches add."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from dynsim import Problem
from dynsim.precision import AnyArray, DType
from dynsim.problem.base import FullBatch, call_user, examples
from dynsim.problem.build import narrowed
from dynsim.problem.checks import (
    Parts,
    check_draw,
    check_groups,
    check_loss,
    has_population,
    population_of,
)
from dynsim.problem.observables import flow_table, measured, usual
from dynsim.problem.train import highest_loss, problem_in
from dynsim.training.recording import BATCH_LOSS, Record, Recording, Table
from dynsim.training.rule import Rule
from odes.run import dtype_of
from odes.solver import linear_noise as solver
from odes.solver import second_order
from odes.solver.linear_noise import Sampling

STD, ERROR = "_std", "_error"
"""Suffixes of the names of standard deviations, and of standard errors of estimates."""
STATISTICS = (STD + ERROR, ERROR, STD)
"""Suffixes of what is predicted of each observable besides its mean."""
NOISE_BATCHES = 32
"""Number of batches drawn in each step to estimate the covariance of their squared noise."""


class NoiseRecord(NamedTuple):
    """Which observables to return, and which as standard deviations or errors (hashable).

    Attributes:
        statistics: requested statistics by name, each with its observable and its suffix.
        hidden: observables of which only statistics are returned.
        recording: the problem's recording.
        batch_loss: whether the loss of the next batch is recorded too.
    """

    statistics: tuple[tuple[str, tuple[str, str]], ...]
    hidden: tuple[str, ...]
    recording: Recording
    batch_loss: bool


def table_of(problem: Problem) -> Table:
    """Return the observables of a flow and the loss of a batch."""
    table = flow_table(problem)
    refused = {name: why for name, why in table.refused.items() if name != BATCH_LOSS}
    # `Noise.seen` computes the loss of a batch itself, so that `abs` is never called.
    functions = {**table.functions, BATCH_LOSS: abs}
    return dataclasses.replace(table, functions=functions, refused=refused)


def noise_record_of(problem: Problem, record: Record | None) -> NoiseRecord:
    """Return the recording, by default the problem's `RECORD` and the loss of a batch."""
    table = table_of(problem)
    if record is None:
        record = [*usual(problem, table.functions), BATCH_LOSS]
    requests: list[Any] = [record] if isinstance(record, str | Mapping) else list(record)
    names = table.names()
    # An observable may itself end in "_std", so that its own name comes first.
    suffixes = {
        name: next((end for end in STATISTICS if name.removesuffix(end) in names), "")
        for name in requests
        if isinstance(name, str) and name not in names
    }
    statistics = {name: (name.removesuffix(end), end) for name, end in suffixes.items() if end}
    plain = [request for request in requests if request not in statistics]
    # Statistics need the observable that they are of, even where it is not requested itself.
    hidden = [base for base, _ in statistics.values() if base not in plain]
    resolved = table.resolve([*plain, *dict.fromkeys(hidden)])
    functions = tuple(named for named in resolved.functions if named[0] != BATCH_LOSS)
    batch_loss = len(functions) < len(resolved.functions)
    recording = resolved._replace(functions=functions)
    return NoiseRecord(tuple(statistics.items()), tuple(hidden), recording, batch_loss)


class NoiseResult(NamedTuple):
    """Results from one start: (S, P) numbers, (S, P, P) their covariance, the (S, P) errors of both
    from the sample of examples, and validity."""

    values: Float[Array, "S P"]
    covariance: Float[Array, "S P P"]
    errors: Sampling
    valid: Bool[Array, " S"]


class Noise:
    """Descent of a problem from some weights, and the noise of its batches."""

    def __init__(
        self,
        problem: Problem,
        parts: Parts,
        rule: Rule,
        key: PRNGKeyArray,
        batch: Float[Array, ""],
        noise_record: NoiseRecord,
        examples: int,
    ) -> None:
        self.dtype: DType = dtype_of(batch)
        self.problem = problem_in(problem, self.dtype)
        # `draw` gets 32 bits in every precision, so that it draws the examples of training.
        self.narrow = problem_in(problem, "float32")
        self.parts, self.rule, self.key, self.batch = parts, rule, key, batch
        self.noise_record, self.examples = noise_record, examples
        self.fixed = self.problem.data if isinstance(self.problem, FullBatch) else None
        self.population = population_of(self.problem, parts) if has_population(problem) else None
        if self.fixed is None:
            check_draw(self.narrow, key, examples)
        else:
            self.examples = len(jax.tree.leaves(self.fixed)[0])
        # Degrees of freedom: E - 1 for sampled examples, E for a whole population.
        self.free = self.examples - (self.fixed is None)

    def draw(self, key: PRNGKeyArray) -> PyTree:
        """Return the examples of a step."""
        if self.fixed is not None:
            return self.fixed
        with jax.enable_x64(False):
            data = examples(self.narrow, key, self.examples)
        return narrowed(data, self.dtype)

    def of_step(self, k: Int[Array, ""]) -> PyTree:
        return self.draw(jax.random.fold_in(self.key, k))

    def loss(self, params: PyTree, example: PyTree) -> Float[Array, ""]:
        """Return the loss of a single example."""
        batch = jax.tree.map(lambda leaf: leaf[None], example)
        value = call_user(self.problem, "loss", self.parts.combine(params), batch)
        return check_loss(self.problem, "loss", value, self.dtype)

    def losses(self, params: PyTree, data: PyTree) -> Float[Array, " E"]:
        return jax.vmap(lambda example: self.loss(params, example))(data)

    def spread(self, values: Float[Array, "E *P"]) -> tuple[Float[Array, "*P"], Sampling]:
        """Return the variance of the mean over a batch, from values of examples, and the errors of
        the mean over these examples and of the variance."""
        variance, errors = solver.sampling(values, self.free)
        if self.fixed is not None:
            # All examples there are: nothing is estimated.
            errors = jax.tree.map(jnp.zeros_like, errors)
        return variance / self.batch, Sampling(errors.mean, errors.variance / self.batch**2)

    def derive(self, params: PyTree, k: Int[Array, ""]) -> tuple[PyTree, Float[Array, " E"]]:
        """Return the mean gradient, and the losses of the examples of step k."""
        losses, pull = jax.vjp(functools.partial(self.losses, data=self.of_step(k)), params)
        # With a population loss `pull` is not used, and compiled away.
        if self.population is not None:
            return self.population(params)[1], losses
        return pull(jnp.full_like(losses, 1 / self.examples))[0], losses

    def covariance(self, along: Float[Array, "P E"]) -> Float[Array, "P P"]:
        """Return a batch's covariance from derivatives of the examples' losses along P vectors."""
        # lambda^T C lambda' = Cov_i(s_i, s_i') / B with s_i = lambda . grad loss_i.
        centred = along - jnp.mean(along, axis=1, keepdims=True)
        return centred @ centred.T / self.free / self.batch

    def variance(self, params: PyTree, k: Int[Array, ""]) -> PyTree:
        """Return the variance of each entry of the gradient of a batch."""
        return jax.tree.map(lambda g: self.spread(g)[0], self.gradients(params, k))

    def gradients(self, params: PyTree, k: Int[Array, ""]) -> PyTree:
        """Return the gradient of each example of step k."""
        return jax.vmap(jax.grad(self.loss), (None, 0))(params, self.of_step(k))

    def squares(self, params: PyTree, k: Int[Array, ""], along: PyTree) -> Float[Array, "P P"]:
        """Return the covariance along P vectors of a batch's squared noise, by sampling."""
        of_batches = self.squared(params, k, along)[0]
        centred = of_batches - jnp.mean(of_batches, axis=0, keepdims=True)
        return centred.T @ centred / (NOISE_BATCHES - 1)

    def squared(
        self, params: PyTree, k: Int[Array, ""], along: PyTree
    ) -> tuple[Float[Array, "N P"], Float[Array, "E P"]]:
        """Return the squared noise of N batches along P vectors, and the squares of E examples that
        have its mean."""
        gradients = jax.vmap(lambda g: ravel_pytree(g)[0])(self.gradients(params, k))
        push = jax.vmap(lambda mu: ravel_pytree(mu)[0])(along)
        key = jax.random.fold_in(jax.random.split(self.key)[0], k)
        normal = jax.random.normal(key, (NOISE_BATCHES, self.examples), gradients.dtype)
        centred = gradients - jnp.mean(gradients, axis=0, keepdims=True)
        # Normal noise xi of covariance C / B, as a random combination of the examples.
        noise = normal @ centred / jnp.sqrt(self.free * self.batch)
        return noise**2 @ push.T, centred**2 @ push.T / self.batch

    def sampling(
        self, params: PyTree, k: Int[Array, ""], along: Float[Array, "P E"], squared: PyTree
    ) -> Sampling:
        """Return the errors due to the examples of step k: of the observations, whose derivative
        with respect to the loss of an example is `along`, and of their variance."""
        of_mean, of_variance = self.spread(along.T)[1]
        if self.population is not None:
            of_mean = jnp.zeros_like(of_mean)
        if squared is not None:
            # The mean follows the variance of the gradient, which is estimated.
            batches, examples = self.squared(params, k, squared)
            of_mean += self.spread(examples)[1].mean
            of_variance += solver.sampling(batches, NOISE_BATCHES - 1)[1].variance
        return Sampling(of_mean, of_variance)

    def sample(self, params: PyTree, key: PRNGKeyArray) -> PyTree:
        """Draw normal noise with the covariance of a batch gradient."""
        of_data, normal = jax.random.split(key)
        losses, pull = jax.vjp(functools.partial(self.losses, data=self.draw(of_data)), params)
        # The gradient of a random combination of the losses, whose mean covariance is C / B.
        xi = jax.random.normal(normal, losses.shape, losses.dtype)
        return pull((xi - jnp.mean(xi)) / jnp.sqrt(self.free * self.batch))[0]

    def seen(
        self, params: PyTree, k: Int[Array, ""]
    ) -> tuple[dict[str, Array], tuple[dict[str, Array], Sampling], Array]:
        """Return the observables recorded after k steps; their variance from the next batch alone,
        with errors; and the loss that decides whether a run diverged."""
        population, losses = self.population, jnp.zeros(0)
        if self.noise_record.batch_loss or population is None:
            losses = self.losses(params, self.of_step(k))
        weights = self.parts.combine(params)
        of_weights = measured(self.problem, self.noise_record.recording, weights)
        values = {name: jnp.asarray(value, self.dtype) for name, value in of_weights.items()}
        # Observables of the weights do not scatter with the next batch; its loss does.
        own, of_mean, of_variance = (jax.tree.map(jnp.zeros_like, values) for _ in range(3))
        if self.noise_record.batch_loss:
            values[BATCH_LOSS] = jnp.mean(losses)
            own[BATCH_LOSS], (of_mean[BATCH_LOSS], of_variance[BATCH_LOSS]) = self.spread(losses)
        loss = jnp.mean(losses) if population is None else population(params)[0]
        return values, (own, Sampling(of_mean, of_variance)), loss

    def observe(
        self, params: PyTree, k: Int[Array, ""]
    ) -> tuple[Array, tuple[Array, tuple[Array, Sampling]]]:
        values, (own, errors), loss = self.seen(params, k)
        flat, (mean, variance) = ravel_pytree(own)[0], (ravel_pytree(tree)[0] for tree in errors)
        return ravel_pytree(values)[0], (loss, (flat, Sampling(mean, variance)))

    def descent(self, squares: bool) -> solver.Descent:
        return solver.Descent(
            self.rule,
            self.derive,
            self.covariance,
            self.observe,
            groups=check_groups(self.problem, self.rule, self.parts),
            variance=self.variance if squares else None,
            squares=self.squares,
            sampling=self.sampling,
        )

    def mean(
        self, steps: tuple[int, ...], squares: bool
    ) -> tuple[Float[Array, "S P"], Bool[Array, " S"]]:
        """Return the observed numbers of descent without noise, and their validity."""
        start = self.parts.params
        values, (loss, _) = solver.followed(self.descent(squares), start, steps)
        return values, self.valid(values, loss)

    def valid(self, values: Float[Array, "S P"], loss: Float[Array, " S"]) -> Bool[Array, " S"]:
        first = self.observe(self.parts.params, jnp.int32(0))[1][0]
        return jnp.isfinite(values).all(axis=1) & (loss <= highest_loss(jnp.abs(first)))

    def results(
        self, steps: tuple[int, ...], squares: bool, passes: int, draws: int
    ) -> tuple[NoiseResult, ...]:
        """Return the results of descent with linear noise, and of the next order with `draws`."""
        descent, start = self.descent(squares), self.parts.params
        at = np.unique(np.rint(np.linspace(0, len(steps) - 1, passes)).astype(int))
        backward = solver.spread(descent, start, tuple(steps[i] for i in at))
        estimates, values = (backward.covariance, backward.errors), backward.values
        loss, (own, errors) = backward.aux
        if len(at) < len(steps):
            # Means at all times cost one forward pass; a covariance costs a backward pass each.
            values, (loss, (own, errors)) = solver.followed(descent, start, steps)
            # In between, linearly in log(1 + t).
            x = np.log1p(np.asarray(steps))
            right = np.clip(np.searchsorted(at, np.arange(len(x))), 1, len(at) - 1)
            first, last = x[at[right - 1]], x[at[right]]

            def interpolate(estimate: Float[Array, "s *P"]) -> Float[Array, "S *P"]:
                share = jnp.asarray((x - first) / (last - first), estimate.dtype)
                share = share.reshape(-1, *(1,) * (estimate.ndim - 1))
                return (1 - share) * estimate[right - 1] + share * estimate[right]

            estimates = jax.tree.map(interpolate, estimates)
        # The next batch is independent of the weights: its variance is added.
        own = jax.vmap(jnp.diag)(own), errors
        covariance, errors = jax.tree.map(jnp.add, estimates, own)
        linear = NoiseResult(values, covariance, errors, self.valid(values, loss))
        if not draws:
            return (linear,)
        key = jax.random.split(self.key)[1]
        added = second_order.drift(descent, self.sample, start, steps, key, draws, True)
        values, covariance = values + added.drift, covariance + added.covariance
        errors = jax.tree.map(jnp.add, errors, added.errors)
        valid = jnp.isfinite(values).all(axis=1) & linear.valid
        return linear, NoiseResult(values, covariance, errors, valid)


def of_starts(
    means: Float[AnyArray, "R *S"], variances: Float[AnyArray, "Q *S"]
) -> tuple[Float[AnyArray, "*S"], Sampling]:
    """Return the variance across seeds, and the errors of the mean and of this variance, from the
    means of R >= 2 starts and the variances from the first Q >= 2 of them, by the law of total
    variance. `variances` are without those of the `means` due to their own errors.

    The error is that of the jackknife, or that of normal means where it is larger: by chance, a few
    starts may be too similar.
    """
    number, few = len(means), len(variances)
    # Var = sum_r (O_r - mean)^2 / (R - 1) + mean_q Var_q, as a mean of numbers with one start each.
    apart = (means - means.mean(0, keepdims=True)) ** 2 * (number / (number - 1))
    of_means = apart - apart.mean(0, keepdims=True)
    own = variances - variances.mean(0, keepdims=True)
    both = of_means[:few] + own * (number / few)
    # A variance counts R/Q times as much in the mean over Q as a mean does in that over R.
    jackknife = (both**2).sum(0) + (of_means[few:] ** 2).sum(0)
    between, within = apart.mean(0), variances.mean(0)
    # For normal means, the squared error of their variance is 2 Var^2 / (R - 1).
    normal = (own**2).sum(0) / (few * (few - 1)) + 2 * between**2 / (number - 1)
    error = (jackknife / (number * (number - 1))).clip(normal)
    return between + within, Sampling(between / number, error)
