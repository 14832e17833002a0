"""The registry of theories: one signature, what each assumes, what it accepts.

Every theory is `solve(task, optimizer, times, init=..., record=..., dtype=...)` and returns
the `Trajectory` that simulation returns.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from dynsim import checks
from dynsim.optim import Optimizer
from dynsim.tasks import SequenceClasses
from dynsim.trajectory import Trajectory
from odes import attention, population


class Theory(NamedTuple):
    """One rung of the ladder.

    Attributes:
        name: by which it is asked for.
        title: for legends and tables.
        assumes: what it takes for granted, in words.
        solve: the solver.
        inapplicable: why it does not describe (task, optimizer), or None when it does.
    """

    name: str
    title: str
    assumes: str
    solve: Callable[..., Trajectory]
    inapplicable: Callable[[SequenceClasses, Optimizer], str | None]


def _flow(flow: population.Flow, title: str, assumes: str) -> Theory:
    def inapplicable(task: SequenceClasses, optimizer: Optimizer) -> str | None:
        del task
        try:
            population.checked_flow(optimizer, flow)
        except ValueError as error:
            return str(error)
        return None

    solve = functools.partial(population.solve, flow=flow)
    return Theory(flow, title, assumes, solve, inapplicable)


_LIMITS = "T, batch -> infinity, eta -> 0"
_EQ10 = "T -> infinity, Y = 0 at the start, weak overlap, 1/M -> 0, Lemma 3's decoder"

THEORIES: dict[str, Theory] = {
    theory.name: theory
    for theory in (
        _flow("plain", "population flow", _LIMITS),
        _flow("matched", "matched momentum flow", f"{_LIMITS} at fixed momentum"),
        _flow("heavy-ball", "heavy-ball flow", f"{_LIMITS}, 1 - mu -> 0"),
        _flow("rescaled", "flow at eta/(1-mu)", f"{_LIMITS}, no inertia"),
        _flow("matched-adam", "matched Adam flow", f"{_LIMITS} at fixed decays, first step exact"),
        _flow("adam", "Adam's flow", f"{_LIMITS}, 1 - b -> 0"),
        Theory(
            "eq10",
            "Eq. 10, sgd clock",
            _EQ10,
            functools.partial(attention.solve, clock="sgd"),
            attention.inapplicable,
        ),
        Theory(
            "eq10-paper",
            "Eq. 10, paper's clock",
            f"{_EQ10}, classes summed instead of averaged",
            functools.partial(attention.solve, clock="paper"),
            attention.inapplicable,
        ),
    )
}


def theory(name: str, task: SequenceClasses, optimizer: Optimizer) -> Theory:
    """The theory called `name`.

    Raises:
        ValueError: if there is none of that name, or it does not describe the task or the
            optimiser; the message says which assumption fails.
    """
    checks.choice("theory", name, tuple(THEORIES))
    found = THEORIES[name]
    problem = found.inapplicable(task, optimizer)
    if problem:
        raise ValueError(f"theory {name!r} does not apply: {problem}")
    return found


def applicable(task: SequenceClasses, optimizer: Optimizer) -> tuple[str, ...]:
    """Names of the theories that describe `task` and `optimizer`, most exact first."""
    return tuple(n for n, t in THEORIES.items() if t.inapplicable(task, optimizer) is None)
