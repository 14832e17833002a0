"""The ladder of retrieval: every theory is `solve(task, optimizer, times, record=..., dtype=...)`,
from zero weights."""

import functools

from dynsim.sparse_attention.task import Retrieval
from dynsim.training.descent import Descent
from odes.solver.flows import Flow
from odes.sparse_attention import early, symmetric
from odes.theory import Ladder, Theory, refusal

_LIMITS = "batch -> infinity, eta -> 0"


def _flow(name: Flow, title: str, assumes: str = _LIMITS) -> Theory[Retrieval, Descent]:
    return Theory(
        name,
        title,
        assumes,
        functools.partial(symmetric.solve, flow=name),
        lambda task, optimizer: refusal(symmetric.checked_flow, optimizer, name),
    )


LADDER: Ladder[Retrieval, Descent] = Ladder(
    "sparse_attention",
    (
        _flow("plain", "flow of the weights"),
        _flow("matched", "matched momentum flow"),
        _flow("corrected", "flow corrected in eta", "batch -> infinity, eta^2 -> 0"),
        _flow("matched-adam", "matched Adam flow", f"{_LIMITS} at fixed decays, first step exact"),
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
