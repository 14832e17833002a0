r"""Flows of descent without momentum, with heavy-ball and with Nesterov momentum.

.. math::

    \begin{align*}
    p' &= -\eta\, G \tag{plain} \\
    p' &= -\frac{\eta}{1-\mu}\, G \tag{rescaled} \\
    v' &= G - (1-\mu)\, v, & p' &= -\eta\, d \tag{heavy-ball} \\
    v' &= -\ln(\mu) \left( \frac{G}{1-\mu} - v \right), & p' &= -\eta\, d \tag{matched} \\
    v' &= \frac1c \left( \frac{G}{1-\mu} - v \right), & p' &= -\eta\, d \tag{corrected}
    \end{align*}

with d = v for heavy-ball momentum and :math:`d = \mu v + G` for Nesterov's. "plain" is exact for
:math:`\mu = 0`, "rescaled" has no inertia, "heavy-ball" is right to first order in :math:`1 - \mu`,
"matched" to second order. All but "corrected" leave an error of first order in :math:`\eta`.

Matched: an average decays over one unit of time exactly as over one step, and reading the flow
at t = k + 1/2 makes its integral the midpoint rule of the sum that descent forms. Heavy ball
starts from rest and hardly moves in the first half step. Nesterov [ours] moves by the gradient
where the step began, half a unit before the middle of the step, which is :math:`G(p - p'/2)`; it
stands still in the first half step, before which no step has begun.

Corrected [ours], by backward error analysis, H being the Hessian. Descent without momentum
follows :math:`p' = -\eta\, (G + \tfrac12 H \eta\, G)` up to :math:`O(\eta^3)`. With momentum,
the direction of step k is a sum of past gradients. Expanded about the middle of the step, with
:math:`e = \eta/(1-\mu)`, it gives the slow motion

.. math::

    p' = -e\, (G + a\, H e\, G), \qquad a = \tfrac12 + \frac{\mu}{1-\mu}
    \text{ (heavy ball)}, \qquad a = \tfrac12 + \frac{\mu^2}{1-\mu} \text{ (Nesterov)}

where a is 1/2, for the half step by which a gradient is older than the middle of its step, plus
the mean age of the gradients in the sum. A velocity with the c of heavy ball,
:math:`c = (1+\mu)/(2(1-\mu))`, has this motion. So has Nesterov's d with :math:`G(p - p'/2)`,
as :math:`\mu c + (1-\mu)/2` is its a. While momentum builds up, the velocities of descent lack
:math:`\mu G/(1-\mu)^2` in all, and those of the flow :math:`c\, (G/(1-\mu) - v(0))`. The two
are equal for :math:`v(0) = G / (1+\mu)`, so the shift of p that the start leaves is right too.
For heavy ball the matched flow has :math:`-1/\ln \mu` for c, 9.491 against 9.5 at
:math:`\mu = 0.9`, but moves p by an eighth of the first real step before that step.

Decoupled decay acts on the weights at the start of a step, which corrected flows, and the matched
one of Nesterov's, take to be :math:`p - p'/2`.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from dynsim.training.rules import SGD
from odes.solver.posed import Driven, Flow, Gradient, Params, Posed


def _alone(
    field: Any, gradient: Gradient[Params], task: Any, driven: Driven[SGD], initial: Params
) -> Posed:
    return Posed((initial,), functools.partial(field, gradient), (task, driven))


def _with_velocity(
    flow: str, gradient: Gradient[Params], task: Any, driven: Driven[SGD], initial: Params
) -> Posed:
    start = jax.tree.map(jnp.zeros_like, initial)
    if flow == "corrected":
        if not driven.rule.has_inertia:
            return _alone(_corrected, gradient, task, driven, initial)
        mu = driven.rule.mu
        start = jax.tree.map(lambda g: g / (1 + mu), gradient(task, initial))
    field = functools.partial(_with_inertia, gradient, flow=flow)
    posed = Posed((initial, start), field, (task, driven))
    if flow != "matched":
        return posed
    return posed._replace(shift=0.5, jumps=(0.5,) if driven.rule.nesterov else ())


def _without_inertia(
    gradient: Gradient, t: Float[Array, ""], state: PyTree, args: PyTree, *, rescaled: bool
) -> PyTree:
    (params,), (task, driven) = state, args
    rate = 1 / (1 - driven.rule.mu) if rescaled else 1.0
    pull = jax.tree.map(lambda g: rate * g, gradient(task, params))
    return (driven.descend(pull, t, params),)


def _corrected(gradient: Gradient, t: Float[Array, ""], state: PyTree, args: PyTree) -> PyTree:
    (params,), (task, driven) = state, args
    return (corrected(lambda p: driven.descend(gradient(task, p), t, p), params),)


def corrected(along: Callable[[PyTree], PyTree], state: PyTree) -> PyTree:
    """The speed of a flow that makes steps of `along` in unit time, to their second order."""
    first = along(state)
    change = jax.jvp(along, (state,), (first,))[1]
    return jax.tree.map(lambda speed, change: speed - change / 2, first, change)


def _with_inertia(
    gradient: Gradient, t: Float[Array, ""], state: PyTree, args: PyTree, *, flow: str
) -> PyTree:
    (params, velocity), (task, driven) = state, args
    mu = driven.rule.mu
    pull = gradient(task, params)
    rate = {
        "matched": -jnp.log(mu),
        "corrected": 2 * (1 - mu) / (1 + mu),
        "heavy-ball": 1 - mu,
    }[flow]
    acceleration = jax.tree.map(lambda g, v: rate * (g / (1 - mu) - v), pull, velocity)
    # The matched flow is read half a step later, and so is its rate.
    at = t - 0.5 if flow == "matched" else t
    nesterov = driven.rule.nesterov

    def motion(pull: PyTree, params: PyTree) -> PyTree:
        ahead = jax.tree.map(lambda v, g: mu * v + g, velocity, pull) if nesterov else velocity
        return driven.descend(ahead, at, params)

    moved = motion(pull, params)
    if flow == "corrected" or (flow == "matched" and nesterov):
        begin = half_a_step_ago(params, moved)
        moved = motion(gradient(task, begin) if nesterov else pull, begin)
    if flow == "matched" and nesterov:
        moved = jax.tree.map(lambda d: jnp.where(t < 0.5, 0, d), moved)
    return moved, acceleration


def half_a_step_ago(params: Params, motion: Params) -> Params:
    """Where the step in the middle of which are `params` began, moving by `motion` a step."""
    return jax.tree.map(lambda p, d: p - d / 2, params, motion)


def _moves(rule: SGD) -> bool:
    return rule.has_inertia


def _still(rule: SGD) -> bool:
    return not rule.has_inertia


_PLAIN, _RESCALED = (
    functools.partial(_alone, functools.partial(_without_inertia, rescaled=rescaled))
    for rescaled in (False, True)
)
_MATCHED, _CORRECTED, _HEAVY_BALL = (
    functools.partial(_with_velocity, name) for name in ("matched", "corrected", "heavy-ball")
)
_SLOW, _LIGHT = "eta -> 0 without inertia", "eta, 1 - mu -> 0"
_TITLE = "flow at the rate eta / (1 - mu)"
FLOWS = (
    Flow("plain", "flow of the weights", "eta -> 0", SGD, _PLAIN, _still),
    Flow("matched", "matched momentum flow", "eta -> 0", SGD, _MATCHED, _moves, ("momentum",)),
    Flow("corrected", "flow corrected in eta", "eta^2 -> 0", SGD, _CORRECTED),
    Flow("rescaled", _TITLE, _SLOW, SGD, _RESCALED, _moves, variant=True),
    Flow("heavy-ball", "heavy-ball flow", _LIGHT, SGD, _HEAVY_BALL, _moves, variant=True),
)
"""The flows of descent; of those that describe a rule, the first one is used by default."""
