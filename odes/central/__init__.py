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
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from dynsim import Problem, Trajectory, checks
from dynsim.precision import DType
from dynsim.problem.base import built
from dynsim.problem.checks import Parts, check_groups, flow_table, measured, usual
from dynsim.problem.sharpness import EDGE
from dynsim.problem.train import problem_in, started
from dynsim.training.recording import Record, Recording
from dynsim.training.rule import Rule
from dynsim.training.rules import SGD, RMSProp, why_not_known
from dynsim.trajectory import Static, Status, Times
from odes.central.edge import STEPS, Edge, Moved
from odes.problem import gradient_of
from odes.run import run
from odes.solver.flows import decayed, posed_flow
from odes.solver.integrate import judge
from odes.solver.posed import Gradient, GroupedRule
from odes.theory import AnyTheory, Theory, Training, refusal

MOST = 4
"""Largest number of eigenvalues that can be followed at the edge."""
LATE = 0.5 / STEPS
"""Time before the end of a step at which its last rates are evaluated."""
NEAR = 0.01
"""Distance from the edge within which an eigenvalue counts as being at it."""
OWN = ("averaged_loss", "preconditioned_sharpness", "oscillation", "at_edge")
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
    follow: int = MOST,
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
    if reason := why_not_described(rule):
        raise ValueError(reason)
    checks.integer("follow", follow, 1, MOST)
    options: dict[str, Any] = {"record": _recorded(problem, record), "follow": follow}
    return run(_solve, problem, rule, times, key, init, dtype, **options)


def why_not_described(rule: Any) -> str | None:
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
    return why_not_described(training.rule) or refusal(training.problem.check_population)


THEORY: AnyTheory = Theory(
    "central",
    "central flow",
    "batch -> infinity, oscillations near equilibrium at the edge of stability",
    central_flow,
    _inapplicable,
    variant=True,
    needs=("key",),
    predicts=lambda problem: (*flow_table(problem).functions, *OWN),
    adaptive=False,
)
"""The theory of every problem with a population loss."""


def _recorded(problem: Problem, record: Record | None) -> Recording:
    table = flow_table(problem)
    table = dataclasses.replace(table, provided=(*table.provided, *OWN))
    return table.resolve([*usual(problem, table.functions), *OWN] if record is None else record)


@eqx.filter_custom_jvp
def _without_derivatives(tree: PyTree) -> PyTree:
    """Return a pytree through which no derivatives can be taken."""
    return tree


@_without_derivatives.def_jvp
def _refuse(primals: Any, tangents: Any) -> Any:
    raise ValueError(
        "central_flow: has no derivatives; use odes.flow below the edge of stability, or "
        "differentiate dynsim.train"
    )


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
    dtype: Any = times.dtype.name
    parts, problem = started(problem, key, init, dtype), problem_in(problem, dtype)
    arrays, others = eqx.partition((problem, parts, rule, times), eqx.is_inexact_array)
    problem, parts, rule, times = eqx.combine(_without_derivatives(arrays), others)
    numbers, rest = eqx.partition(problem, eqx.is_array)
    gradient = gradient_of(parts, rest)
    # Without a denominator, coupled and decoupled decay are the same.
    rule = dataclasses.replace(rule, decoupled=False)
    driven = GroupedRule(rule, check_groups(problem, rule, parts))
    flow = "plain" if isinstance(rule, SGD) else "rmsprop"
    posed = posed_flow(gradient, numbers, driven, parts.params, flow)
    size = sum(leaf.size for leaf in jax.tree.leaves(parts.params))
    edge = Edge(posed, decayed(gradient, driven), driven, min(follow, size))
    # One more turn measures the eigenvalues at the recorded time.
    measured = {"preconditioned_sharpness", "at_edge"} & {*record.provided}

    def record_at(carry: Any, time: Array) -> Any:
        until = jnp.floor(time)
        last = until + (time > until)

        def advance(carry: Any) -> Any:
            count, moved, seen, bad, _ = carry
            whole, past = count < until, count >= last
            dt = jnp.where(whole, 1, time - until) * ~past
            before = jax.tree.map(lambda new, old: jnp.where(past, new, old), seen, moved)
            new, values = edge.advanced(before, jnp.where(past, time - LATE, count), dt, bad < inf)
            # Recording between steps does not change later steps.
            moved = jax.tree.map(lambda new, old: jnp.where(whole, new, old), new, moved)
            seen = jax.tree.map(lambda new, old: jnp.where(past, old, new), new, seen)
            end = jnp.where(new.failed & ~past, count + dt, inf)
            return count + 1, moved, seen, jnp.minimum(bad, end), values

        turns = last + bool(measured)
        _, moved, seen, bad, values = jax.lax.while_loop(
            lambda carry: carry[0] < turns, advance, carry
        )
        sums = jnp.stack([jnp.sum(leaf) for leaf in jax.tree.leaves(seen.state)])
        row = _observed(problem, parts, gradient, record, edge, seen, time - LATE)
        near = jnp.sum(values[: edge.followed] > EDGE - NEAR)
        found = {"preconditioned_sharpness": values[0], "at_edge": near.astype(times.dtype)}
        row |= {name: found[name] for name in measured}
        return (until, moved, seen, bad, values), (row, jnp.isfinite(jnp.sum(sums)))

    start, zero = edge.start(), jnp.zeros((), times.dtype)
    inf = zero + jnp.inf
    carry = zero, start, start, inf, jnp.zeros(edge.searched, times.dtype)
    (_, _, seen, bad, _), (rows, valid) = jax.lax.scan(record_at, carry, times)
    status, first_bad = judge(times, valid)
    earlier = jnp.isfinite(bad) & ((first_bad < 0) | (bad <= first_bad))
    status = jnp.where(earlier, Status.BEYOND_EDGE, status).astype(jnp.int32)
    first_bad = jnp.where(earlier, jnp.ceil(bad), first_bad).astype(jnp.int32)
    params, fixed = parts.split(seen.state[0])
    return Trajectory(times, rows, params, status, first_bad, THEORY.name, fixed=Static.of(fixed))


def _observed(
    problem: Problem,
    parts: Parts,
    gradient: Gradient[PyTree],
    record: Recording,
    edge: Edge,
    moved: Moved,
    t: Float[Array, ""],
) -> dict[str, Array]:
    """Return the recorded observables of a state at the rates of time `t`."""
    model = parts.combine(moved.state[0])
    rows = measured(problem, record, model)
    weights, q = edge.scaled(moved.state, t)
    root = q[:, None] * moved.root
    if "averaged_loss" in record.provided:
        bare = edge._replace(gradient=gradient)
        push = jax.linearize(bare.slope, weights)[1]
        more = jnp.sum(root * jax.vmap(push, 1, 1)(root)) / 2
        rows["averaged_loss"] = problem.population_loss(model) + more
    if "oscillation" in record.provided:
        rows["oscillation"] = jnp.sum(jnp.square(root))
    return rows
