r"""Theory of the joint dynamics of an MLP layer and attention.

The flows are those of `odes.flow` on the population loss (arXiv:2310.00535, Eqn. 2),

    w_k' = E[g_k h_k' f],   z_m' = E[(db/dz_m)^T U_C^T sum_k g_k h_k' w_k]
"""

import dataclasses
import math
from typing import Any

from dynsim import JoMA, Rule, Trajectory
from dynsim.trajectory import Times
from odes.general import flows
from odes.joma import mixture, toy
from odes.joma.eliminated import ELIMINATED, ERF, blow_up, discriminancy
from odes.theory import Ladder, Theory

__all__ = ["LADDER", "blow_up", "discriminancy", "mixture", "toy"]


def _at_infinite_length(flow: Theory) -> Theory:
    """A flow of sequences of any length, which takes them for infinitely long."""

    def solve(problem: JoMA, rule: Rule, times: Times, **options: Any) -> Trajectory:
        return flow.solve(dataclasses.replace(problem, length=math.inf), rule, times, **options)

    return dataclasses.replace(flow, solve=solve, assumes=f"length, {flow.assumes}")


LADDER: Ladder = Ladder("joma", (*map(_at_infinite_length, flows()), ELIMINATED, ERF))
"""The theories by name: the flows of all weights, then `joma` and `erf`."""
