"""Theory of the emergence of sparse attention: flows of a few numbers, and the plateau's length.

Example:
    >>> steps = odes.sparse_attention.escape_time(dynsim.retrieval(length=32, d=16))
    >>> round(float(steps))
    160
"""

from odes.general import flows
from odes.sparse_attention import finite_batch
from odes.sparse_attention.early import (
    ALIKE,
    ESCAPE,
    PRINTED,
    escape_time,
    growth_rate,
    linear_escape_time,
)

__all__ = ["THEORIES", "escape_time", "finite_batch", "growth_rate", "linear_escape_time"]

THEORIES = (*flows(ALIKE), PRINTED, ESCAPE)
"""The theories, most exact first: flows of four numbers, then `printed` and `escape`."""
