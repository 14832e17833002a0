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

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Real

from dynsim import checks
from dynsim.precision import DType, Number
from dynsim.sparse_attention.retrieval import Retrieval, Snapshot
from odes.general import closed_form, without_inertia
from odes.problem import Reduction
from odes.sparse_attention.symmetric import Alike, measure
from odes.theory import Training


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


def field(task: Retrieval, state: tuple[Array, Array]) -> tuple[Array, Array]:
    """Right-hand sides of eqs. 13 and 14, letter by letter, for w and Da."""
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


def _start(task: Retrieval, weights: None, dtype: DType) -> tuple[Array, Array]:
    del task, weights
    return jnp.zeros((), dtype), jnp.zeros((), dtype)


def _no_fixed_token(training: Training) -> str | None:
    task: Retrieval = training.problem
    if not checks.is_traced(task) and jnp.ndim(task.p) == 0 and task.p != 0:
        return f"p = {task.p}: eqs. 13 and 14 have no fixed token"
    return None


def _plateau(task: Retrieval, init: Any, time: Float[Array, ""]) -> Mapping[str, Array]:
    """What the closed form says; after the escape all is learned at once, as far as it knows."""
    fixed, rest = (jnp.asarray(moment, time.dtype) for moment in task.moments)
    part = time / escape_time(task)
    left = part < 1
    y = math.sqrt(2) * jax.scipy.special.erfinv(jnp.where(left, part, 0))
    # W along the direction of the moments, per entry as the exact reduction counts them.
    entry = task.B**0.5 * y / (signal(task) * task.d**0.5)
    state = Alike(entry * fixed, entry * rest, y**2 / 2, jnp.zeros_like(y))
    learned = {"loss": 0.0, "attention": 1.0, "readout": task.d**0.5}
    found = measure(state, task)._asdict()
    return {n: jnp.where(left, found[n], value) for n, value in learned.items()}


_LIMITS = "batch -> infinity, eta -> 0"
PRINTED = without_inertia(
    "printed",
    "Eqs. 13, 14 as printed",
    f"{_LIMITS}, B = 1",
    Reduction(
        _start,
        lambda task, state: jax.tree.map(jnp.negative, field(task, state)),
        lambda task, state: (printed_snapshot(state, task),),
    ),
    _no_fixed_token,
)
ESCAPE = closed_form(
    "escape",
    "closed form of the plateau",
    f"{_LIMITS}, T, d -> infinity, loss near its start",
    _plateau,
    refused={"gap": "the closed form sends it to infinity"},
)
