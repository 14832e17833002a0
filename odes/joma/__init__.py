"""Theory of the joint dynamics of an MLP layer and attention."""

from odes.joma import ladder, mixture, toy
from odes.joma.eliminated import blow_up, discriminancy, solve_eliminated, solve_erf
from odes.joma.flow import solve

__all__ = [
    "blow_up",
    "discriminancy",
    "ladder",
    "mixture",
    "solve",
    "solve_eliminated",
    "solve_erf",
    "toy",
]
