r"""Mean and spread over seeds of training at finite batch B and length T [ours].

The mean follows descent on the loss of finite T, and the linear noise approximation of
`odes.solver.linear_noise` gives the covariance; to second order the mean moves as well. What a
batch adds to the gradient is in `odes.yz.noise`. With `draws` of that noise mean and covariance are
both to second order.

Example:
    >>> task, rule = dynsim.syn(1, 2, num_common=1, num_distinct=2), dynsim.sgd(1.0, 0.1)
    >>> theory = odes.spread.solve(task, rule, [0, 5, 10], batch=128, length=128)
    >>> theory.std["loss"].shape
    (3,)
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Real

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.precision import DType, Number, cast
from dynsim.problem.checks import check_init
from dynsim.problem.train import started
from dynsim.training.course import whole_steps
from dynsim.training.loop import DIVERGED_LOSS
from dynsim.training.recording import Record, Recording
from dynsim.training.rule import Rule
from dynsim.trajectory import Times, Trajectory
from dynsim.yz import finite_length, observables
from dynsim.yz import model as yz
from dynsim.yz.layer import layer
from dynsim.yz.observables import DEFAULT_RECORD
from odes.solver import linear_noise
from odes.solver.integrate import in_program, judge
from odes.symmetric.solve import theory_rule
from odes.yz import noise


def solve(
    task: SequenceClasses,
    optimizer: Rule,
    times: Times,
    *,
    batch: Real[Number, ""],
    length: Real[Number, ""] = math.inf,
    init: yz.YZ | None = None,
    record: Record = DEFAULT_RECORD,
    squares: bool = False,
    tails: bool = False,
    draws: int = 0,
    key: PRNGKeyArray | None = None,
    dtype: DType = "float64",
) -> Trajectory:
    """Predict mean and covariance across seeds of everything that training records.

    Args:
        task: the sequence classes.
        optimizer: any rule except sign descent, without clipping and gradient noise; its numbers
            may be traced.
        times: (S,) whole optimiser steps at which to record, increasing, >= 0, not traced. Each
            costs a pass back to the start, for all observables together.
        batch: number B of sequences per step, >= 1; it may be traced.
        length: sequence length T, the query included; it may be traced. With `math.inf` the only
            noise is the draw of the classes.
        init: starting weights, the same for all seeds; zero if None. For random starts, add the
            variance of the mean over the starts to the mean of the variance.
        record: as in `dynsim.train`. Covariances are formed between all numbers recorded.
        squares: whether the averages by which Adam and RMSProp divide include the noise of the
            batches, see `odes.solver.linear_noise`. More accurate for these rules, and about ten
            times as slow.
        tails: average over 4096 sequences of each class that cover their distribution evenly, in
            place of the first order in 1/T, which late in training misses the rare sequences that
            dominate the loss. Neither task nor length may then be traced.
        draws: number of draws of the noise of a whole run. With 2 or more, the next order in 1/B is
            added to mean and covariance, as `drift` does for the mean; a few hundred are usually
            enough. It matters for losses, most of all with small batches.
        key: of the draws.
        dtype: "float64" or "float32".

    Returns:
        A `Trajectory`: the observables along descent with B infinite, with their `covariance` over
        seeds and `std`. If descent diverges, its status is not OK; nothing raises.

    Example:
        The loss of small batches scatters more than linear noise knows:

        >>> import dynsim, jax
        >>> from odes import spread
        >>> task = dynsim.sequence_classes([[0.5, 0.3, 0.2, 0, 0], [0.5, 0, 0, 0.3, 0.2]], [0, 1])
        >>> asked = {"batch": 32, "length": 129, "record": ["loss"]}
        >>> rule = dynsim.sgd(1.0, 0.3)
        >>> linear = spread.solve(task, rule, [20], **asked)
        >>> second = spread.solve(task, rule, [20], draws=64, key=jax.random.key(0), **asked)
        >>> bool(second.std["loss"][0] > 1.2 * linear.std["loss"][0])
        True

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    if draws:
        checks.integer("draws", draws, 2)
        if key is None:
            raise ValueError(f"key = None: {draws} draws of the noise need a key")

    asked = {"init": init, "record": record, "dtype": dtype, "squares": squares, "draws": draws}
    return _in_program(task, optimizer, times, batch, length, key, tails=tails, **asked)


def drift(
    task: SequenceClasses,
    optimizer: Rule,
    times: Times,
    key: PRNGKeyArray,
    *,
    batch: Real[Number, ""],
    draws: int = 32,
    length: Real[Number, ""] = math.inf,
    init: yz.YZ | None = None,
    record: Record = DEFAULT_RECORD,
    squares: bool = False,
    dtype: DType = "float64",
) -> Trajectory:
    """Predict how far noise moves the mean across seeds, to first order in 1/B.

    Args:
        key: of the draws.
        draws: number of draws of the noise of a whole run to average over, >= 1. The relative error
            of the drift falls like one over the root of this number.
        task, optimizer, times, batch, length, init, record, squares, dtype: as in `solve`.

    Returns:
        A `Trajectory` whose observables are the changes that noise *adds* to their means. Its
        status is that of descent.

    Raises:
        ValueError: as `solve`, and for `draws`.
    """
    draws = checks.integer("draws", draws, 1)
    asked = {"init": init, "record": record, "dtype": dtype, "squares": squares, "draws": draws}
    return _in_program(task, optimizer, times, batch, length, key, alone=True, **asked)


def _in_program(
    task: SequenceClasses,
    optimizer: Rule,
    times: Times,
    batch: Real[Number, ""],
    length: Real[Number, ""],
    key: PRNGKeyArray | None,
    *,
    init: yz.YZ | None,
    record: Record,
    dtype: DType,
    tails: bool = False,
    alone: bool = False,
    **options: Any,
) -> Trajectory:
    """What `solve` returns, or `drift` if `alone`; `ValueError` for arguments that cannot be."""
    problem, optimizer = layer(task), theory_rule(optimizer)
    linear_noise.check_described(optimizer)
    checks.real("batch", batch, 1)
    finite_length.check_length(task, length)
    steps = whole_steps(times)
    check_init(problem, init)
    if init is None and problem.start != "zero":
        raise ValueError(f"init = None: {problem.start} starting weights have to be given")
    return in_program(
        _solve,
        lambda: (
            task.astype(dtype),
            optimizer.astype(dtype),
            cast(times, dtype),
            started(problem, jax.random.key(0), init, dtype).params,
            cast(batch, dtype),
            finite_length.contextual(length, dtype),
            noise.evenly_spread(task, length).astype(dtype) if tails else None,
            key,
        ),
        (task, optimizer, times, init, batch, length, key),
        dtype,
        steps=steps,
        record=observables.MEASURED.resolve(record),
        alone=alone,
        **options,
    )


def _solve(
    task: SequenceClasses,
    optimizer: Rule,
    times: Float[Array, " S"],
    init: yz.YZ,
    batch: Float[Array, ""],
    context: finite_length.Context,
    sample: yz.Examples | None,
    key: PRNGKeyArray | None,
    *,
    steps: tuple[int, ...],
    squares: bool,
    draws: int,
    alone: bool,
    record: Recording,
) -> Trajectory:
    expanded = noise.expanded(task, context)
    variance = noise.variance_of_batch(task, context, batch) if squares else None
    descent = functools.partial(noise.descent, task, optimizer, init, record=record)
    added = None
    if draws:
        assert key is not None
        # To first order in 1/T, as this is of second order in 1/B already.
        drawn = noise.draw(task, context, batch), init, steps, key, draws
        second = descent(expanded, variance=variance)
        added = linear_noise.drift(second, *drawn, covariance=not alone)
    if alone and added is not None:
        name, values, covariance = "drift", added.drift, None
        valid = jnp.all(jnp.isfinite(values), axis=1)
    else:
        law = expanded if sample is None else noise.sampled(task, sample)
        found = linear_noise.spread(descent(law, variance=variance), init, steps)
        name, values, covariance = "spread", found.values, found.covariance / batch
        if added is not None:
            values, covariance = values + added.drift, covariance + added.covariance
        valid = found.beside <= DIVERGED_LOSS * math.log(task.M)
    seen = lambda params: record(task, observables.measure(task, params))  # noqa: E731
    by_name = linear_noise.by_name(seen, init, values)
    return Trajectory(times, by_name, None, *judge(times, valid), name, covariance)
