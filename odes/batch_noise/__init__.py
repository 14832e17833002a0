r"""Mean and standard deviation across seeds of the training of any problem at batch B [ours].

The mean follows descent, step by step, and the linear noise approximation of
`odes.solver.linear_noise` gives the covariance. A batch adds noise of covariance C/B to the
gradient, where C is the covariance of a single example's gradient. With
:math:`s_i = \lambda \cdot \nabla \ell_i` for the loss of example i

.. math::

    \lambda^\top C \lambda' = \operatorname{Cov}_i (s_i, s_i')

is estimated in every step from E fresh examples, so that its errors average out over the steps. No
matrix of the size of C is formed. Without a `population_loss` the mean follows descent on the loss
of these examples. It is the mean of training at batch E, with an error of :math:`\sqrt{B/E}`
standard deviations of a run. For a `dynsim.FullBatch` all examples are used, without such an error.

Starting weights that differ between seeds add the variance of the mean over the starts to the mean
of the variance, by the law of total variance. With several starts, standard errors come from the
differences between them (`noise.of_starts`). With one start, a variance has the squared error

.. math::

    \frac{1}{E B^2} \sum_k
    \left( \mathbb E_i\, (s_i - \bar s)^4 - \operatorname{Var}_i(s_i)^2 \right) .
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from dynsim import Problem, Trajectory, checks, decoding
from dynsim.precision import DType
from dynsim.problem.base import FullBatch
from dynsim.problem.build import built
from dynsim.problem.checks import has_population
from dynsim.problem.data import Data
from dynsim.problem.memory import COPIES, bytes_of
from dynsim.problem.train import started
from dynsim.training.recording import Record
from dynsim.training.rule import Rule, UpdateRule
from dynsim.training.steps import whole_steps
from dynsim.trajectory import Times
from odes.batch_noise.noise import (
    ERROR,
    STATISTICS,
    STD,
    Noise,
    NoiseRecord,
    NoiseResult,
    noise_record_of,
    of_starts,
    table_of,
)
from odes.run import dtype_of, run
from odes.solver import linear_noise as solver
from odes.solver.integrate import judge
from odes.theory import AnyTheory, Theory, Training, error_message

EXAMPLES, BATCHES_OF = 512, 16
"""Default number of examples per step from which the covariance of the gradient is estimated: 512,
or 16 batches if that is more."""
PASSES = 16
"""Times at which the covariance is computed; between them it is interpolated."""
STARTS = 32
"""Default number of starting weights."""
COVARIANCES, COVARIANCES_OF = 8, 4
"""The covariance is averaged over a quarter of the starts, or 8 if that is more, because it takes
much longer than the mean."""
MAX_WEIGHTS = 2000
"""Largest number of weights for which `compare` and others use the theory by default."""
MAX_GRADIENTS = 2**26
"""Largest total size of the gradients of all examples of a step, for rules that need them."""


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
    """Predict mean and covariance across seeds of everything that training records, from `draw` and
    `loss`.

    Use it to predict seed-to-seed variation without training, at any batch size. It holds where
    runs scatter so little that they all have the same Hessian; `dynsim explain` checks this.

    Args:
        problem: a problem with `draw` and with a `loss` that is the mean over the examples. Without
            a `population_loss` the mean gradient is estimated too.
        rule: any rule except sign descent, with any schedules, rates by group and decay, but
            without clipping and gradient noise; your own rule needs a `flow`.
        times: (S,) whole optimiser steps at which to record, increasing, >= 0, not traced.
        batch: number B of examples per step, >= 1, drawn independently.
        key: random key of the starting weights and the examples. With one start, the weights are
            those of `dynsim.train` with this key.
        init: starting weights, the same for all seeds, instead of random ones; needs `starts=1`.
        starts: number of starting weights from `problem.init`, whose spread is part of the result.
            The covariance due to batches, which takes longer than the mean, is averaged over a
            quarter of them, or 8 if that is more. With 1, the result describes runs from the same
            weights.
        examples: number E of examples per step from which the covariance of the gradient is
            estimated, >= 2; by default 512, or 16 batches if that is more.
        squares: whether the averages in the denominators of Adam and RMSProp include batch noise.
            Without it the theory is faster, but wrong where noise exceeds the gradient.
        passes: number of the `times` at which the covariance is computed, >= 2, evenly spaced and
            including the first and the last. Each costs a backward pass to the start, for all
            observables together. In between, the covariance is interpolated linearly in log(1 + t).
        draws: number of draws of a whole run's noise. With 2 or more, the next order in 1/B is
            added to mean and covariance, which matters for losses near their minimum.
        record: as in `odes.flow`, plus "batch_loss", the loss of the next batch; and, as
            observables, NAME_std, the standard deviation of NAME, and NAME_error and
            NAME_std_error, the standard errors of NAME and of NAME_std. By default the `RECORD` of
            the problem and "batch_loss".
        dtype: "float64" or "float32".

    Returns:
        A `Trajectory`: the mean of the observables, with their `covariance` across seeds and `std`,
        and the standard errors `mean_error` and `std_error` of both, from the samples of starts,
        examples and draws. If descent diverges from one of the starts, its status is not OK;
        nothing raises.

    Raises:
        ValueError: with the reason, for a rule or a problem that it does not describe; and naming
            the argument, its value and what is allowed, before compilation.

    Example:
        >>> rule = dynsim.sgd(0.05, momentum=0.9)
        >>> problem, key = DeepLinear(), jax.random.key(0)
        >>> theory = odes.linear_noise(problem, rule, [5, 10], batch=32, key=key)
        >>> theory["loss"], theory.std["loss"], theory.std_error["loss"]
    """
    problem, rule = built(problem, rule, dtype)
    if reason := _why_not_described(problem, rule, batch):
        raise ValueError(reason)
    steps = whole_steps(times)
    checks.integer("batch", batch, 1)
    examples = checks.integer("examples", examples_of(batch) if examples is None else examples, 2)
    if key is None:
        raise ValueError("key = None: the examples are drawn at random; pass a key")
    if checks.integer("starts", starts, 1) > 1 and init is not None:
        raise ValueError(f"starts = {starts}: must be 1 where `init` gives the starting weights")
    checks.integer("passes", passes, 2)
    if draws:
        checks.integer("draws", draws, 2)
    if squares and isinstance(rule, solver.AVERAGE_SQUARES):
        size = size_of(problem)
        if size * examples > MAX_GRADIENTS:
            raise ValueError(
                f"examples = {examples}: with {size} weights, {rule.name} takes at most "
                f"{MAX_GRADIENTS // size}, because it needs the gradient of each example; or set "
                "squares = False"
            )
    return orders(
        *(problem, rule, times, batch, key, init, dtype),
        record=record,
        steps=steps,
        starts=starts,
        examples=examples,
        squares=squares,
        passes=passes,
        draws=draws,
    )[-1]


def orders(
    problem: Problem,
    rule: Rule,
    times: Times,
    batch: int | float,
    key: PRNGKeyArray,
    init: PyTree = None,
    dtype: DType = "float64",
    *,
    record: Record | None,
    **settings: Any,
) -> tuple[Trajectory, ...]:
    """Return `linear_noise`, and with `draws` also its next order, from one program. `settings` are
    passed to `_solve` without checks."""
    noise_record = noise_record_of(problem, record)
    settings["noise_record"] = noise_record
    trajectories = run(_solve, problem, rule, times, key, init, dtype, batch, **settings)
    if not noise_record.statistics:
        return trajectories

    def with_statistics(run: Trajectory) -> Trajectory:
        by_suffix: Any = {STD: run.std, ERROR: run.mean_error, STD + ERROR: run.std_error}
        means = {name: x for name, x in run.observables.items() if name not in noise_record.hidden}
        statistics = {name: by_suffix[end][of] for name, (of, end) in noise_record.statistics}
        # The covariance is that of the means, in their order, which the statistics change.
        return dataclasses.replace(
            run, observables=means | statistics, covariance=None, mean_error=None, std_error=None
        )

    return tuple(map(with_statistics, trajectories))


def examples_of(batch: int | float) -> int:
    """Return the default number of examples of a step."""
    return max(EXAMPLES, BATCHES_OF * int(batch))


def without_noise(problem: Problem, batch: int | float) -> str | None:
    """Return why batches of a problem add no noise of independent examples, or None."""
    for method in ("draw", "loss"):
        if not problem.has(method):
            return f"{type(problem).__name__}: has no method {method!r}, which this theory needs"
    if isinstance(batch, float) and math.isinf(batch):
        return "batch = inf: there is no batch noise; must be finite"
    for name, value in vars(problem).items():
        if isinstance(value, Data) and not value.replace:
            return f"{name}.replace = False: must be True; the theory assumes independent examples"
    return None


def _why_not_described(problem: Problem, rule: Rule, batch: int | float) -> str | None:
    return without_noise(problem, batch) or error_message(solver.check_described, rule)


def _inapplicable(training: Training) -> str | None:
    # Also for many weights the theory holds, but takes too long to be computed unasked.
    problem, rule = training.problem, training.rule
    reason = _why_not_described(problem, rule, training.batch)
    if reason is None and (size := size_of(problem)) > MAX_WEIGHTS:
        return (
            f"the problem has {size} weights, more than {MAX_WEIGHTS}; theory 'sde' samples "
            "paths of any size, and odes.linear_noise(problem, rule, ...) has no such limit"
        )
    return reason


def size_of(problem: Problem) -> int:
    """Return the maximum number of trained weights. The problem's numbers may have axes."""

    def is_real(annotation: Any) -> bool:
        # `from __future__ import annotations` leaves strings.
        if isinstance(annotation, str):
            return re.match(r"(Annotated\[)?float\b", annotation) is not None
        return {float} == {float, tuple, dict} & {*decoding.parts_of(annotation)}

    # Of the numbers of many runs, one is enough for the shapes, and `init` expects no axes.
    first = {
        field.name: np.ravel(value)[0]
        for field in dataclasses.fields(problem)
        if is_real(field.type) and np.ndim(value := getattr(problem, field.name))
    }
    init = (dataclasses.replace(problem, **first) if first else problem).init
    start = jax.tree.leaves(eqx.filter_eval_shape(init, jax.random.key(0)))
    # Leaves without a shape, such as functions, are no weights.
    weights = [leaf for leaf in start if isinstance(leaf, jax.ShapeDtypeStruct)]
    return sum(leaf.size for leaf in weights if jnp.issubdtype(leaf.dtype, jnp.inexact))


def _solve(
    problem: Problem,
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
    noise_record: NoiseRecord,
) -> tuple[Trajectory, ...]:
    dtype = dtype_of(times)
    few = min(starts, max(COVARIANCES, starts // COVARIANCES_OF))

    def noise_of(key: PRNGKeyArray) -> Noise:
        start = started(problem, key, init, dtype)
        # A key of their own, apart from that of the starting weights.
        of_examples = jax.random.fold_in(key, EXAMPLES)
        return Noise(problem, start, rule, of_examples, batch, noise_record, examples)

    def results(key: PRNGKeyArray) -> tuple[NoiseResult, ...]:
        return noise_of(key).results(steps, squares, passes, draws)

    # Law of total variance over the starts r: Var O = E_r Var(O | r) + Var_r E(O | r). `of_each`
    # are the results of the first few, `shift` the change of their means at this order, which
    # stands for that of the other starts too.
    def combine(of_each: NoiseResult, shift: Float[Array, "Q S P"]) -> NoiseResult:
        means = jnp.concatenate([of_each.values, others + jnp.mean(shift, axis=0, keepdims=True)])
        # Estimated means scatter: those of estimated gradients like runs with as many examples.
        of_mean = of_each.covariance * batch / examples
        if has_population(problem) or isinstance(problem, FullBatch):
            of_mean = jax.vmap(jax.vmap(jnp.diag))(of_each.errors.mean)
        within = of_each.covariance - of_mean
        apart = means - jnp.mean(means, axis=0, keepdims=True)
        between = jnp.einsum("rsp,rsq->spq", apart, apart) / (starts - 1)
        errors = of_starts(means, jnp.diagonal(within, axis1=2, axis2=3))[1]
        # The shift of the mean is only that of a few.
        more = jnp.var(shift, axis=0, ddof=1) * (1 / few - 1 / starts)
        return NoiseResult(
            jnp.mean(means, axis=0),
            jnp.mean(within, axis=0) + between,
            errors._replace(mean=errors.mean + more),
            jnp.all(jnp.concatenate([of_each.valid, valid]), axis=0),
        )

    if starts == 1:
        orders = results(key)
    else:
        keys = jax.random.split(key, starts)
        # Tuples of orders, whose arrays have a leading axis of starts.
        of_few = jax.vmap(results)(keys[:few])
        others, valid = of_few[0].values[:0], of_few[0].valid[:0]
        if few < starts:
            # In batches as large as the first one, so that memory does not grow with the starts.
            path = lambda key: noise_of(key).mean(steps, squares)  # noqa: E731
            others, valid = jax.lax.map(path, keys[few:], batch_size=few)
        orders = tuple(combine(order, order.values - of_few[0].values) for order in of_few)
    like = noise_of(key)
    _, unravel = ravel_pytree(like.seen(like.parts.params, jnp.int32(0))[0])

    def trajectory(result: NoiseResult) -> Trajectory:
        status, first_bad = judge(times, result.valid)
        # Roots of zero have no derivative.
        mean, variance = jax.lax.stop_gradient(result.errors)
        total = jax.lax.stop_gradient(jnp.diagonal(result.covariance, axis1=1, axis2=2))
        # d std = d var / (2 std), hence the squared error of std is that of var over 4 var.
        of_std = jnp.sqrt(variance / jnp.where(total > 0, 4 * total, jnp.inf))
        values, *errors = map(jax.vmap(unravel), (result.values, jnp.sqrt(mean), of_std))
        return Trajectory(
            times, values, None, status, first_bad, THEORY.name, result.covariance, *errors
        )

    return tuple(map(trajectory, orders))


def _memory(training: Training, times: int, record: tuple[Any, ...]) -> int:
    del times
    problem, steps = training.problem, training.steps
    # The derivatives of each observable with respect to all weights, and the states at the starts
    # of segments and within one (`odes.solver.linear_noise.spread`).
    states = len(record) + 2 * math.isqrt(steps or 1)
    # The examples of a step, with their losses and the derivatives of these.
    examples = bytes_of(problem, examples_of(training.batch), steps, trains=True)
    return states * bytes_of(problem, math.inf, steps) + COPIES * examples


THEORY: AnyTheory = Theory(
    "linear-noise",
    "descent with linear batch noise",
    "batch noise to first order",
    functools.partial(linear_noise, starts=1),
    _inapplicable,
    needs=("key", "batch"),
    predicts=lambda problem: tuple(
        dict.fromkeys(
            name + end for end in ("", *STATISTICS) for name in table_of(problem).functions
        )
    ),
    adaptive=False,
    variant=True,
    at_once=1,
    memory=_memory,
)
"""The theory of every problem with `draw` and `loss`, from the starting weights of one run."""
