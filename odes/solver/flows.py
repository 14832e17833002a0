r"""Flows of an optimiser: continuous time for any gradient, of every rule that has one.

The parameters are any pytree that the rule descends. G is the gradient of the population loss, t =
1 is one optimiser step. Assumes :math:`\eta \to 0` at fixed decays. `flows_of` returns
the flows that describe a rule; the equations and their derivations are in

    odes.solver.inertia    sgd, heavy-ball and Nesterov momentum, sign descent
    odes.solver.adaptive   Adam, RMSProp

A plain flow is the limit. The averages of a matched flow decay over one unit of time exactly as
over one step, and the flow is evaluated half a step later. A corrected flow is correct to the next
order in :math:`\eta`.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from dynsim import checks
from dynsim.schedules import Constant
from dynsim.training.keys import check_without_keys
from dynsim.training.rule import Rule
from dynsim.training.rules import why_not_known
from odes.solver import adaptive, inertia
from odes.solver.integrate import Derivatives, Solved, StepTime, integrate
from odes.solver.posed import (
    Flow,
    Gradient,
    GroupedRule,
    InitialValueProblem,
    Params,
    SaveParams,
    jumps,
)
from odes.solver.tolerances import Tolerances


def _of_rule(
    gradient: Gradient, task: PyTree, driven: GroupedRule, initial: PyTree
) -> InitialValueProblem:
    check_without_keys(driven.rule, initial)

    def field(t: Array, state: PyTree, args: PyTree) -> PyTree:
        (params, averages), (task, driven) = state, args
        slope, rule = gradient(task, params), driven.rule
        direction, change = checks.call_of_user(type(rule), rule.flow, slope, averages, t)
        return driven.descend(direction, t, params), change

    state = initial, driven.rule.averages(initial)
    return InitialValueProblem(state, field, (task, driven))


OWN_FLOW = Flow("own", "flow of the rule itself", "what the rule's `flow` assumes", Rule, _of_rule)
FLOWS = (*inertia.FLOWS, *adaptive.FLOWS)
"""The flows of the built-in rules. A rule that defines its own `flow` has only that one."""


def flows_of(rule: Rule) -> dict[str, Flow]:
    """Return the flows that describe a rule by name; the first one is the default."""
    own = isinstance(rule, Rule) and rule.has_flow
    candidates = (OWN_FLOW,) if own else FLOWS
    return {
        flow.name: flow
        for flow in candidates
        if isinstance(rule, flow.rule) and flow.describes(rule)
    }


def check_has_flow(optimizer: Rule) -> None:
    """Raise `ValueError` for a rule that no flow describes, with the reason."""
    own = isinstance(optimizer, Rule) and optimizer.has_flow
    if reason := None if own else why_not_known(optimizer):
        raise ValueError(reason)
    for name, reason in (
        ("clip", "a clipped gradient is not the gradient of a loss"),
        ("noise", "a flow is the limit without noise"),
    ):
        value = getattr(optimizer, name)
        if value is not None:
            raise ValueError(f"{name} = {value!r}: no flow describes it, as {reason}")


def checked_flow(optimizer: Rule, flow: str | None = None) -> str:
    """Return the name of the flow for `optimizer`, by default the first of `flows_of`.

    Raises:
        ValueError: with the reason, for a rule that no flow describes, or that `flow` does not.
    """
    check_has_flow(optimizer)
    known = flows_of(optimizer)
    flow = next(iter(known)) if flow is None else flow
    # First whether any rule has it, then whether this rule has: a typo is not the rule's fault.
    checks.choice("flow", flow, tuple(dict.fromkeys(one.name for one in (*FLOWS, OWN_FLOW))))
    if flow not in known:
        raise ValueError(
            f"flow = {flow!r}: does not describe optimizer = {optimizer.name}; must be one of "
            f"{', '.join(known)}"
        )
    for field in known[flow].decays:
        value = getattr(optimizer, field)
        checks.real(field, value, 0, 1, open_minimum=True, open_maximum=True)
    return flow


def flow_of_rule(
    gradient: Gradient[Params],
    task: PyTree,
    rule: Rule,
    groups: PyTree,
    initial: Params,
    times: Float[Array, " S"],
    *,
    flow: str,
    save: SaveParams[Params],
    tolerances: Tolerances,
    derivatives: Derivatives = "reverse",
    in_steps: bool = False,
) -> tuple[Solved, Params]:
    """Integrate the flow of a rule down `gradient(task, params)` from `initial`.

    Args:
        gradient: gradient of the population loss for each entry, without weight decay.
        task: inputs of `gradient` and `save` besides the parameters.
        rule: a rule that `checked_flow` accepts.
        groups: names of groups of weights, if the rule has rates by group.
        initial: parameters at the start.
        times: (S,) optimiser steps at which `save(task, params, time of the flow)` is kept.
        flow: name of the flow, from `checked_flow`.
        derivatives: see `odes.solver.integrate.integrate`.
        in_steps: whether `save` needs the time in steps.

    Returns:
        The result of `integrate`, and the parameters at the last time.
    """
    timescale, rate = None, rule.schedules.get("")
    if flows_of(rule)[flow].in_eta_time and rate is not None and not in_steps:
        # p' = -eta(t) F(p) is dp/du = -eta_peak F(p) in u = int eta dt / eta_peak, without jumps.
        timescale, rule = rate, dataclasses.replace(rule, eta=Constant(rate.peak))
    driven = GroupedRule(rule, groups)
    posed = pose_flow(gradient, task, driven, initial, flow)
    solved = integrate(
        posed.field,
        posed.state,
        times,
        posed.args,
        # The parameters come first in the state, the task first in the arguments.
        save=lambda t, state, args: save(args[0], state[0], t),
        timescale=timescale or StepTime(shift=posed.shift),
        tolerances=tolerances,
        derivatives=derivatives,
        jumps=jnp.append(jumps(rule) + posed.shift, jnp.array(posed.jumps)),
    )
    return solved, solved.final[0]


def pose_flow(
    gradient: Gradient[Params], task: PyTree, driven: GroupedRule, initial: Params, flow: str
) -> InitialValueProblem:
    """Return the initial value problem of `flow_of_rule`."""
    return flows_of(driven.rule)[flow].pose(decayed(gradient, driven), task, driven, initial)


def decayed(gradient: Gradient[Params], driven: GroupedRule) -> Gradient[Params]:
    """Add the rule's coupled decay to `gradient`."""

    def with_decay(task: PyTree, params: Params) -> Params:
        of_loss, rule = gradient(task, params), driven.rule
        return of_loss if rule.decoupled else rule.decayed(of_loss, params, driven.groups)

    return with_decay
