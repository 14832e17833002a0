r"""Theory of the joint dynamics of an MLP layer and attention.

The flows are those of `odes.flow` on the population loss (arXiv:2310.00535, Eqn. 2),

    w_k' = E[g_k h_k' f],   z_m' = E[(db/dz_m)^T U_C^T sum_k g_k h_k' w_k]

Example:
    >>> [theory.name for theory in odes.joma.THEORIES][-2:]
    ['joma', 'erf']
"""

import math

from odes.general import at, flows
from odes.joma import mixture, toy
from odes.joma.eliminated import ELIMINATED, ERF, blow_up, discriminancy

__all__ = ["THEORIES", "blow_up", "discriminancy", "mixture", "toy"]


_FLOWS = (at(flow, "length -> infinity", length=math.inf) for flow in flows())
THEORIES = (*_FLOWS, ELIMINATED, ERF)
"""The theories, most exact first: the flows of all weights, then `joma` and `erf`."""
