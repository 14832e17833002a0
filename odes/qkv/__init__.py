"""Theory of the layer in ordinary parameters: the flow of its factors, and those of its weights."""

import math

from odes.general import at, flows
from odes.qkv.factors import FACTORS, FINITE, Factors, Layer, Problem, gradient
from odes.theory import Ladder

__all__ = ["LADDER", "Factors", "Layer", "Problem", "gradient"]

_FLOWS = (at(flow, "T -> infinity", length=math.inf) for flow in flows())
LADDER: Ladder = Ladder("qkv", (FINITE, FACTORS, *_FLOWS))
"""The theories by name: `factors-finite-t` and `factors`, then the flows of all weights."""
