"""The ladder of retrieval: every theory is `solve(task, optimizer, times, record=..., dtype=...)`,
from zero weights."""

import functools

from dynsim.sparse_attention.task import Retrieval
from dynsim.training.constant.descent import Descent
from odes.sparse_attention import early, symmetric
from odes.theory import Ladder, Theory, of_flows

_LIMITS = "batch -> infinity, eta -> 0"


LADDER: Ladder[Retrieval, Descent] = Ladder(
    "sparse_attention",
    (
        *of_flows(symmetric.solve, symmetric.checked_flow, "batch -> infinity"),
        Theory(
            "printed",
            "Eqs. 13, 14 as printed",
            f"{_LIMITS}, B = 1",
            functools.partial(early.solve, printed=True),
            functools.partial(early.inapplicable, printed=True),
        ),
        Theory(
            "escape",
            "closed form of the plateau",
            f"{_LIMITS}, T, d -> infinity, loss near its start",
            functools.partial(early.solve, printed=False),
            functools.partial(early.inapplicable, printed=False),
        ),
    ),
)
THEORIES = LADDER.built_in
"""The theories of this project by name."""
registered, theories = LADDER.registered, LADDER.theories
theory, applicable = LADDER.theory, LADDER.applicable
