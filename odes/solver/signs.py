r"""Flows of sign descent [ours], without and with momentum.

.. math::

    m' = \lambda (G - m), \qquad \hat m = \frac{m}{1 - e^{-\lambda t}}, \qquad
    p' = -\eta\, S(\hat m)

"plain" has no inertia, :math:`p' = -\eta\, S(G)`. "heavy-ball" has :math:`\lambda = 1-\mu`.
"matched" has :math:`\lambda = -\ln \mu`, is read half a step later, and stands still in the first
half step, before which no step has begun. Dividing an average by its weight so far keeps its sign
and gives it the size of a gradient.

What happens at zero. Descent that overshoots the zero of a derivative goes back in the next step:
the weight chatters about the zero by about :math:`\eta`. As :math:`\eta \to 0` its mean slides
along the zero, at the velocity that keeps the derivative zero: the solution in the sense of
Filippov. S is the sign, but linear within a width w of zero, by which the flow slides as well:

.. math::

    S(m) = \max(-1, \min(1, m / w)), \qquad w = \eta\, |H| ,

w being how far a step of random signs moves the derivative on average, estimated from a few
products with the Hessian. For a single weight this is right on average [ours]: its derivative
moves by b - a sign(G) a step, with :math:`a = \eta H` and b by what else moves. G becomes uniform
in [b - a, b + a], where it has the mean b, and the mean sign b/a is S of it. For several weights,
and with momentum, which chatters over more steps, w is the right scale and no more.

Before the first zero a flow without momentum is exact at constant gradient; after it, descent
chatters about the flow, by an amount of first order in :math:`\eta`. Where curvature vanishes, S
is the sign. Where it is negative, a weight leaves the zero of its derivative, as in descent.

While a weight slides, the solver takes several steps for each step of descent, so it needs no fewer
gradients. Where it runs out of steps, the status is `MAX_STEPS`.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PyTree

from dynsim import checks
from dynsim.training.rules import Sign
from odes.solver import inertia
from odes.solver.posed import Driven, Flow, Gradient, Params, Posed

PROBES = 4
"""Random directions in which the Hessian is probed for the width."""


def _alone(gradient: Gradient[Params], task: Any, driven: Driven[Sign], initial: Params) -> Posed:
    field = functools.partial(_without_inertia, gradient)
    return Posed((initial,), field, (task, driven, _probes(initial)))


def _with_average(
    matched: bool, gradient: Gradient[Params], task: Any, driven: Driven[Sign], initial: Params
) -> Posed:
    state = initial, jax.tree.map(jnp.zeros_like, initial)
    field = functools.partial(_with_inertia, gradient, matched=matched)
    shift, jumps = (0.5, (0.5,)) if matched else (0.0, ())
    return Posed(state, field, (task, driven, _probes(initial)), shift=shift, jumps=jumps)


def _without_inertia(
    gradient: Gradient, t: Float[Array, ""], state: PyTree, args: PyTree
) -> PyTree:
    (params,), (task, driven, probes) = state, args
    pull, change = _probed(functools.partial(gradient, task), params, probes)
    signs = jax.tree.map(_saturated, pull, driven.descend(change, t))
    return (driven.descend(signs, t, params),)


def _with_inertia(
    gradient: Gradient, t: Float[Array, ""], state: PyTree, args: PyTree, *, matched: bool
) -> PyTree:
    (params, average), (task, driven, probes) = state, args
    mu = jnp.asarray(driven.rule.momentum)
    rate, at = (-jnp.log(mu), t - 0.5) if matched else (1 - mu, t)
    pull, change = _probed(functools.partial(gradient, task), params, probes)
    # At the start 0/0, whose limit is the gradient.
    weight = jnp.where(t > 0, -jnp.expm1(-rate * t), 1.0)
    mean = jax.tree.map(lambda m, g: jnp.where(t > 0, m / weight, g), average, pull)
    signs = jax.tree.map(_saturated, mean, driven.descend(change, at))
    moved = driven.descend(signs, at, params)
    if matched:
        moved = jax.tree.map(lambda d: jnp.where(t < 0.5, 0, d), moved)
    return moved, jax.tree.map(lambda m, g: rate * (g - m), average, pull)


def _probes(params: PyTree) -> PyTree:
    """(PROBES, ...) directions, normal with mean absolute value 1 in each weight: so a diagonal
    Hessian is found exactly, and no other one is missed as signs might miss it."""
    keys = jax.random.split(jax.random.key(0), PROBES)
    drawn = jax.vmap(lambda key: optax.tree.random_like(key, params, jax.random.normal))(keys)
    return jax.tree.map(lambda z: z / jnp.mean(jnp.abs(z), axis=0, keepdims=True), drawn)


def _probed(gradient: Any, params: Params, probes: Params) -> tuple[Params, Params]:
    """The gradient, and how far on average it changes along the probes."""
    pull, push = jax.linearize(gradient, params)
    change = jax.vmap(push)(probes)
    return pull, jax.tree.map(lambda c: jnp.mean(jnp.abs(c), axis=0), change)


def _saturated(mean: Array, width: Array) -> Array:
    """The sign of `mean`, but linear where it is smaller than `width`."""
    width = jnp.abs(width)
    linear = jnp.clip(mean / jnp.where(width > 0, width, 1), -1, 1)
    return jnp.where(width > 0, linear, jnp.sign(mean))


def _still(rule: Sign) -> bool:
    """Without momentum there is no velocity that a matched flow could follow."""
    return not checks.is_traced(rule.momentum) and not np.any(rule.momentum)


def _like(name: str, pose: Any) -> Flow:
    found = next(each for each in inertia.FLOWS if each.name == name)
    return dataclasses.replace(found, rule=Sign, pose=pose, describes=lambda rule: True)


_PLAIN = _like("plain", _alone)
FLOWS: tuple[Flow, ...] = (
    dataclasses.replace(_PLAIN, describes=_still),
    _like("matched", functools.partial(_with_average, True)),
    _like("heavy-ball", functools.partial(_with_average, False)),
    dataclasses.replace(_PLAIN, describes=lambda rule: not _still(rule)),
)
"""The flows of sign descent, which have the names and the assumptions of those of descent."""
