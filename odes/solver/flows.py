r"""Flows of an optimiser: continuous time for any gradient, of every rule that has one.

The parameters are any pytree that the rule descends. G is the gradient of the population loss, t =
1 is one optimiser step. Assumes :math:`\eta \to 0` at fixed decays. `flows_of` says
which flows describe a rule; the equations, and how they were derived, are in

    odes.solver.inertia    sgd, heavy-ball and Nesterov momentum
    odes.solver.adaptive   Adam, RMSProp
    odes.solver.signs      sign descent

A plain flow is that of the limit. A matched flow has averages that decay over one unit of time
exactly as over one step, and is read half a step later; a corrected flow is right to the next order
in :math:`\eta`.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float, PyTree

from dynsim import checks
from dynsim.training.rule import Rule
from dynsim.training.rules import SGD, Adam, AdamW, RMSProp, Sign, unread, unread_schedule
from odes.solver import adaptive, inertia, signs
from odes.solver.integrate import Derivatives, Solved, StepClock, integrate
from odes.solver.posed import FLOWS, Driven, Flow, Gradient, Params, Posed, Save
from odes.solver.tolerances import Tolerances


class Described(NamedTuple):
    """What a flow assumes, and decays of which it takes the logarithm, which must not be zero."""

    assumes: str
    decays: tuple[str, ...] = ()


DESCRIBED: Mapping[Flow, Described] = {
    "plain": Described("eta -> 0"),
    "corrected": Described("eta^2 -> 0"),
    "rescaled": Described("eta -> 0 without inertia"),
    "heavy-ball": Described("eta, 1 - mu -> 0"),
    "matched": Described("eta -> 0", ("momentum",)),
    "adam": Described("eta, 1 - b -> 0"),
    "matched-adam": Described("eta -> 0 at fixed decays, first step exact", ("b1", "b2")),
    "corrected-adam": Described("eta^2 -> 0 at fixed decays, first ten steps exact"),
    "rmsprop": Described("eta, 1 - b2 -> 0"),
    "matched-rmsprop": Described("eta -> 0 at a fixed decay, first step exact", ("b2",)),
    "own": Described("what the rule's `flow` assumes"),
}
"""Every flow, and what it assumes."""


def flows_of(rule: Rule) -> tuple[Flow, ...]:
    """The flows that describe a rule; the first one is used by default."""
    match rule:
        case _ if rule.has_flow:
            return ("own",)
        case SGD(momentum=None):
            return "plain", "corrected"
        case SGD():
            return "matched", "corrected", "rescaled", "heavy-ball"
        case Sign():
            # Without momentum there is no velocity that a matched flow could follow.
            still = not checks.is_traced(rule.momentum) and not np.any(rule.momentum)
            return (
                ("plain", "matched", "heavy-ball") if still else ("matched", "heavy-ball", "plain")
            )
        case RMSProp():
            return "matched-rmsprop", "rmsprop"
        case Adam():
            return "matched-adam", "corrected-adam", "adam"
        case _:
            return ()


def check_described(optimizer: Rule) -> None:
    """Raise `ValueError` for a rule that no flow describes, with the reason."""
    own = isinstance(optimizer, Rule) and optimizer.has_flow
    if reason := unread_schedule(optimizer) if own else unread(optimizer):
        raise ValueError(reason)
    for name, reason in (
        ("clip", "a clipped gradient is no gradient of a loss"),
        ("noise", "a flow is the limit without noise"),
    ):
        value = getattr(optimizer, name)
        if value is not None:
            raise ValueError(f"{name} = {value!r}: no flow describes it, as {reason}")


def checked_flow(optimizer: Rule, flow: Flow | None = None) -> Flow:
    """The flow to use for `optimizer`, by default the first of `flows_of`.

    Raises:
        ValueError: with the reason, for a rule that no flow describes, or that `flow` does not.
    """
    check_described(optimizer)
    known = flows_of(optimizer)
    flow = known[0] if flow is None else flow
    checks.choice("flow", flow, FLOWS)
    if flow not in known:
        raise ValueError(
            f"flow = {flow!r}: does not describe optimizer = {optimizer.name}, which has "
            f"{', '.join(known)}"
        )
    for field in DESCRIBED[flow].decays:
        value = getattr(optimizer, field)
        checks.real(field, value, 0, 1, open_minimum=True, open_maximum=True)
    return flow


def flow_of_rule(
    gradient: Gradient[Params],
    task: Any,
    rule: Rule,
    groups: PyTree,
    initial: Params,
    times: Float[Array, " S"],
    *,
    flow: Flow,
    save: Save[Params],
    tolerances: Tolerances,
    derivatives: Derivatives = "reverse",
) -> tuple[Solved, Params]:
    """Integrate the flow of a rule down `gradient(task, params)` from `initial`.

    Args:
        gradient: of the population loss, entry by entry, without weight decay.
        task: whatever `gradient` and `save` need besides the parameters.
        rule: one that `checked_flow` lets through.
        groups: names of groups of weights, where the rule has rates by group.
        initial: parameters at the start.
        times: (S,) optimiser steps at which `save(task, params, time of the flow)` is kept.
        flow: as `checked_flow` returned it.
        derivatives: see `odes.solver.integrate.integrate`.

    Returns:
        What `integrate` returns, and the parameters at the last time.
    """

    driven = Driven(rule, groups)
    posed = posed_flow(gradient, task, driven, initial, flow)
    solved = integrate(
        posed.field,
        posed.state,
        times,
        posed.args,
        save=lambda t, state, args: save(args[0], state[0], t),
        clock=StepClock(shift=posed.shift),
        tolerances=tolerances,
        derivatives=derivatives,
        jumps=(*(step + posed.shift for step in driven.jumps), *posed.jumps),
    )
    return solved, solved.final[0]


def posed_flow(
    gradient: Gradient[Params], task: Any, driven: Driven, initial: Params, flow: Flow
) -> Posed:
    """The initial value problem of `flow_of_rule`."""
    whole, rule = decayed(gradient, driven), driven.rule
    if flow == "own":
        field = functools.partial(_own, whole)
        return Posed((initial, rule.averages(initial)), field, (task, driven))
    return _POSED[type(rule)](flow, whole, task, driven, initial)


def _own(gradient: Gradient, t: Array, state: PyTree, args: PyTree) -> PyTree:
    (params, averages), (task, driven) = state, args
    direction, change = driven.rule.flow(gradient(task, params), averages, t)
    return driven.descend(direction, t, params), change


_POSED = {
    SGD: inertia.posed,
    Sign: signs.posed,
    RMSProp: adaptive.rmsprop,
    Adam: adaptive.adam,
    AdamW: adaptive.adam,
}


def decayed(gradient: Gradient[Params], driven: Driven) -> Gradient[Params]:
    """`gradient` with the coupled decay of the rule, which is part of it."""

    def whole(task: Any, params: Params) -> Params:
        found, rule = gradient(task, params), driven.rule
        return found if rule.decoupled else rule.decayed(found, params, driven.groups)

    return whole
