"""Population flow of the full parameters (Y, Z), plain and with momentum.

Scan and Snap, section 3: T -> infinity (Lemma 2), batch -> infinity, eta -> 0. With
g_n = Y (e_nu(n) - alpha_n),

    Y'   = eta_Y sum_n pi(n) f_n (e_nu(n) - alpha_n)^T
    z_m' = eta_Z sum_{n in psi^-1(m)} pi(n) f_n o (g_n - f_n (f_n . g_n))

which is minus the gradient G of the population loss with the learning rates in front. Nothing
else is dropped: any overlap, any start. Momentum (v <- mu v + G, p <- p - eta v) has four
readings, named by `flow`:

    plain        p' = -eta G                                        exact for mu = 0, eta -> 0
    rescaled     p' = -eta/(1-mu) G                                 no inertia
    heavy-ball   v' = G - (1-mu) v,                 p' = -eta v     first order in 1-mu
    matched      v' = -ln(mu) (G/(1-mu) - v),       p' = -eta v     read half a step later

The matched flow's velocity decays over one unit of time exactly as over one step, and reading
it at t = k + 1/2 makes its integral the midpoint rule of the sum that descent forms.
"""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from dynsim import checks, observables
from dynsim.models import yz
from dynsim.observables import DEFAULT_RECORD, Observable, Record
from dynsim.optim import Clock, Optimizer, without_inertia
from dynsim.precision import DType, precision, settle
from dynsim.tasks import SequenceClasses
from dynsim.trajectory import Trajectory
from odes.solve import DEFAULT_TOLERANCES, Tolerances, check_times, integrate, weights

Flow = Literal["plain", "rescaled", "heavy-ball", "matched"]
FLOWS: tuple[Flow, ...] = ("plain", "rescaled", "heavy-ball", "matched")


def solve(
    task: SequenceClasses,
    optimizer: Optimizer,
    times: Float[Array, " S"],
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
        optimizer: `sgd` or `momentum`; its numbers may be traced.
        times: (S,) optimiser steps at which to record, increasing, >= 0; need not be whole.
        flow: by default "plain" for `sgd` and "matched" for `momentum`.
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
    name = checked_flow(optimizer, flow)
    check_times(times)
    tolerances = (tolerances or DEFAULT_TOLERANCES[dtype]).check(dtype)
    with precision(dtype, task, optimizer, times, init):
        trajectory = _solve(
            task.astype(dtype),
            optimizer.astype(dtype),
            jnp.asarray(times, dtype),
            weights(init, task, dtype),
            flow=name,
            record=observables.resolve(record),
            tolerances=tolerances,
        )
    return settle(trajectory)


def checked_flow(optimizer: Optimizer, flow: Flow | None) -> Flow:
    """The flow to use for `optimizer`; raises `ValueError` if `flow` does not describe it."""
    if optimizer.kind == "adam":
        raise ValueError("optimizer = adam: the population flow reads sgd or momentum only")
    if flow is None:
        return "matched" if optimizer.kind == "momentum" else "plain"
    checks.choice("flow", flow, FLOWS)
    if flow == "plain" and optimizer.kind == "momentum":
        raise ValueError("flow = 'plain': drops momentum; for eta / (1 - mu) ask for 'rescaled'")
    if flow != "plain" and optimizer.kind == "sgd":
        raise ValueError(f"flow = {flow!r}: needs momentum; for sgd ask for 'plain'")
    if flow == "matched":
        checks.real("momentum", optimizer.momentum, 0, 1, open_minimum=True, open_maximum=True)
    return flow


@functools.partial(jax.jit, static_argnames=("flow", "record", "tolerances"))
def _solve(
    task: SequenceClasses,
    optimizer: Optimizer,
    times: Float[Array, " S"],
    init: yz.YZ,
    *,
    flow: Flow,
    record: tuple[tuple[str, Observable], ...],
    tolerances: Tolerances,
) -> Trajectory:
    with_inertia = flow in ("heavy-ball", "matched")
    clock = Clock(shift=0.5) if flow == "matched" else Clock()
    if flow == "rescaled":
        clock = without_inertia(optimizer, task.prior)

    def save(t: Float[Array, ""], state: PyTree, args: PyTree) -> dict[str, Array]:
        task, _, _ = args
        params = state[0] if with_inertia else state
        return observables.evaluate(record, task, observables.measure(task, params))

    field = functools.partial(_with_inertia, matched=flow == "matched")
    solved = integrate(
        field if with_inertia else _without_inertia,
        (init, jax.tree.map(jnp.zeros_like, init)) if with_inertia else init,
        times,
        (task, optimizer, clock.rate),
        save=save,
        clock=clock,
        tolerances=tolerances,
    )
    final = solved.final[0] if with_inertia else solved.final
    return Trajectory(times, solved.saved, final, solved.status, solved.first_bad_step, flow)


def _gradient(task: SequenceClasses, params: yz.YZ) -> yz.YZ:
    return yz.loss_and_grad(params, task, yz.population(task))[1]


def _scale(optimizer: Optimizer, direction: yz.YZ) -> yz.YZ:
    return yz.YZ(-optimizer.eta_y * direction.Y, -optimizer.eta_z * direction.Z)


def _without_inertia(t: Float[Array, ""], params: yz.YZ, args: PyTree) -> yz.YZ:
    task, optimizer, rate = args
    return jax.tree.map(lambda x: rate * x, _scale(optimizer, _gradient(task, params)))


def _with_inertia(
    t: Float[Array, ""], state: tuple[yz.YZ, yz.YZ], args: PyTree, *, matched: bool
) -> tuple[yz.YZ, yz.YZ]:
    params, velocity = state
    task, optimizer, _ = args
    mu = optimizer.momentum
    decay = -jnp.log(mu) if matched else 1 - mu
    target = jax.tree.map(lambda g: g / (1 - mu), _gradient(task, params))
    acceleration = jax.tree.map(lambda g, v: decay * (g - v), target, velocity)
    return _scale(optimizer, velocity), acceleration
