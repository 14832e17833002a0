"""Theory of in-context regression by linear attention: flows, plateaus, single heads.

The flow down the population loss is, with tau = 1/(2 eta) steps (arXiv:2501.16265),

    merged, and the network
              tau W_1' = w_2 (E[y z^T] - w_2^T W_1 E[z z^T]),  w_2 likewise                 eq. 8
    separate  tau v_i' = k_i^T (Lambda^2 - E[S^2] M Lambda) q_i,  k_i and q_i likewise       eq. 14

for any rank. What momentum, Adam and the next order in eta make of it is in `odes.solver.flows`.

Example:
    >>> odes.linear_icl.plateaus(dynsim.regression(D=2)).shape
    (3,)
"""

from odes.general import flows
from odes.linear_icl.closed import (
    FORMULAS,
    amplitudes,
    escape_times,
    plateaus,
    sigmoid,
    time_to_reach,
)
from odes.solver.tolerances import Tolerances

__all__ = ["THEORIES", "amplitudes", "escape_times", "plateaus", "sigmoid", "time_to_reach"]

# Weights start small.
THEORIES = (*flows(tolerances=Tolerances(1e-8, 1e-12)), *FORMULAS)
"""The theories, most exact first: flows of all weights, then `scalar`, `plateaus` and `sigmoid`."""
