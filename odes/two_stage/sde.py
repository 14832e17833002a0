r"""The reduced two-stage ODE with noise: paths, and single seeds (arXiv:2502.20681).

`solve_sde` adds the noise on a and b,
:math:`da = (\dots)\, dt + \sqrt\eta\, \tau_\xi\, dB_a` and likewise for b, with the drift of
`odes.two_stage.field`: in n steps, :math:`n \eta` units of time, noisy SGD adds noise of variance
:math:`n \eta^2 \tau_\xi^2` to every weight. The noise averages out over blocks, but not for the
single weights a and b, where it determines the sign of b and when Q is learned.

`solve_seed` predicts the observables of one run within the reduction [ours]. The blocks follow
:math:`dv_k = (\dots)\, dt + 2 \sqrt{v_k \eta / n_k}\, \tau_\xi\, dB_k`, the noise of a mean of
:math:`n_k` squares, whose variance at rest is :math:`2 v_k^2 / n_k`. The start is drawn as for
random weights of standard deviation :math:`\tau_0`: :math:`a, b \sim \mathcal N(0, \tau_0^2)` and
:math:`v_k \sim \tau_0^2\, \chi^2_{n_k} / n_k`. Two quantities are added to the state: the traces of
the signal,

.. math::

    \bar a' = -\frac{\partial \text{Loss}}{\partial a} - \lambda \bar a, \qquad
    \bar b \text{ alike}, \qquad \bar a = \bar b = 0 \text{ at the start}

and the gradients' contribution to the d - 1 other entries of a diagonal, which start as noise. An
entry R and its signal :math:`\bar R` obey

.. math::

    R' = -(c + \lambda)\, R + \xi, \qquad \bar R' = -c\, R - \lambda \bar R, \qquad
    c = \frac2n\, \frac{\partial \text{Loss}}{\partial v},

hence, with :math:`x = \langle R \bar R \rangle` and :math:`s = \langle \bar R^2 \rangle`,

.. math::

    x' = -c\, v - (c + 2\lambda)\, x, \qquad s' = -2 c\, x - 2 \lambda s.

Losses are means over :math:`N_\text{test}` fresh prompts, which adds
:math:`\operatorname{Var} \ell / N_\text{test}`.

The assumptions are those of `odes.two_stage.field`, except for the noise. `solve_sde` assumes that
the noise of a block averages out, `solve_seed` that the sampling errors of the test prompts and of
the other diagonal entries are constant during a run. Noise of minibatches and of the pool is
neglected (`odes.two_stage.thresholds` has its size).
"""

import dataclasses
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
from odes.two_stage.field import Args, Model, drift, observe, rate_at, reduced, switch_time
from odes.two_stage.loss import ReducedState, block_sizes, losses, root

TEST_LOSSES = ("K1", "K2", "J")
"""Observables measured on test prompts, with sampling error."""


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
    r"""Integrate one path of the SDE by Euler-Maruyama; use `jax.vmap` over keys for more paths.

    Args:
        task, optimizer, times, **options: as in `odes.two_stage.solve`.
        key: determines the start and the noise, which also depends on `num_steps`.
        num_steps: equal steps in eta-time from `begin` to the last time, >= 2; one of them is
            moved to end where the learning rate changes. The default makes steps of 0.1 in the
            default schedule; they must be much smaller than 1/(curvature of the loss), about 1.4
            there.
        start: state at `begin`; by default the nominal one, with a and b drawn from
            :math:`\mathcal N(0, \tau_0^2)`, because they are single weights.

    Returns:
        As `odes.two_stage.solve`, with the source "sde".

    Raises:
        ValueError: as `odes.two_stage.solve`, and for `num_steps` < 2.
    """
    options["num_steps"] = checks.integer("num_steps", num_steps, 2)
    options["random_start"] = start is None
    return reduced(_path, task, optimizer, times, start=start, key=key, **options)


def _path(
    task: Prompts,
    times: Float[Array, " S"],
    key: PRNGKeyArray,
    stages: Annealing,
    start: ReducedState,
    begin: Float[Array, ""],
    *,
    model: Model,
    record: Recording,
    random_start: bool,
    **options: Any,
) -> Trajectory:
    key, start_key = jax.random.split(key)
    if random_start:
        a, b = task.starting_noise * jax.random.normal(start_key, (2,), times.dtype)
        start = dataclasses.replace(start, a=a, b=b)

    # da = (...) dt + sqrt(eta) tau_xi dB_a and db alike; over a block the noise averages out.
    def diffusion(t: Float[Array, ""], state: ReducedState, args: Args) -> ReducedState:
        amplitude = _amplitude(t, args)
        return ReducedState(amplitude, amplitude, *(5 * (jnp.zeros_like(amplitude),)))

    solved = integrate_sde(
        *(functools.partial(drift, model), diffusion),
        *(start, times, (task, stages), key),
        save=functools.partial(observe, model, record),
        timescale=stages,
        jump=switch_time(stages),
        begin=begin,
        **options,
    )
    return solved.trajectory("sde", solved.final.clamped())


def _amplitude(t: Float[Array, ""], args: Args) -> Float[Array, ""]:
    # sqrt(eta) tau_xi, of a single weight.
    return jnp.sqrt(rate_at(args[1], t)) * args[1].noise


class Signal(eqx.Module):
    r"""Contribution of gradients to the entry of a block along :math:`w_\star` or :math:`\zeta`,
    and x and s of any other entry; all of shape ()."""

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
    """Integrate one seed by Euler-Maruyama; use `jax.vmap` over keys for seed-to-seed variation.

    Args:
        task, optimizer, times, **options: as in `odes.two_stage.solve`, without `begin`. V_trace
            has the sign of the run, which is random.
        key: determines the starting weights, the noise and the test prompts.
        num_test: number of prompts on which K1, K2 and J are measured; None leaves out their
            sampling error. Other losses and the AUC never include it.
        num_steps: as in `odes.two_stage.solve_sde`.

    Returns:
        A `Trajectory` with the final `ReducedState` as `params`, and the source "seeds".

    Raises:
        ValueError: as `odes.two_stage.solve`, for `num_steps` < 2 and for `num_test` < 1.
    """
    if num_test is not None:
        checks.real("num_test", num_test, 1)
    number = math.inf if num_test is None else num_test
    options["num_steps"] = checks.integer("num_steps", num_steps, 2)
    return reduced(_seed, task, optimizer, times, number, key=key, **options)


def _seed_drift(model: Model, t: Float[Array, ""], seed: Seed, args: Args) -> Seed:
    stages, decay = args[1], args[1].decay
    moved = drift(model, t, seed.total, args)
    noise = rate_at(stages, t) * stages.noise**2

    def signal(old: Signal, whole: tuple[Number, Number], square: tuple[Number, Number]) -> Signal:
        (x, x_dot), (v, v_dot) = whole, square
        v = jnp.maximum(v, 0)
        # c v from v' = -2 (c + lambda) v + noise, with c = (2/n) dLoss/dv.
        pull = (noise - v_dot) / 2 - decay * v
        c = pull / jnp.where(v > 0, v, jnp.inf)
        # x' = -c v - (c + 2 lambda) x, s' = -2 c x - 2 lambda s, and for the trace of the signal
        # abar' = a' + lambda (a - abar).
        cross = -pull - (c + 2 * decay) * old.cross
        square_dot = -2 * c * old.cross - 2 * decay * old.square
        return Signal(x_dot + decay * (x - old.along), cross, square_dot)

    old = seed.total
    W = signal(seed.W, (old.a, moved.a), (old.v_W, moved.v_W))
    return Seed(moved, W, signal(seed.V, (old.b, moved.b), (old.v_M, moved.v_M)))


def _seed_noise(t: Float[Array, ""], seed: Seed, args: Args) -> Seed:
    amplitude = _amplitude(t, args)
    # 2 sqrt(v_k eta / n_k) tau_xi, the noise of a mean of n_k squares.
    of_square = lambda v, size: 2 * amplitude * jnp.sqrt(jnp.maximum(v, 0) / size)  # noqa: E731
    noise = jax.tree.map(of_square, seed.total, block_sizes(args[0].d))
    still = jax.tree.map(jnp.zeros_like, (seed.W, seed.V))
    return Seed(dataclasses.replace(noise, a=amplitude, b=amplitude), *still)


def _seed(
    task: Prompts,
    times: Float[Array, " S"],
    key: PRNGKeyArray,
    stages: Annealing,
    start: ReducedState,
    begin: Float[Array, ""],
    num_test: Float[Array, ""],
    *,
    model: Model,
    record: Recording,
    **options: Any,
) -> Trajectory:
    dtype = times.dtype
    key, start_key, test_key, diagonal_key = jax.random.split(key, 4)
    # Constant during a run: the errors of the test prompts, and the sum of the other d - 1 entries
    # of a diagonal in units of their root mean square.
    of_test = jax.random.normal(test_key, (len(TEST_LOSSES),), dtype)
    of_diagonal = jax.random.normal(diagonal_key, (2,), dtype) * (task.d - 1) ** 0.5

    # a, b ~ N(0, tau_0^2) and v_k ~ tau_0^2 chi^2_{n_k} / n_k. At the start there is no signal.
    normal_key, square_key = jax.random.split(start_key)
    sizes = jnp.asarray(jax.tree.leaves(block_sizes(task.d))[2:], dtype)
    squares = jax.random.gamma(square_key, sizes / 2, dtype=dtype) * (2 / sizes)
    a_and_b = jax.random.normal(normal_key, (2,), dtype) * task.starting_noise
    total = ReducedState(*a_and_b, *(squares * task.starting_noise**2))
    signal = Signal(*3 * (jnp.zeros((), dtype),))

    def save(t: Float[Array, ""], seed: Seed, args: Args) -> dict[str, Array]:
        without_errors = observe(model, record, t, seed.total, args)
        state = seed.total.clamped()
        # Var l / N_test, from the mean squares of the losses.
        mean, square = (losses(state, task, power=power, **model.numerics) for power in (1, 2))
        measured = {
            name: getattr(mean, name)
            + z * root((getattr(square, name) - getattr(mean, name) ** 2) / num_test)
            for name, z in zip(TEST_LOSSES, of_test, strict=True)
        }
        for name, part, z in zip(("W", "V"), (seed.W, seed.V), of_diagonal, strict=True):
            measured[f"{name}_trace"] = part.along + z * root(part.square)
        measured["V_trace_abs"] = jnp.abs(measured["V_trace"])
        return {name: measured.get(name, value) for name, value in without_errors.items()}

    solved = integrate_sde(
        *(functools.partial(_seed_drift, model), _seed_noise),
        *(Seed(total, signal, signal), times, (task, stages), key),
        save=save,
        timescale=stages,
        jump=switch_time(stages),
        begin=begin,
        **options,
    )
    return solved.trajectory("seeds", solved.final.total.clamped())
