"""Flow of hidden nodes and attention on the population loss (arXiv:2310.00535, Eqn. 2):

    w_k' = E[g_k h_k' f],   z_m' = E[(db/dz_m)^T U_C^T sum_k g_k h_k' w_k]

which is minus the gradient of `dynsim.joma.model.loss`. Assumes length, batch -> infinity and
eta -> 0; what momentum, Adam and the next order in eta make of it is in `odes.solver.flows`.
"""

import functools
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float, PyTree, Real

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.joma import model
from dynsim.joma.model import Joint, Shape
from dynsim.joma.observables import DEFAULT_RECORD, TABLE, measure
from dynsim.precision import DType, Number
from dynsim.training.recording import Record, Recording
from dynsim.training.rule import Rule, of_layer
from dynsim.trajectory import Times, Trajectory
from dynsim.yz.model import population
from odes.joma.given import check_given, started
from odes.problem import flow_of_rule
from odes.solver.flows import Flow, checked_flow
from odes.solver.integrate import run
from odes.solver.tolerances import Tolerances, checked_tolerances


class Problem(NamedTuple):
    """What the flow descends."""

    task: SequenceClasses
    temperature: Float[Array, ""]


def solve(
    task: SequenceClasses,
    optimizer: Rule,
    times: Times,
    *,
    init: Joint,
    shape: Shape = Shape(),  # noqa: B008  (immutable)
    temperature: Real[Number, ""] = 1.0,
    flow: Flow | None = None,
    record: Record = DEFAULT_RECORD,
    dtype: DType = "float64",
    tolerances: Tolerances | None = None,
) -> Trajectory:
    """Integrate the flow that belongs to `optimizer`.

    Args:
        task: sequence classes.
        optimizer: as in `odes.yz.population.solve`.
        times: (S,) optimiser steps at which to record, increasing, >= 0; need not be whole.
        init: starting weights, such as `initial_joma` returns.
        shape: kinds of attention, activation and head.
        temperature: T of the attention, > 0.
        flow: by default "plain" for sgd, "matched" for momentum, "matched-adam" for Adam.
        record: a name from `dynsim.joma.observables.TABLE`, functions of a `Snapshot` by name, or
            a list of both.
        dtype: "float64" or "float32".
        tolerances: of the solver; by default `DEFAULT_TOLERANCES[dtype]`.

    Returns:
        A `Trajectory` with the final `Joint` weights; a solve that fails, such as one that blows
        up, has another status than OK.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    checks.kind("init", init, Joint)
    optimizer = check_given(task, optimizer, init, shape, temperature)
    return run(
        _solve,
        task,
        optimizer,
        times,
        dtype,
        init=(init, temperature),
        start=lambda *_: started(init, temperature, dtype),
        shape=shape.check(),
        flow=checked_flow(optimizer, flow),
        record=TABLE.resolve(record),
        tolerances=checked_tolerances(tolerances, dtype),
    )


@functools.partial(jax.jit, static_argnames=("shape", "flow", "record", "tolerances"))
def _solve(
    task: SequenceClasses,
    optimizer: Rule,
    times: Float[Array, " S"],
    init: Joint,
    temperature: Float[Array, ""],
    *,
    shape: Shape,
    flow: Flow,
    record: Recording,
    tolerances: Tolerances,
) -> Trajectory:
    def gradient(problem: Any, params: PyTree) -> PyTree:
        of = lambda params: model.loss(  # noqa: E731
            params, problem.task, population(problem.task), shape, problem.temperature
        )
        return jax.grad(of)(params)

    solved, final = flow_of_rule(
        gradient,
        Problem(task, temperature),
        optimizer,
        of_layer(init),
        init,
        times,
        flow=flow,
        save=lambda problem, params: record(measure(problem[0], params, shape, problem[1])),
        tolerances=tolerances,
    )
    return solved.trajectory(flow, final)
