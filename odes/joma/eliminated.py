"""JoMA's Theorem 1 put to use: attention as a function of the MLP (arXiv:2310.00535).

With rates eta_Y of V and eta_Z of z, c = eta_Z/eta_Y constant, and one query, along the flow

    linear   z^2 = z_0^2 + c sum_k (v_k^2 - v_k0^2)                                      exact
    exp      z = z_0 + (c/(2T)) sum_k (v_k^2 - v_k0^2)                                   exact
    softmax  z = z_0 + (c/(2T)) sum_k (v_k^2 - v_k0^2 - (|v_k|^2 - |v_k0|^2) b_0)        approximate

elementwise, b_0 the mean attention at the start. We derived the softmax line ourselves; it has
1/2 in front of both terms, not of the first one only, and so has the code.

The first line gives z^2, so z is a function of V only where its sign is known [ours]. For each
token (z, sqrt(c) v) stays on z^2 - c |v|^2 = I. For I > 0 this hyperboloid has two sheets: z never
leaves its own, and is eliminated. For I < 0 it has one sheet, on which z may cross zero, where v
turns around but z' = sum_k v_k E[g_k h_k' x] is not zero. Both signs of z then belong to the same
V, so z is integrated along with V by its own equation, that of `odes.joma.flow`. So it is for I = 0
too, because the root is not smooth at the tip of the cone. For linear attention "joma" is thus
exact from every start; but it eliminates only the tokens with z_0^2 > c sum_k v_k0^2, and for the
others Theorem 1 is merely a conserved quantity.

For exp attention, linear activation and a fixed signal from zero weights, V_l = a_l Delta_l with
Delta_kl = E[g_k x_l] and

    sqrt(c)/T |V_l| = sqrt 2 erfinv(sqrt(2/pi) (sqrt(c)/T) eta_Y |Delta_l| t)            Theorem 2

for every token l, in finite time [ours: erf(v/sqrt 2), not erf(v/2); K nodes]. Under a schedule
eta_Y t is the integral of the rate (`odes.solver.rescaled`).
"""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Real

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.joma import model
from dynsim.joma.model import Hidden, Joint, Shape
from dynsim.joma.observables import DEFAULT_RECORD, TABLE, measure
from dynsim.precision import DType, Number
from dynsim.training.recording import Record, Recording
from dynsim.training.rule import Rule
from dynsim.trajectory import Times, Trajectory
from dynsim.yz.model import population
from odes.joma.given import check_given, started
from odes.solver.integrate import integrate, judge, run
from odes.solver.rescaled import Rescaled, undescribed
from odes.solver.tolerances import Tolerances, checked_tolerances

State = tuple[Hidden, Array | None]
"""V and r; and for linear attention z, which moves where Theorem 1 leaves its sign open."""


def inapplicable(
    task: SequenceClasses, optimizer: Rule, *, shape: Shape | None = None, erf: bool = False
) -> str | None:
    """Why attention cannot be eliminated, or Theorem 2 (`erf`) does not hold, or None."""
    problem = undescribed(optimizer, "the conservation law of Theorem 1", ("sgd",))
    if problem:
        return problem
    if task.num_queries > 1:
        return f"queries = {task.num_queries}: Theorem 1 gives only the sum over queries"
    if erf and shape is not None and shape != Shape("exp", "linear", "signal"):
        return f"{shape}: Theorem 2 has exp attention, linear activation and a fixed signal"
    return None


def solve_eliminated(
    task: SequenceClasses,
    optimizer: Rule,
    times: Times,
    *,
    init: Joint,
    shape: Shape = Shape(),  # noqa: B008  (immutable)
    temperature: Real[Number, ""] = 1.0,
    record: Record = DEFAULT_RECORD,
    dtype: DType = "float64",
    tolerances: Tolerances | None = None,
) -> Trajectory:
    r"""Integrate V and r with the attention of Theorem 1; as `odes.joma.flow.solve`, for sgd.

    Where Theorem 1 leaves the sign of a token's z open, which happens for linear attention with
    :math:`z_0^2 \le c \sum_k v_{k0}^2`, that z is integrated as well.
    """
    checks.kind("init", init, Joint)
    optimizer = check_given(task, optimizer, init, shape, temperature)
    return run(
        _eliminated,
        task,
        optimizer,
        times,
        dtype,
        inapplicable=functools.partial(inapplicable, shape=shape),
        init=(init, temperature),
        start=lambda *_: started(init, temperature, dtype),
        shape=shape.check(),
        record=TABLE.resolve(record),
        tolerances=checked_tolerances(tolerances, dtype),
    )


def logits(
    hidden: Hidden,
    start: Joint,
    mean: Float[Array, " M"],
    ratio: Float[Array, ""],
    shape: Shape,
    temperature: Float[Array, ""],
) -> Float[Array, "1 M"]:
    """z of Theorem 1, (1, M), of exp and softmax attention."""
    grown = jnp.asarray(hidden.V) ** 2 - jnp.asarray(start.Y.V) ** 2
    if shape.attention == "softmax":
        grown = grown - jnp.sum(grown, axis=1, keepdims=True) * mean[None]
    return jnp.asarray(start.Z) + ratio / (2 * temperature) * jnp.sum(grown, axis=0)[None]


@functools.partial(jax.jit, static_argnames=("shape", "record", "tolerances"))
def _eliminated(
    task: SequenceClasses,
    optimizer: Rule,
    times: Float[Array, " S"],
    init: Joint,
    temperature: Float[Array, ""],
    *,
    shape: Shape,
    record: Recording,
    tolerances: Tolerances,
) -> Trajectory:
    examples, clock = population(task), Rescaled.of(optimizer)
    ratio = jnp.asarray(clock.eta_z) / jnp.asarray(clock.eta_y)
    attention = model.attended(init.Z, task, examples, shape.attention, temperature)
    mean = jnp.asarray(task.prior) @ attention
    norm = lambda hidden: ratio * jnp.sum(jnp.asarray(hidden.V) ** 2, axis=0)[None]  # noqa: E731
    invariant = jnp.asarray(init.Z) ** 2 - norm(init.Y)
    keeps_sign = invariant > 0

    def whole(state: State) -> Joint:
        hidden, carried = state
        if carried is None:
            return Joint(hidden, logits(hidden, init, mean, ratio, shape, temperature))
        # The root of a positive number for every token, so that all derivatives are finite.
        root = jnp.sqrt(jnp.where(keeps_sign, invariant + norm(hidden), 1))
        return Joint(hidden, jnp.where(keeps_sign, jnp.sign(carried) * root, carried))

    def field(t: Float[Array, ""], state: State, args: None) -> State:
        of = lambda params: model.loss(params, task, examples, shape, temperature)  # noqa: E731
        slope = jax.grad(of)(whole(state))
        hidden = jax.tree.map(lambda slope: -clock.eta_y * slope, slope.Y)
        if state[1] is None:
            return hidden, None
        # Where Theorem 1 has z, the carried one stays at the start, for its sign.
        return hidden, jnp.where(keeps_sign, 0, -jnp.asarray(clock.eta_z) * slope.Z)

    solved = integrate(
        field,
        (init.Y, jnp.asarray(init.Z) if shape.attention == "linear" else None),
        times,
        None,
        save=lambda t, state, _: record(measure(task, whole(state), shape, temperature)),
        clock=clock,
        tolerances=tolerances,
    )
    return solved.trajectory("joma", whole(solved.final))


def discriminancy(task: SequenceClasses) -> Float[Array, "K M"]:
    r"""(K, M) :math:`\Delta_{kl} = \mathbb E[g_k x_l]` of the fixed signal."""
    joint = jnp.asarray(jnp.asarray(task.prior)[:, None] * jnp.asarray(task.probs))
    centred: Array = joint - jnp.mean(joint, axis=0, keepdims=True)
    return centred


def blow_up(
    task: SequenceClasses, optimizer: Rule, temperature: Real[Number, ""] = 1.0
) -> Float[Array, ""]:
    r""":math:`t^*` at which the token with the largest :math:`\lVert \Delta_l \rVert` takes it
    all, in optimiser steps at the peak rate."""
    return math.sqrt(math.pi / 2) / jnp.max(_speed(task, Rescaled.of(optimizer), temperature))


def _speed(
    task: SequenceClasses, clock: Rescaled, temperature: Real[Number, ""]
) -> Float[Array, " M"]:
    size = jnp.sqrt(jnp.sum(discriminancy(task) ** 2, axis=0))
    return size * jnp.sqrt(jnp.asarray(clock.eta_y * clock.eta_z)) / temperature


def solve_erf(
    task: SequenceClasses,
    optimizer: Rule,
    times: Times,
    *,
    init: Joint,
    shape: Shape = Shape("exp", "linear", "signal"),  # noqa: B008  (immutable)
    temperature: Real[Number, ""] = 1.0,
    record: Record = DEFAULT_RECORD,
    dtype: DType = "float64",
) -> Trajectory:
    """Theorem 2, from zero weights whatever `init`; the run is `Status.DIVERGED` from :math:`t^*`
    on. Otherwise as `odes.joma.flow.solve`."""
    optimizer = check_given(task, optimizer, None, shape, temperature)
    del init
    return run(
        _erf,
        task,
        optimizer,
        times,
        dtype,
        inapplicable=functools.partial(inapplicable, shape=shape, erf=True),
        init=temperature,
        start=lambda *_: (jnp.asarray(temperature, dtype),),
        shape=shape.check(),
        record=TABLE.resolve(record),
    )


@functools.partial(jax.jit, static_argnames=("shape", "record"))
def _erf(
    task: SequenceClasses,
    optimizer: Rule,
    times: Float[Array, " S"],
    temperature: Float[Array, ""],
    *,
    shape: Shape,
    record: Recording,
) -> Trajectory:
    clock = Rescaled.of(optimizer)
    delta, speed = discriminancy(task), _speed(task, clock, temperature)
    ratio = jnp.asarray(clock.eta_z) / jnp.asarray(clock.eta_y)
    size = jnp.sqrt(jnp.sum(delta**2, axis=0))
    direction = delta / jnp.where(size > 0, size, 1)[None]
    u = clock.flow_time(times)
    share = math.sqrt(2 / math.pi) * speed[None] * u[:, None]

    # The residual does not enter what arrives at V.
    pull = jnp.asarray(clock.eta_y) * (jnp.asarray(task.prior) - 1 / task.K)

    def at(u: Float[Array, ""], share: Float[Array, " M"]) -> dict[str, Array]:
        y = math.sqrt(2) * jax.scipy.special.erfinv(jnp.minimum(share, 1))
        V = direction * (y * temperature / jnp.sqrt(ratio))[None]
        Z = (temperature * y**2 / 2)[None]
        r = (u * pull)[:, None]
        return record(measure(task, Joint(Hidden(V, r), Z), shape, temperature))

    return Trajectory(
        times, jax.vmap(at)(u, share), None, *judge(times, jnp.all(share < 1, axis=1)), "erf"
    )
