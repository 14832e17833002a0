r"""Flows of an optimiser: continuous time for any gradient, of every rule that has one.

The parameters are any pytree that the rule descends. G is the gradient of the population loss, t =
1 is one optimiser step. Assumes :math:`\eta \to 0` at fixed decays. `DESCRIBED` has the flows and
the rules that they describe; the equations, and how they were derived, are in

    odes.solver.inertia    sgd, heavy-ball and Nesterov momentum
    odes.solver.adaptive   Adam, RMSProp
    odes.solver.signs      sign descent

A plain flow is that of the limit. A matched flow has averages that decay over one unit of time
exactly as over one step, and is read half a step later; a corrected flow is right to the next order
in :math:`\eta`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float, PyTree

from dynsim import checks
from dynsim.training.rule import Rule, check_known
from odes.solver import adaptive, inertia, signs
from odes.solver.integrate import Derivatives, Solved, StepClock, integrate
from odes.solver.posed import FLOWS, Driven, Flow, Gradient, Params, Posed, Save
from odes.solver.tolerances import Tolerances


class Described(NamedTuple):
    """What a flow describes: kinds of rules, what it assumes, and decays of which it takes the
    logarithm, which must not be zero."""

    kinds: tuple[str, ...]
    assumes: str
    decays: tuple[str, ...] = ()


_MOMENTUM = ("momentum", "nesterov", "sign")
DESCRIBED: Mapping[Flow, Described] = {
    "plain": Described(("sgd", "sign"), "eta -> 0"),
    "corrected": Described(("sgd", "momentum", "nesterov"), "eta^2 -> 0"),
    "rescaled": Described(("momentum", "nesterov"), "eta -> 0 without inertia"),
    "heavy-ball": Described(_MOMENTUM, "eta, 1 - mu -> 0"),
    "matched": Described(_MOMENTUM, "eta -> 0", ("momentum",)),
    "adam": Described(("adam",), "eta, 1 - b -> 0"),
    "matched-adam": Described(
        ("adam",), "eta -> 0 at fixed decays, first step exact", ("b1", "b2")
    ),
    "corrected-adam": Described(("adam",), "eta^2 -> 0 at fixed decays, first ten steps exact"),
    "rmsprop": Described(("rmsprop",), "eta, 1 - b2 -> 0"),
    "matched-rmsprop": Described(
        ("rmsprop",), "eta -> 0 at a fixed decay, first step exact", ("b2",)
    ),
}
"""Every flow, and what it describes."""
_POSED = {
    "sgd": inertia.posed,
    "momentum": inertia.posed,
    "nesterov": inertia.posed,
    "sign": signs.posed,
    "rmsprop": adaptive.rmsprop,
    "adam": adaptive.adam,
}
_DEFAULT: Mapping[str, Flow] = {
    "sgd": "plain",
    "momentum": "matched",
    "nesterov": "matched",
    "sign": "matched",
    "rmsprop": "matched-rmsprop",
    "adam": "matched-adam",
}


def check_described(optimizer: Rule) -> None:
    """Raise `ValueError` for a rule that no flow describes, with the reason."""
    check_known(optimizer)
    known = dict.fromkeys(kind for each in DESCRIBED.values() for kind in each.kinds)
    if optimizer.kind not in known:
        raise ValueError(
            f"rule = {optimizer.kind}: no flow describes it; those that have one: "
            f"{', '.join(known)}"
        )
    for name, reason in (
        ("clip", "a clipped gradient is no gradient of a loss"),
        ("noise", "a flow is the limit without noise"),
    ):
        value = getattr(optimizer, name, None)
        if value is not None:
            raise ValueError(f"{name} = {value!r}: no flow describes it, as {reason}")


def checked_flow(optimizer: Rule, flow: Flow | None = None) -> Flow:
    """The flow to use for `optimizer`.

    By default "plain" without momentum, "matched" with it, "matched-adam" for Adam and
    "matched-rmsprop" for RMSProp.

    Raises:
        ValueError: with the reason, for a rule that no flow describes, or that `flow` does not.
    """
    check_described(optimizer)
    if flow is None:
        flow = _DEFAULT[optimizer.kind]
        # Sign descent without momentum is no kind of its own.
        momentum = optimizer.momentum
        if optimizer.kind == "sign" and not checks.is_traced(momentum) and not np.any(momentum):
            flow = "plain"
    checks.choice("flow", flow, FLOWS)
    kinds, _, decays = DESCRIBED[flow]
    if optimizer.kind not in kinds:
        others = [name for name, each in DESCRIBED.items() if optimizer.kind in each.kinds]
        raise ValueError(
            f"flow = {flow!r}: describes {', '.join(kinds)}, not optimizer = {optimizer.kind}, "
            f"which has {', '.join(others)}"
        )
    for field in decays:
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
    return _POSED[driven.rule.kind](flow, decayed(gradient, driven), task, driven, initial)


def decayed(gradient: Gradient[Params], driven: Driven) -> Gradient[Params]:
    """`gradient` with the coupled decay of the rule, which is part of it."""

    def whole(task: Any, params: Params) -> Params:
        found, rule = gradient(task, params), driven.rule
        return found if rule.decoupled else rule.decayed(found, params, driven.groups)

    return whole
