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
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from dynsim import Problem, Trajectory, checks, decoding
from dynsim.precision import DType
from dynsim.problem.base import FullBatch, built
from dynsim.problem.checks import flow_table, has_population, usual
from dynsim.problem.data import Data
from dynsim.problem.memory import COPIES, bytes_of
from dynsim.problem.train import started
from dynsim.training.recording import BATCH_LOSS, Record, Table
from dynsim.training.rule import Rule, UpdateRule
from dynsim.training.steps import whole_steps
from dynsim.trajectory import Times
from odes.batch_noise.noise import Asked, Noise, Reached, of_starts
from odes.run import run
from odes.solver import linear_noise as solver
from odes.solver.integrate import judge
from odes.theory import AnyTheory, Theory, Training, refusal

STD, ERROR = "_std", "_error"
"""Suffixes of the names of standard deviations, and of standard errors of estimates."""
STATISTICS = (STD + ERROR, ERROR, STD)
"""Suffixes of what is predicted of each observable besides its mean."""
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
LARGEST = 2000
"""Largest number of weights for which `compare` and others use the theory by default."""
MOST = 2**26
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
        _check_size(problem, rule, examples)
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
    asked = asked_of(problem, record)
    found = run(_solve, problem, rule, times, key, init, dtype, batch, asked=asked, **settings)
    return tuple(_named(each, asked) for each in found)


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
    for name, each in vars(problem).items():
        if isinstance(each, Data) and not each.replace:
            return f"{name}.replace = False: must be True; the theory assumes independent examples"
    return None


def _why_not_described(problem: Problem, rule: Any, batch: int | float) -> str | None:
    """Return why the theory does not describe a training, or None."""
    return without_noise(problem, batch) or refusal(solver.check_described, rule)


def _inapplicable(training: Training) -> str | None:
    problem, rule = training.problem, training.rule
    reason = _why_not_described(problem, rule, training.batch)
    if reason is None and (size := size_of(problem)) > LARGEST:
        return (
            f"the problem has {size} weights, more than {LARGEST}; theory 'sde' samples "
            "paths of any size, and odes.linear_noise(problem, rule, ...) has no such limit"
        )
    return reason


def size_of(problem: Problem) -> int:
    """Return the maximum number of trained weights. The problem's numbers may have axes."""
    some = {
        field.name: np.ravel(value)[0]
        for field in dataclasses.fields(problem)
        if _is_real(field.type) and np.ndim(value := getattr(problem, field.name))
    }
    init = (dataclasses.replace(problem, **some) if some else problem).init
    start = jax.tree.leaves(eqx.filter_eval_shape(init, jax.random.key(0)))
    weights = [each for each in start if isinstance(each, jax.ShapeDtypeStruct)]
    return sum(each.size for each in weights if jnp.issubdtype(each.dtype, jnp.inexact))


def _is_real(annotation: Any) -> bool:
    """Return whether a field is a real number. Its annotation may be a string."""
    if isinstance(annotation, str):
        return re.match(r"(Annotated\[)?float\b", annotation) is not None
    return {float} == {float, tuple, dict} & {*decoding.parts_of(annotation)}


def _check_size(problem: Problem, rule: Rule, examples: int) -> None:
    if (size := size_of(problem)) * examples > MOST:
        raise ValueError(
            f"examples = {examples}: with {size} weights, {rule.name} takes at most {MOST // size},"
            " because it needs the gradient of each example; or set squares = False"
        )


def _predicts(problem: Problem) -> tuple[str, ...]:
    names = tuple(table_of(problem).functions)
    return tuple(dict.fromkeys(name + end for end in ("", *STATISTICS) for name in names))


def table_of(problem: Problem) -> Table:
    """Return the observables of a flow and the loss of a batch."""
    known = flow_table(problem)
    refused = {name: why for name, why in known.refused.items() if name != BATCH_LOSS}
    functions = {**known.functions, BATCH_LOSS: abs}
    return dataclasses.replace(known, functions=functions, refused=refused)


def asked_of(problem: Problem, record: Record | None) -> Asked:
    """Return the recording, by default the problem's `RECORD` and the loss of a batch."""
    table = table_of(problem)
    if record is None:
        record = [*usual(problem, table.functions), BATCH_LOSS]
    given: list[Any] = [record] if isinstance(record, str | Mapping) else list(record)
    known = table.names()
    of = {
        each: next((end for end in STATISTICS if each.removesuffix(end) in known), "")
        for each in given
        if isinstance(each, str) and each not in known
    }
    statistics = {name: (name.removesuffix(end), end) for name, end in of.items() if end}
    plain = [each for each in given if each not in statistics]
    hidden = [base for base, _ in statistics.values() if base not in plain]
    found = table.resolve([*plain, *dict.fromkeys(hidden)])
    functions = tuple(each for each in found.functions if each[0] != BATCH_LOSS)
    whole = len(functions) < len(found.functions)
    recording = found._replace(functions=functions)
    return Asked(tuple(statistics.items()), tuple(hidden), recording, whole)


def _named(found: Trajectory, asked: Asked) -> Trajectory:
    """Return the trajectory with the requested statistics as observables."""
    if not asked.statistics:
        return found
    known: Any = {STD: found.std, ERROR: found.mean_error, STD + ERROR: found.std_error}
    shown = {name: x for name, x in found.observables.items() if name not in asked.hidden}
    shown |= {name: known[end][base] for name, (base, end) in asked.statistics}
    return dataclasses.replace(
        found, observables=shown, covariance=None, mean_error=None, std_error=None
    )


def _solve(
    given: Problem,
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
) -> tuple[Trajectory, ...]:
    dtype: Any = times.dtype.name
    few = min(starts, max(COVARIANCES, starts // COVARIANCES_OF))

    def noise_of(key: PRNGKeyArray) -> Noise:
        start = started(given, key, init, dtype)
        return Noise(given, start, rule, jax.random.fold_in(key, EXAMPLES), batch, asked, examples)

    def reached(key: PRNGKeyArray) -> tuple[Reached, ...]:
        return noise_of(key).reached(steps, squares, passes, draws)

    def together(every: Reached, shift: Float[Array, "Q S P"]) -> Reached:
        """Combine the results of all starts, whose means are now shifted by `shift`."""
        means = jnp.concatenate([every.values, others + jnp.mean(shift, axis=0, keepdims=True)])
        # Estimated means scatter: those of estimated gradients like runs with as many examples.
        of_mean = every.covariance * batch / examples
        if has_population(given) or isinstance(given, FullBatch):
            of_mean = jax.vmap(jax.vmap(jnp.diag))(every.errors.mean)
        within = every.covariance - of_mean
        apart = means - jnp.mean(means, axis=0, keepdims=True)
        between = jnp.einsum("rsp,rsq->spq", apart, apart) / (starts - 1)
        errors = of_starts(means, jnp.diagonal(within, axis1=2, axis2=3))[1]
        # The shift of the mean is only that of a few.
        more = jnp.var(shift, axis=0, ddof=1) * (1 / few - 1 / starts)
        return Reached(
            jnp.mean(means, axis=0),
            jnp.mean(within, axis=0) + between,
            errors._replace(mean=errors.mean + more),
            jnp.all(jnp.concatenate([every.valid, valid]), axis=0),
        )

    if starts == 1:
        orders = reached(key)
    else:
        keys = jax.random.split(key, starts)
        every = jax.vmap(reached)(keys[:few])
        others, valid = every[0].values[:0], every[0].valid[:0]
        if few < starts:
            path = lambda key: noise_of(key).mean(steps, squares)  # noqa: E731
            others, valid = jax.lax.map(path, keys[few:], batch_size=few)
        orders = tuple(together(each, each.values - every[0].values) for each in every)
    like = noise_of(key)
    _, unravel = ravel_pytree(like.seen(like.parts.params, jnp.int32(0))[0])

    def trajectory(found: Reached) -> Trajectory:
        status, first_bad = judge(times, found.valid)
        # Roots of zero have no derivative.
        mean, variance = jax.lax.stop_gradient(found.errors)
        total = jax.lax.stop_gradient(jnp.diagonal(found.covariance, axis1=1, axis2=2))
        of_std = jnp.sqrt(variance / jnp.where(total > 0, 4 * total, jnp.inf))
        values, *errors = map(jax.vmap(unravel), (found.values, jnp.sqrt(mean), of_std))
        return Trajectory(
            times, values, None, status, first_bad, THEORY.name, found.covariance, *errors
        )

    return tuple(map(trajectory, orders))


def _memory(training: Training, times: int, record: tuple[Any, ...]) -> int:
    """Return the bytes of the derivatives of each observable with respect to all weights, of the
    states of a segment, and of the examples of a step with their losses."""
    del times
    problem, steps = training.problem, training.steps
    states = len(record) + 2 * math.isqrt(steps or 1)
    examples = bytes_of(problem, examples_of(training.batch), steps, trains=True)
    return states * bytes_of(problem, math.inf, steps) + COPIES * examples


THEORY: AnyTheory = Theory(
    "linear-noise",
    "descent with linear batch noise",
    "batch noise to first order",
    functools.partial(linear_noise, starts=1),
    _inapplicable,
    needs=("key", "batch"),
    predicts=_predicts,
    adaptive=False,
    variant=True,
    at_once=1,
    memory=_memory,
)
"""The theory of every problem with `draw` and `loss`, from the starting weights of one run."""
