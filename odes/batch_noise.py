r"""Mean and standard deviation across seeds of the training of any problem at batch B [ours].

The mean follows descent, step by step, and the linear noise approximation of
`odes.solver.linear_noise` gives the covariance. A batch adds noise of covariance C/B to the
gradient, with C that of the gradient of one example. With :math:`s_i = \lambda \cdot \nabla \ell_i`
for the loss of example i

.. math::

    \lambda^\top C \lambda' = \operatorname{Cov}_i (s_i, s_i')

is estimated in every step from E fresh examples, so that its errors average out over the steps. No
matrix of the size of C is formed. Without a `population_loss` the mean follows descent on the loss
of these examples: it is that of training at batch E, and its own error is :math:`\sqrt{B/E}`
standard deviations of a run. Of a `dynsim.FullBatch` all examples are taken, without an error.

Starting weights that differ between seeds add the variance of the mean over the starts to the mean
of the variance, by the law of total variance.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from dynsim import Problem, Trajectory, checks
from dynsim.precision import DType, cast, placed
from dynsim.problem.base import built, narrowed, split
from dynsim.problem.checks import (
    Parts,
    check_draw,
    check_groups,
    check_loss,
    flow_table,
    has_population,
    measured,
    population_of,
    usual,
)
from dynsim.problem.data import Data
from dynsim.problem.full_batch import FullBatch
from dynsim.problem.train import ABSURD_LOSS, problem_in, started
from dynsim.training.recording import BATCH_LOSS, Record, Recording, Table
from dynsim.training.rule import Rule, UpdateRule
from dynsim.training.run_checks import whole_steps
from dynsim.trajectory import Times
from odes.problem import check_arguments
from odes.solver import linear_noise as solver
from odes.solver import noise_drift
from odes.solver.integrate import in_program, judge
from odes.theory import Theory, Training, refusal

STD = "_std"
"""How the names of standard deviations end, where they are recorded by name."""
EXAMPLES, BATCHES_OF = 512, 16
"""Examples per step from which the covariance of the gradient is estimated, by default so many, or
so many batches where these are more."""
BATCHES = 32
"""Drawn in each step to estimate how far the squares of their noise scatter."""
PASSES = 16
"""Times at which the covariance is computed; between them it is interpolated."""
STARTS = 8
"""Starting weights over which mean and covariance are averaged."""
LARGEST = 2000
"""Weights up to which `compare` and others take the theory unasked."""
MOST = 2**26
"""Numbers that the gradients of all examples of a step may have, where a rule needs them."""


class Asked(NamedTuple):
    """What is to be recorded, hashable.

    Attributes:
        stds: names of standard deviations that are asked for as observables.
        hidden: names of what is not returned itself, but for its deviation.
        recording: of the problem.
        batch_loss: whether the loss of the next batch is recorded too.
    """

    stds: tuple[str, ...]
    hidden: tuple[str, ...]
    recording: Recording
    batch_loss: bool


def linear_noise(
    problem: Problem,
    rule: UpdateRule,
    times: Times,
    *,
    batch: int | float,
    key: PRNGKeyArray | None = None,
    init: PyTree = None,
    starts: int = STARTS,
    examples: int | None = None,
    squares: bool = True,
    passes: int = PASSES,
    draws: int = 0,
    record: Record | None = None,
    dtype: DType = "float64",
) -> Trajectory:
    """Predict mean and covariance across seeds of what training records, from `draw` and `loss`.

    Use it to know how far seeds scatter without training them, at every batch size. It is right
    where runs scatter so little that all of them see the same Hessian; `dynsim explain` checks
    this.

    Args:
        problem: with `draw` and `loss`, which is the mean over the examples. Without a
            `population_loss` the mean gradient is estimated too.
        rule: any rule but sign descent, with any schedules, rates by group and decay; one of your
            own if it has a `flow`. Without clipping and noise of its own.
        times: (S,) whole optimiser steps at which to record, increasing, >= 0, not traced.
        batch: number B of examples per step, >= 1, drawn independently.
        key: of the starting weights and of the examples. With one start, these are the weights of
            `dynsim.train` with this key.
        init: starting weights in their place, the same for all seeds; needs `starts=1`.
        starts: number of starting weights from `problem.init` whose spread is part of the result.
            With 1, the result is about runs from the same weights.
        examples: number E of examples per step from which the covariance of the gradient is
            estimated, >= 2; by default 512, or 16 batches if that is more.
        squares: whether what Adam and RMSProp divide by has the noise of the batches in it. Without
            it the theory is faster, and wrong where noise is larger than the gradient.
        passes: number of the `times` at which the covariance is computed, >= 2, spread evenly among
            them with the first and the last. Each costs a pass back to the start, for all
            observables together. Between them it is interpolated, linear in log(1 + t).
        draws: with 2 draws of the noise of a whole run or more, add the next order in 1/B to mean
            and covariance. It matters for losses near their minimum.
        record: as of `odes.flow`, and "batch_loss", the loss of the next batch. NAME_std stands for
            the standard deviation of NAME, as an observable. By default the `RECORD` of the problem
            and "batch_loss".
        dtype: "float64" or "float32".

    Returns:
        A `Trajectory`: the mean of the observables, with their `covariance` across seeds and `std`.
        Where descent diverges from one of the starts its status is not OK; nothing raises.

    Raises:
        ValueError: with the reason, for a rule or a problem that it does not describe; and naming
            the argument, its value and what is allowed, before compilation.

    Example:
        >>> rule = dynsim.sgd(0.05, momentum=0.9)
        >>> theory = odes.linear_noise(problem, rule, [10, 100], batch=32, key=jax.random.key(0))
        >>> theory["loss"], theory.std["loss"]
    """
    problem, rule = built(problem, rule)
    if reason := _undescribed(problem, rule, batch):
        raise ValueError(reason)
    check_arguments(problem, rule, times, key, init, starts=True)
    steps = whole_steps(times)
    checks.integer("batch", batch, 1)
    examples = checks.integer("examples", examples_of(batch) if examples is None else examples, 2)
    if key is None:
        raise ValueError("key = None: the examples are drawn, which needs one")
    if checks.integer("starts", starts, 1) > 1 and init is not None:
        raise ValueError(f"starts = {starts}: must be 1 where `init` gives the starting weights")
    checks.integer("passes", passes, 2)
    if draws:
        checks.integer("draws", draws, 2)
    if squares and isinstance(rule, solver.AVERAGE_SQUARES):
        _check_size(problem, rule, examples)
    asked = _asked(problem, record)
    numbers, rest = split(problem)
    found = in_program(
        _solve,
        lambda: (
            placed(numbers),
            rest,
            rule.astype(dtype),
            key,
            placed(init),
            cast(times, dtype),
            cast(batch, dtype),
        ),
        (problem, rule, times, key, init),
        dtype,
        steps=steps,
        starts=starts,
        examples=examples,
        squares=squares,
        passes=passes,
        draws=draws,
        asked=asked,
    )
    return _named(found, asked)


def examples_of(batch: int | float) -> int:
    """The number of examples of a step, by default."""
    return max(EXAMPLES, BATCHES_OF * int(batch))


def _undescribed(problem: Problem, rule: Any, batch: int | float) -> str | None:
    """Why the theory does not describe a training, or None."""
    for method in ("draw", "loss"):
        if not problem.has(method):
            return f"{type(problem).__name__}: has no method {method!r}, which linear noise needs"
    if isinstance(batch, float) and math.isinf(batch):
        return "batch = inf: leaves no noise"
    for name, each in vars(problem).items():
        if isinstance(each, Data) and not each.replace:
            return f"{name}.replace = False: linear noise is that of independent examples"
    return refusal(solver.check_described, rule)


def _inapplicable(training: Training) -> str | None:
    problem, rule = training.problem, training.rule
    reason = _undescribed(problem, rule, training.batch)
    if reason is None and (size := size_of(problem)) > LARGEST:
        return (
            f"the problem has {size} weights, more than {LARGEST}; "
            "odes.linear_noise(problem, rule, ...) has no such limit"
        )
    return reason


def size_of(problem: Problem) -> int:
    """Number of weights that are trained, at most."""
    start = jax.tree.leaves(eqx.filter_eval_shape(problem.init, jax.random.key(0)))
    weights = [each for each in start if isinstance(each, jax.ShapeDtypeStruct)]
    return sum(each.size for each in weights if jnp.issubdtype(each.dtype, jnp.inexact))


def _check_size(problem: Problem, rule: Rule, examples: int) -> None:
    if (size := size_of(problem)) * examples > MOST:
        raise ValueError(
            f"examples = {examples}: with {size} weights, {rule.name} takes at most {MOST // size},"
            " because it needs the gradient of each; or set squares = False"
        )


def _predicts(problem: Problem) -> tuple[str, ...]:
    names = tuple(_table(problem).functions)
    return names + tuple(name + STD for name in names if name + STD not in names)


def _table(problem: Problem) -> Table:
    """What a flow can record, and the loss of a batch."""
    known = flow_table(problem)
    refused = {name: why for name, why in known.refused.items() if name != BATCH_LOSS}
    functions = {**known.functions, BATCH_LOSS: abs}
    return dataclasses.replace(known, functions=functions, refused=refused)


def _asked(problem: Problem, record: Record | None) -> Asked:
    table = _table(problem)
    if record is None:
        record = [*usual(problem, table.functions), BATCH_LOSS]
    given: list[Any] = [record] if isinstance(record, str | Mapping) else list(record)
    known = table.names()
    stds = [x for x in given if isinstance(x, str) and x.endswith(STD) and x not in known]
    plain = [each for each in given if each not in stds]
    hidden = [base for base in (each.removesuffix(STD) for each in stds) if base not in plain]
    found = table.resolve([*plain, *hidden])
    functions = tuple(each for each in found.functions if each[0] != BATCH_LOSS)
    whole = len(functions) < len(found.functions)
    return Asked(tuple(stds), tuple(hidden), found._replace(functions=functions), whole)


def _named(found: Trajectory, asked: Asked) -> Trajectory:
    """A trajectory with standard deviations as observables, where they are asked for by name."""
    if not asked.stds:
        return found
    shown = {name: x for name, x in found.observables.items() if name not in asked.hidden}
    stds = {name: found.std[name.removesuffix(STD)] for name in asked.stds}
    return dataclasses.replace(found, observables={**shown, **stds}, covariance=None)


class _Reached(NamedTuple):
    """What one start leads to: (S, P) numbers, (S, P, P) their covariance, and validity."""

    values: Float[Array, "S P"]
    covariance: Float[Array, "S P P"]
    valid: Bool[Array, " S"]


def _solve(
    numbers: Problem,
    rest: Problem,
    rule: Rule,
    key: PRNGKeyArray,
    init: PyTree,
    times: Float[Array, " S"],
    batch: Float[Array, ""],
    *,
    steps: tuple[int, ...],
    starts: int,
    examples: int,
    squares: bool,
    passes: int,
    draws: int,
    asked: Asked,
) -> Trajectory:
    given = eqx.combine(numbers, rest)
    dtype: Any = times.dtype.name

    def one(key: PRNGKeyArray) -> _Reached:
        noise = Noise(
            given,
            started(given, key, init, dtype),
            rule,
            jax.random.fold_in(key, EXAMPLES),
            batch,
            asked,
            examples,
        )
        return noise.reached(steps, squares, passes, draws)

    if starts == 1:
        found = one(key)
    else:
        every = jax.vmap(one)(jax.random.split(key, starts))
        apart = every.values - jnp.mean(every.values, axis=0, keepdims=True)
        between = jnp.einsum("rsp,rsq->spq", apart, apart) / (starts - 1)
        within = jnp.mean(every.covariance, axis=0)
        # Paths of estimated gradients scatter as runs of so many examples do.
        if not (has_population(given) or isinstance(given, FullBatch)):
            within *= 1 - batch / examples
        found = _Reached(
            jnp.mean(every.values, axis=0),
            within + between,
            jnp.all(every.valid, axis=0),
        )
    start = started(given, key, init, dtype)
    like = Noise(given, start, rule, key, batch, asked, examples).seen(start.params, jnp.int32(0))
    _, unravel = ravel_pytree(like[0])
    observables = jax.vmap(unravel)(found.values)
    status, first_bad = judge(times, found.valid)
    return Trajectory(
        times, observables, None, status, first_bad, THEORY.name, covariance=found.covariance
    )


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
        # What sums of squares are divided by: a whole population has lost none to its mean.
        self.free = self.examples - (self.fixed is None)

    def drawn(self, key: PRNGKeyArray) -> PyTree:
        """The examples of a step."""
        if self.fixed is not None:
            return self.fixed
        with jax.enable_x64(False), checks.traceable(f"{type(self.problem).__name__}.draw"):
            found = self.narrow.draw(key, self.examples)
        return narrowed(found, self.dtype)

    def of_step(self, k: Int[Array, ""]) -> PyTree:
        return self.drawn(jax.random.fold_in(self.key, k))

    def loss(self, params: PyTree, example: PyTree) -> Float[Array, ""]:
        """Of a single example."""
        batch = jax.tree.map(lambda leaf: leaf[None], example)
        with checks.traceable(f"{type(self.problem).__name__}.loss"):
            found = self.problem.loss(self.parts.whole(params), batch)
        return check_loss(self.problem, "loss", found, self.dtype)

    def losses(self, params: PyTree, data: PyTree) -> Float[Array, " E"]:
        return jax.vmap(lambda example: self.loss(params, example))(data)

    def spread(self, each: Array) -> Array:
        """Variance of the mean over a batch, from values (E, ...) of examples."""
        centred = each - jnp.mean(each, axis=0, keepdims=True)
        return jnp.sum(centred**2, axis=0) / self.free / self.batch

    def derive(self, params: PyTree, k: Int[Array, ""]) -> tuple[PyTree, Float[Array, " E"]]:
        """The mean gradient, and the losses of the examples of step k."""
        losses, pull = jax.vjp(functools.partial(self.losses, data=self.of_step(k)), params)
        if self.population is not None:
            return self.population(params)[1], losses
        return pull(jnp.full_like(losses, 1 / self.examples))[0], losses

    def covariance(self, along: Float[Array, "P E"]) -> Float[Array, "P P"]:
        """Of a batch, from the derivatives of the losses of examples along P vectors."""
        centred = along - jnp.mean(along, axis=1, keepdims=True)
        return centred @ centred.T / self.free / self.batch

    def variance(self, params: PyTree, k: Int[Array, ""]) -> PyTree:
        """Of each entry of the gradient of a batch."""
        return jax.tree.map(self.spread, self.gradients(params, k))

    def gradients(self, params: PyTree, k: Int[Array, ""]) -> PyTree:
        """Of each example of step k."""
        return jax.vmap(jax.grad(self.loss), (None, 0))(params, self.of_step(k))

    def squares(self, params: PyTree, k: Int[Array, ""], along: PyTree) -> Float[Array, "P P"]:
        """Covariance along P vectors of the squares of the noise of a batch, from `BATCHES` that
        are drawn."""
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
        """Normal noise of that covariance."""
        drawn, normal = jax.random.split(key)
        losses, pull = jax.vjp(functools.partial(self.losses, data=self.drawn(drawn)), params)
        xi = jax.random.normal(normal, losses.shape, losses.dtype)
        return pull((xi - jnp.mean(xi)) / jnp.sqrt(self.free * self.batch))[0]

    def seen(self, params: PyTree, k: Int[Array, ""]) -> tuple[dict[str, Array], dict[str, Array]]:
        """What is recorded after k steps, and the variance that it has by the next batch alone."""
        weights = self.parts.whole(params)
        found = measured(self.problem, self.asked.recording, weights)
        values = {name: jnp.asarray(each, self.dtype) for name, each in found.items()}
        own = jax.tree.map(jnp.zeros_like, values)
        if self.asked.batch_loss:
            losses = self.losses(params, self.of_step(k))
            values[BATCH_LOSS] = jnp.mean(losses)
            own[BATCH_LOSS] = self.spread(losses)
        return values, own

    def observe(self, params: PyTree, k: Int[Array, ""]) -> tuple[Array, tuple[Array, Array]]:
        values, own = self.seen(params, k)
        if self.population is not None:
            loss = self.population(params)[0]
        else:
            loss = jnp.mean(self.losses(params, self.of_step(k)))
        return ravel_pytree(values)[0], (loss, ravel_pytree(own)[0])

    def reached(self, steps: tuple[int, ...], squares: bool, passes: int, draws: int) -> _Reached:
        """What descent and linear noise lead to; with `draws`, to the next order."""
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
        if draws:
            drawn = jax.random.split(self.key)[1]
            added = noise_drift.drift(descent, self.sample, start, steps, drawn, draws, True)
            values, covariance = values + added.drift, covariance + added.covariance
        absurd = ABSURD_LOSS * jnp.abs(self.observe(start, jnp.int32(0))[1][0])
        valid = jnp.isfinite(values).all(axis=1) & (loss <= absurd)
        return _Reached(values, covariance, valid)


def _between(
    at: np.ndarray, some: np.ndarray, known: Float[Array, "s P P"]
) -> Float[Array, "S P P"]:
    """Linear interpolation in `at` of what is `known` at some places of it."""
    right = np.clip(np.searchsorted(some, np.arange(len(at))), 1, len(some) - 1)
    first, last = at[some[right - 1]], at[some[right]]
    share = jnp.asarray((at - first) / (last - first), known.dtype)[:, None, None]
    return (1 - share) * known[right - 1] + share * known[right]


THEORY: Theory[Any, Any] = Theory(
    "linear-noise",
    "descent and linear noise of the batches",
    "noise of the batches to first order",
    functools.partial(linear_noise, starts=1),
    _inapplicable,
    needs=("key", "batch"),
    predicts=_predicts,
    adaptive=False,
    variant=True,
)
"""The theory of every problem with `draw` and `loss`, from the starting weights of one run."""
