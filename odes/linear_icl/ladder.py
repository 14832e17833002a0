"""The ladder of in-context regression.

Every theory is `solve(task, optimizer, times, init=..., record=..., dtype=...)`, from starting
weights `init` that are a `Merged`, a `Separate` or a `Network`.
"""

import functools

from dynsim.linear_icl.task import Regression
from dynsim.training.constant.descent import Descent
from odes.linear_icl import flow, whole
from odes.theory import Ladder, Theory, of_flows

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


LADDER: Ladder[Regression, Descent] = Ladder(
    "linear_icl",
    (
        *of_flows(flow.solve, flow.checked_flow, "batch -> infinity", needs=("init",)),
        _closed("scalar", "one head at a time", "separate rank-one heads, aligned one by one"),
        _closed("plateaus", "plateaus and escape times", "separate rank-one heads, scale -> 0"),
        _closed("sigmoid", "sigmoid in closed form", "merged heads, white inputs"),
    ),
)
THEORIES = LADDER.built_in
"""The theories of this project by name."""
registered, theories = LADDER.registered, LADDER.theories
theory, applicable = LADDER.theory, LADDER.applicable
