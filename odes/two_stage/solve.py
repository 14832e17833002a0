"""Two-stage training of P and Q as an ODE in seven numbers (arXiv:2502.20681).

With a large learning rate the noise of the weights hides Q, which starts at a saddle, while P is
learned; after the annealing the noise decays and Q follows. `solve` integrates

    da/dt = -dLoss/da - lambda a,   db/dt = -dLoss/db - lambda b
    dv_k/dt = -(4/n_k) v_k dLoss/dv_k - 2 lambda v_k + eta tau_xi^2

for the loss of `odes.two_stage.loss` in eta-time, the sum of the learning rates so far. The sign
of b is that of its start: in training it is random, and b = 0 stays 0.

Assumes: see `odes.two_stage.field`, where the right-hand side is. We reconstructed these
equations from fragments of the paper and derived them ourselves; they are not the authors' text.
"""

import functools

import jax
from jaxtyping import Array, Float, Real

from dynsim import checks
from dynsim.precision import DType, Number, cast
from dynsim.training.recording import Record, Recording
from dynsim.trajectory import Times, Trajectory
from dynsim.two_stage.noisy_sgd import NoisySGD
from dynsim.two_stage.task import Prompts
from odes.solver.integrate import Derivatives, integrate, run
from odes.solver.tolerances import Tolerances, checked_tolerances
from odes.two_stage.field import (
    TABLE,
    Model,
    checked_model,
    drift,
    inapplicable,
    observe,
    switch_time,
)
from odes.two_stage.loss import Rule
from odes.two_stage.state import ReducedState

DEFAULT_RECORD = ("K1", "K2", "W_norm", "V_norm", "W_trace", "V_trace")
"""What is recorded unless something else is asked for."""
DEFAULT_TOLERANCES = Tolerances(1e-5, 1e-7)


def solve(
    task: Prompts,
    optimizer: NoisySGD,
    times: Times,
    *,
    start: ReducedState | None = None,
    begin: Real[Number, ""] = 0.0,
    finite_length: bool = True,
    rule: Rule | None = None,
    record: Record = DEFAULT_RECORD,
    dtype: DType = "float64",
    tolerances: Tolerances | None = None,
    derivatives: Derivatives = "reverse",
) -> Trajectory:
    """Integrate the reduced ODE.

    Args:
        task: from `prompts`, with core "fresh". Its numbers may be traced; a coupling that is
            the number 0 and not traced saves the quadrature of J, most of the work.
        optimizer: from `noisy_sgd`; its numbers may be traced.
        times: (S,) optimiser steps at which to record, increasing, >= `begin`; need not be
            whole. `optimizer.flow_time` maps them to eta-time.
        start: state at `begin`, such as `ReducedState.from_weights(W, V)` of a simulation;
            `ReducedState.nominal(optimizer)` if None.
        begin: optimiser step, which may be traced. From then on the schedule is as ever.
        finite_length: False leaves out the variance of the outputs at finite L.
        rule: numbers of quadrature nodes.
        record: a name from `OBSERVABLES`, functions of an `odes.two_stage.field.Snapshot` by
            name, or a list of both.
        dtype: "float64" or "float32".
        tolerances: of the solver; by default rtol 1e-5 and atol 1e-7, below the error of the
            quadrature.
        derivatives: which can be taken through the solve, "reverse" or "forward".

    Returns:
        A `Trajectory` with the final `ReducedState` as `params`, and the source "ode", or
        "infinite" without `finite_length`; a solve that fails has another status than OK.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    checks.kind("task", task, Prompts)
    checks.kind("optimizer", optimizer, NoisySGD)
    return run(
        _solve,
        task,
        optimizer,
        times,
        dtype,
        inapplicable=inapplicable,
        init=start,
        begin=begin,
        start=lambda task, optimizer: checked_start(start, begin, optimizer, dtype),
        model=checked_model(task, finite_length, rule),
        record=TABLE.resolve(record),
        tolerances=checked_tolerances(tolerances or DEFAULT_TOLERANCES, dtype),
        derivatives=derivatives,
    )


def checked_start(
    start: ReducedState | None, begin: Real[Number, ""], optimizer: NoisySGD, dtype: DType
) -> tuple[ReducedState, Float[Array, ""]]:
    """Starting state and step as arrays of `dtype`; raises `ValueError` for a state that is not
    finite or has a negative mean square."""
    state = ReducedState.nominal(optimizer) if start is None else start
    for name, value in vars(state).items():
        checks.real(f"start.{name}", value, 0 if name.startswith("v_") else -float("inf"))
    return state.astype(dtype), cast(begin, dtype)


@functools.partial(jax.jit, static_argnames=("model", "record", "tolerances", "derivatives"))
def _solve(
    task: Prompts,
    optimizer: NoisySGD,
    times: Float[Array, " S"],
    start: ReducedState,
    begin: Float[Array, ""],
    *,
    model: Model,
    record: Recording,
    tolerances: Tolerances,
    derivatives: Derivatives,
) -> Trajectory:
    solved = integrate(
        functools.partial(drift, model),
        start,
        times,
        (task, optimizer),
        save=functools.partial(observe, model, record),
        clock=optimizer,
        tolerances=tolerances,
        derivatives=derivatives,
        jumps=switch_time(optimizer)[None],
        begin=begin,
    )
    return solved.trajectory("ode" if model.finite_length else "infinite", solved.final.clamped())
