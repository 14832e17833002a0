r"""Flows of an optimiser: continuous time for any gradient, plain, with momentum and Adam's.

The parameters are any pytree that the rule descends. G is the gradient of the population loss, t =
1 is one optimiser step. Assumes :math:`\eta \to 0` at fixed decays. "plain" is exact for
:math:`\mu = 0`, "rescaled" has no inertia, "heavy-ball" is right to first order in
:math:`1 - \mu`, and "matched" is read half a step later:

.. math::

    \begin{align*}
    p' &= -\eta\, G \tag{plain} \\
    p' &= -\frac{\eta}{1-\mu}\, G \tag{rescaled} \\
    v' &= G - (1-\mu)\, v, & p' &= -\eta\, v \tag{heavy-ball} \\
    v' &= -\ln(\mu) \left( \frac{G}{1-\mu} - v \right), & p' &= -\eta\, v \tag{matched}
    \end{align*}

"corrected" is the plain or the matched flow to the next order in :math:`\eta`, see below. "adam" is

.. math::

    \begin{align*}
    m' &= \lambda_1 (G - m), \qquad v' = \lambda_2 (G^2 - v), \qquad
        p' = -\eta\, \frac{\hat m}{\sqrt{\hat v} + \epsilon} \\
    \hat m &= \frac{m}{1 - e^{-\lambda_1 t}}, \qquad \hat v = \frac{v}{1 - e^{-\lambda_2 t}}
    \end{align*}

with :math:`\lambda = 1 - b`, and "matched-adam" the same with :math:`\lambda = -\ln b`, the first
step exact, then read half a step later.

A matched flow's averages decay over one unit of time exactly as over one step, and reading it
at t = k + 1/2 makes its integral the midpoint rule of the sum that descent forms. Momentum
starts from rest and hardly moves in the first half step.

Corrected flows [ours], by backward error analysis, H being the Hessian. Descent without momentum
follows :math:`p' = -\eta\, (G + \tfrac12 H \eta\, G)` up to :math:`O(\eta^3)`. With momentum and
:math:`e = \eta/(1-\mu)` the slow motion is

.. math::

    p' = -e\, (G + c\, H e\, G), \qquad c = \frac{1+\mu}{2 (1-\mu)},

which the flow

.. math::

    v' = \frac1c \left( \frac{G}{1-\mu} - v \right), \qquad p' = -\eta\, v

has if it starts from :math:`v = G/(1+\mu)`, so that what the start leaves behind is right as well.
The matched flow has :math:`-1/\ln \mu` for c, 9.491 against 9.5 at :math:`\mu = 0.9`, but moves p
by an eighth of the first real step before that step.

Adam [ours] moves by :math:`\eta` in its very first step, however small G is, and away from zero
weights only this step gives Z a gradient at all; no expansion in :math:`\eta` holds across it. So
it is taken as it is, drawn as a straight line, and the flow takes over at t = 3/2 with what the
averages hold by then: G at the start for one unit of time, G after the first step for half a unit.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeVar, get_args, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from dynsim import checks
from dynsim.training.constant.descent import Descent
from dynsim.training.rule import Rule
from odes.solver.integrate import Derivatives, Solved, StepClock, VectorField, integrate
from odes.solver.tolerances import Tolerances

Flow = Literal[
    "plain",
    "corrected",
    "rescaled",
    "heavy-ball",
    "matched",
    "adam",
    "matched-adam",
]
"""Names of the flows that optimisers follow, see above."""
FLOWS: tuple[Flow, ...] = get_args(Flow)

Params = TypeVar("Params")


@runtime_checkable
class Driver(Protocol):
    """What drives a flow: a rule at constant rates, or one whose rates depend on time."""

    @property
    def kind(self) -> str: ...
    @property
    def momentum(self) -> Any: ...
    @property
    def b1(self) -> Any: ...
    @property
    def b2(self) -> Any: ...
    @property
    def eps(self) -> Any: ...

    @property
    def jumps(self) -> tuple[Any, ...]:
        """Steps at which a rate, or its slope, jumps."""
        ...

    def descend(self, direction: PyTree, t: Any = None, params: PyTree = None) -> PyTree:
        """Minus the direction times the rates at `t`, and decoupled decay of `params` if given."""
        ...


Gradient = Callable[[Any, Params], Params]
Save = Callable[[Any, Params], PyTree]


def checked_flow(optimizer: Descent | Rule, flow: Flow | None) -> Flow:
    """The flow to use for `optimizer`; raises `ValueError` if `flow` does not describe it.

    By default "plain" for `sgd`, "matched" for `momentum` and "matched-adam" for `adam`.
    """
    defaults: dict[str, Flow] = {"sgd": "plain", "momentum": "matched", "adam": "matched-adam"}
    flow = defaults[optimizer.kind] if flow is None else flow
    checks.choice("flow", flow, FLOWS)
    if (optimizer.kind == "adam") != (flow in ("adam", "matched-adam")):
        kind = "adam" if optimizer.kind != "adam" else "sgd or momentum"
        raise ValueError(f"flow = {flow!r}: describes {kind}, not optimizer = {optimizer.kind}")
    if flow == "plain" and optimizer.kind == "momentum":
        raise ValueError("flow = 'plain': drops momentum; for eta / (1 - mu) ask for 'rescaled'")
    if flow not in ("plain", "corrected") and optimizer.kind == "sgd":
        raise ValueError(f"flow = {flow!r}: needs momentum; for sgd ask for 'plain'")
    # These take the logarithm of their decays.
    decays = {"matched": ("momentum",), "matched-adam": ("b1", "b2")}
    for field in decays.get(flow, ()):
        value = getattr(optimizer, field)
        checks.real(field, value, 0, 1, open_minimum=True, open_maximum=True)
    return flow


def integrate_flow(
    gradient: Gradient[Params],
    task: Any,
    optimizer: Driver,
    initial: Params,
    times: Float[Array, " S"],
    *,
    flow: Flow,
    save: Save[Params],
    tolerances: Tolerances,
    derivatives: Derivatives = "reverse",
) -> tuple[Solved, Params]:
    """Integrate the flow of `optimizer` down `gradient(task, params)` from `initial`.

    Args:
        gradient: of the population loss, entry by entry.
        task: whatever `gradient` and `save` need besides the parameters.
        initial: parameters at the start.
        times: (S,) optimiser steps at which `save(task, params)` is kept.
        flow: as `checked_flow` returned it.
        derivatives: see `odes.solve.integrate`.

    Returns:
        What `integrate` returns, and the parameters at the last time.
    """
    zeros = jax.tree.map(jnp.zeros_like, initial)
    field: VectorField
    state: PyTree
    args: PyTree = (task, optimizer)
    clock = StepClock()
    if flow in ("plain", "rescaled"):
        state = (initial,)
        field = functools.partial(_without_inertia, gradient, rescaled=flow == "rescaled")
    elif flow == "corrected" and optimizer.kind == "sgd":
        state = (initial,)
        field = functools.partial(_corrected, gradient)
    elif flow == "corrected":
        mu = optimizer.momentum
        state = initial, jax.tree.map(lambda g: g / (1 + mu), gradient(task, initial))
        field = functools.partial(_with_inertia, gradient, decay="corrected")
    elif flow in ("heavy-ball", "matched"):
        state = initial, zeros
        field = functools.partial(_with_inertia, gradient, decay=flow)
        clock = StepClock(shift=0.5 if flow == "matched" else 0.0)
    elif flow == "adam":
        state = initial, zeros, zeros
        field = functools.partial(_adam, gradient)
    else:
        first, averages = _first_step(gradient, task, optimizer, initial)
        state, args = (initial, *averages), (task, optimizer, first)
        field = functools.partial(_adam_after_first_step, gradient)
    jumps = [step + clock.shift for step in optimizer.jumps]
    jumps += [1.0] if flow == "matched-adam" else []
    solved = integrate(
        field,
        state,
        times,
        args,
        save=lambda t, state, args: save(args[0], state[0]),
        clock=clock,
        tolerances=tolerances,
        derivatives=derivatives,
        jumps=tuple(jumps),
    )
    return solved, solved.final[0]


def _without_inertia(
    gradient: Gradient, t: Float[Array, ""], state: PyTree, args: PyTree, *, rescaled: bool
) -> PyTree:
    (params,), (task, optimizer) = state, args
    rate = 1 / (1 - optimizer.momentum) if rescaled else 1.0
    pull = jax.tree.map(lambda g: rate * g, gradient(task, params))
    return (optimizer.descend(pull, t, params),)


def _corrected(gradient: Gradient, t: Float[Array, ""], state: PyTree, args: PyTree) -> PyTree:
    (params,), (task, optimizer) = state, args
    first = optimizer.descend(gradient(task, params), t, params)
    change = jax.jvp(functools.partial(gradient, task), (params,), (first,))[1]
    # descend(H first) = eta H eta G.
    return (jax.tree.map(lambda a, b: a - b / 2, first, optimizer.descend(change, t)),)


def _with_inertia(
    gradient: Gradient, t: Float[Array, ""], state: PyTree, args: PyTree, *, decay: Flow
) -> PyTree:
    (params, velocity), (task, optimizer) = state, args
    mu = optimizer.momentum
    rate = {
        "matched": -jnp.log(mu),
        "corrected": 2 * (1 - mu) / (1 + mu),
        "heavy-ball": 1 - mu,
    }[decay]
    target = jax.tree.map(lambda g: g / (1 - mu), gradient(task, params))
    acceleration = jax.tree.map(lambda g, v: rate * (g - v), target, velocity)
    # The matched flow is read half a step later, and so is its rate.
    at = t - 0.5 if decay == "matched" else t
    return optimizer.descend(velocity, at, params), acceleration


# Adam's averages are kept as m / eps and v / eps^2. In these units an absolute tolerance means
# the same whatever the size of the gradients, which are of order 1/K and fall without end: an
# error of `atol` eps in m, or of `atol` eps^2 in v, is lost beside the eps of the denominator.


def _adam(
    gradient: Gradient,
    t: Float[Array, ""],
    state: PyTree,
    args: PyTree,
    *,
    matched: bool = False,
) -> PyTree:
    (params, m, v), (task, optimizer) = state, args
    rate = _decay_rates(optimizer, matched)
    # Read half a step later: the state after t steps is that of the flow at t + 1/2.
    elapsed = t + 0.5 if matched else t
    # Unnormalised averages, divided by their total weight, because the equation for the
    # normalised ones has a pole at 0. Here 0/0 remains at 0 alone, and its limit is known.
    started = elapsed > 0
    weight = [jnp.where(started, -jnp.expm1(-r * elapsed), 1.0) for r in rate]
    g = jax.tree.map(lambda x: x / optimizer.eps, gradient(task, params))
    m_hat = jax.tree.map(lambda m, g: jnp.where(started, m / weight[0], g), m, g)
    v_hat = jax.tree.map(lambda v, g: jnp.where(started, v / weight[1], g**2), v, g)
    return (
        optimizer.descend(jax.tree.map(_quotient, m_hat, v_hat), t, params),
        jax.tree.map(lambda m, g: rate[0] * (g - m), m, g),
        jax.tree.map(lambda v, g: rate[1] * (g**2 - v), v, g),
    )


def _adam_after_first_step(
    gradient: Gradient, t: Float[Array, ""], state: PyTree, args: PyTree
) -> PyTree:
    *args, first = args
    flow = _adam(gradient, t, state, tuple(args), matched=True)
    still = jax.tree.map(jnp.zeros_like, state[1:])
    return jax.tree.map(lambda a, b: jnp.where(t < 1, a, b), (first, *still), flow)


def _first_step(
    gradient: Gradient[Params], task: Any, optimizer: Driver, initial: Params
) -> tuple[Params, tuple[Params, Params]]:
    """Adam's first step, and its averages m / eps and v / eps^2 half a step after it."""
    scaled = lambda p: jax.tree.map(lambda g: g / optimizer.eps, gradient(task, p))  # noqa: E731
    before = scaled(initial)
    direction = jax.tree.map(lambda g: g / (jnp.abs(g) + 1), before)
    first = optimizer.descend(direction, jnp.asarray(0.5), initial)
    after = scaled(jax.tree.map(jnp.add, initial, first))

    def average(rate: Float[Array, ""], x: Array, y: Array) -> Array:
        half = -jnp.expm1(-rate / 2)
        return -jnp.expm1(-rate) * (1 - half) * x + half * y

    rate_m, rate_v = _decay_rates(optimizer, matched=True)
    m = jax.tree.map(lambda x, y: average(rate_m, x, y), before, after)
    v = jax.tree.map(lambda x, y: average(rate_v, x**2, y**2), before, after)
    return first, (m, v)


def _decay_rates(optimizer: Driver, matched: bool) -> tuple[Array, Array]:
    b1, b2 = jnp.asarray(optimizer.b1), jnp.asarray(optimizer.b2)
    return (-jnp.log(b1), -jnp.log(b2)) if matched else (1 - b1, 1 - b2)


def _quotient(m: Array, v: Array) -> Array:
    """m / (sqrt(v) + 1), with derivative zero by v where v = 0 instead of NaN."""
    positive = v > 0
    return m / (jnp.where(positive, jnp.sqrt(jnp.where(positive, v, 1)), 0) + 1)
