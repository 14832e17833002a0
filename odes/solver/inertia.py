r"""Flows of descent and of sign descent, without momentum and with momentum.

Descent, with heavy-ball or with Nesterov momentum:

.. math::

    \begin{align*}
    p' &= -\eta\, G \tag{plain} \\
    p' &= -\frac{\eta}{1-\mu}\, G \tag{rescaled} \\
    v' &= G - (1-\mu)\, v, & p' &= -\eta\, d \tag{heavy-ball} \\
    v' &= -\ln(\mu) \left( \frac{G}{1-\mu} - v \right), & p' &= -\eta\, d \tag{matched} \\
    v' &= \frac1c \left( \frac{G}{1-\mu} - v \right), & p' &= -\eta\, d \tag{corrected}
    \end{align*}

with d = v for heavy-ball momentum and :math:`d = \mu v + G` for Nesterov's, and
:math:`c = (1+\mu)/(2(1-\mu))`. "plain" is exact for :math:`\mu = 0`, "rescaled" has no inertia,
"heavy-ball" is right to first order in :math:`1 - \mu`, "matched" to second order. All but
"corrected" leave an error of first order in :math:`\eta`. `docs/theory/flow.md` derives them.

"matched" is evaluated at t = k + 1/2. With Nesterov momentum [ours] it uses the gradient at the
start of the step, half a unit before its middle, :math:`G(p - p'/2)`. It then does not move in the
first half step, before which no step has begun.

"corrected" [ours] is by backward error analysis. Descent without momentum follows
:math:`p' = -\eta\, (G + \tfrac12 H \eta\, G)` up to :math:`O(\eta^3)`, H being the Hessian. While
momentum builds up, the velocities of descent fall short by :math:`\mu G/(1-\mu)^2` in total, and
those of the flow by :math:`c\, (G/(1-\mu) - v(0))`. The two agree for :math:`v(0) = G / (1+\mu)`.
Decoupled decay acts on the weights at the start of the step. Corrected flows, and the matched one
of Nesterov momentum, use :math:`p - p'/2` for them too.

Sign descent [ours]:

.. math::

    m' = \lambda (G - m), \qquad p' = -\eta\, S \left( \frac{m}{1 - e^{-\lambda t}} \right), \qquad
    S(m) = \max(-1, \min(1, m / w)), \qquad w = \eta\, |H|

"plain" has no inertia, :math:`p' = -\eta\, S(G)`. "heavy-ball" has :math:`\lambda = 1-\mu`,
"matched" has :math:`\lambda = -\ln \mu`, is evaluated half a step later, and does not move in the
first half step. S is the sign, but linear within a width w of zero, so that a weight slides along
the zero of its derivative as descent does on average. The width is the change of the derivative in
a step of random signs, from a few Hessian-vector products; for a single weight the mean sign is
then exact. Before the first zero a flow without momentum is exact at constant gradient; after it,
descent oscillates about the flow, with an amplitude of first order in :math:`\eta`. Where curvature
vanishes, S is the sign; where it is negative, a weight leaves the zero of its derivative, as in
descent. While a weight slides, the solver needs at least as many gradients as descent; if it runs
out of steps, the status is `MAX_STEPS`.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PyTree

from dynsim import checks
from dynsim.training.rules import SGD, Sign
from odes.solver.posed import Flow, Gradient, GroupedRule, InitialValueProblem, Params

PROBES = 4
"""Random directions in which the Hessian is probed for the width of sign descent."""


def _alone(
    field: Callable[..., PyTree],
    gradient: Gradient[Params],
    task: PyTree,
    driven: GroupedRule[SGD],
    initial: Params,
) -> InitialValueProblem:
    return InitialValueProblem((initial,), functools.partial(field, gradient), (task, driven))


def _with_velocity(
    flow: str, gradient: Gradient[Params], task: PyTree, driven: GroupedRule[SGD], initial: Params
) -> InitialValueProblem:
    start = jax.tree.map(jnp.zeros_like, initial)
    if flow == "corrected":
        # v(0) = G / (1 + mu), for which the flow covers the same distance as descent in the end.
        if not driven.rule.has_inertia:
            return _alone(_corrected, gradient, task, driven, initial)
        mu = driven.rule.mu
        start = jax.tree.map(lambda g: g / (1 + mu), gradient(task, initial))

    def field(t: Float[Array, ""], state: PyTree, args: PyTree) -> PyTree:
        (params, velocity), (task, driven) = state, args
        mu = driven.rule.mu
        pull = gradient(task, params)
        # v' = rate (G / (1 - mu) - v), the inverse of the time by which the velocity lags behind G.
        rate = {
            "matched": -jnp.log(mu),
            "corrected": 2 * (1 - mu) / (1 + mu),
            "heavy-ball": 1 - mu,
        }[flow]
        acceleration = jax.tree.map(lambda g, v: rate * (g / (1 - mu) - v), pull, velocity)
        # The matched flow is evaluated half a step later, and so is its rate.
        at = t - 0.5 if flow == "matched" else t
        nesterov = driven.rule.nesterov

        # p' = -eta d with d = v, or d = mu v + G with Nesterov momentum.
        def motion(pull: PyTree, params: PyTree) -> PyTree:
            ahead = jax.tree.map(lambda v, g: mu * v + g, velocity, pull) if nesterov else velocity
            return driven.descend(ahead, at, params)

        moved = motion(pull, params)
        if flow == "corrected" or (flow == "matched" and nesterov):
            # Nesterov's gradient and decoupled decay are those at the start of the step.
            begin = half_a_step_ago(params, moved)
            moved = motion(gradient(task, begin) if nesterov else pull, begin)
        if flow == "matched" and nesterov:
            # The first step begins at t = 0, half a unit before its middle: none has begun before.
            moved = jax.tree.map(lambda d: jnp.where(t < 0.5, 0, d), moved)
        return moved, acceleration

    posed = InitialValueProblem((initial, start), field, (task, driven))
    if flow != "matched":
        return posed
    return posed._replace(shift=0.5, jumps=(0.5,) if driven.rule.nesterov else ())


def _without_inertia(
    gradient: Gradient, t: Float[Array, ""], state: PyTree, args: PyTree, *, rescaled: bool
) -> PyTree:
    (params,), (task, driven) = state, args
    # p' = -eta G / (1 - mu): the velocity v = G / (1 - mu) follows the gradient without delay.
    rate = 1 / (1 - driven.rule.mu) if rescaled else 1.0
    pull = jax.tree.map(lambda g: rate * g, gradient(task, params))
    return (driven.descend(pull, t, params),)


def _corrected(gradient: Gradient, t: Float[Array, ""], state: PyTree, args: PyTree) -> PyTree:
    (params,), (task, driven) = state, args
    return (corrected(lambda p: driven.descend(gradient(task, p), t, p), params),)


def corrected(along: Callable[[PyTree], PyTree], state: PyTree) -> PyTree:
    """Return the velocity of a flow whose unit-time steps are `along`, to second order."""
    # Backward error analysis: steps f of Euler's method follow p' = f - f'f/2.
    first = along(state)
    change = jax.jvp(along, (state,), (first,))[1]
    return jax.tree.map(lambda speed, change: speed - change / 2, first, change)


def half_a_step_ago(params: Params, motion: Params) -> Params:
    """Return the start of the step whose middle is `params`, for a change of `motion` per step."""
    return jax.tree.map(lambda p, d: p - d / 2, params, motion)


def _signs(
    name: str, gradient: Gradient[PyTree], task: PyTree, driven: GroupedRule[Sign], initial: PyTree
) -> InitialValueProblem:
    # (PROBES, ...) directions, normal with mean absolute value 1 in each weight: they give a
    # diagonal Hessian exactly, and miss no other one, as random signs might.
    keys = jax.random.split(jax.random.key(0), PROBES)
    normal = jax.vmap(lambda key: optax.tree.random_like(key, initial, jax.random.normal))(keys)
    probes = jax.tree.map(lambda z: z / jnp.mean(jnp.abs(z), axis=0, keepdims=True), normal)
    args = task, driven, probes
    matched = name == "matched"

    # p' = -eta S(G) with the width w = eta |H|.
    def alone(t: Float[Array, ""], state: PyTree, args: PyTree) -> PyTree:
        (params,), (task, driven, probes) = state, args
        pull, change = _probed(functools.partial(gradient, task), params, probes)
        signs = jax.tree.map(_saturated, pull, driven.descend(change, t))
        return (driven.descend(signs, t, params),)

    # m' = lambda (G - m), p' = -eta S(m / (1 - e^{-lambda t})) with the same width.
    def of_average(t: Float[Array, ""], state: PyTree, args: PyTree) -> PyTree:
        (params, average), (task, driven, probes) = state, args
        mu = jnp.asarray(driven.rule.momentum)
        rate, at = (-jnp.log(mu), t - 0.5) if matched else (1 - mu, t)
        pull, change = _probed(functools.partial(gradient, task), params, probes)
        # At the start this is 0/0, whose limit is the gradient.
        weight = jnp.where(t > 0, -jnp.expm1(-rate * t), 1.0)
        mean = jax.tree.map(lambda m, g: jnp.where(t > 0, m / weight, g), average, pull)
        signs = jax.tree.map(_saturated, mean, driven.descend(change, at))
        moved = driven.descend(signs, at, params)
        if matched:
            # No step has begun before, as with momentum.
            moved = jax.tree.map(lambda d: jnp.where(t < 0.5, 0, d), moved)
        return moved, jax.tree.map(lambda m, g: rate * (g - m), average, pull)

    if name == "plain":
        return InitialValueProblem((initial,), alone, args)
    state = initial, jax.tree.map(jnp.zeros_like, initial)
    shift, jumps = (0.5, (0.5,)) if matched else (0.0, ())
    return InitialValueProblem(state, of_average, args, shift=shift, jumps=jumps)


def _probed(
    gradient: Callable[[Params], Params], params: Params, probes: Params
) -> tuple[Params, Params]:
    """Return the gradient G and |H|, its mean absolute change along the probes."""
    # `linearize` evaluates the gradient once for all Hessian-vector products.
    pull, push = jax.linearize(gradient, params)
    change = jax.vmap(push)(probes)
    return pull, jax.tree.map(lambda c: jnp.mean(jnp.abs(c), axis=0), change)


def _saturated(mean: Array, width: Array) -> Array:
    """Return the sign of `mean`, but linear where |mean| is below `width`."""
    # `descend` returns the width with a minus sign.
    width = jnp.abs(width)
    linear = jnp.clip(mean / jnp.where(width > 0, width, 1), -1, 1)
    return jnp.where(width > 0, linear, jnp.sign(mean))


def _moves(rule: SGD) -> bool:
    return rule.has_inertia


def _still(rule: Sign) -> bool:
    # Without momentum there is no velocity, whose decay a flow could match. A traced momentum
    # counts as momentum.
    return not checks.is_traced(rule.momentum) and not np.any(rule.momentum)


def _of_signs(name: str, describes: Callable[[Sign], bool] = lambda rule: True) -> Flow:
    of_descent = next(flow for flow in _OF_DESCENT if flow.name == name)
    # The width of the sign depends on eta, so that a rate does not only change the speed.
    return dataclasses.replace(
        of_descent,
        rule=Sign,
        pose=functools.partial(_signs, name),
        describes=describes,
        in_eta_time=False,
    )


_PLAIN, _RESCALED = (
    functools.partial(_alone, functools.partial(_without_inertia, rescaled=rescaled))
    for rescaled in (False, True)
)
_MATCHED, _CORRECTED, _HEAVY_BALL = (
    functools.partial(_with_velocity, name) for name in ("matched", "corrected", "heavy-ball")
)
_SLOW, _LIGHT = "eta -> 0 without inertia", "eta, 1 - mu -> 0"
_TITLE = "flow at the rate eta / (1 - mu)"
_OF_DESCENT = (
    Flow(
        *("plain", "flow of the weights", "eta -> 0", SGD, _PLAIN, lambda r: not r.has_inertia),
        in_eta_time=True,
    ),
    Flow("matched", "matched momentum flow", "eta -> 0", SGD, _MATCHED, _moves, ("momentum",)),
    Flow("corrected", "flow corrected in eta", "eta^2 -> 0", SGD, _CORRECTED),
    Flow("rescaled", _TITLE, _SLOW, SGD, _RESCALED, _moves, variant=True, in_eta_time=True),
    Flow("heavy-ball", "heavy-ball flow", _LIGHT, SGD, _HEAVY_BALL, _moves, variant=True),
)
FLOWS: tuple[Flow, ...] = (
    *_OF_DESCENT,
    _of_signs("plain", _still),
    _of_signs("matched"),
    _of_signs("heavy-ball"),
    _of_signs("plain", lambda rule: not _still(rule)),
)
"""The flows of descent and sign descent, which share names and assumptions. The first one that
describes a rule is its default."""
