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
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from dynsim import checks
from dynsim.training.recording import Recording
from dynsim.training.rule import UpdateRule
from dynsim.trajectory import Times, Trajectory
from dynsim.two_stage.annealing import Annealing
from dynsim.two_stage.task import Prompts
from odes.solver.integrate import integrate_sde
from odes.two_stage.field import Model, drift, observe, rate_at, switch_time
from odes.two_stage.solve import checked_start, run
from odes.two_stage.state import ReducedState


def solve_sde(
    task: Prompts,
    optimizer: UpdateRule,
    times: Times,
    key: PRNGKeyArray,
    *,
    num_steps: int = 1300,
    start: ReducedState | None = None,
    **options: Any,
) -> Trajectory:
    r"""One path of the SDE, by Euler-Maruyama; `jax.vmap` over keys for more.

    Args:
        task, optimizer, times, **options: as in `odes.two_stage.solve`.
        key: decides the start and the noise, which is another one for other `num_steps`.
        num_steps: equal steps in eta-time from `begin` to the last time, >= 2; one of them is
            moved to end where the learning rate changes. The default makes steps of 0.1 in the
            default schedule; they must be small against 1/(curvature of the loss), about 1.4
            there.
        start: state at `begin`; if None the nominal one with a and b drawn from
            :math:`\mathcal N(0, \tau_0^2)`, as the weights that they are.

    Returns:
        As `odes.two_stage.solve`, with the source "sde".

    Raises:
        ValueError: as `odes.two_stage.solve`, and for `num_steps` < 2.
    """
    return run(
        _solve,
        task,
        optimizer,
        times,
        lambda task: (checked_start(start, task), key),
        drawn=start is None,
        num_steps=checks.integer("num_steps", num_steps, 2),
        **options,
    )


def _diffusion(
    t: Float[Array, ""], state: ReducedState, args: tuple[Prompts, Annealing]
) -> ReducedState:
    """Amplitude of the noise."""
    amplitude = jnp.sqrt(rate_at(args[1], t)) * args[1].noise
    return ReducedState(amplitude, amplitude, *(5 * (jnp.zeros_like(amplitude),)))


def _solve(
    task: Prompts,
    stages: Annealing,
    times: Float[Array, " S"],
    begin: Float[Array, ""],
    given: tuple[ReducedState, PRNGKeyArray],
    *,
    model: Model,
    record: Recording,
    num_steps: int,
    drawn: bool,
) -> Trajectory:
    start, key = given
    key, start_key = jax.random.split(key)
    if drawn:
        a, b = task.starting_noise * jax.random.normal(start_key, (2,), times.dtype)
        start = dataclasses.replace(start, a=a, b=b)
    solved = integrate_sde(
        functools.partial(drift, model),
        _diffusion,
        start,
        times,
        (task, stages),
        key,
        save=functools.partial(observe, model, record),
        clock=stages,
        num_steps=num_steps,
        jump=switch_time(stages),
        begin=begin,
    )
    return solved.trajectory("sde", solved.final.clamped())
