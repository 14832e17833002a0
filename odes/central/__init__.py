r"""Central flows: the time average of descent at the edge of stability.

The central flow of Cohen, Damian, Talwalkar, Kolter and Lee 2024 (arXiv:2410.24206) follows the
weights averaged over the oscillations, whose covariance Sigma it predicts:

.. math::

    p' = -P^{-1} \left( G + \tfrac12 \nabla \langle H, \Sigma \rangle \right), \qquad
    0 \preceq \Sigma, \qquad H \preceq 2P, \qquad \langle \Sigma, 2P - H \rangle = 0 ,

with :math:`P = 1/\eta` for gradient descent. RMSProp has :math:`P = (\sqrt v + \epsilon)/\eta`, and

.. math::

    v' = (1 - b_2) \left( G^2 + \mathrm{diag}(H \Sigma H) - v \right) .

Off the edge Sigma is zero, and this is the "corrected" flow of gradient descent, to second order in
:math:`\eta`, or the "rmsprop" flow of RMSProp, see `odes.solver.flows`. The correction is not in
the paper; it includes the push of Sigma. The paper has the factor :math:`(1 - b_2)/b_2`. A few
fourth-order Runge-Kutta steps are followed by one back to the edge, see `odes.central.edge`.
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from dynsim import Problem, Trajectory, checks
from dynsim.precision import DType
from dynsim.problem.build import built
from dynsim.problem.checks import check_groups
from dynsim.problem.observables import flow_table, measured, usual
from dynsim.problem.sharpness import EDGE
from dynsim.problem.train import problem_in, started
from dynsim.training.recording import Record, Recording
from dynsim.training.rule import Rule
from dynsim.training.rules import SGD, RMSProp, why_not_known
from dynsim.trajectory import Static, Status, Times
from odes.central.edge import STEPS, Edge, Moved
from odes.problem import gradient_of
from odes.run import dtype_of, run
from odes.solver.flows import decayed, pose_flow
from odes.solver.integrate import judge
from odes.solver.posed import GroupedRule
from odes.theory import AnyTheory, Theory, Training, error_message

MAX_FOLLOWED = 4
"""Largest number of eigenvalues that can be followed at the edge."""
LAST_RATES = 0.5 / STEPS
"""Time before the end of a step at which its last rates are evaluated."""
EDGE_WIDTH = 0.01
"""Distance from the edge within which an eigenvalue counts as being at it."""
OWN_OBSERVABLES = ("averaged_loss", "preconditioned_sharpness", "oscillation", "at_edge")
"""Observables of a central flow besides those of its weights."""


def central_flow(
    problem: Problem,
    rule: Rule,
    times: Times,
    *,
    key: PRNGKeyArray | None = None,
    init: PyTree = None,
    record: Record | None = None,
    dtype: DType = "float64",
    follow: int = MAX_FOLLOWED,
) -> Trajectory:
    """Integrate the central flow of gradient descent or RMSProp down `problem.population_loss`.

    Use it where descent is at the edge of stability, with weights that oscillate. Compare its
    "averaged_loss" with the running mean of the loss in training, and its weights with the running
    mean of the weights. Sudden bursts of the oscillation, as in small networks, average out only
    over long times.

    Args:
        problem: a problem whose `population_loss` can be differentiated three times.
        rule: `dynsim.sgd` without momentum or `dynsim.rmsprop`, with any schedules, rates by group
            and weight decay, which for RMSProp must be coupled; without clipping and noise.
        times: (S,) optimiser steps at which to record, increasing, >= 0; need not be whole.
        key: random key of the starting weights, as in `dynsim.train`.
        init: starting weights, instead of random ones.
        record: as in `odes.flow`, and the flow's own: "averaged_loss", the loss averaged over the
            oscillations, L + <H, Sigma>/2; "preconditioned_sharpness", the largest eigenvalue of
            P^-1 H, for which the edge is 2 for every rule; "oscillation", the predicted variance of
            all weights together, the trace of Sigma; "at_edge", the number of followed eigenvalues
            within 0.01 of the edge. "loss" and all observables of the problem are measured at the
            averaged weights. By default the `RECORD` of the problem and the flow's own.
        dtype: "float64" or "float32".
        follow: number of eigenvalues that can be held at the edge, from 1 to 4. At the edge, the
            time of a step grows with the square of this number.

    Returns:
        A `Trajectory` whose `source` is "central". It has `Status.BEYOND_EDGE` from the step at
        which more eigenvalues than it follows are beyond the edge, or one is beyond it by more than
        0.1, for example after a start beyond the edge or a jump of the rate. Descent then diverges
        or catapults, which no central flow describes. No derivatives can be taken through it.

    Raises:
        ValueError: with the reason, for a rule that it does not describe; and naming the argument,
            its value and what is allowed.

    Example:
        >>> problem, key = DeepLinear(u0=0.1), jax.random.key(0)
        >>> theory = odes.central_flow(problem, dynsim.sgd(0.4), [0, 20], key=key)
        >>> theory["averaged_loss"], theory["preconditioned_sharpness"]
    """
    problem, rule = built(problem, rule, dtype)
    if not problem.has("population_loss"):
        raise ValueError(f"{type(problem).__name__} needs population_loss for a flow")
    problem.check_population()
    if reason := why_no_central_flow(rule):
        raise ValueError(reason)
    checks.integer("follow", follow, 1, MAX_FOLLOWED)
    table = flow_table(problem)
    table = dataclasses.replace(table, provided=(*table.provided, *OWN_OBSERVABLES))
    if record is None:
        record = [*usual(problem, table.functions), *OWN_OBSERVABLES]
    options = {"record": table.resolve(record), "follow": follow}
    return run(_solve, problem, rule, times, key, init, dtype, **options)


def why_no_central_flow(rule: Rule) -> str | None:
    """Return why there is no central flow of a rule, or None."""
    if reason := why_not_known(rule):
        return reason
    if rule.has_inertia or not isinstance(rule, SGD | RMSProp):
        return f"rule = {rule.name}: central flows are derived for gradient descent and RMSProp"
    for name in ("clip", "noise"):
        if getattr(rule, name) is not None:
            return f"{name} = {getattr(rule, name)!r}: no central flow is known with it"
    if isinstance(rule, RMSProp) and rule.decoupled and rule.decay is not None:
        return "decoupled = True: the central flow of RMSProp is derived for coupled decay"
    return None


def _inapplicable(training: Training) -> str | None:
    return why_no_central_flow(training.rule) or error_message(training.problem.check_population)


THEORY: AnyTheory = Theory(
    "central",
    "central flow",
    "batch -> infinity, oscillations near equilibrium at the edge of stability",
    central_flow,
    _inapplicable,
    variant=True,
    needs=("key",),
    predicts=lambda problem: (*flow_table(problem).functions, *OWN_OBSERVABLES),
    adaptive=False,
)
"""The theory of every problem with a population loss."""


# `while_loop` has no reverse-mode derivative, and raises one of JAX's own errors. This identity
# raises an error of ours, in both modes.
@eqx.filter_custom_jvp
def _without_derivatives(tree: PyTree) -> PyTree:
    return tree


@_without_derivatives.def_jvp
def _raise(primals: PyTree, tangents: PyTree) -> PyTree:
    raise ValueError(
        "central_flow: has no derivatives; use odes.flow below the edge of stability, or "
        "differentiate dynsim.train"
    )


Carry = tuple[Float[Array, ""], Moved, Moved, Float[Array, ""], Float[Array, " m"]]


def _solve(
    problem: Problem,
    rule: Rule,
    key: PRNGKeyArray | None,
    init: PyTree,
    times: Float[Array, " S"],
    *,
    record: Recording,
    follow: int,
) -> Trajectory:
    dtype = dtype_of(times)
    parts, problem = started(problem, key, init, dtype), problem_in(problem, dtype)
    arrays, others = eqx.partition((problem, parts, rule, times), eqx.is_inexact_array)
    problem, parts, rule, times = eqx.combine(_without_derivatives(arrays), others)
    numbers, rest = eqx.partition(problem, eqx.is_array)
    gradient = gradient_of(parts, rest)
    # Without a denominator, coupled and decoupled decay are the same.
    rule = dataclasses.replace(rule, decoupled=False)
    driven = GroupedRule(rule, check_groups(problem, rule, parts))
    flow = "plain" if isinstance(rule, SGD) else "rmsprop"
    posed = pose_flow(gradient, numbers, driven, parts.params, flow)
    size = sum(leaf.size for leaf in jax.tree.leaves(parts.params))
    edge = Edge(posed, decayed(gradient, driven), driven, min(follow, size))
    # Eigenvalues are a result of a step, before they are constrained. One more turn, of no time,
    # measures them at the recorded time.
    spectral = {"preconditioned_sharpness", "at_edge"} & {*record.provided}

    # The flow takes whole optimiser steps, in each of which the constraint
    #     0 <= Sigma,  H <= 2 P,  <Sigma, 2 P - H> = 0
    # is solved once (`Edge.advanced`). The carry has the number of turns, the flow after whole
    # steps, the flow at the recorded time, the time at which it lost the edge, and the eigenvalues.
    def record_at(carry: Carry, time: Array) -> tuple[Carry, tuple[dict[str, Array], Array]]:
        until = jnp.floor(time)
        last = until + (time > until)

        # Turns before `until` are whole steps. One part of a step follows if the time is not whole.
        # Turns from `last` on measure. The body is the same for all three, so it is compiled once.
        def advance(carry: Carry) -> Carry:
            count, moved, at_time, lost, _ = carry
            whole, past = count < until, count >= last
            dt = jnp.where(whole, 1, time - until) * ~past
            before = jax.tree.map(lambda new, old: jnp.where(past, new, old), at_time, moved)
            t = jnp.where(past, time - LAST_RATES, count)
            new, values = edge.advanced(before, t, dt, lost < inf)
            # A recording between steps leaves no trace in later steps.
            moved = jax.tree.map(lambda new, old: jnp.where(whole, new, old), new, moved)
            at_time = jax.tree.map(lambda new, old: jnp.where(past, old, new), new, at_time)
            end = jnp.where(new.failed & ~past, count + dt, inf)
            return count + 1, moved, at_time, jnp.minimum(lost, end), values

        turns = last + bool(spectral)
        _, moved, at_time, lost, values = jax.lax.while_loop(
            lambda carry: carry[0] < turns, advance, carry
        )
        row = measured(problem, record, parts.combine(at_time.state[0]))
        # Sigma = q root root^T q.
        weights, q = edge.scaled(at_time.state, time - LAST_RATES)
        root = q[:, None] * at_time.root
        if "averaged_loss" in record.provided:
            # L + <H, Sigma> / 2, with the Hessian of the loss without decay.
            bare = edge._replace(gradient=gradient)
            push = jax.linearize(bare.slope, weights)[1]
            more = jnp.sum(root * jax.vmap(push, 1, 1)(root)) / 2
            loss = problem.population_loss(parts.combine(at_time.state[0]))
            row["averaged_loss"] = loss + more
        if "oscillation" in record.provided:
            row["oscillation"] = jnp.sum(jnp.square(root))
        near = jnp.sum(values[: edge.followed] > EDGE - EDGE_WIDTH)
        of_edge = {"preconditioned_sharpness": values[0], "at_edge": near.astype(times.dtype)}
        row |= {name: of_edge[name] for name in spectral}
        sums = jnp.stack([jnp.sum(leaf) for leaf in jax.tree.leaves(at_time.state)])
        return (until, moved, at_time, lost, values), (row, jnp.isfinite(jnp.sum(sums)))

    start, zero = edge.start(), jnp.zeros((), times.dtype)
    inf = zero + jnp.inf
    carry = zero, start, start, inf, jnp.zeros(edge.searched, times.dtype)
    (_, _, at_end, lost, _), (rows, valid) = jax.lax.scan(record_at, carry, times)
    # BEYOND_EDGE where the edge was lost before the weights stopped being finite.
    status, first_bad = judge(times, valid)
    earlier = jnp.isfinite(lost) & ((first_bad < 0) | (lost <= first_bad))
    status = jnp.where(earlier, Status.BEYOND_EDGE, status).astype(jnp.int32)
    first_bad = jnp.where(earlier, jnp.ceil(lost), first_bad).astype(jnp.int32)
    params, fixed = parts.split(at_end.state[0])
    return Trajectory(times, rows, params, status, first_bad, THEORY.name, fixed=Static.of(fixed))
