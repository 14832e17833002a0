"""The ladder of the attention layer in ordinary parameters.

Every theory is `solve(task, optimizer, times, init=..., record=..., dtype=...)`, from starting
weights `init` that are an `Embedded`.
"""

from dynsim.classes.task import SequenceClasses
from dynsim.training.rule import Rule
from odes.qkv import factors
from odes.theory import Ladder, Theory, of_finite_length

_FACTORS = Theory(
    "factors",
    "flow of the factors",
    "T, batch -> infinity, eta -> 0, U frozen (for Adam U = I), l2 normalisation by theory",
    factors.solve,
    factors.inapplicable,
    needs=("init",),
)
LADDER: Ladder[SequenceClasses, Rule] = Ladder(
    "qkv",
    (of_finite_length(_FACTORS), _FACTORS),
)
THEORIES = LADDER.built_in
"""The theories of this project by name."""
registered, theories = LADDER.registered, LADDER.theories
theory, applicable = LADDER.theory, LADDER.applicable
