r"""Mean and spread over seeds of training at finite batch B and length T [ours].

The mean follows descent on the loss of finite T, and the linear noise approximation of
`odes.solver.linear_noise` gives the covariance; to second order the mean moves as well, by what
`odes.solver.noise_drift` says. What a batch adds to the gradient has covariance
C/B, C the covariance of the gradient of one sequence. With
:math:`s_n(c) = \lambda \cdot \nabla \ell_n(c)` for a sequence of class n with frequencies c, which
are multinomial (`dynsim.yz.finite_length`), to first order in 1/L

.. math::

    \lambda^\top C \lambda' = \operatorname{Cov}_n (\mathbb E s_n, \mathbb E s_n')
    + \mathbb E_n\, \frac1L \sum_i p_i\, \frac{\partial s_n}{\partial c_i}\,
    \frac{\partial s_n'}{\partial c_i}

where :math:`\sum_i p_i\, \partial s_n / \partial c_i = 0` has been used, as :math:`\ell_n` does not
change when c is scaled. The derivative of :math:`(\ell_n, \partial \ell_n / \partial c)` along
:math:`\lambda` is all that is needed.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, Real

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.precision import DType, Number, cast
from dynsim.training.loop import DIVERGED_LOSS
from dynsim.training.recording import Record, Recording
from dynsim.training.rule import Rule, of_layer
from dynsim.training.run_checks import whole_steps
from dynsim.trajectory import Times, Trajectory
from dynsim.yz import finite_length, observables
from dynsim.yz import model as yz
from dynsim.yz.checks import theory_rule
from dynsim.yz.observables import DEFAULT_RECORD
from odes.solver import linear_noise, noise_drift
from odes.solver.integrate import judge, run
from odes.yz import gradient_noise
from odes.yz.layer import weights


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
    dtype: DType = "float64",
) -> Trajectory:
    """Predict mean and covariance over seeds of what training records.

    Args:
        task: the sequence classes.
        optimizer: a rule of `odes.solver.linear_noise.DESCRIBED` without clipping or noise of its
            own; its numbers may be traced.
        times: (S,) whole optimiser steps at which to record, increasing, >= 0, not traced. Each
            costs a pass back to the start, for all observables together.
        batch: number B of sequences per step, >= 1; it may be traced.
        length: sequence length T, the query included; it may be traced. With `math.inf` only the
            draw of the classes makes noise.
        init: starting weights, the same for all seeds; zero if None. With random ones, the variance
            of the mean over the starts adds up with the mean of the variance.
        record: as in `dynsim.train`. Covariances are formed between all numbers recorded.
        squares: whether what Adam and RMSProp divide by has the noise of the batches in it, see
            `odes.solver.linear_noise`. More accurate for these rules, and about ten times as slow.
        dtype: "float64" or "float32".

    Returns:
        A `Trajectory`: the observables along descent with B infinite, with their `covariance` over
        seeds and `std`. Where descent diverges it has another status than OK, nothing raises.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    checks.kind("task", task, SequenceClasses)
    optimizer = theory_rule(optimizer)
    steps = _checked(task, times, batch, length)
    return run(
        _solve,
        task,
        optimizer,
        times,
        dtype,
        inapplicable=linear_noise.undescribed,
        init=(init, batch, length),
        start=functools.partial(_start, init=init, batch=batch, length=length, dtype=dtype),
        steps=steps,
        squares=squares,
        record=observables.MEASURED.resolve(record),
    )


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
    """Predict how far noise moves the mean over seeds, to first order in 1/B.

    Args:
        key: of the draws.
        draws: number of draws of the noise of a whole run over which is averaged, >= 1. The
            relative error of the drift falls like one over its root.
        task, optimizer, times, batch, length, init, record, squares, dtype: as in `solve`.

    Returns:
        A `Trajectory` whose observables are what noise *adds* to the mean of each. Its status is
        that of descent.

    Raises:
        ValueError: as `solve`, and for `draws`.
    """
    optimizer = theory_rule(optimizer)
    steps = _checked(task, times, batch, length)
    draws = checks.integer("draws", draws, 1)
    return run(
        _drift,
        task,
        optimizer,
        times,
        dtype,
        inapplicable=linear_noise.undescribed,
        init=(init, batch, length, key),
        start=lambda *given: (
            *_start(*given, init=init, batch=batch, length=length, dtype=dtype),
            key,
        ),
        steps=steps,
        draws=draws,
        squares=squares,
        record=observables.MEASURED.resolve(record),
    )


def _checked(
    task: SequenceClasses, times: Times, batch: Real[Number, ""], length: Real[Number, ""]
) -> tuple[int, ...]:
    """The times as integers; raises `ValueError` for what cannot be."""
    checks.real("batch", batch, 1)
    finite_length.check_length(task, length)
    return whole_steps(times)


def _start(
    task: SequenceClasses,
    optimizer: Rule,
    *,
    init: yz.YZ | None,
    batch: Real[Number, ""],
    length: Real[Number, ""],
    dtype: DType,
) -> tuple[yz.YZ, Float[Array, ""], finite_length.Context]:
    del optimizer
    context = finite_length.contextual(length, dtype)
    return weights(init, task, dtype), cast(batch, dtype), context


@functools.partial(jax.jit, static_argnames=("steps", "squares", "record"))
def _solve(
    task: SequenceClasses,
    optimizer: Rule,
    times: Float[Array, " S"],
    init: yz.YZ,
    batch: Float[Array, ""],
    context: finite_length.Context,
    *,
    steps: tuple[int, ...],
    squares: bool,
    record: Recording,
) -> Trajectory:
    descent = _descent(task, optimizer, init, batch if squares else None, context, record)
    found = linear_noise.spread(descent, init, steps)
    values = _by_name(task, init, record, found.values)
    status, first_bad = judge(times, found.beside <= DIVERGED_LOSS * math.log(task.M))
    scaled = found.covariance / batch
    return Trajectory(times, values, None, status, first_bad, "spread", scaled)


@functools.partial(jax.jit, static_argnames=("steps", "draws", "squares", "record"))
def _drift(
    task: SequenceClasses,
    optimizer: Rule,
    times: Float[Array, " S"],
    init: yz.YZ,
    batch: Float[Array, ""],
    context: finite_length.Context,
    key: PRNGKeyArray,
    *,
    steps: tuple[int, ...],
    draws: int,
    squares: bool,
    record: Recording,
) -> Trajectory:
    def sample(params: yz.YZ, key: PRNGKeyArray) -> yz.YZ:
        def features(params: yz.YZ) -> tuple[Array, Array]:
            found = finite_length.expand(params, task, context)
            return found.losses, found.slope

        (losses, slope), pull = jax.vjp(features, params)
        of_class, of_token = jax.random.split(key)
        root = jnp.sqrt(jnp.asarray(task.prior))
        one = jax.random.normal(of_class, losses.shape, losses.dtype)
        between = root * (one - root * jnp.sum(root * one))
        within = jnp.zeros_like(slope)
        if context is not None:
            scale = jnp.sqrt(jnp.asarray(task.prior)[:, None] * jnp.asarray(task.probs) / context)
            within = scale * jax.random.normal(of_token, slope.shape, slope.dtype)
        return jax.tree.map(lambda x: x / jnp.sqrt(batch), pull((between, within))[0])

    descent = _descent(task, optimizer, init, batch if squares else None, context, record)
    found = noise_drift.drift(descent, sample, init, steps, key, draws)
    values = _by_name(task, init, record, found.drift)
    status, first_bad = judge(times, jnp.all(jnp.isfinite(found.drift), axis=1))
    return Trajectory(times, values, None, status, first_bad, "drift")


def _descent(
    task: SequenceClasses,
    optimizer: Rule,
    init: yz.YZ,
    batch: Float[Array, ""] | None,
    context: finite_length.Context,
    record: Recording,
) -> linear_noise.Descent:
    """Descent and its noise; with a `batch`, what is divided by has noise in it."""

    def derive(params: yz.YZ) -> tuple[yz.YZ, finite_length.Expansion]:
        found = finite_length.expand(params, task, context)
        return found.gradient, found

    def observe(params: yz.YZ) -> tuple[Array, Array]:
        snapshot = observables.measure(task, params)
        seen = record(task, snapshot)
        return ravel_pytree(seen)[0], observables.loss(task, snapshot)

    def variance(params: yz.YZ) -> yz.YZ:
        one = gradient_noise.variance(params, task, context)
        return jax.tree.map(lambda x: x / batch, one)

    return linear_noise.Descent(
        optimizer,
        derive,
        functools.partial(covariance, task, context),
        observe,
        groups=of_layer(init),
        variance=None if batch is None else variance,
    )


def _by_name(
    task: SequenceClasses, init: yz.YZ, record: Recording, values: Float[Array, "S P"]
) -> dict[str, Array]:
    """Numbers in one row as observables."""
    shapes = jax.eval_shape(lambda p: record(task, observables.measure(task, p)), init)
    _, unravel = ravel_pytree(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes))
    return jax.vmap(unravel)(values)


def covariance(
    task: SequenceClasses, context: finite_length.Context, along: finite_length.Expansion
) -> Float[Array, "P P"]:
    r""":math:`\lambda^\top C \lambda'` of all pairs of P vectors, from what is derived along each
    of them."""
    prior, probs = jnp.asarray(task.prior), jnp.asarray(task.probs)
    centred = along.losses - (along.losses @ prior)[:, None]
    between = centred @ (prior[:, None] * centred.T)
    if context is None:
        return between
    within = jnp.sqrt(prior[:, None] * probs / context)[None] * along.slope
    flat = within.reshape(len(within), -1)
    return between + flat @ flat.T
