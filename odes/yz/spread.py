"""Mean and spread over seeds of training at finite batch B and length T [ours].

The mean follows descent on the loss of finite T, and the linear noise approximation of
`odes.solver.linear_noise` gives the covariance. What a batch adds to the gradient has covariance
C/B, C = Cov of the gradient of one sequence. With s_n(c) = lambda . grad l_n(c) for a sequence of
class n with frequencies c, which are multinomial (`dynsim.yz.finite_length`), to first order in 1/L

    lambda^T C lambda' = Cov_n(E s_n, E s'_n) + E_n (1/L) sum_i p_i ds_n/dc_i ds'_n/dc_i

where sum_i p_i ds_n/dc_i = 0 has been used, as l_n does not change when c is scaled. The derivative
of (l_n, dl_n/dc) along lambda is all that is needed.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Real

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.precision import DType, Number
from dynsim.training.loop import DIVERGED_LOSS
from dynsim.training.optim import Optimizer
from dynsim.training.recording import Record, Recording
from dynsim.training.run_checks import check_step_times
from dynsim.trajectory import Times, Trajectory
from dynsim.yz import finite_length, observables
from dynsim.yz import model as yz
from dynsim.yz.observables import DEFAULT_RECORD
from odes.solver import linear_noise
from odes.solver.integrate import judge, run, weights


def solve(
    task: SequenceClasses,
    optimizer: Optimizer,
    times: Times,
    *,
    batch: Real[Number, ""],
    length: Real[Number, ""] = math.inf,
    init: yz.YZ | None = None,
    record: Record = DEFAULT_RECORD,
    dtype: DType = "float64",
) -> Trajectory:
    """Predict mean and covariance over seeds of what training records.

    Args:
        task: the sequence classes.
        optimizer: `sgd`, `momentum` or `adam`; its numbers may be traced.
        times: (S,) whole optimiser steps at which to record, increasing, >= 0, not traced. Each
            costs a pass back to the start, for all observables together.
        batch: number B of sequences per step, >= 1; it may be traced.
        length: sequence length T, the query included; it may be traced. With `math.inf` only the
            draw of the classes makes noise.
        init: starting weights, the same for all seeds; zero if None. With random ones, the variance
            of the mean over the starts adds up with the mean of the variance.
        record: as in `dynsim.simulate`. Covariances are formed between all numbers recorded.
        dtype: "float64" or "float32".

    Returns:
        A `Trajectory`: the observables along descent with B infinite, with their `covariance` over
        seeds and `std`. Where descent diverges it has another status than OK, nothing raises.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    checks.real("batch", batch, 1)
    finite_length.check_length(task, length)
    if checks.is_traced(times):
        raise ValueError("times: must be concrete, as they decide the course of the computation")
    steps = np.asarray(times)
    check_step_times(times, int(steps[-1]) if steps.ndim == 1 and steps.size else 0)
    return run(
        _solve,
        task,
        optimizer,
        times,
        dtype,
        init=(init, batch, length),
        start=lambda task, optimizer: (
            weights(init, task, dtype),
            jnp.asarray(batch, dtype),
            finite_length.contextual(length, dtype),
        ),
        steps=tuple(int(step) for step in steps),
        record=observables.MEASURED.resolve(record),
    )


@functools.partial(jax.jit, static_argnames=("steps", "record"))
def _solve(
    task: SequenceClasses,
    optimizer: Optimizer,
    times: Float[Array, " S"],
    init: yz.YZ,
    batch: Float[Array, ""],
    context: finite_length.Context,
    *,
    steps: tuple[int, ...],
    record: Recording,
) -> Trajectory:
    def derive(params: yz.YZ) -> tuple[yz.YZ, finite_length.Expansion]:
        found = finite_length.expand(params, task, context)
        return found.gradient, found

    def observe(params: yz.YZ) -> tuple[Array, Array]:
        seen = record(task, observables.measure(task, params))
        return ravel_pytree(seen)[0], yz.loss(params, task, yz.population(task))

    descent = linear_noise.Descent(
        optimizer.transformation(),
        derive,
        functools.partial(covariance, task, context),
        observe,
    )
    found = linear_noise.spread(descent, init, steps)
    shapes = jax.eval_shape(lambda p: record(task, observables.measure(task, p)), init)
    _, unravel = ravel_pytree(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes))
    status, first_bad = judge(times, found.beside <= DIVERGED_LOSS * math.log(task.M))
    return Trajectory(
        times,
        jax.vmap(unravel)(found.values),
        None,
        status,
        first_bad,
        "spread",
        found.covariance / batch,
    )


def covariance(
    task: SequenceClasses, context: finite_length.Context, along: finite_length.Expansion
) -> Float[Array, "P P"]:
    """lambda^T C lambda' of all pairs of P vectors, from what is derived along each of them."""
    prior, probs = jnp.asarray(task.prior), jnp.asarray(task.probs)
    centred = along.losses - jnp.sum(prior * along.losses, axis=1, keepdims=True)
    between = (prior * centred) @ centred.T
    if context is None:
        return between
    within = jnp.sqrt(prior[:, None] * probs / context) * along.slope
    flat = within.reshape(len(within), -1)
    return between + flat @ flat.T
