"""Theory of in-context regression by linear attention: flows, plateaus, single heads."""

from odes.linear_icl import ladder
from odes.linear_icl.flow import solve
from odes.linear_icl.plateaus import amplitudes, plateaus
from odes.linear_icl.single_head import escape_times, time_to_reach
from odes.linear_icl.whole import sigmoid

__all__ = ["amplitudes", "escape_times", "ladder", "plateaus", "sigmoid", "solve", "time_to_reach"]
