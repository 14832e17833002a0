r"""Mean and covariance across seeds of training at finite batch B and length T [ours].

The mean follows descent on the finite-T loss, and the linear noise approximation of
`odes.solver.linear_noise` gives the covariance, with the gradient noise of
`odes.yz.gradient_noise`. At second order, noise also shifts the mean. With `draws` of the noise,
mean and covariance both include the second order.

`odes.linear_noise` of the layer samples sequences instead. In the tutorial (`SynSmall`, 300 steps,
B = T = 128) it takes about 20 times as long, 1.9 s against 0.09 s, and as much longer for 60
steps. This is the fastest of several further calls of each on a CPU of two cores, with `starts=1`,
recording the loss and the entropy.

Example:
    >>> task, rule = dynsim.Syn(1, 2, num_common=1, num_distinct=2).build(), dynsim.sgd(1.0, 0.1)
    >>> theory = odes.spread.solve(task, rule, [0, 5, 10], batch=128, length=128)
    >>> theory.std["loss"].shape
    (3,)
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, Real

from dynsim import checks
from dynsim.classes.task import SequenceClasses, Task
from dynsim.precision import DType, Number, cast
from dynsim.problem.checks import checked_init
from dynsim.problem.train import started
from dynsim.training.loop import DIVERGED_LOSS
from dynsim.training.recording import Record, Recording
from dynsim.training.rule import Rule, of_layer
from dynsim.training.steps import whole_steps
from dynsim.trajectory import Times, Trajectory
from dynsim.yz import finite_length, gradients, observables
from dynsim.yz import model as yz
from dynsim.yz.layer import Layer, as_layer
from dynsim.yz.observables import DEFAULT_RECORD
from odes.run import in_program
from odes.solver import linear_noise, second_order
from odes.solver.integrate import judge
from odes.symmetric.solve import theory_rule
from odes.yz import gradient_noise
from odes.yz.gradient_noise import NoiseLaw


def descent_of(
    task: SequenceClasses,
    optimizer: Rule,
    init: yz.YZ,
    law: NoiseLaw,
    record: Recording,
    variance: Callable[[yz.YZ], yz.YZ] | None,
    columns: gradients.OutputColumns,
) -> linear_noise.Descent:
    """Return descent, of weights with these columns of Y, and its noise; `variance` adds the noise
    to the denominators of Adam and RMSProp."""
    count = None
    if columns.count is not None:
        # A merged column of Y represents several outputs.
        of_y = jnp.broadcast_to(columns.count, (len(init.Y), columns.count.size))
        count = dataclasses.replace(init, Y=of_y, Z=jnp.ones_like(init.Z))

    def observe(params: yz.YZ, k: Array) -> tuple[Array, Array]:
        del k
        snapshot = observables.measure(task, columns.expand(params))
        return ravel_pytree(record(task, snapshot))[0], observables.loss(task, snapshot)

    return linear_noise.Descent(
        optimizer,
        lambda params, k: law.derive(params),
        law.covariance,
        observe,
        count=count,
        groups=of_layer(init),
        variance=None if variance is None else lambda params, k: variance(params),
    )


def solve(
    task: Layer | Task,
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
        task: the layer, or its sequence classes, or a description of them.
        optimizer: any rule except sign descent, without clipping and gradient noise; its numbers
            may be traced.
        times: (S,) whole optimiser steps at which to record, increasing, >= 0, not traced. Each
            costs one backward pass to the start, for all observables together.
        batch: number B of sequences per step, >= 1; it may be traced.
        length: sequence length T, the query included; it may be traced. With `math.inf` the only
            noise is the random choice of classes.
        init: starting weights, the same for all seeds; zero if None. For random starts, average the
            variance over the starts and add the variance of the mean.
        record: as in `dynsim.train`. The covariance is between all recorded numbers.
        squares: whether the averages in the denominators of Adam and RMSProp include batch noise,
            see `odes.solver.linear_noise`. This is more accurate for these rules, and about ten
            times as slow.
        tails: average over 4096 sequences per class that cover the distribution evenly, instead of
            expanding to first order in 1/T. The expansion misses the rare sequences that dominate
            the loss late in training. Task and length must then not be traced.
        draws: number of draws of a whole run's noise. With 2 or more, mean and covariance include
            the next order in 1/B, for the mean the result of `drift`; a few hundred are usually
            enough. It matters for losses, especially with small batches.
        key: random key of the draws.
        dtype: "float64" or "float32".

    Returns:
        A `Trajectory`: the observables along descent with B infinite, with their `covariance`
        across seeds and `std`. If descent diverges, its status is not OK; nothing raises.

    Example:
        With small batches, the loss varies more between seeds than linear noise predicts:

        >>> import dynsim, jax
        >>> from odes import spread
        >>> task = dynsim.sequence_classes([[0.5, 0.3, 0.2, 0, 0], [0.5, 0, 0, 0.3, 0.2]], [0, 1])
        >>> options = {"batch": 32, "length": 129, "record": ["loss"]}
        >>> rule = dynsim.sgd(1.0, 0.3)
        >>> linear = spread.solve(task, rule, [20], **options)
        >>> second = spread.solve(task, rule, [20], draws=64, key=jax.random.key(0), **options)
        >>> bool(second.std["loss"][0] > 1.2 * linear.std["loss"][0])
        True

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    if draws:
        checks.integer("draws", draws, 2)
        if key is None:
            raise ValueError(f"key = None: {draws} draws of the noise need a key")

    options = {"init": init, "record": record, "dtype": dtype, "squares": squares, "draws": draws}
    return _in_program(task, optimizer, times, batch, length, key, tails=tails, **options)


def drift(
    task: Layer | Task,
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
    """Predict how noise shifts the mean across seeds, to first order in 1/B.

    Args:
        key: random key of the draws.
        draws: number of draws to average over, >= 1. The relative error of the drift falls like one
            over the square root of this number.
        task, optimizer, times, batch, length, init, record, squares, dtype: as in `solve`.

    Returns:
        A `Trajectory` whose observables are the *changes* of their means due to noise. Its status
        is not OK if one of them is not finite.

    Raises:
        ValueError: as `solve`, and for `draws`.
    """
    draws = checks.integer("draws", draws, 1)
    options = {"init": init, "record": record, "dtype": dtype, "squares": squares, "draws": draws}
    return _in_program(task, optimizer, times, batch, length, key, drift_only=True, **options)


def _in_program(
    task: Layer | Task,
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
    drift_only: bool = False,
    **options: Any,
) -> Trajectory:
    problem, optimizer = as_layer(task), theory_rule(optimizer)
    task = problem.classes
    linear_noise.check_described(optimizer)
    checks.real("batch", batch, 1)
    finite_length.check_length(task, length)
    steps = whole_steps(times)
    init = checked_init(problem, init, dtype)
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
            gradient_noise.evenly_spread(task, length).astype(dtype) if tails else None,
            key,
        ),
        (task, optimizer, times, init, batch, length, key),
        dtype,
        steps=steps,
        record=observables.MEASURED.resolve(record),
        drift_only=drift_only,
        # From zero weights, and without a variance for each output, columns of Y stay equal.
        equal_columns=init is None and not options["squares"],
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
    drift_only: bool,
    equal_columns: bool,
    record: Recording,
) -> Trajectory:
    def variance_of_batch(params: yz.YZ) -> yz.YZ:
        return jax.tree.map(lambda one: one / batch, gradient_noise.variance(params, task, context))

    descent = functools.partial(
        *(descent_of, task, optimizer, init),
        record=record,
        variance=variance_of_batch if squares else None,
    )
    law = gradient_noise.expanded_law(task, context)
    columns, start = gradients.each_output(task), init
    correction = None
    if draws:
        assert key is not None
        # First order in 1/T is enough, as this is itself a correction in 1/B.
        correction = second_order.drift(
            *(descent(law, columns=columns), gradient_noise.draw(task, context, batch)),
            *(init, steps, key, draws),
            covariance=not drift_only,
        )
    if drift_only and correction is not None:
        name, values, covariance = "drift", correction.drift, None
        valid = jnp.all(jnp.isfinite(values), axis=1)
    else:
        if sample is not None:
            if equal_columns:
                columns = gradients.merged_outputs(task, init.Y.dtype.name)
            law = gradient_noise.sampled_law(task, sample, columns)
            start = dataclasses.replace(init, Y=columns.merge(init.Y))
        backward = linear_noise.spread(descent(law, columns=columns), start, steps)
        name, values, covariance = "spread", backward.values, backward.covariance / batch
        if correction is not None:
            values = values + correction.drift
            covariance = covariance + correction.covariance
        # A loss far above that of guessing, ln M.
        valid = backward.aux <= DIVERGED_LOSS * math.log(task.M)
    seen = lambda params: record(task, observables.measure(task, params))  # noqa: E731
    by_name = linear_noise.by_name(seen, init, values)
    return Trajectory(times, by_name, None, *judge(times, valid), name, covariance)
