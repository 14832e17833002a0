r"""Paths of the stochastic modified equation of any problem, see `odes.batch_noise.modified`."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from dynsim import Problem, Trajectory, checks
from dynsim.precision import DType
from dynsim.problem.build import built
from dynsim.problem.checks import has_population
from dynsim.problem.train import highest_loss, started
from dynsim.training.recording import Record
from dynsim.training.rule import Rule, UpdateRule
from dynsim.training.rules import SGD
from dynsim.training.steps import whole_steps
from dynsim.trajectory import Static, Times
from odes.batch_noise import without_noise
from odes.batch_noise.modified import Path, flow_name
from odes.batch_noise.noise import Noise, NoiseRecord, noise_record_of, table_of
from odes.run import dtype_of, run
from odes.solver.flows import checked_flow
from odes.solver.integrate import integrate_ito, judge
from odes.theory import AnyTheory, Theory, Training, error_message

EXAMPLES = 64
"""Default number of examples per step from which the noise is estimated."""


def sde(
    problem: Problem,
    rule: UpdateRule,
    times: Times,
    *,
    batch: int | float,
    key: PRNGKeyArray | None = None,
    init: PyTree = None,
    paths: int | None = None,
    order: int = 1,
    substeps: int = 1,
    examples: int | None = None,
    record: Record | None = None,
    dtype: DType = "float64",
) -> Trajectory:
    """Sample paths of the stochastic modified equation of SGD, from `draw` and `loss`.

    Use it where noise is too large for `odes.linear_noise`, such as for the loss near its minimum,
    and for large models: a path costs about as much as six runs, for any number of weights. It also
    escapes over barriers, at a rate that is right for small learning rates only if the noise is
    normal and the same at all weights: `odes.escape_error` estimates its error.

    The Ito equation is solved by Strang splitting with equal steps: see
    `odes.solver.integrate.integrate_ito`. Its error is of second order in the rate, and of first
    order in the square of the noise of a step.

    Args:
        problem: a problem with `draw` and with a `loss` that is the mean over the examples. Without
            a `population_loss`, the mean gradient is estimated from the examples of a step, whose
            noise then is part of the batch noise.
        rule: SGD, with heavy-ball or Nesterov momentum, any schedules, rates by group and decay.
        times: (S,) whole optimiser steps at which to record, increasing, >= 0, not traced.
        batch: number B of examples per step, >= 1, drawn independently.
        key: random key of the starting weights, the examples and the noise. The starting weights
            are those of `dynsim.train` with this key.
        init: starting weights, instead of random ones.
        paths: number of paths, which become a leading axis; path i has the key fold_in(key, i).
            None gives a single path with the key itself.
        order: order in the learning rate of means and standard deviations, 1 or 2. Order 2 includes
            the derivative of the gradient along itself, is about three times as slow, and needs SGD
            without Nesterov momentum. Where noise depends on the weights, its escape rates are
            farther from those of training than at order 1.
        substeps: solver steps per optimiser step, >= 1. More are needed for momentum below 1/2, or
            beyond the edge of stability of descent.
        examples: number E of examples per step from which the noise is formed, >= 2. Without a
            `population_loss` it must exceed `batch`; the default is then 2 `batch`, if that is more
            than the usual 64. Fewer are faster and keep the covariance correct, but make the noise
            less normal.
        record: as in `odes.flow`, plus "batch_loss", the loss of the next batch. By default the
            `RECORD` of the problem and "batch_loss".
        dtype: "float64" or "float32".

    Returns:
        A `Trajectory` for each path. A path whose observables are not finite, or whose loss exceeds
        a thousand times the first one, has `Status.DIVERGED`; nothing raises. `across_runs` returns
        mean and standard deviation with their errors.

    Raises:
        ValueError: with the reason, for a rule or a problem that it does not describe; and naming
            the argument, its value and what is allowed, before compilation.

    Example:
        >>> rule, key = dynsim.sgd(0.05, momentum=0.9), jax.random.key(0)
        >>> runs = odes.sde(DeepLinear(), rule, [5, 10], batch=32, key=key, paths=16)
        >>> loss = runs.across_runs()["loss"]
        >>> loss.mean, loss.std, loss.std_error
    """
    problem, rule = built(problem, rule, dtype)
    if checks.integer("order", order, 1) > 2:
        raise ValueError(f"order = {order}: must be 1 or 2")
    if reason := why_no_sde(problem, rule, batch, order):
        raise ValueError(reason)
    steps = whole_steps(times)
    checks.integer("batch", batch, 1)
    if key is None:
        raise ValueError("key = None: noise is random; pass a key, such as jax.random.key(0)")
    checks.key("key", key)
    if paths is not None:
        checks.integer("paths", paths, 1)
    checks.integer("substeps", substeps, 1)
    if examples is None:
        examples = EXAMPLES if has_population(problem) else max(EXAMPLES, 2 * int(batch))
    checks.integer("examples", examples, 2)
    if not has_population(problem) and examples <= batch:
        raise ValueError(
            f"examples = {examples}: must be > batch = {batch} without a population_loss"
        )
    noise_record = noise_record_of(problem, record)
    if noise_record.statistics:
        name = noise_record.statistics[0][0]
        raise ValueError(f"record = {name!r}: one path has none; use `across_runs`")
    return run(
        _solve,
        *(problem, rule, times, key, init, dtype, batch),
        steps=steps,
        paths=paths,
        order=order,
        substeps=substeps,
        examples=examples,
        noise_record=noise_record,
    )


def why_no_sde(problem: Problem, rule: Rule, batch: int | float, order: int) -> str | None:
    """Return why the theory does not describe a training, or None."""
    if reason := without_noise(problem, batch):
        return reason
    if type(rule) is not SGD:
        return f"rule = {rule.name}: must be SGD, whose step is linear in the gradient"
    if order == 2 and rule.nesterov:
        return "nesterov = True: the second-order equation describes heavy-ball momentum only"
    if order == 2 and rule.has_inertia and rule.decoupled and rule.decay is not None:
        return "decoupled = True: the second-order equation with momentum has coupled decay"
    return error_message(checked_flow, rule, flow_name(rule, order))


def _solve(
    problem: Problem,
    rule: Rule,
    key: PRNGKeyArray,
    init: PyTree,
    times: Float[Array, " S"],
    batch: Float[Array, ""],
    *,
    steps: tuple[int, ...],
    paths: int | None,
    order: int,
    substeps: int,
    examples: int,
    noise_record: NoiseRecord,
) -> Trajectory:
    dtype = dtype_of(times)

    def one(key: PRNGKeyArray) -> Trajectory:
        parts = started(problem, key, init, dtype)
        of_data, brownian, begin, recorded = jax.random.split(jax.random.fold_in(key, EXAMPLES), 4)
        path = Path(Noise(problem, parts, rule, of_data, batch, noise_record, examples), order)
        shift = path.posed.shift

        # The first steps lead from time 0, where the state after 0 steps is read, to `shift`.
        ahead = math.ceil(shift * substeps)
        even = shift + jnp.arange(steps[-1] * substeps + 1, dtype=dtype) / substeps
        marks = [ahead + step * substeps if step else 0 for step in steps]
        (values, loss), last = integrate_ito(
            path.drift,
            path.diffusion,
            path.start(begin),
            jnp.concatenate([shift * jnp.arange(ahead, dtype=dtype) / max(ahead, 1), even]),
            marks,
            brownian,
            noises=path.noises,
            save=functools.partial(path.save, recorded),
        )
        # A run has diverged where its loss is far above the first one.
        first = jnp.abs(path.noise.seen(parts.params, jnp.int32(0))[2])
        finite = [jnp.isfinite(x).reshape(len(steps), -1).all(axis=1) for x in values.values()]
        valid = jnp.stack([*finite, loss <= highest_loss(first)]).all(axis=0)
        status, first_bad = judge(times, valid)
        params, fixed = parts.split(last[0])
        name = THEORIES[order - 1].name
        return Trajectory(times, values, params, status, first_bad, name, fixed=Static.of(fixed))

    if paths is None:
        return one(key)
    return jax.vmap(one)(jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(paths)))


def _theory(name: str, title: str, assumes: str, order: int) -> AnyTheory:
    def inapplicable(training: Training) -> str | None:
        return why_no_sde(training.problem, training.rule, training.batch, order)

    return Theory(
        name,
        title,
        assumes,
        sde if order == 1 else functools.partial(sde, order=order),
        inapplicable,
        needs=("key", "batch"),
        predicts=lambda problem: tuple(table_of(problem).functions),
        adaptive=False,
        variant=True,
        drawn=True,
        at_once=16,
    )


THEORIES = (
    _theory("sde", "stochastic modified equation", "eta -> 0, normal noise", 1),
    _theory(
        "corrected-sde",
        "stochastic modified equation, second order",
        "eta^2 -> 0, normal noise",
        2,
    ),
)
"""The theories of every problem with `draw` and `loss`; each run is one path."""
