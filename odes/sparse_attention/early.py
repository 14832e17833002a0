"""The plateau in closed form [ours], and eqs. 13 and 14 as printed (arXiv:2505.17863).

Around zero weights, to lowest order in 1/T and 1/sqrt(d), W leaves zero along one direction. With
r = sqrt(sigma~^2 + (d-1) sigma^2) = sqrt((1 + (d-1) p^2)/d) and B copies,

    |W|' = (B r/T) e^{Da},  Da' = (r/T) |W| e^{Da}   =>   Da = |W|^2/(2B)
    y' = l e^{y^2/2},  y = |W|/sqrt(B),  l = sqrt(B) r/T
    y = sqrt 2 erfinv(sqrt(2/pi) l t),  which is infinite at  t* = sqrt(pi/2)/l

so that the plateau lasts for sqrt(pi/2) sqrt(d) T at B = 1, p = 0, and repetition shortens it like
sqrt(B). The paper linearises e^{Da}: w = sinh(l t), and a time (1/(2l)) ln(2 eps/l) for the loss
to fall by the share eps (eq. 6, B = 1), which is too long where the attention blows up first. For
p > 0 it has p^2 d + (1-p)^2 in place of 1 + (d-1) p^2, which differs by 2 p (1-p).

Time is eta t for t optimiser steps, with eta/(1-mu) in place of eta under momentum.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Real

from dynsim import checks
from dynsim.precision import DType, Number
from dynsim.sparse_attention.model import DEFAULT_RECORD, TABLE, Snapshot
from dynsim.sparse_attention.simulate import check_arguments
from dynsim.sparse_attention.task import Retrieval
from dynsim.training.constant.descent import Descent
from dynsim.training.recording import Record, Recording
from dynsim.trajectory import Times, Trajectory
from odes.solver.integrate import StepClock, integrate, judge, run
from odes.solver.tolerances import Tolerances, checked_tolerances
from odes.sparse_attention.symmetric import Alike, measure

CLOSED = dataclasses.replace(TABLE, refused={"gap": "the closed form sends it to infinity"})
"""What the closed form of the plateau can be asked for."""


def signal(task: Retrieval) -> Float[Array, ""]:
    """r, the root of the sum of squares of the moments of x_T."""
    fixed, rest = task.moments
    return jnp.sqrt(jnp.asarray(fixed) ** 2 + (task.d - 1) * jnp.asarray(rest) ** 2)


def growth_rate(task: Retrieval) -> Float[Array, ""]:
    r"""Rate at which weights and scores leave zero, per unit of :math:`\eta t`."""
    return task.B**0.5 * signal(task) / task.T


def escape_time(task: Retrieval) -> Float[Array, ""]:
    r""":math:`t^*`, in units of :math:`1/\eta` steps, at which the attention blows up."""
    return math.sqrt(math.pi / 2) / growth_rate(task)


def linear_escape_time(task: Retrieval, eps: Real[Number, ""]) -> Float[Array, ""]:
    """Eq. 6, in the same units; `ValueError` unless 0 < eps < 1."""
    checks.real("eps", eps, 0, 1, open_minimum=True, open_maximum=True)
    return jnp.log(2 * eps / growth_rate(task)) / (2 * growth_rate(task))


def inapplicable(task: Retrieval, optimizer: Descent, *, printed: bool) -> str | None:
    """Why eqs. 13 and 14 (`printed`) or the closed form do not describe a run, or None."""
    if optimizer.kind == "adam":
        return "optimizer = adam: this theory reads sgd or momentum only"
    if printed and not checks.is_traced(task) and task.p != 0:
        return f"p = {task.p}: eqs. 13 and 14 have no fixed token"
    return None


def solve(
    task: Retrieval,
    optimizer: Descent,
    times: Times,
    *,
    printed: bool,
    record: Record = DEFAULT_RECORD[:-1],
    dtype: DType = "float64",
    tolerances: Tolerances | None = None,
) -> Trajectory:
    """Eqs. 13 and 14 as `printed`, integrated, or the closed form of the plateau; arguments, result
    and errors as of `odes.sparse_attention.symmetric.solve`."""
    check_arguments(task, optimizer)
    return run(
        _integrated if printed else _closed,
        task,
        optimizer,
        times,
        dtype,
        inapplicable=functools.partial(inapplicable, printed=printed),
        record=(TABLE if printed else CLOSED).resolve(record),
        tolerances=checked_tolerances(tolerances, dtype),
    )


def rate(optimizer: Descent) -> Float[Array, ""]:
    """Units of time in a step."""
    inertia = optimizer.momentum if optimizer.kind == "momentum" else 0.0
    return jnp.asarray(optimizer.eta) / (1 - jnp.asarray(inertia))


def field(t: Float[Array, ""], state: tuple[Array, Array], task: Retrieval) -> tuple[Array, Array]:
    """Right-hand sides of eqs. 13 and 14, letter by letter."""
    w, gap = state
    T, d, B = task.T, task.d, task.B
    alpha = 1 / ((T - B) * jnp.exp(-gap) + B)
    missed, root = 1 - B * alpha, d**0.5
    w_rate = -(missed**2) * w / (d * (T - B)) - B * alpha * (B * alpha * w - root) / d
    inner = -B * missed * w**2 / (d * (T - B)) + B * w * (B * alpha * w - root) / d
    return w_rate, -alpha * missed * inner


def printed_snapshot(state: tuple[Array, Array], task: Retrieval) -> Snapshot:
    """What eqs. 9 and 12 say of the two numbers."""
    w, gap = state
    A = task.B / ((task.T - task.B) * jnp.exp(-gap) + task.B)
    noise = (1 - A) ** 2 * w**2 / (task.d * (task.T - task.B))
    return Snapshot((noise + (A * w - task.d**0.5) ** 2 / task.d) / 2, A, w, gap)


@functools.partial(jax.jit, static_argnames=("record", "tolerances"))
def _integrated(
    task: Retrieval,
    optimizer: Descent,
    times: Float[Array, " S"],
    *,
    record: Recording,
    tolerances: Tolerances,
) -> Trajectory:
    zero = jnp.zeros((), times.dtype)
    solved = integrate(
        lambda t, state, unit: jax.tree.map(lambda slope: unit * slope, field(t, state, task)),
        (zero, zero),
        times,
        rate(optimizer),
        save=lambda t, state, _: record(printed_snapshot(state, task)),
        clock=StepClock(),
        tolerances=tolerances,
    )
    return solved.trajectory("printed", solved.final)


@functools.partial(jax.jit, static_argnames=("record", "tolerances"))
def _closed(
    task: Retrieval,
    optimizer: Descent,
    times: Float[Array, " S"],
    *,
    record: Recording,
    tolerances: Tolerances,
) -> Trajectory:
    del tolerances

    fixed, rest = (jnp.asarray(moment, times.dtype) for moment in task.moments)

    def at(t: Float[Array, ""]) -> dict[str, Array]:
        part = t * rate(optimizer) / escape_time(task)
        left = part < 1
        y = math.sqrt(2) * jax.scipy.special.erfinv(jnp.where(left, part, 0))
        # W along the direction of the moments, per entry as the exact reduction counts them.
        entry = task.B**0.5 * y / (signal(task) * task.d**0.5)
        state = Alike(entry * fixed, entry * rest, y**2 / 2, jnp.zeros_like(y))
        # After the escape all is learned at once, as far as this theory knows.
        one, root = jnp.ones_like(y), jnp.full_like(y, task.d**0.5)
        learned = Snapshot(one * 0, one, root, one * 0)
        found = measure(state, task)
        return record(jax.tree.map(lambda a, b: jnp.where(left, a, b), found, learned))

    rows = jax.vmap(at)(times)
    return Trajectory(times, rows, None, *judge(times, jnp.ones(times.shape, bool)), "escape")
