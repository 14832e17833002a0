r"""The reduced two-stage ODE with the noise that a and b feel themselves (arXiv:2502.20681).

.. math::

    da = (\dots)\, dt + \sqrt\eta\, \tau_\xi\, dB_a, \qquad
    db = (\dots)\, dt + \sqrt\eta\, \tau_\xi\, dB_b

with the drift of `odes.two_stage.field`: in n steps, :math:`n \eta` units of time, noisy SGD adds
noise of variance :math:`n \eta^2 \tau_\xi^2` to every weight. Averages over blocks do not feel it,
the single weights a and b do: it decides when, and with which sign of b, Q is learned.

Assumes what `odes.two_stage.field` does, and that the noise of a block averages out. We
reconstructed these equations from fragments of the paper and derived them ourselves; they are not
the authors' text.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Real

from dynsim import checks
from dynsim.precision import DType, Number
from dynsim.training.recording import Record, Recording
from dynsim.trajectory import Times, Trajectory
from dynsim.two_stage.noisy_sgd import NoisySGD
from dynsim.two_stage.task import Prompts
from odes.solver.integrate import integrate_sde, run
from odes.two_stage.field import (
    TABLE,
    Model,
    checked_model,
    drift,
    inapplicable,
    observe,
    rate_at,
    switch_time,
)
from odes.two_stage.loss import Rule
from odes.two_stage.solve import DEFAULT_RECORD, checked_start
from odes.two_stage.state import ReducedState


def solve_sde(
    task: Prompts,
    optimizer: NoisySGD,
    times: Times,
    key: PRNGKeyArray,
    *,
    num_steps: int = 1300,
    start: ReducedState | None = None,
    begin: Real[Number, ""] = 0.0,
    finite_length: bool = True,
    rule: Rule | None = None,
    record: Record = DEFAULT_RECORD,
    dtype: DType = "float64",
) -> Trajectory:
    r"""One path of the SDE, by Euler-Maruyama; `jax.vmap` over keys for more.

    Args:
        task, optimizer, times, begin, finite_length, rule, record, dtype: as in
            `odes.two_stage.solve`.
        key: decides the start and the noise, which is another one for other `num_steps`.
        num_steps: equal steps in eta-time from `begin` to the last time, >= 2; one of them is
            moved to end where the learning rate changes. The default makes steps of 0.1 in the
            default schedule; they must be small against 1/(curvature of the loss), about 1.4
            there.
        start: state at `begin`; if None the nominal one with a and b drawn from
            :math:`\mathcal N(0, \text{init}^2)`, as the weights that they are.

    Returns:
        As `odes.two_stage.solve`, with the source "sde".

    Raises:
        ValueError: as `odes.two_stage.solve`, and for `num_steps` < 2.
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
        init=(start, key),
        begin=begin,
        start=lambda task, optimizer: (*checked_start(start, begin, optimizer, dtype), key),
        drawn=start is None,
        model=checked_model(task, finite_length, rule),
        record=TABLE.resolve(record),
        num_steps=checks.integer("num_steps", num_steps, 2),
    )


def _diffusion(
    t: Float[Array, ""], state: ReducedState, args: tuple[Prompts, NoisySGD]
) -> ReducedState:
    """Amplitude of the noise."""
    optimizer = args[1]
    amplitude = jnp.sqrt(rate_at(optimizer, t)) * optimizer.noise
    return ReducedState(amplitude, amplitude, *(5 * (jnp.zeros_like(amplitude),)))


@functools.partial(jax.jit, static_argnames=("model", "record", "num_steps", "drawn"))
def _solve(
    task: Prompts,
    optimizer: NoisySGD,
    times: Float[Array, " S"],
    start: ReducedState,
    begin: Float[Array, ""],
    key: PRNGKeyArray,
    *,
    model: Model,
    record: Recording,
    num_steps: int,
    drawn: bool,
) -> Trajectory:
    key, start_key = jax.random.split(key)
    if drawn:
        a, b = optimizer.init * jax.random.normal(start_key, (2,), times.dtype)
        start = dataclasses.replace(start, a=a, b=b)
    solved = integrate_sde(
        functools.partial(drift, model),
        _diffusion,
        start,
        times,
        (task, optimizer),
        key,
        save=functools.partial(observe, model, record),
        clock=optimizer,
        num_steps=num_steps,
        jump=switch_time(optimizer),
        begin=begin,
    )
    return solved.trajectory("sde", solved.final.clamped())
