r"""Population flow of the full parameters (Y, Z), plain, with momentum and Adam's.

Scan and Snap, section 3: :math:`T \to \infty` (Lemma 2), infinite batch, :math:`\eta \to 0`. With
:math:`g_n = Y (e_{\nu(n)} - \alpha_n)`,

.. math::

    \begin{align*}
    Y' &= \eta_Y \sum_n \pi(n)\, f_n\, (e_{\nu(n)} - \alpha_n)^\top \\
    z_m' &= \eta_Z \sum_{n \in \psi^{-1}(m)} \pi(n)\, f_n \odot \bigl( g_n - f_n (f_n \cdot g_n)
        \bigr)
    \end{align*}

which is minus the gradient of the population loss with the learning rates in front. Nothing
else is dropped: any overlap, any start. What momentum and Adam make of it is in
`odes.solver.flows`. For sequences of finite length T the loss is that of
`dynsim.yz.finite_length`, to first order in 1/T.
"""

import functools
import math
from typing import NamedTuple

import jax
from jaxtyping import Array, Float, Real

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.precision import DType, Number
from dynsim.training.recording import Record, Recording
from dynsim.training.rule import Rule, of_layer
from dynsim.trajectory import Times, Trajectory
from dynsim.yz import finite_length, observables
from dynsim.yz import model as yz
from dynsim.yz.checks import theory_rule
from dynsim.yz.observables import DEFAULT_RECORD
from odes.problem import flow_of_rule
from odes.solver.flows import FLOWS, Flow, checked_flow
from odes.solver.integrate import run, weights
from odes.solver.tolerances import Tolerances, checked_tolerances
from odes.theory import named

__all__ = ["FLOWS", "Flow", "solve"]


class Population(NamedTuple):
    """What the flow descends: the loss of a task's sequences, of finite length or not."""

    task: SequenceClasses
    context: finite_length.Context


def solve(
    task: SequenceClasses,
    optimizer: Rule,
    times: Times,
    *,
    flow: Flow | None = None,
    length: Real[Number, ""] = math.inf,
    init: yz.YZ | None = None,
    record: Record = DEFAULT_RECORD,
    dtype: DType = "float64",
    tolerances: Tolerances | None = None,
) -> Trajectory:
    """Integrate the population flow that belongs to `optimizer`.

    Args:
        task: the sequence classes.
        optimizer: a rule that `odes.flow` describes, with rates for Y and Z; its numbers may be
            traced.
        times: (S,) optimiser steps at which to record, increasing, >= 0; need not be whole.
        flow: by default "plain" for `sgd`, "matched" for `momentum` and "matched-adam" for
            `adam`.
        length: sequence length T, the query included, to first order in 1/T; it may be traced.
        init: starting weights; zero if None.
        record: as in `dynsim.simulate`.
        dtype: "float64" or "float32".
        tolerances: of the solver; by default `DEFAULT_TOLERANCES[dtype]`.

    Returns:
        A `Trajectory`; a solve that fails has another status than OK, nothing raises.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation;
            in particular for a flow that does not describe `optimizer`, and for a length at which
            an expansion in 1/T says nothing.
    """
    checks.kind("task", task, SequenceClasses)
    optimizer = theory_rule(optimizer)
    finite_length.check_length(task, length)
    return run(
        _solve,
        task,
        optimizer,
        times,
        dtype,
        init=(init, length),
        start=lambda task, optimizer: (
            weights(init, task, dtype),
            finite_length.contextual(length, dtype),
        ),
        flow=checked_flow(optimizer, flow),
        record=observables.MEASURED.resolve(record),
        tolerances=checked_tolerances(tolerances, dtype),
    )


@functools.partial(jax.jit, static_argnames=("flow", "record", "tolerances"))
def _solve(
    task: SequenceClasses,
    optimizer: Rule,
    times: Float[Array, " S"],
    init: yz.YZ,
    context: finite_length.Context,
    *,
    flow: Flow,
    record: Recording,
    tolerances: Tolerances,
) -> Trajectory:
    solved, final = flow_of_rule(
        lambda population, params: finite_length.loss_and_grad(params, *population)[1],
        Population(task, context),
        optimizer,
        of_layer(init),
        init,
        times,
        flow=flow,
        save=lambda population, params: record(
            population.task, observables.measure(population.task, params)
        ),
        tolerances=tolerances,
    )
    return solved.trajectory(named(flow, context is not None), final)
