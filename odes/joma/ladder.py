"""The ladder of JoMA: every theory is `solve(task, optimizer, times, init=..., shape=...,
temperature=..., record=..., dtype=...)`."""

import functools

from dynsim.classes.task import SequenceClasses
from dynsim.training.optim import Optimizer
from odes.joma import eliminated, flow
from odes.solver.flows import Flow
from odes.theory import Ladder, Theory, refusal

_LIMITS = "length, batch -> infinity, eta -> 0"
_NEEDS = ("init", "shape", "temperature")


def _flow(name: Flow, title: str, assumes: str = _LIMITS) -> Theory[SequenceClasses, Optimizer]:
    return Theory(
        name,
        title,
        assumes,
        functools.partial(flow.solve, flow=name),
        lambda task, optimizer: refusal(flow.checked_flow, optimizer, name),
        needs=_NEEDS,
    )


LADDER: Ladder[SequenceClasses, Optimizer] = Ladder(
    "joma",
    (
        _flow("plain", "flow of the weights"),
        _flow("matched", "matched momentum flow"),
        _flow("corrected", "flow corrected in eta", "length, batch -> infinity, eta^2 -> 0"),
        _flow("matched-adam", "matched Adam flow", f"{_LIMITS} at fixed decays, first step exact"),
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
