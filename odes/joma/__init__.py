"""Theory of the joint dynamics of an MLP layer and attention (arXiv:2310.00535).

The flows are those of `odes.flow` on the population loss (Eqn. 2),

    w_k' = E[g_k h_k' f],   z_m' = E[(db/dz_m)^T U_C^T sum_k g_k h_k' w_k]

Theorem 1 makes attention a function of the MLP. With rates eta_Y of V and eta_Z of z, c =
eta_Z/eta_Y constant, and one query, along the flow, elementwise, with b_0 the mean attention at the
start,

    linear   z^2 = z_0^2 + c sum_k (v_k^2 - v_k0^2)                                      exact
    exp      z = z_0 + (c/(2T)) sum_k (v_k^2 - v_k0^2)                                   exact
    softmax  z = z_0 + (c/(2T)) sum_k (v_k^2 - v_k0^2 - (|v_k|^2 - |v_k0|^2) b_0)        approximate

We derived the softmax line ourselves; it has 1/2 in front of both terms. The first line does not
determine the sign of z if z_0^2 <= c sum_k v_k0^2 [ours], because z may cross zero. In this case z
is integrated with V by the equation of the flow. See `docs/systems/joma.md`.

For exp attention, linear activation and a fixed signal from zero weights, with Delta_kl = E[g_k
x_l],

    sqrt(c)/T |V_l| = sqrt 2 erfinv(sqrt(2/pi) (sqrt(c)/T) eta_Y |Delta_l| t)            Theorem 2

for every token l, in finite time [ours: erf(v/sqrt 2), not erf(v/2); K nodes]. Under a schedule
eta_Y t is the integral of the rate (`odes.solver.posed`).

Example:
    >>> [theory.name for theory in odes.joma.THEORIES][-2:]
    ['joma', 'erf']
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Real

from dynsim import Rule, Trajectory
from dynsim.classes.task import SequenceClasses
from dynsim.joma import Hidden, Joint, JoMA
from dynsim.precision import Number
from dynsim.problem.observables import measured
from dynsim.training.recording import Recording
from dynsim.yz.model import population
from odes.general import at, computed, flows
from odes.joma import mixture, toy
from odes.solver.integrate import integrate, judge
from odes.solver.posed import Rescaled, why_not_described
from odes.solver.tolerances import Tolerances
from odes.theory import Training

__all__ = ["THEORIES", "blow_up", "discriminancy", "mixture", "toy"]

State = tuple[Hidden, Array | None]
"""V and r; and for linear attention z, integrated where Theorem 1 does not determine its sign."""
THEOREM_2 = {"attention": "exp", "activation": "linear", "head": "signal"}
"""Settings for which Theorem 2 holds."""


def inapplicable(training: Training) -> str | None:
    """Return why attention cannot be eliminated, or None."""
    queries, rule = training.problem.classes.num_queries, training.rule
    alone = f"queries = {queries}: Theorem 1 gives only the sum over queries"
    reason = why_not_described(rule, "the conservation law of Theorem 1", momentum="none")
    return reason or (alone if queries > 1 else None)


def inapplicable_erf(training: Training) -> str | None:
    """Return why Theorem 2 does not hold, or None."""
    if reason := inapplicable(training):
        return reason
    for name, needed in THEOREM_2.items():
        if (value := getattr(training.problem, name)) != needed:
            return (
                f"{name} = {value!r}: Theorem 2 needs exp attention, linear activation and a fixed "
                "signal"
            )
    return None


def logits(
    problem: JoMA, hidden: Hidden, start: Joint, mean: Float[Array, " M"], ratio: Float[Array, ""]
) -> Float[Array, "1 M"]:
    """Return z (1, M) of Theorem 1 for exp and softmax attention."""
    # z = z_0 + c / (2 T) sum_k (v_k^2 - v_k0^2), for softmax minus (|v_k|^2 - |v_k0|^2) b_0.
    grown = jnp.asarray(hidden.V) ** 2 - jnp.asarray(start.Y.V) ** 2
    if problem.attention == "softmax":
        grown = grown - jnp.sum(grown, axis=1, keepdims=True) * mean[None]
    half = ratio / (2 * problem.temperature)
    return jnp.asarray(start.Z) + half * jnp.sum(grown, axis=0)[None]


def _eliminated(
    training: Training,
    init: Joint,
    times: Float[Array, " S"],
    *,
    record: Recording,
    tolerances: Tolerances,
) -> Trajectory:
    problem: JoMA = training.problem
    examples, rescaled = population(problem.classes), Rescaled.of(training.rule)
    ratio = jnp.asarray(rescaled.eta_z) / jnp.asarray(rescaled.eta_y)
    mean = jnp.asarray(problem.classes.prior) @ problem.attended(init.Z, examples)
    # z^2 - c sum_k v_k^2 is conserved for linear attention. Where it is positive z keeps its sign;
    # elsewhere z may cross zero, and is integrated with V and r.
    norm = lambda hidden: ratio * jnp.sum(jnp.asarray(hidden.V) ** 2, axis=0)[None]  # noqa: E731
    invariant = jnp.asarray(init.Z) ** 2 - norm(init.Y)
    keeps_sign = invariant > 0

    def whole(state: State) -> Joint:
        hidden, carried = state
        if carried is None:
            return Joint(hidden, logits(problem, hidden, init, mean, ratio))
        # Only roots of positive numbers, so that all derivatives are finite.
        root = jnp.sqrt(jnp.where(keeps_sign, invariant + norm(hidden), 1))
        return Joint(hidden, jnp.where(keeps_sign, jnp.sign(carried) * root, carried))

    # In the time of V, whose schedule is that of z, as Theorem 1 requires.
    def field(t: Float[Array, ""], state: State, args: None) -> State:
        slope = jax.grad(problem.population_loss)(whole(state))
        hidden = jax.tree.map(lambda slope: -rescaled.eta_y * slope, slope.Y)
        if state[1] is None:
            return hidden, None
        # Where Theorem 1 gives z, the integrated one stays at the start and supplies the sign.
        return hidden, jnp.where(keeps_sign, 0, -jnp.asarray(rescaled.eta_z) * slope.Z)

    solved = integrate(
        field,
        (init.Y, jnp.asarray(init.Z) if problem.attention == "linear" else None),
        times,
        None,
        save=lambda t, state, _: measured(problem, record, whole(state)),
        timescale=rescaled,
        tolerances=tolerances,
    )
    return solved.trajectory("joma", whole(solved.final))


def discriminancy(classes: SequenceClasses) -> Float[Array, "K M"]:
    r"""Return the (K, M) :math:`\Delta_{kl} = \mathbb E[g_k x_l]` of the fixed signal."""
    joint = jnp.asarray(jnp.asarray(classes.prior)[:, None] * jnp.asarray(classes.probs))
    centred: Array = joint - jnp.mean(joint, axis=0, keepdims=True)
    return centred


def blow_up(problem: JoMA, rule: Rule) -> Float[Array, ""]:
    r"""Return the time :math:`t^*` at which the token with the largest
    :math:`\lVert \Delta_l \rVert` has all attention, in optimiser steps at the peak rate."""
    return math.sqrt(math.pi / 2) / jnp.max(_speed(problem, Rescaled.of(rule)))


def _speed(problem: JoMA, rescaled: Rescaled) -> Float[Array, " M"]:
    size = jnp.sqrt(jnp.sum(discriminancy(problem.classes) ** 2, axis=0))
    rates: Real[Number, ""] = rescaled.eta_y * rescaled.eta_z
    return size * jnp.sqrt(jnp.asarray(rates)) / problem.temperature


def _erf(
    training: Training, start: None, times: Float[Array, " S"], *, record: Recording
) -> Trajectory:
    """Evaluate Theorem 2 from zero weights; the run is `Status.DIVERGED` from :math:`t^*` on."""
    del start
    problem: JoMA = training.problem
    classes, rescaled = problem.classes, Rescaled.of(training.rule)
    # sqrt(c)/T |V_l| = sqrt(2) erfinv(share), share = sqrt(2/pi) (sqrt(c)/T) eta_Y |Delta_l| t.
    delta, speed = discriminancy(classes), _speed(problem, rescaled)
    ratio = jnp.asarray(rescaled.eta_z) / jnp.asarray(rescaled.eta_y)
    size = jnp.sqrt(jnp.sum(delta**2, axis=0))
    # V_l keeps the direction of Delta_l.
    direction = delta / jnp.where(size > 0, size, 1)[None]
    u = rescaled.flow_time(times)
    share = math.sqrt(2 / math.pi) * speed[None] * u[:, None]

    # The residual does not affect the gradient that reaches V.
    pull = jnp.asarray(rescaled.eta_y) * (jnp.asarray(classes.prior) - 1 / classes.K)

    def at(u: Float[Array, ""], share: Float[Array, " M"]) -> dict[str, Array]:
        y = math.sqrt(2) * jax.scipy.special.erfinv(jnp.minimum(share, 1))
        V = direction * (y * problem.temperature / jnp.sqrt(ratio))[None]
        Z = (problem.temperature * y**2 / 2)[None]
        r = (u * pull)[:, None]
        return measured(problem, record, Joint(Hidden(V, r), Z))

    return Trajectory(
        times, jax.vmap(at)(u, share), None, *judge(times, jnp.all(share < 1, axis=1)), "erf"
    )


_LIMITS = "length, batch -> infinity, eta -> 0"
ELIMINATED = computed(
    "joma",
    "attention by Theorem 1",
    f"{_LIMITS}, one query; for softmax: b nearly constant",
    _eliminated,
    inapplicable,
)
ERF = computed(
    "erf",
    "Theorem 2 in closed form",
    f"{_LIMITS}, zero start, exp attention, linear activation, fixed signal, one query",
    _erf,
    inapplicable_erf,
    needs=(),
    adaptive=False,
)
_FLOWS = (at(flow, "length -> infinity", length=math.inf) for flow in flows())
THEORIES = (*_FLOWS, ELIMINATED, ERF)
"""The theories, most exact first: the flows of all weights, then `joma` and `erf`."""
