r"""Flows of Adam and RMSProp, whose directions are divided by a root of mean squares.

"adam" and "rmsprop" are, with :math:`\lambda = 1 - b`,

.. math::

    \begin{align*}
    m' &= \lambda_1 (G - m), \qquad v' = \lambda_2 (G^2 - v) \\
    p' &= -\eta\, \frac{\hat m}{\sqrt{\hat v} + \epsilon}, \qquad
        \hat m = \frac{m}{1 - e^{-\lambda_1 t}}, \qquad
        \hat v = \frac{v}{1 - e^{-\lambda_2 t}} \tag{adam} \\
    p' &= -\eta\, \frac{G}{\sqrt{v} + \epsilon} \tag{rmsprop}
    \end{align*}

from m = v = 0 for Adam, and from :math:`v = (1 - b_2)\, G^2` for RMSProp [ours]: it does not
correct v for its start, so that from zero the flow would begin with infinite speed. "matched-adam"
and "matched-rmsprop" [ours] have :math:`\lambda = -\ln b`. They take the first step exactly, along
a straight line, and continue at t = 1 with the averages at t = 3/2: of G at the start for one unit
of time, and of G after the first step for half a unit. RMSProp's numerator is the gradient at the
start of the step, :math:`G(p - p'/2)`. "corrected-adam" [ours], correct to the next order in
:math:`\eta`, takes `EXACT_STEPS` exact steps and then has :math:`\lambda_i = 2 (1 - b_i)/(1 +
b_i)`, the inverse mean age of an average's entries in the middle of a step. See
`docs/theory/flow.md` and `adam.md`.

Where a gradient vanishes faster than its average decays, flows become stiff, because
:math:`\eta H / \sqrt{v}` grows without bound; descent oscillates by :math:`\eta` instead. A larger
:math:`\epsilon` bounds it. A solver that runs out of steps has the status `MAX_STEPS`.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Real

from dynsim.precision import Number
from dynsim.training.rules import Adam, RMSProp
from odes.solver.inertia import half_a_step_ago
from odes.solver.posed import Flow, Gradient, GroupedRule, InitialValueProblem, Params

EXACT_STEPS = 10
"""Number of exact steps of "corrected-adam": the memory of m at the usual decay."""

# Averages are stored as m / eps and v / eps^2. In these units an absolute tolerance works for
# gradients of any size (they are of order 1/K and keep falling): an error of `atol` eps in m, or of
# `atol` eps^2 in v, is negligible next to the eps of the denominator.


def _plain_adam(
    gradient: Gradient[Params], task: PyTree, driven: GroupedRule[Adam], initial: Params
) -> InitialValueProblem:
    zeros = jax.tree.map(jnp.zeros_like, initial)
    return InitialValueProblem(
        (initial, zeros, zeros), functools.partial(_adam, gradient), (task, driven)
    )


def _matched_adam(
    gradient: Gradient[Params], task: PyTree, driven: GroupedRule[Adam], initial: Params
) -> InitialValueProblem:
    # Adam's first step is -eta G / (|G| + eps): its averages are corrected for their start.
    moves, before, after = _first_step(gradient, task, driven, initial, 1.0)
    # The first average is that of G, the second that of G^2: `power` 1 and 2.
    rates = (-jnp.log(jnp.asarray(b)) for b in (driven.rule.b1, driven.rule.b2))
    averages = (
        jax.tree.map(functools.partial(_half_a_step_later, rate, power), before, after)
        for power, rate in enumerate(rates, 1)
    )
    field = functools.partial(_after_steps, functools.partial(_adam, gradient, matched=True), 1)
    return InitialValueProblem((initial, *averages), field, (task, driven, moves), jumps=(1.0,))


def _corrected_adam(
    gradient: Gradient[PyTree], task: PyTree, driven: GroupedRule[Adam], initial: PyTree
) -> InitialValueProblem:
    rule = driven.rule

    # A step of Adam as it is, because no expansion in eta holds across the first ones.
    def step(now: tuple[PyTree, ...], k: Array) -> tuple[tuple[PyTree, ...], PyTree]:
        params, *averages = now
        g = _scaled(gradient, task, driven, params)
        averages = [
            jax.tree.map(lambda x, y: b * x + (1 - b) * y, average, new)  # noqa: B023
            for b, average, new in _averaged(rule, averages, g)
        ]
        direction = _direction(averages, [1 - b ** (k + 1) for b in (rule.b1, rule.b2)])
        moved = driven.descend(direction, params=params, step=k)
        return (jax.tree.map(jnp.add, params, moved), *averages), moved

    zeros = jax.tree.map(jnp.zeros_like, initial)
    steps = jnp.arange(EXACT_STEPS)
    (params, *averages), moves = jax.lax.scan(step, (initial, zeros, zeros), steps)
    # The flow is evaluated in the middle of a step, half a unit of time later. There its averages,
    # m(t) = G + (m(0) - G) e^{-lambda t}, shall equal b m + (1 - b) G, those of the next step.
    g = _scaled(gradient, task, driven, params)
    averages = [
        jax.tree.map(lambda x, y: y + (x - y) * b / jnp.exp(-_slow_rate(b) / 2), average, new)  # noqa: B023
        for b, average, new in _averaged(rule, averages, g)
    ]

    # p' = -eta m_hat / (sqrt(v_hat) + eps) and m' = lambda_1 (G - m), lambda_i = 2 (1-b_i)/(1+b_i).
    def field(t: Float[Array, ""], state: PyTree, args: PyTree) -> PyTree:
        (params, *averages), (task, driven) = state, args
        rule = driven.rule
        g = _scaled(gradient, task, driven, params)
        # Total weights of the averages: 1 - b^k after k steps, then at the rate of the flow.
        after = jnp.maximum(t - EXACT_STEPS - 0.5, -0.5)
        weights = [
            1 - b ** (EXACT_STEPS + 1) * jnp.exp(-_slow_rate(b) * after) for b in (rule.b1, rule.b2)
        ]
        direction = _direction(averages, weights)
        # Decoupled decay acts on the weights at the start of the step.
        begin = half_a_step_ago(params, driven.descend(direction, t, params))
        return driven.descend(direction, t, begin), *(
            jax.tree.map(lambda x, y: _slow_rate(b) * (y - x), average, new)  # noqa: B023
            for b, average, new in _averaged(rule, averages, g)
        )

    jumps = tuple(float(k) for k in range(1, EXACT_STEPS + 1))
    return InitialValueProblem(
        (initial, *averages),
        functools.partial(_after_steps, field, EXACT_STEPS),
        (task, driven, moves),
        jumps=jumps,
    )


def _after_steps(
    field: Callable[..., PyTree], count: int, t: Float[Array, ""], state: PyTree, args: PyTree
) -> PyTree:
    # The weights move along straight lines in the first steps; the averages, which already have
    # their values at the end of these, rest.
    *args, moves = args
    now = jnp.clip(jnp.floor(t).astype(int), 0, count - 1)
    steps = jax.tree.map(lambda x: x[now], moves), *jax.tree.map(jnp.zeros_like, state[1:])
    return jax.tree.map(
        lambda a, b: jnp.where(t < count, a, b), steps, field(t, state, tuple(args))
    )


def _averaged(
    rule: Adam, averages: Sequence[PyTree], g: PyTree
) -> tuple[tuple[Real[Number, ""], PyTree, PyTree], ...]:
    """Return decay, average and averaged quantity, for both averages of Adam."""
    return (rule.b1, averages[0], g), (rule.b2, averages[1], jax.tree.map(jnp.square, g))


def _direction(averages: Sequence[PyTree], weights: Sequence[Real[Number, ""]]) -> PyTree:
    return jax.tree.map(lambda m, v: _quotient(m / weights[0], v / weights[1]), *averages)


def _slow_rate(b: Real[Number, ""]) -> Real[Number, ""]:
    """Return the decay rate of an average whose mean age is that of Adam's in the middle of a step,
    (1 + b) / (2 (1 - b))."""
    return 2 * (1 - b) / (1 + b)


def _plain_rmsprop(
    gradient: Gradient[Params], task: PyTree, driven: GroupedRule[RMSProp], initial: Params
) -> InitialValueProblem:
    begin, b2 = _scaled(gradient, task, driven, initial), jnp.asarray(driven.rule.b2)
    # v = (1 - b2) G^2, the average after the first step: from v = 0 the speed would be infinite.
    state = initial, jax.tree.map(lambda g: (1 - b2) * g**2, begin)
    return InitialValueProblem(state, functools.partial(_rmsprop, gradient), (task, driven))


def _matched_rmsprop(
    gradient: Gradient[Params], task: PyTree, driven: GroupedRule[RMSProp], initial: Params
) -> InitialValueProblem:
    b2 = jnp.asarray(driven.rule.b2)
    # The first step is -eta G / (sqrt(1 - b2) |G| + eps), whose average has no correction.
    moves, before, after = _first_step(gradient, task, driven, initial, jnp.sqrt(1 - b2))
    average = functools.partial(_half_a_step_later, -jnp.log(b2), 2)
    field = functools.partial(_after_steps, functools.partial(_rmsprop, gradient, matched=True), 1)
    state = initial, jax.tree.map(average, before, after)
    return InitialValueProblem(state, field, (task, driven, moves), jumps=(1.0,))


def _adam(
    gradient: Gradient,
    t: Float[Array, ""],
    state: PyTree,
    args: PyTree,
    *,
    matched: bool = False,
) -> PyTree:
    (params, m, v), (task, driven) = state, args
    rate = [_decay_rate(b, matched) for b in (driven.rule.b1, driven.rule.b2)]
    # Evaluated half a step later: the state after t steps is the flow at t + 1/2.
    elapsed = t + 0.5 if matched else t
    # Unnormalised averages, divided by their total weight, because the equation for the
    # normalised ones has a pole at 0. Here 0/0 occurs only at t = 0, where the limit is known.
    started = elapsed > 0
    weight = [jnp.where(started, -jnp.expm1(-r * elapsed), 1.0) for r in rate]
    g = _scaled(gradient, task, driven, params)
    # p' = -eta m_hat / (sqrt(v_hat) + eps), m' = lambda_1 (G - m), v' = lambda_2 (G^2 - v).
    m_hat = jax.tree.map(lambda m, g: jnp.where(started, m / weight[0], g), m, g)
    v_hat = jax.tree.map(lambda v, g: jnp.where(started, v / weight[1], g**2), v, g)
    return (
        driven.descend(jax.tree.map(_quotient, m_hat, v_hat), t, params),
        jax.tree.map(lambda m, g: rate[0] * (g - m), m, g),
        jax.tree.map(lambda v, g: rate[1] * (g**2 - v), v, g),
    )


def _rmsprop(
    gradient: Gradient,
    t: Float[Array, ""],
    state: PyTree,
    args: PyTree,
    *,
    matched: bool = False,
) -> PyTree:
    (params, v), (task, driven) = state, args
    rate = _decay_rate(driven.rule.b2, matched)
    # p' = -eta G / (sqrt(v) + eps), v' = lambda_2 (G^2 - v).
    motion = lambda g, params: driven.descend(jax.tree.map(_quotient, g, v), t, params)  # noqa: E731
    g = _scaled(gradient, task, driven, params)
    moved = motion(g, params)
    if matched:
        # The gradient of a step is that at its start, while the flow is read in its middle.
        begin = half_a_step_ago(params, moved)
        moved = motion(_scaled(gradient, task, driven, begin), begin)
    return moved, jax.tree.map(lambda v, g: rate * (g**2 - v), v, g)


def _first_step(
    gradient: Gradient[Params],
    task: PyTree,
    driven: GroupedRule[Adam | RMSProp],
    initial: Params,
    weight: Float[Array, ""] | float,
) -> tuple[Params, Params, Params]:
    """Return the first step (1, ...), with root mean square `weight` |G|, and G / eps around it."""
    before = _scaled(gradient, task, driven, initial)
    direction = jax.tree.map(lambda g: g / (weight * jnp.abs(g) + 1), before)
    first = driven.descend(direction, params=initial, step=0)
    after = _scaled(gradient, task, driven, jax.tree.map(jnp.add, initial, first))
    return jax.tree.map(lambda x: x[None], first), before, after


def _half_a_step_later(rate: Array, power: int, before: Array, after: Array) -> Array:
    # After the first step the average of G^power is (1 - b) before, and half a unit of time of the
    # flow towards `after` follows.
    half = -jnp.expm1(-rate / 2)
    return -jnp.expm1(-rate) * (1 - half) * before**power + half * after**power


def _scaled(
    gradient: Gradient[Params], task: PyTree, driven: GroupedRule[Adam | RMSProp], params: Params
) -> Params:
    return jax.tree.map(lambda g: g / driven.rule.eps, gradient(task, params))


def _decay_rate(b: Real[Number, ""], matched: bool) -> Array:
    # Over a unit of time, an average shrinks by b as in a step, or by b to first order in 1 - b.
    return -jnp.log(jnp.asarray(b)) if matched else 1 - jnp.asarray(b)


def _quotient(m: Array, v: Array) -> Array:
    """Return m / (sqrt(v) + 1). At v = 0 its derivative with respect to v is 0 instead of NaN."""
    positive = v > 0
    return m / (jnp.where(positive, jnp.sqrt(jnp.where(positive, v, 1)), 0) + 1)


_FIXED = "eta -> 0 at fixed decays, first step exact"
_SECOND = "eta^2 -> 0 at fixed decays, first ten steps exact"
_ONE = "eta -> 0 at a fixed decay, first step exact"
_TITLE = "Adam flow corrected in eta"
FLOWS = (
    Flow("matched-adam", "matched Adam flow", _FIXED, Adam, _matched_adam, decays=("b1", "b2")),
    Flow("corrected-adam", _TITLE, _SECOND, Adam, _corrected_adam, variant=True),
    Flow("adam", "Adam flow", "eta, 1 - b -> 0", Adam, _plain_adam, variant=True),
    Flow(
        "matched-rmsprop", "matched RMSProp flow", _ONE, RMSProp, _matched_rmsprop, decays=("b2",)
    ),
    Flow("rmsprop", "RMSProp flow", "eta, 1 - b2 -> 0", RMSProp, _plain_rmsprop, variant=True),
)
"""The flows of Adam and of RMSProp, defaults first."""
