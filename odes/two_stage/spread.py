r"""How far runs of two-stage training scatter: what a single seed measures [ours].

One path of `solve_seed` is what one run records, as far as the reduction knows it: the SDE

.. math::

    \begin{align*}
    da &= (\dots)\, dt + \sqrt\eta\, \tau_\xi\, dB, \qquad b \text{ alike} \\
    dv_k &= (\dots)\, dt + 2 \sqrt{\frac{v_k\, \eta}{n_k}}\, \tau_\xi\, dB_k
    \end{align*}

with the drift of `odes.two_stage.field`, started from random weights, with standard deviation
:math:`\tau_0` (`init`): :math:`a, b \sim \mathcal N(0, \tau_0^2)` and
:math:`v_k \sim \tau_0^2\, \chi^2_{n_k} / n_k`. The noise of :math:`v_k` is that of a mean of
:math:`n_k` squares, whose variance at rest is :math:`2 v_k^2 / n_k`. Two things more are measured
than the state. The traces are those of the signal,

.. math::

    \bar a' = -\frac{\partial \text{Loss}}{\partial a} - \lambda \bar a, \qquad
    \bar b \text{ alike}, \qquad \bar a = \bar b = 0 \text{ at the start}

and, of the d - 1 other entries of a diagonal, what gradients made of noise. An entry R and its
signal :math:`\bar R` obey

.. math::

    R' = -(c + \lambda)\, R + \xi, \qquad \bar R' = -c\, R - \lambda \bar R, \qquad
    c = \frac2n\, \frac{\partial \text{Loss}}{\partial v},

whence, with :math:`x = \langle R \bar R \rangle` and :math:`s = \langle \bar R^2 \rangle`,

.. math::

    x' = -c\, v - (c + 2\lambda)\, x, \qquad s' = -2 c\, x - 2 \lambda s.

Losses are means over :math:`N_\text{test}` fresh prompts, which adds
:math:`\operatorname{Var} \ell / N_\text{test}`.

Assumes what `odes.two_stage.field` does, but for the noise; the test prompts err alike all along a
run, and so do the other entries of the diagonals. Noise of minibatches and of the pool is left out
(`odes.two_stage.minibatch` has its size).
"""

import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Real

from dynsim import checks
from dynsim.precision import Number
from dynsim.training.recording import Recording
from dynsim.training.rule import UpdateRule
from dynsim.trajectory import Times, Trajectory
from dynsim.two_stage.annealing import Annealing
from dynsim.two_stage.task import Prompts
from odes.solver.integrate import integrate_sde
from odes.two_stage.field import Model, drift, observe, rate_at, switch_time
from odes.two_stage.loss import losses
from odes.two_stage.maps import root
from odes.two_stage.solve import run
from odes.two_stage.state import ReducedState, block_sizes

LOSSES = ("K1", "K2", "J")
"""What is measured on test prompts, with their error."""


class Signal(eqx.Module):
    r"""What gradients made, of the entry of a block along :math:`w_\star` or :math:`\zeta` and of
    any other; ().

    Attributes:
        along: signal part of a or of b.
        cross, square: x and s of an entry of v_W or of v_M.
    """

    along: Real[Number, ""]
    cross: Real[Number, ""]
    square: Real[Number, ""]


class Seed(eqx.Module):
    """State of one run: the seven numbers, and the signal of W and of V."""

    total: ReducedState
    W: Signal
    V: Signal


def solve_seed(
    task: Prompts,
    optimizer: UpdateRule,
    times: Times,
    key: PRNGKeyArray,
    *,
    num_test: Real[Number, ""] | None = None,
    num_steps: int = 1300,
    **options: Any,
) -> Trajectory:
    """What one seed measures, by Euler-Maruyama; `jax.vmap` over keys for the spread over seeds.

    Args:
        task, optimizer, times, **options: as in `odes.two_stage.solve`, without `begin`. V_trace
            has the sign of the run, which is random.
        key: decides the starting weights, the noise and the test prompts.
        num_test: number of prompts on which K1, K2 and J are measured; None for none of their
            error. Other losses and the AUC are given without it.
        num_steps: as in `odes.two_stage.solve_sde`.

    Returns:
        A `Trajectory` with the final `ReducedState` as `params`, and the source "seeds".

    Raises:
        ValueError: as `odes.two_stage.solve`, for `num_steps` < 2 and for `num_test` < 1.
    """
    if num_test is not None:
        checks.real("num_test", num_test, 1)
    num_steps = checks.integer("num_steps", num_steps, 2)
    given = key, float(math.inf) if num_test is None else num_test * 1.0
    return run(_solve, task, optimizer, times, lambda _: given, num_steps=num_steps, **options)


def _start(task: Prompts, key: PRNGKeyArray, dtype: jnp.dtype) -> Seed:
    normal_key, square_key = jax.random.split(key)
    sizes = jnp.asarray(jax.tree.leaves(block_sizes(task.d))[2:], dtype)
    squares = jax.random.gamma(square_key, sizes / 2, dtype=dtype) * (2 / sizes)
    alone = jax.random.normal(normal_key, (2,), dtype) * task.starting_noise
    none = jnp.zeros((), dtype)
    signal = Signal(none, none, none)
    return Seed(ReducedState(*alone, *(squares * task.starting_noise**2)), signal, signal)


def _drift(model: Model, t: Float[Array, ""], seed: Seed, args: tuple[Prompts, Annealing]) -> Seed:
    stages, decay = args[1], args[1].decay
    moved = drift(model, t, seed.total, args)
    noise = rate_at(stages, t) * stages.noise**2

    def signal(old: Signal, whole: tuple[Number, Number], square: tuple[Number, Number]) -> Signal:
        (x, x_dot), (v, v_dot) = whole, square
        v = jnp.maximum(v, 0)
        # v' = -2 (c + lambda) v + noise.
        pull = (noise - v_dot) / 2 - decay * v
        c = pull / jnp.where(v > 0, v, jnp.inf)
        return Signal(
            x_dot + decay * (x - old.along),
            -pull - (c + 2 * decay) * old.cross,
            -2 * c * old.cross - 2 * decay * old.square,
        )

    old = seed.total
    return Seed(
        moved,
        signal(seed.W, (old.a, moved.a), (old.v_W, moved.v_W)),
        signal(seed.V, (old.b, moved.b), (old.v_M, moved.v_M)),
    )


def _diffusion(t: Float[Array, ""], seed: Seed, args: tuple[Prompts, Annealing]) -> Seed:
    task, stages = args
    amplitude = jnp.sqrt(rate_at(stages, t)) * stages.noise
    of_square = lambda v, size: 2 * amplitude * jnp.sqrt(jnp.maximum(v, 0) / size)  # noqa: E731
    squares = jax.tree.leaves(jax.tree.map(of_square, seed.total, block_sizes(task.d)))[2:]
    still = jax.tree.map(jnp.zeros_like, (seed.W, seed.V))
    return Seed(ReducedState(amplitude, amplitude, *squares), *still)


def _solve(
    task: Prompts,
    stages: Annealing,
    times: Float[Array, " S"],
    begin: Float[Array, ""],
    given: tuple[PRNGKeyArray, Float[Array, ""]],
    *,
    model: Model,
    record: Recording,
    num_steps: int,
) -> Trajectory:
    key, num_test = given
    key, start_key, test_key, diagonal_key = jax.random.split(key, 4)
    of_test = jax.random.normal(test_key, (len(LOSSES),), times.dtype)
    of_diagonal = jax.random.normal(diagonal_key, (2,), times.dtype) * (task.d - 1) ** 0.5

    def save(t: Float[Array, ""], seed: Seed, args: tuple[Prompts, Annealing]) -> dict[str, Array]:
        found = observe(model, record, t, seed.total, args)
        mean, square = (
            losses(
                seed.total.clamped(),
                task,
                finite_length=model.finite_length,
                rule=model.rule,
                power=power,
            )
            for power in (1, 2)
        )
        measured = {
            name: getattr(mean, name)
            + z * root((getattr(square, name) - getattr(mean, name) ** 2) / num_test)
            for name, z in zip(LOSSES, of_test, strict=True)
        }
        for name, part, z in zip(("W", "V"), (seed.W, seed.V), of_diagonal, strict=True):
            measured[f"{name}_trace"] = part.along + z * root(part.square)
        return {name: measured.get(name, value) for name, value in found.items()}

    solved = integrate_sde(
        functools.partial(_drift, model),
        _diffusion,
        _start(task, start_key, times.dtype),
        times,
        (task, stages),
        key,
        save=save,
        clock=stages,
        num_steps=num_steps,
        jump=switch_time(stages),
        begin=begin,
    )
    return solved.trajectory("seeds", solved.final.total.clamped())
