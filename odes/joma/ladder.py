"""The ladder of JoMA: every theory is `solve(task, optimizer, times, init=..., shape=...,
temperature=..., record=..., dtype=...)`."""

import functools

from dynsim.classes.task import SequenceClasses
from dynsim.training.rule import Rule
from odes.joma import eliminated, flow
from odes.solver.flows import checked_flow
from odes.theory import Ladder, Theory, of_flows

_LIMITS = "length, batch -> infinity, eta -> 0"
_NEEDS = ("init", "shape", "temperature")


LADDER: Ladder[SequenceClasses, Rule] = Ladder(
    "joma",
    (
        *of_flows(flow.solve, checked_flow, "length, batch -> infinity", needs=_NEEDS),
        Theory(
            "joma",
            "attention by Theorem 1",
            f"{_LIMITS}, one query; for softmax: b nearly constant",
            eliminated.solve_eliminated,
            eliminated.inapplicable,
            needs=_NEEDS,
        ),
        Theory(
            "erf",
            "Theorem 2 in closed form",
            f"{_LIMITS}, zero start, exp attention, linear activation, fixed signal, one query",
            eliminated.solve_erf,
            functools.partial(eliminated.inapplicable, erf=True),
            needs=_NEEDS,
        ),
    ),
)
THEORIES = LADDER.built_in
"""The theories of this project by name."""
registered, theories = LADDER.registered, LADDER.theories
theory, applicable = LADDER.theory, LADDER.applicable
