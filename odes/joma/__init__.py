"""Theory of the joint dynamics of an MLP layer and attention."""

from odes.joma import ladder, toy
from odes.joma.eliminated import blow_up, solve_eliminated, solve_erf
from odes.joma.flow import solve

__all__ = ["blow_up", "ladder", "solve", "solve_eliminated", "solve_erf", "toy"]
