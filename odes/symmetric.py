"""Symmetric sequence classes: exact flows and exact descent, at a cost without K and M.

Solves the population dynamics of Scan and Snap (section 3; T, batch -> infinity) in the few
numbers of `odes.symmetric_task`, from zero weights. `solve` integrates the same flows as
`odes.population.solve` (it adds eta -> 0), `descend` makes the same steps as `dynsim.simulate`
with infinite length and batch. Observables bear the names of `dynsim.observables`; those that
have an entry for each class there have shape (1,) here, all classes being alike.
"""

import functools
from collections.abc import Callable, Sequence

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
from odes.solve import DEFAULT_TOLERANCES, Derivatives, Tolerances, check_times
from odes.symmetric_task import (
    Reduced,
    State,
    SymmetricTask,
    direction,
    expand,
    gradient,
    measure,
    symmetric_profiles,
    symmetric_task,
    zero_state,
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

Observable = Callable[[SymmetricTask, State, Reduced], Array]


def entropy(task: SymmetricTask, state: State, now: Reduced) -> Float[Array, ""]:
    """Entropy (nats) of the attention restricted to distinct tokens; NaN without any."""
    if now.c.distinct.size == 0:
        return jnp.full((), jnp.nan, now.loss.dtype)
    p = now.c.distinct / jnp.sum(now.c.distinct)
    # The inner where keeps the gradient finite where p = 0.
    return -jnp.sum(jnp.where(p > 0, p * jnp.log(jnp.where(p > 0, p, 1)), 0))


def xi(task: SymmetricTask, state: State, now: Reduced) -> Float[Array, "1"]:
    """xi_n as `dynsim.observables.xi` measures it; NaN without distinct tokens."""
    f, g = now.f.distinct, now.g.distinct
    if f.size == 0:
        return jnp.full((1,), jnp.nan, now.loss.dtype)
    weight = f @ f
    gain = jnp.sum(f * (g - f * now.speed))
    return (gain / jnp.where(weight > 0, weight, 1))[None]


def _most_probable(z: Float[Array, " D"], probability: Float[Array, " D"]) -> Float[Array, "1"]:
    if z.size == 0:
        return jnp.full((1,), jnp.nan, z.dtype)
    return z[jnp.argmax(probability)][None]


OBSERVABLES: dict[str, Observable] = {
    "loss": lambda task, state, now: now.loss,
    "accuracy": lambda task, state, now: (now.margin > 0).astype(now.loss.dtype),
    "entropy": entropy,
    "z_top_distinct": lambda task, state, now: _most_probable(state.Z.distinct, task.p),
    "z_top_common": lambda task, state, now: _most_probable(state.Z.common, task.rho),
    "speed": lambda task, state, now: now.speed[None],
    "xi": xi,
    "z_distinct": lambda task, state, now: state.Z.distinct,
    "z_common": lambda task, state, now: state.Z.common,
    "attention_distinct": lambda task, state, now: now.c.distinct,
    "attention_common": lambda task, state, now: now.c.common,
}
"""Observables by the name under which they are recorded: () loss, accuracy and entropy; (1,)
where all classes agree; (D,) or (C,) for each distinct token of a class or each common token."""


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
    name = checked_flow(optimizer, flow)
    check_times(times)
    tolerances = (tolerances or DEFAULT_TOLERANCES[dtype]).check(dtype)
    names = _checked_record(record)
    with precision(dtype, task, optimizer, times):
        trajectory = _solve(
            task.astype(dtype),
            optimizer.astype(dtype),
            jnp.asarray(times, dtype),
            flow=name,
            record=names,
            tolerances=tolerances,
            derivatives=derivatives,
        )
    return settle(trajectory)


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
    names = _checked_record(record)
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
        save=functools.partial(_observe, record),
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
            functools.partial(_observe, record),
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

    shapes = jax.eval_shape(functools.partial(_observe, record), task, start)
    rows = {name: jnp.zeros((num_times, *s.shape), s.dtype) for name, s in shapes.items()}
    carry = (start, transformation.init(start), jnp.int32(0), rows, jnp.int32(-1))
    (state, _, _, rows, first_bad), _ = jax.lax.scan(
        step, carry, jnp.arange(steps + 1, dtype=jnp.int32)
    )
    status = jnp.where(first_bad < 0, Status.OK, Status.DIVERGED).astype(jnp.int32)
    return Trajectory(times.astype(dtype), rows, state, status, first_bad, "symmetric-descent")


def _observe(record: tuple[str, ...], task: SymmetricTask, state: State) -> dict[str, Array]:
    now = measure(task, state)
    return {name: OBSERVABLES[name](task, state, now) for name in record}


def _checked_record(record: Sequence[str]) -> tuple[str, ...]:
    names = (record,) if isinstance(record, str) else tuple(record)
    return tuple(checks.choice("record", name, tuple(OBSERVABLES)) for name in names)
