"""Symmetric sequence classes: exact flows and exact descent, at a cost without K and M.

Solves the population dynamics of Scan and Snap (section 3; T, batch -> infinity) in the few
numbers of `odes.symmetric.reduction`, from zero weights. `solve` integrates the same flows as
`odes.yz.population.solve` (it adds eta -> 0), `descend` makes the same steps as `dynsim.simulate`
with infinite length and batch. What can be recorded is in `odes.symmetric.observables`; where the
full task is known as well, `solve` also records what can be measured on its full weights.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dynsim import checks
from dynsim.precision import DType, precision, settle
from dynsim.training.loop import DIVERGED_LOSS, by_gradient, train
from dynsim.training.optim import Optimizer
from dynsim.training.recording import Record, Recording
from dynsim.training.run_checks import checked_times
from dynsim.trajectory import Times, Trajectory
from dynsim.yz import observables
from dynsim.yz.observables import DEFAULT_RECORD
from odes.solver.flows import Flow, checked_flow, integrate_flow
from odes.solver.integrate import Derivatives, run
from odes.solver.tolerances import Tolerances, checked_tolerances
from odes.symmetric.observables import DESCENDED, PLACED, TABLE, observe
from odes.symmetric.placement import Placed
from odes.symmetric.reduction import gradient, measure
from odes.symmetric.state import State, SymmetricTask, zero_state


def solve(
    task: SymmetricTask | Placed,
    optimizer: Optimizer,
    times: Times,
    *,
    flow: Flow | None = None,
    record: Record = DEFAULT_RECORD,
    dtype: DType = "float64",
    tolerances: Tolerances | None = None,
    derivatives: Derivatives = "reverse",
) -> Trajectory:
    """Integrate the population flow that belongs to `optimizer`, from zero weights.

    Args:
        task: from `symmetric_task`, `symmetric_profiles` or `merged`, at a cost without K and M;
            or from `placed`. Its numbers may be traced.
        optimizer: `sgd`, `momentum` or `adam`; its numbers may be traced.
        times: (S,) optimiser steps at which to record, increasing, >= 0; need not be whole.
        flow: as in `odes.yz.population.solve`.
        record: names from `OBSERVABLES`; for a task from `placed` as in `dynsim.simulate`, with
            an entry for each class and token, and those that the reduction has alone.
        dtype: "float64" or "float32".
        tolerances: of the solver; by default `DEFAULT_TOLERANCES[dtype]`.
        derivatives: which can be taken through the solve, "reverse" or "forward".

    Returns:
        A `Trajectory` with the final `State` as `params`, or the full weights of a task from
        `placed`; a solve that fails has another status than OK. The explicit solver is held by
        stability to steps of about 3/(1-mu) or 3/(1-b1), so with 0.9 momentum and Adam exhaust
        the default `max_steps` near t = 5e5.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    reduced, full = _split(task, record)
    return run(
        _solve,
        task,
        optimizer,
        times,
        dtype,
        flow=checked_flow(optimizer, flow),
        record=reduced,
        full=full,
        tolerances=checked_tolerances(tolerances, dtype),
        derivatives=derivatives,
    )


def descend(
    task: SymmetricTask,
    optimizer: Optimizer,
    *,
    steps: int,
    times: Times | None = None,
    record: Record = DEFAULT_RECORD,
    dtype: DType = "float64",
) -> Trajectory:
    """Descend the population loss (batch, T -> infinity) step by step, from zero weights.

    Args:
        task, dtype: as in `solve`.
        record: as in `solve`, or "relative_loss" as in `dynsim.simulate`.
        optimizer: as in `solve`; or with numbers of shape (B,), which descends B times at once.
            That is the same as `jax.vmap` and several times faster on a CPU.
        steps: number of optimiser steps, >= 1.
        times: (S,) whole steps at which to record, increasing, in [0, steps]; by default
            `log_times(steps)`.

    Returns:
        A `Trajectory` with the final `State` as `params`, and a status as in `dynsim.simulate`;
        with a leading axis (B,) everywhere if the optimiser has it.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    steps = checks.integer("steps", steps, 1)
    recording = DESCENDED.resolve(record)
    times = checked_times(times, steps, recording)
    batch = np.broadcast_shapes(*(np.shape(number) for number in jax.tree.leaves(optimizer)))
    if len(batch) > 1:
        raise ValueError(f"optimizer: its numbers have shape {batch}: must be numbers or (B,)")
    with precision(dtype, task, optimizer):
        many = jax.tree.map(
            lambda number: jnp.broadcast_to(number, batch or (1,)), optimizer.astype(dtype)
        )
        trajectory = _descend(
            task.astype(dtype),
            many,
            jnp.asarray(times, jnp.int32),
            steps=steps,
            record=recording,
            dtype=dtype,
        )
        if not batch:
            trajectory = jax.tree.map(lambda leaf: leaf[0], trajectory)
    return settle(trajectory)


def _split(task: SymmetricTask | Placed, record: Record) -> tuple[Recording, Recording]:
    """What is to be recorded of the reduced state, and on the full weights."""
    if isinstance(task, SymmetricTask):
        return TABLE.resolve(record), Recording(())
    every = PLACED.resolve(record).functions
    reduced = tuple(named for named in every if named[1] is TABLE.functions.get(named[0]))
    full = tuple(named for named in every if named not in reduced)
    return Recording(reduced), Recording(full)


@functools.partial(jax.jit, static_argnames=("flow", "record", "full", "tolerances", "derivatives"))
def _solve(
    task: SymmetricTask | Placed,
    optimizer: Optimizer,
    times: Float[Array, " S"],
    *,
    flow: Flow,
    record: Recording,
    full: Recording,
    tolerances: Tolerances,
    derivatives: Derivatives,
) -> Trajectory:
    reduced = task.reduced if isinstance(task, Placed) else task

    def save(reduced: SymmetricTask, state: State) -> tuple[dict[str, Array], State | None]:
        return observe(record, reduced, state), state if full.functions else None

    solved, final = integrate_flow(
        gradient,
        reduced,
        optimizer,
        zero_state(reduced, times.dtype),
        times,
        flow=flow,
        save=save,
        tolerances=tolerances,
        derivatives=derivatives,
    )
    saved, states = solved.saved
    if isinstance(task, Placed) and full.functions:
        # One time after the other: all weights at all times would take S M^2 numbers.
        saved |= jax.lax.map(
            lambda state: full(task.full, observables.measure(task.full, task.weights(state))),
            states,
        )
    if isinstance(task, Placed):
        final = task.weights(final)
    return solved.trajectory("symmetric", final, saved)


@functools.partial(jax.jit, static_argnames=("steps", "record", "dtype"))
def _descend(
    task: SymmetricTask,
    optimizer: Optimizer,
    times: Int[Array, " S"],
    *,
    steps: int,
    record: Recording,
    dtype: DType,
) -> Trajectory:
    # The batch is the last axis of everything, so that each operation is one long loop on a CPU;
    # batching the scan from outside would move it to the front.
    (batch,) = np.shape(optimizer.eta_y)
    last = functools.partial(jax.vmap, in_axes=-1, out_axes=-1)
    start = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf[..., None], (*leaf.shape, batch)),
        zero_state(task, dtype),
    )

    def update(optimizer, state, memory, k):  # type: ignore[no-untyped-def]
        def loss_and_grad(state: State, k: Array) -> tuple[Array, State]:
            return measure(task, state).loss, gradient(task, state)

        return by_gradient(loss_and_grad, optimizer.transformation())(state, memory, k)

    trajectory = train(
        start,
        last(lambda optimizer, state: optimizer.transformation().init(state))(optimizer, start),
        lambda *now: jax.vmap(update, (-1, -1, -1, None), -1)(optimizer, *now),
        lambda state, seen: (last(functools.partial(observe, record, task))(state), seen),
        times,
        steps=steps,
        limit=DIVERGED_LOSS * jnp.log(task.M),
        dtype=dtype,
        relative=record.relative,
        batch=(batch,),
    )
    rows, state = jax.tree.map(
        lambda leaf: jnp.moveaxis(leaf, -1, 0), (trajectory.observables, trajectory.params)
    )
    return Trajectory(
        jnp.broadcast_to(trajectory.times, (batch, *times.shape)),
        rows,
        state,
        trajectory.status,
        trajectory.first_bad_step,
        "symmetric-descent",
    )
