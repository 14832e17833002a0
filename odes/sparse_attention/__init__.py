r"""The emergence of sparse attention (arXiv:2505.17863): an exact reduction and its plateau [ours].

From W = 0, a = 0 all scores of copies of x_T stay equal, and so do all other scores, all weights of
the fixed token's column of W up to sign, and all other weights up to sign:
:math:`W_{ij} = u_j \operatorname{sign}(W^*_{ij})`. With :math:`A = B \alpha` the attention on the
copies, :math:`\alpha = 1 / ((T-B)\, e^{-\Delta a} + B)`, :math:`w = \sqrt d\, u`,
:math:`\tilde w = \sqrt d\, \tilde u` and :math:`\lVert W \rVert^2 = \tilde w^2 + (d-1)\, w^2`,

.. math::

    L = \tfrac12 \left[ \frac{(1-A)^2 \lVert W \rVert^2}{d (T-B)}
    + \tilde\sigma (A \tilde w - 1)^2 + \sigma (d-1) (A w - 1)^2 \right] \tag{17}

which is eq. 12 for p = 0. The gradient for a variable that represents n weights is 1/n of the
derivative of L with respect to it, for every rule. Assumes an infinite batch and
:math:`\eta \to 0`; `odes.solver.flows` adds momentum, Adam and the next order in :math:`\eta`.
Eqs. 13 and 14 as printed are a separate theory.

The plateau: to lowest order in 1/T and 1/sqrt(d), with r = sqrt((1 + (d-1) p^2)/d) and B copies,

    y' = l e^{y^2/2},  y = |W|/sqrt(B),  Da = y^2/2,  l = sqrt(B) r/T
    y = sqrt 2 erfinv(sqrt(2/pi) l t),  which is infinite at  t* = sqrt(pi/2)/l

The paper linearises e^{Da}: w = sinh(l t), and a time (1/(2l)) ln(2 eps/l) for the loss to fall by
the share eps (eq. 6, B = 1), which is too long where the attention blows up first. Time is eta t
for t optimiser steps; momentum replaces eta by eta/(1-mu). `docs/systems/sparse_attention.md`
derives them.

Example:
    >>> steps = odes.sparse_attention.escape_time(dynsim.Retrieval(length=32, d=16))
    >>> round(float(steps))
    160
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Real

from dynsim import checks
from dynsim.precision import DType, Number
from dynsim.sparse_attention import Retrieval, RetrievalSnapshot
from dynsim.training.rule import Rule
from dynsim.trajectory import Times, Trajectory
from odes.general import closed_form, flows, no_sgd
from odes.problem import Reduction, flow
from odes.sparse_attention import finite_batch
from odes.theory import AnyTheory, Theory, Training, reason_unless_traced

__all__ = ["THEORIES", "escape_time", "finite_batch", "growth_rate", "linear_escape_time"]


class Alike(eqx.Module):
    """One number for each kind of weight: magnitude of an entry of W in the column of the fixed
    token and elsewhere, score of a copy of :math:`x_T` and of another token."""

    fixed: Float[Array, ""]
    rest: Float[Array, ""]
    copy: Float[Array, ""]
    other: Float[Array, ""]


def attention(gap: Array, task: Retrieval) -> Float[Array, ""]:
    """Return A, the attention on all copies, from the difference Da of the scores."""
    return task.B / ((task.T - task.B) * jnp.exp(-gap) + task.B)


def loss(state: Alike, task: Retrieval) -> Float[Array, ""]:
    """Return the loss of eq. 17, for any B."""
    A, root = attention(state.copy - state.other, task), task.d**0.5
    fixed, rest = root * state.fixed, root * state.rest
    # |W|^2, and the squared errors of the two kinds of entries, weighted by their moments.
    square = fixed**2 + (task.d - 1) * rest**2
    sigma_fixed, sigma_rest = task.moments
    missed = sigma_fixed * (A * fixed - 1) ** 2 + sigma_rest * (task.d - 1) * (A * rest - 1) ** 2
    return ((1 - A) ** 2 * square / (task.d * (task.T - task.B)) + missed) / 2


def gradient(task: Retrieval, state: Alike) -> Alike:
    """Return the gradient with respect to a single weight of each kind."""
    # A variable that represents n weights has n times the derivative of one of them.
    of_all = jax.grad(loss)(state, task)
    return Alike(
        of_all.fixed / task.d,
        of_all.rest / (task.d * (task.d - 1)),
        of_all.copy / task.B,
        of_all.other / (task.T - task.B),
    )


def measure(state: Alike, task: Retrieval) -> RetrievalSnapshot:
    """Return the snapshot of the weights that a state represents."""
    readout, gap = state.fixed + (task.d - 1) * state.rest, state.copy - state.other
    return RetrievalSnapshot(loss(state, task), attention(gap, task), readout, gap)


def zero(task: Retrieval, weights: None, dtype: DType) -> Alike:
    """Return the zero start."""
    del task, weights
    return Alike(*4 * (jnp.zeros((), dtype),))


ALIKE_WEIGHTS = Reduction(zero, gradient, lambda task, state: (measure(state, task),))


def signal(task: Retrieval) -> Float[Array, ""]:
    """Return r, the root of the sum of squares of the moments of x_T."""
    fixed, rest = task.moments
    return jnp.sqrt(jnp.asarray(fixed) ** 2 + (task.d - 1) * jnp.asarray(rest) ** 2)


def growth_rate(task: Retrieval) -> Float[Array, ""]:
    r"""Return the rate at which weights and scores leave zero, per unit of :math:`\eta t`."""
    return task.B**0.5 * signal(task) / task.T


def escape_time(task: Retrieval) -> Float[Array, ""]:
    r"""Return the :math:`t^*` at which attention blows up, in units of :math:`1/\eta` steps."""
    return math.sqrt(math.pi / 2) / growth_rate(task)


def linear_escape_time(task: Retrieval, eps: Real[Number, ""]) -> Float[Array, ""]:
    """Return the time of eq. 6 in the same units; raise `ValueError` unless 0 < eps < 1."""
    checks.real("eps", eps, 0, 1, open_minimum=True, open_maximum=True)
    return jnp.log(2 * eps / growth_rate(task)) / (2 * growth_rate(task))


def field(task: Retrieval, state: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return the right-hand sides of eqs. 13 and 14 as printed, for w and Da."""
    w, gap = state
    T, d, B = task.T, task.d, task.B
    alpha = 1 / ((T - B) * jnp.exp(-gap) + B)
    missed, root = 1 - B * alpha, d**0.5
    w_rate = -(missed**2) * w / (d * (T - B)) - B * alpha * (B * alpha * w - root) / d
    inner = -B * missed * w**2 / (d * (T - B)) + B * w * (B * alpha * w - root) / d
    return w_rate, -alpha * missed * inner


def printed_snapshot(state: tuple[Array, Array], task: Retrieval) -> RetrievalSnapshot:
    """Return the solution of eqs. 9 and 12 for the two variables."""
    w, gap = state
    A = attention(gap, task)
    noise = (1 - A) ** 2 * w**2 / (task.d * (task.T - task.B))
    return RetrievalSnapshot((noise + (A * w - task.d**0.5) ** 2 / task.d) / 2, A, w, gap)


def _no_fixed_token(training: Training) -> str | None:
    task: Retrieval = training.problem
    if not checks.is_traced(task) and jnp.ndim(task.p) == 0 and task.p != 0:
        return f"p = {task.p}: must be 0; eqs. 13 and 14 describe no fixed token"
    return None


def _printed(task: Retrieval, rule: Rule, times: Times, **options: Any) -> Trajectory:
    if why := reason_unless_traced(_no_fixed_token, Training(task, rule)):
        raise ValueError(why)
    # The paper has no momentum, which enters as the rate eta / (1 - mu).
    kind = "rescaled" if rule.has_inertia else "plain"
    run = flow(task, rule, times, kind=kind, reduction=_TWO_NUMBERS, **options)
    return dataclasses.replace(run, source="printed")


def _plateau(task: Retrieval, init: PyTree, time: Float[Array, ""]) -> Mapping[str, Array]:
    fixed, rest = (jnp.asarray(moment, time.dtype) for moment in task.moments)
    # y = sqrt(2) erfinv(t / t*), until the escape.
    part = time / escape_time(task)
    left = part < 1
    y = math.sqrt(2) * jax.scipy.special.erfinv(jnp.where(left, part, 0))
    # W lies along the direction of the moments; per entry, as in the exact reduction.
    entry = task.B**0.5 * y / (signal(task) * task.d**0.5)
    state = Alike(entry * fixed, entry * rest, y**2 / 2, jnp.zeros_like(y))
    before = measure(state, task)._asdict()
    # In the limit of long sequences everything is learned at once after it.
    after = {"loss": 0.0, "attention": 1.0, "readout": task.d**0.5}
    return {name: jnp.where(left, before[name], value) for name, value in after.items()}


_LIMITS = "batch -> infinity, eta -> 0"
_TWO_NUMBERS = Reduction(
    lambda task, weights, dtype: (jnp.zeros((), dtype), jnp.zeros((), dtype)),
    lambda task, state: jax.tree.map(jnp.negative, field(task, state)),
    lambda task, state: (printed_snapshot(state, task),),
)
THEORIES: tuple[AnyTheory, ...] = (
    *flows(ALIKE_WEIGHTS),
    Theory(
        "printed",
        "Eqs. 13, 14 as printed",
        f"{_LIMITS}, B = 1",
        _printed,
        lambda training: no_sgd(training.rule) or _no_fixed_token(training),
    ),
    closed_form(
        "escape",
        "closed form of the plateau",
        f"{_LIMITS}, T, d -> infinity, loss near its start",
        _plateau,
        refused={"gap": "it is infinite in the closed form"},
    ),
)
"""The theories, most exact first: flows of four numbers, then `printed` and `escape`."""
