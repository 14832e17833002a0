"""The symmetric reduction as a rung: for a `SequenceClasses`, with all its observables.

`odes.symmetric` solves for a few numbers; here they stand for the weights of a whole layer, on
which the observables of `dynsim.yz.observables` are measured as on any other. Exact for symmetric
tasks from zero weights; see `odes.symmetric.reduction` for what symmetric means.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dynsim.classes.task import SequenceClasses
from dynsim.precision import DType
from dynsim.training.optim import Optimizer
from dynsim.training.recording import Record, Recording
from dynsim.trajectory import Trajectory
from dynsim.yz import model as yz
from dynsim.yz import observables
from dynsim.yz.observables import DEFAULT_RECORD
from odes.solver.flows import Flow, checked_flow, integrate_flow
from odes.solver.integrate import run
from odes.solver.tolerances import Tolerances, checked_tolerances
from odes.symmetric.reduction import gradient, place, reduce, tokens
from odes.symmetric.state import SymmetricTask, zero_state


def solve(
    task: SequenceClasses,
    optimizer: Optimizer,
    times: Float[Array, " S"],
    *,
    flow: Flow | None = None,
    init: yz.YZ | None = None,
    record: Record = DEFAULT_RECORD,
    dtype: DType = "float64",
    tolerances: Tolerances | None = None,
) -> Trajectory:
    """Integrate the population flow of a symmetric task in its reduced form.

    Args:
        task: a concrete, symmetric task.
        optimizer, times, flow, record, dtype, tolerances: as in `odes.yz.population.solve`.
        init: None; the reduction holds from zero weights alone.

    Returns:
        A `Trajectory` with the full weights, the same as `odes.yz.population.solve` returns.

    Raises:
        ValueError: naming the assumption of the reduction that fails, or the argument that is
            wrong.
    """
    if init is not None:
        raise ValueError("init: the symmetric reduction starts from zero weights; leave it out")
    flow = checked_flow(optimizer, flow)
    found = tokens(task)
    return run(
        _solve,
        task,
        optimizer,
        times,
        dtype,
        start=lambda task, optimizer: (
            reduce(task, *found).astype(dtype),
            *(jnp.asarray(ids, jnp.int32) for ids in found),
        ),
        flow=flow,
        record=observables.MEASURED.resolve(record),
        tolerances=checked_tolerances(tolerances, dtype),
    )


def inapplicable(task: SequenceClasses, optimizer: Optimizer) -> str | None:
    """Why the symmetric reduction does not apply, or None."""
    try:
        checked_flow(optimizer, None)
        tokens(task)
    except ValueError as error:
        return str(error)
    return None


@functools.partial(jax.jit, static_argnames=("flow", "record", "tolerances"))
def _solve(
    task: SequenceClasses,
    optimizer: Optimizer,
    times: Float[Array, " S"],
    reduced: SymmetricTask,
    distinct: Int[Array, "K D"],
    common: Int[Array, " C"],
    *,
    flow: Flow,
    record: Recording,
    tolerances: Tolerances,
) -> Trajectory:
    solved, final = integrate_flow(
        gradient,
        reduced,
        optimizer,
        zero_state(reduced, times.dtype),
        times,
        flow=flow,
        save=lambda _, state: state,
        tolerances=tolerances,
    )
    full = functools.partial(place, task, distinct, common)
    # One time after the other: all weights at all times would take S M^2 numbers.
    saved = jax.lax.map(
        lambda state: record(task, observables.measure(task, full(state))),
        solved.saved,
    )
    return Trajectory(times, saved, full(final), solved.status, solved.first_bad_step, "symmetric")
