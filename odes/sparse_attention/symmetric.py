r"""The exact reduction of retrieval to four numbers, and its flow for any optimiser.

From W = 0, a = 0 every score of a copy of x_T moves alike, and so does every other score, every
weight of the fixed token's column of W and every other weight:
:math:`W_{ij} = u_j \operatorname{sign}(W^*_{ij})`. With :math:`A = B \alpha` the attention on the
copies, :math:`\alpha = 1 / ((T-B)\, e^{-\Delta a} + B)`, and :math:`w = \sqrt d\, u`,
:math:`\tilde w = \sqrt d\, \tilde u`, :math:`\lVert W \rVert^2 = \tilde w^2 + (d-1)\, w^2`,

.. math::

    L = \tfrac12 \left[ \frac{(1-A)^2 \lVert W \rVert^2}{d (T-B)}
    + \tilde\sigma (A \tilde w - 1)^2 + \sigma (d-1) (A w - 1)^2 \right] \tag{17}

which is eq. 12 for p = 0. A number that stands for n weights moves by 1/n of the derivative of L by
it, whatever the rule. So under SGD [ours]

.. math::

    \Delta a' = -\frac{T}{B (T-B)}\, \frac{\partial L}{\partial \Delta a},

because B scores share the pull: eq. 14 as printed, :math:`-\partial L / \partial \Delta a`, is
close to that for B = 1 alone.

Assumes an infinite batch and :math:`\eta \to 0`; what momentum, Adam and the next order in
:math:`\eta` make of it is in `odes.solver.flows`.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynsim.precision import DType
from dynsim.sparse_attention.model import DEFAULT_RECORD, TABLE, Snapshot
from dynsim.sparse_attention.simulate import check_arguments
from dynsim.sparse_attention.task import Retrieval
from dynsim.training.constant.descent import Descent
from dynsim.training.recording import Record, Recording
from dynsim.trajectory import Times, Trajectory
from odes.solver.flows import Flow, checked_flow, integrate_flow
from odes.solver.integrate import run
from odes.solver.tolerances import Tolerances, checked_tolerances


class Alike(eqx.Module):
    """One number for each kind of weight: magnitude of an entry of W in the column of the fixed
    token and elsewhere, score of a copy of :math:`x_T` and of another token."""

    fixed: Float[Array, ""]
    rest: Float[Array, ""]
    copy: Float[Array, ""]
    other: Float[Array, ""]


def attention(state: Alike, task: Retrieval) -> Float[Array, ""]:
    """A, the attention on all copies."""
    return task.B / ((task.T - task.B) * jnp.exp(state.other - state.copy) + task.B)


def loss(state: Alike, task: Retrieval) -> Float[Array, ""]:
    """Eq. 17, for any B."""
    A, root = attention(state, task), task.d**0.5
    fixed, rest = root * state.fixed, root * state.rest
    square = fixed**2 + (task.d - 1) * rest**2
    sigma_fixed, sigma_rest = task.moments
    missed = sigma_fixed * (A * fixed - 1) ** 2 + sigma_rest * (task.d - 1) * (A * rest - 1) ** 2
    return ((1 - A) ** 2 * square / (task.d * (task.T - task.B)) + missed) / 2


def gradient(task: Retrieval, state: Alike) -> Alike:
    """Gradient by a single weight of each kind."""
    of_all = jax.grad(loss)(state, task)
    return Alike(
        of_all.fixed / task.d,
        of_all.rest / (task.d * (task.d - 1)),
        of_all.copy / task.B,
        of_all.other / (task.T - task.B),
    )


def measure(state: Alike, task: Retrieval) -> Snapshot:
    """Snapshot of the weights that a state stands for."""
    readout = state.fixed + (task.d - 1) * state.rest
    return Snapshot(loss(state, task), attention(state, task), readout, state.copy - state.other)


def solve(
    task: Retrieval,
    optimizer: Descent,
    times: Times,
    *,
    flow: Flow | None = None,
    record: Record = DEFAULT_RECORD,
    dtype: DType = "float64",
    tolerances: Tolerances | None = None,
) -> Trajectory:
    """Integrate the flow that belongs to `optimizer`, from zero weights.

    Args:
        task: from `retrieval`; p may be traced.
        optimizer: a `Descent`; its numbers may be traced.
        times: (S,) optimiser steps at which to record, increasing, >= 0; need not be whole.
        flow: by default "plain" for sgd, "matched" for momentum, "matched-adam" for Adam.
        record: a name from `dynsim.sparse_attention.model.TABLE`, functions of a `Snapshot` by
            name, or a list of both.
        dtype: "float64" or "float32".
        tolerances: of the solver; by default `DEFAULT_TOLERANCES[dtype]`.

    Returns:
        A `Trajectory` with the final `Alike` as `params`; a solve that fails has another status
        than OK.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    check_arguments(task, optimizer)
    return run(
        _solve,
        task,
        optimizer,
        times,
        dtype,
        flow=checked_flow(optimizer, flow),
        record=TABLE.resolve(record),
        tolerances=checked_tolerances(tolerances, dtype),
    )


@functools.partial(jax.jit, static_argnames=("flow", "record", "tolerances"))
def _solve(
    task: Retrieval,
    optimizer: Descent,
    times: Float[Array, " S"],
    *,
    flow: Flow,
    record: Recording,
    tolerances: Tolerances,
) -> Trajectory:
    solved, final = integrate_flow(
        gradient,
        task,
        optimizer,
        Alike(*4 * (jnp.zeros((), times.dtype),)),
        times,
        flow=flow,
        save=lambda task, state: record(measure(state, task)),
        tolerances=tolerances,
    )
    return solved.trajectory(flow, final)
