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
from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Float, PyTree, Real

from dynsim import checks
from dynsim.precision import DType, Number, cast
from dynsim.problem.base import built, narrowed
from dynsim.problem.train import problem_in
from dynsim.training.recording import Record, Recording
from dynsim.training.rule import UpdateRule
from dynsim.trajectory import Times, Trajectory
from dynsim.two_stage.annealing import Annealing
from dynsim.two_stage.task import Prompts
from odes.solver.integrate import Derivatives, check_times, in_program, integrate
from odes.solver.tolerances import Tolerances, checked_tolerances
from odes.theory import Training
from odes.two_stage.field import (
    DEFAULT_RECORD,
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

DEFAULT_TOLERANCES = Tolerances(1e-5, 1e-7)


def run(
    solve: Callable[..., Trajectory],
    task: Prompts,
    optimizer: UpdateRule,
    times: Times,
    given: Callable[[Prompts], PyTree],
    *,
    begin: Real[Number, ""] = 0.0,
    finite_length: bool = True,
    rule: Rule | None = None,
    record: Record = DEFAULT_RECORD,
    dtype: DType = "float64",
    **options: Any,
) -> Trajectory:
    """What the theories here have in common.

    Args:
        solve: called in a compiled program with the task, the stages, the times, the step `begin`
            and what is `given` for the task, all in `dtype`, with the model, with what to record
            and with the options.
        task, optimizer, times, begin, finite_length, rule, record, dtype: as of `solve`.

    Raises:
        ValueError: with the reason, where the reduction does not apply; and for bad arguments.
    """
    checks.kind("task", task, Prompts)
    task, optimizer = built(task, optimizer)
    if reason := inapplicable(Training(task, optimizer)):
        raise ValueError(reason)
    check_times(times, begin)
    start = given(task)
    return in_program(
        solve,
        lambda: (
            problem_in(task, dtype),
            narrowed(Annealing.of(optimizer), dtype),
            cast(times, dtype),
            cast(begin, dtype),
            narrowed(start, dtype),
        ),
        (task, optimizer, times, start, begin),
        dtype,
        model=checked_model(task, finite_length, rule),
        record=TABLE.resolve(record),
        **options,
    )


def solve(
    task: Prompts,
    optimizer: UpdateRule,
    times: Times,
    *,
    start: ReducedState | None = None,
    tolerances: Tolerances | None = None,
    derivatives: Derivatives = "reverse",
    dtype: DType = "float64",
    **options: Any,
) -> Trajectory:
    """Integrate the reduced ODE.

    Args:
        task: from `prompts`, with core "fresh". Its numbers may be traced; a coupling that is
            the number 0 and not traced saves the quadrature of J, most of the work.
        optimizer: a `dynsim.Annealed`, or what it built; its numbers may be traced.
        times: (S,) optimiser steps at which to record, increasing, >= `begin`; need not be
            whole. `Annealing.of(optimizer).flow_time` maps them to eta-time.
        start: state at `begin`, such as `ReducedState.from_weights(W, V)` of a simulation;
            `ReducedState.nominal(task)` if None.
        tolerances: of the solver; by default rtol 1e-5 and atol 1e-7, below the error of the
            quadrature.
        derivatives: which can be taken through the solve, "reverse" or "forward".
        dtype: "float64" or "float32".
        **options: `begin`, an optimiser step, 0 by default, from which on the schedule is as ever;
            `finite_length`, False to leave out the variance of the outputs at finite L; `rule`, the
            numbers of quadrature nodes; `record`, a name from `OBSERVABLES`, functions of an
            `odes.two_stage.field.Snapshot` by name, or a list of both.

    Returns:
        A `Trajectory` with the final `ReducedState` as `params`, and the source "ode", or
        "infinite" without `finite_length`; a solve that fails has another status than OK.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    return run(
        _solve,
        task,
        optimizer,
        times,
        lambda task: checked_start(start, task),
        dtype=dtype,
        tolerances=checked_tolerances(tolerances or DEFAULT_TOLERANCES, dtype),
        derivatives=derivatives,
        **options,
    )


def checked_start(start: ReducedState | None, task: Prompts) -> ReducedState:
    """The state to start from; `ValueError` unless it is finite, with mean squares >= 0."""
    state = ReducedState.nominal(task) if start is None else start
    for name, value in vars(state).items():
        checks.real(f"start.{name}", value, 0 if name.startswith("v_") else -float("inf"))
    return state


def _solve(
    task: Prompts,
    stages: Annealing,
    times: Float[Array, " S"],
    begin: Float[Array, ""],
    start: ReducedState,
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
        (task, stages),
        save=functools.partial(observe, model, record),
        clock=stages,
        tolerances=tolerances,
        derivatives=derivatives,
        jumps=switch_time(stages)[None],
        begin=begin,
    )
    return solved.trajectory("ode" if model.finite_length else "infinite", solved.final.clamped())
