"""Population flow of the full parameters (Y, Z), plain, with momentum and Adam's.

Scan and Snap, section 3: T -> infinity (Lemma 2), batch -> infinity, eta -> 0. With
g_n = Y (e_nu(n) - alpha_n),

    Y'   = eta_Y sum_n pi(n) f_n (e_nu(n) - alpha_n)^T
    z_m' = eta_Z sum_{n in psi^-1(m)} pi(n) f_n o (g_n - f_n (f_n . g_n))

which is minus the gradient of the population loss with the learning rates in front. Nothing
else is dropped: any overlap, any start. What momentum and Adam make of it is in
`odes.solver.flows`.
"""

import functools

import jax
from jaxtyping import Array, Float

from dynsim.classes.task import SequenceClasses
from dynsim.precision import DType
from dynsim.training.optim import Optimizer
from dynsim.training.recording import Record, Recording
from dynsim.trajectory import Times, Trajectory
from dynsim.yz import model as yz
from dynsim.yz import observables
from dynsim.yz.observables import DEFAULT_RECORD
from odes.solver.flows import FLOWS, Flow, checked_flow, integrate_flow
from odes.solver.integrate import run, weights
from odes.solver.tolerances import Tolerances, checked_tolerances

__all__ = ["FLOWS", "Flow", "checked_flow", "solve"]


def solve(
    task: SequenceClasses,
    optimizer: Optimizer,
    times: Times,
    *,
    flow: Flow | None = None,
    init: yz.YZ | None = None,
    record: Record = DEFAULT_RECORD,
    dtype: DType = "float64",
    tolerances: Tolerances | None = None,
) -> Trajectory:
    """Integrate the population flow that belongs to `optimizer`.

    Args:
        task: the sequence classes.
        optimizer: `sgd`, `momentum` or `adam`; its numbers may be traced.
        times: (S,) optimiser steps at which to record, increasing, >= 0; need not be whole.
        flow: by default "plain" for `sgd`, "matched" for `momentum` and "matched-adam" for
            `adam`.
        init: starting weights; zero if None.
        record: as in `dynsim.simulate`.
        dtype: "float64" or "float32".
        tolerances: of the solver; by default `DEFAULT_TOLERANCES[dtype]`.

    Returns:
        A `Trajectory`; a solve that fails has another status than OK, nothing raises.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation;
            in particular for a flow that does not describe `optimizer`.
    """
    return run(
        _solve,
        task,
        optimizer,
        times,
        dtype,
        init=init,
        start=lambda task, optimizer: (weights(init, task, dtype),),
        flow=checked_flow(optimizer, flow),
        record=observables.MEASURED.resolve(record),
        tolerances=checked_tolerances(tolerances, dtype),
    )


@functools.partial(jax.jit, static_argnames=("flow", "record", "tolerances"))
def _solve(
    task: SequenceClasses,
    optimizer: Optimizer,
    times: Float[Array, " S"],
    init: yz.YZ,
    *,
    flow: Flow,
    record: Recording,
    tolerances: Tolerances,
) -> Trajectory:
    solved, final = integrate_flow(
        lambda task, params: yz.loss_and_grad(params, task, yz.population(task))[1],
        task,
        optimizer,
        init,
        times,
        flow=flow,
        save=lambda task, params: record(task, observables.measure(task, params)),
        tolerances=tolerances,
    )
    return solved.trajectory(flow, final)
