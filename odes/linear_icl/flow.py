"""Flow of the population loss of linear attention (arXiv:2501.16265, eqs. 8 and 14).

    merged, and the network
              tau W_1' = w_2 (E[y z^T] - w_2^T W_1 E[z z^T]),  w_2 likewise                 eq. 8
    separate  tau v_i' = k_i^T (Lambda^2 - E[S^2] M Lambda) q_i,  k_i and q_i likewise       eq. 14

which is -(1/2) dL/dW of `dynsim.linear_icl.model.loss`, for any rank. Assumes batch -> infinity and
eta -> 0; what momentum, Adam and the next order in eta make of it is in `odes.solver.flows`.
"""

import functools

import jax
from jaxtyping import Array, Float, PyTree

from dynsim import checks
from dynsim.linear_icl import model
from dynsim.linear_icl.model import Merged, Model, Network, Separate
from dynsim.linear_icl.observables import DEFAULT_RECORD, TABLE, measure
from dynsim.linear_icl.simulate import check_arguments, check_init
from dynsim.linear_icl.task import Regression
from dynsim.precision import DType, cast
from dynsim.training.constant.descent import Descent
from dynsim.training.recording import Record, Recording
from dynsim.trajectory import Times, Trajectory
from odes.solver.flows import Flow, checked_flow, integrate_flow
from odes.solver.integrate import run
from odes.solver.tolerances import Tolerances, checked_tolerances


def solve(
    task: Regression,
    optimizer: Descent,
    times: Times,
    *,
    init: Model,
    flow: Flow | None = None,
    record: Record = DEFAULT_RECORD,
    dtype: DType = "float64",
    tolerances: Tolerances | None = None,
) -> Trajectory:
    """Integrate the flow that belongs to `optimizer`.

    Args:
        task: from `regression`; may be traced.
        optimizer: a `Descent`; its numbers may be traced.
        times: (S,) optimiser steps at which to record, increasing, >= 0; need not be whole.
        init: starting weights, `Merged`, `Separate` or `Network`, such as `initial_regression`
            returns.
        flow: by default "plain" for sgd, "matched" for momentum, "matched-adam" for Adam.
        record: a name from `dynsim.linear_icl.observables.TABLE`, functions of a `Snapshot` by
            name, or a list of both.
        dtype: "float64" or "float32".
        tolerances: of the solver; by default `DEFAULT_TOLERANCES[dtype]`.

    Returns:
        A `Trajectory` with the final weights; a solve that fails has another status than OK.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    check_arguments(task, optimizer)
    checks.kind("init", init, Merged, Separate, Network)
    check_init(init, None, task.D)
    return run(
        _solve,
        task,
        optimizer,
        times,
        dtype,
        init=init,
        start=lambda task, optimizer: (jax.tree.map(lambda leaf: cast(leaf, dtype), init),),
        flow=checked_flow(optimizer, flow),
        record=TABLE.resolve(record),
        tolerances=checked_tolerances(tolerances, dtype),
    )


def gradient(task: Regression, params: PyTree) -> PyTree:
    """Gradient of the population loss."""
    return jax.grad(lambda params: model.loss(params.matrix(), task))(params)


@functools.partial(jax.jit, static_argnames=("flow", "record", "tolerances"))
def _solve(
    task: Regression,
    optimizer: Descent,
    times: Float[Array, " S"],
    init: Model,
    *,
    flow: Flow,
    record: Recording,
    tolerances: Tolerances,
) -> Trajectory:
    solved, final = integrate_flow(
        gradient,
        task,
        optimizer,
        init,
        times,
        flow=flow,
        save=lambda task, params: record(measure(task, params)),
        tolerances=tolerances,
    )
    return solved.trajectory(flow, final)
