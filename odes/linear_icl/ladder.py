"""The ladder of in-context regression.

Every theory is `solve(task, optimizer, times, init=..., record=..., dtype=...)`, from starting
weights `init` that are a `Merged` or a `Separate`.
"""

import functools

from dynsim.linear_icl.task import Regression
from dynsim.training.descent import Descent
from odes.linear_icl import flow, whole
from odes.solver.flows import Flow
from odes.theory import Ladder, Theory, refusal

_LIMITS = "batch -> infinity, eta -> 0"


def _closed(name: str, title: str, assumes: str) -> Theory[Regression, Descent]:
    return Theory(
        name,
        title,
        f"{_LIMITS}, small start, {assumes}",
        functools.partial(whole.solve, name),
        functools.partial(whole.inapplicable, name=name),
        needs=("init",),
    )


def _flow(name: Flow, title: str, assumes: str = _LIMITS) -> Theory[Regression, Descent]:
    return Theory(
        name,
        title,
        assumes,
        functools.partial(flow.solve, flow=name),
        lambda task, optimizer: refusal(flow.checked_flow, optimizer, name),
        needs=("init",),
    )


LADDER: Ladder[Regression, Descent] = Ladder(
    "linear_icl",
    (
        _flow("plain", "flow of the weights"),
        _flow("matched", "matched momentum flow"),
        _flow("corrected", "flow corrected in eta", "batch -> infinity, eta^2 -> 0"),
        _flow("matched-adam", "matched Adam flow", f"{_LIMITS} at fixed decays, first step exact"),
        _closed("scalar", "one head at a time", "separate rank-one heads, aligned one by one"),
        _closed("plateaus", "plateaus and escape times", "separate rank-one heads, scale -> 0"),
        _closed("sigmoid", "sigmoid in closed form", "merged heads, white inputs"),
    ),
)
THEORIES = LADDER.built_in
"""The theories of this project by name."""
registered, theories = LADDER.registered, LADDER.theories
theory, applicable = LADDER.theory, LADDER.applicable
