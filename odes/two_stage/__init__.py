"""Theory of two-stage dynamics: the reduced ODE and what follows from it."""

from odes.two_stage import ladder
from odes.two_stage.field import OBSERVABLES
from odes.two_stage.loss import Rule
from odes.two_stage.sde import solve_sde
from odes.two_stage.solve import DEFAULT_RECORD, solve
from odes.two_stage.spread import solve_seed
from odes.two_stage.state import ReducedState

__all__ = [
    "DEFAULT_RECORD",
    "OBSERVABLES",
    "ReducedState",
    "Rule",
    "ladder",
    "solve",
    "solve_sde",
    "solve_seed",
]
