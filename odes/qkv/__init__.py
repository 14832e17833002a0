"""Theory of the layer in ordinary parameters: the flow of its factors, and those of its weights.

Example:
    >>> problem = dynsim.QKV(dynsim.syn_small(), length=float("inf"))
    >>> theory = odes.theories(problem)["factors"]
"""

import math

from odes.general import at, flows
from odes.qkv.factors import FACTORS, FINITE, Factors, Layer, Problem, gradient

__all__ = ["THEORIES", "Factors", "Layer", "Problem", "gradient"]

_FLOWS = (at(flow, "T -> infinity", length=math.inf) for flow in flows())
THEORIES = (FINITE, FACTORS, *_FLOWS)
"""The theories, most exact first: `factors-finite-t`, `factors`, then flows of all weights."""
