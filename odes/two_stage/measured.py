"""The reduced two-stage ODE from states that training has (arXiv:2502.20681).

A nominal start lacks the random motion of a and b before Q is learned. Here each stage starts from
the state that a training run has at that time, so that the error that is left is that of the
reduction within a stage.
"""

import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from dynsim.precision import DType, precision, to_host
from dynsim.problem.train import train
from dynsim.training.rule import UpdateRule
from dynsim.trajectory import Times, Trajectory
from dynsim.two_stage.annealing import Annealing
from dynsim.two_stage.task import Prompts
from odes.two_stage.field import solve
from odes.two_stage.loss import ReducedState


def solve_anchored(
    task: Prompts,
    optimizer: UpdateRule,
    times: Times,
    *,
    key: PRNGKeyArray,
    batch: int | float = math.inf,
    dtype: DType = "float64",
    **options: Any,
) -> Trajectory:
    """Train for the first stage, and integrate the reduced ODE in each stage from the state that
    training has at its start.

    Args:
        task, optimizer, times: as in `odes.two_stage.solve`.
        key: random key of the training run, as in `dynsim.train`.
        batch: prompts per step of training, which is in float32.
        dtype: "float64" or "float32", of the solve.
        options: options of `odes.two_stage.solve` except `start` and `begin`.

    Returns:
        As `odes.two_stage.solve`, with the source "anchored"; a time at which the second stage
        starts has the state of training. Status and first bad step come from the first stage that
        fails.

    Raises:
        ValueError: as `odes.two_stage.solve` and `dynsim.train`.
    """
    # Training up to the change of the rate, in the precision of runs.
    first = jnp.asarray(Annealing.of(optimizer).first)
    measured = train(
        *(task, optimizer, key),
        steps=None,
        times=jnp.stack([jnp.zeros_like(first), first]),
        batch=batch,
        record="state",
        dtype="float32",
    )["state"]
    with precision(dtype, task, optimizer, times):
        arrays = (jnp.asarray(values, dtype) for values in (times, first, measured))
        return to_host(_stages(task, optimizer, *arrays, dtype=dtype, **options))


@eqx.filter_jit
def _stages(
    task: Prompts,
    optimizer: UpdateRule,
    times: Float[Array, " S"],
    first: Float[Array, ""],
    states: Float[Array, "2 7"],
    **options: Any,
) -> Trajectory:
    # Each stage is solved at all times, those of the other one moved to its end: they cost nothing,
    # and no number of times depends on the rule.
    solve_stage = functools.partial(solve, task, optimizer, **options)
    before = solve_stage(jnp.minimum(times, first), start=ReducedState(*states[0]))
    after = solve_stage(jnp.maximum(times, first), start=ReducedState(*states[1]), begin=first)
    late = times >= first
    rows = jax.tree.map(
        lambda a, b: jnp.where(late.reshape(-1, *(1,) * (a.ndim - 1)), b, a),
        *(dict(stage.observables) for stage in (before, after)),
    )
    # The status of the first stage that fails.
    ends = ((stage.status, stage.first_bad_step) for stage in (after, before))
    status, bad = jax.tree.map(lambda new, old: jnp.where(before.ok, new, old), *ends)
    return Trajectory(times, rows, after.params, status, bad, "anchored")
