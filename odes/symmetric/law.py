"""How the loss of a class is averaged over its sequences: to first order in 1/T, or with tails."""

import math
from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Array, Real

from dynsim.precision import Number
from odes.symmetric import finite_length, saddle
from odes.symmetric.state import State, SymmetricTask
from odes.theory import named


class Law(NamedTuple):
    """Population loss, and its gradient per full parameter, of task, state and context; and the
    name of a theory with it."""

    loss: Callable[..., Array]
    gradient: Callable[..., State]
    name: Callable[[str, bool], str]


FIRST_ORDER = Law(finite_length.loss, finite_length.gradient, named)
TAILS = Law(saddle.loss, saddle.gradient, lambda name, finite: f"{named(name, finite)}-tails")


def law_of(task: SymmetricTask, length: Real[Number, ""], tails: bool) -> Law:
    """The law for sequences of some length; raises `ValueError` where it says nothing of them."""
    finite_length.check_length(task, length)
    if tails and isinstance(length, float) and math.isinf(length):
        raise ValueError("length = inf: sequences without end have no tails; use tails = False")
    return TAILS if tails else FIRST_ORDER
