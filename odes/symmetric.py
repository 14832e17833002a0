"""Symmetric sequence classes: exact flows and exact descent, at a cost without K and M.

Solves the population dynamics of Scan and Snap (section 3; T, batch -> infinity) in the few
numbers of `odes.symmetric_task`, from zero weights. `solve` integrates the same flows as
`odes.population.solve` (it adds eta -> 0), `descend` makes the same steps as `dynsim.simulate`
with infinite length and batch. What can be recorded is in `odes.symmetric_observables`.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from dynsim import checks
from dynsim.observables import DEFAULT_RECORD
from dynsim.optim import Optimizer
from dynsim.precision import DType, precision, settle
from dynsim.simulate import DIVERGED_LOSS, check_step_times
from dynsim.trajectory import Status, Trajectory, log_times
from odes.flows import Flow, checked_flow, integrate_flow
from odes.solve import Derivatives, Tolerances, checked_tolerances, run
from odes.symmetric_observables import OBSERVABLES, checked_record, observe
from odes.symmetric_state import State, SymmetricTask, zero_state
from odes.symmetric_task import (
    direction,
    expand,
    gradient,
    measure,
    symmetric_profiles,
    symmetric_task,
)

__all__ = [
    "OBSERVABLES",
    "State",
    "SymmetricTask",
    "descend",
    "direction",
    "expand",
    "solve",
    "symmetric_profiles",
    "symmetric_task",
]


def solve(
    task: SymmetricTask,
    optimizer: Optimizer,
    times: Float[Array, " S"],
    *,
    flow: Flow | None = None,
    record: Sequence[str] = DEFAULT_RECORD,
    dtype: DType = "float64",
    tolerances: Tolerances | None = None,
    derivatives: Derivatives = "reverse",
) -> Trajectory:
    """Integrate the population flow that belongs to `optimizer`, from zero weights.

    Args:
        task: from `symmetric_task` or `symmetric_profiles`; its numbers may be traced.
        optimizer: `sgd`, `momentum` or `adam`; its numbers may be traced.
        times: (S,) optimiser steps at which to record, increasing, >= 0; need not be whole.
        flow: as in `odes.population.solve`.
        record: names from `OBSERVABLES`.
        dtype: "float64" or "float32".
        tolerances: of the solver; by default `DEFAULT_TOLERANCES[dtype]`.
        derivatives: which can be taken through the solve, "reverse" or "forward".

    Returns:
        A `Trajectory` with the final `State` as `params`; a solve that fails has another status
        than OK. The explicit solver is held by stability to steps of about 3/(1-mu) or
        3/(1-b1), so with 0.9 momentum and Adam exhaust the default `max_steps` near t = 5e5.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    return run(
        _solve,
        task,
        optimizer,
        times,
        dtype,
        flow=checked_flow(optimizer, flow),
        record=checked_record(record),
        tolerances=checked_tolerances(tolerances, dtype),
        derivatives=derivatives,
    )


def descend(
    task: SymmetricTask,
    optimizer: Optimizer,
    *,
    steps: int,
    times: Int[Array, " S"] | None = None,
    record: Sequence[str] = DEFAULT_RECORD,
    dtype: DType = "float64",
) -> Trajectory:
    """Descend the population loss (batch, T -> infinity) step by step, from zero weights.

    Args:
        task, optimizer, record, dtype: as in `solve`.
        steps: number of optimiser steps, >= 1.
        times: (S,) whole steps at which to record, increasing, in [0, steps]; by default
            `log_times(steps)`.

    Returns:
        A `Trajectory` with the final `State` as `params`, and a status as in `dynsim.simulate`.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    steps = checks.integer("steps", steps, 1)
    times = log_times(steps) if times is None else times
    check_step_times(times, steps)
    names = checked_record(record)
    with precision(dtype, task, optimizer):
        trajectory = _descend(
            task.astype(dtype),
            optimizer.astype(dtype),
            jnp.asarray(times, jnp.int32),
            steps=steps,
            record=names,
            dtype=dtype,
        )
    return settle(trajectory)


@functools.partial(jax.jit, static_argnames=("flow", "record", "tolerances", "derivatives"))
def _solve(
    task: SymmetricTask,
    optimizer: Optimizer,
    times: Float[Array, " S"],
    *,
    flow: Flow,
    record: tuple[str, ...],
    tolerances: Tolerances,
    derivatives: Derivatives,
) -> Trajectory:
    solved, final = integrate_flow(
        gradient,
        task,
        optimizer,
        zero_state(task, times.dtype),
        times,
        flow=flow,
        save=functools.partial(observe, record),
        tolerances=tolerances,
        derivatives=derivatives,
    )
    return Trajectory(
        times, solved.saved, final, solved.status, solved.first_bad_step, f"symmetric-{flow}"
    )


@functools.partial(jax.jit, static_argnames=("steps", "record", "dtype"))
def _descend(
    task: SymmetricTask,
    optimizer: Optimizer,
    times: Int[Array, " S"],
    *,
    steps: int,
    record: tuple[str, ...],
    dtype: DType,
) -> Trajectory:
    start = zero_state(task, dtype)
    transformation = optimizer.transformation()
    num_times = times.shape[0]

    def step(carry, k):  # type: ignore[no-untyped-def]
        state, memory, slot, rows, first_bad = carry
        # `due` does not depend on batched values, so that it stays a branch under vmap.
        at = jnp.minimum(slot, num_times - 1)
        due = times[at] == k
        row = jax.lax.cond(
            due,
            functools.partial(observe, record),
            lambda *_: {name: column[at] for name, column in rows.items()},
            task,
            state,
        )
        rows = {name: column.at[at].set(row[name]) for name, column in rows.items()}
        loss = measure(task, state).loss
        finite = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(state)])
        valid = jnp.all(finite) & (loss <= DIVERGED_LOSS * jnp.log(task.M))
        first_bad = jnp.where(valid, -1, jnp.where(first_bad < 0, k, first_bad))
        # The scan makes one turn more than there are updates, to record the last state.
        updates, memory = transformation.update(gradient(task, state), memory, state)
        updates = jax.tree.map(lambda u: jnp.where(k < steps, u, jnp.zeros_like(u)), updates)
        return (optax.apply_updates(state, updates), memory, slot + due, rows, first_bad), None

    shapes = jax.eval_shape(functools.partial(observe, record), task, start)
    rows = {name: jnp.zeros((num_times, *s.shape), s.dtype) for name, s in shapes.items()}
    carry = (start, transformation.init(start), jnp.int32(0), rows, jnp.int32(-1))
    (state, _, _, rows, first_bad), _ = jax.lax.scan(
        step, carry, jnp.arange(steps + 1, dtype=jnp.int32)
    )
    status = jnp.where(first_bad < 0, Status.OK, Status.DIVERGED).astype(jnp.int32)
    return Trajectory(times.astype(dtype), rows, state, status, first_bad, "symmetric-descent")
