"""The registry of theories: one signature, what each assumes, what it accepts.

Every theory is `solve(task, optimizer, times, init=..., record=..., dtype=...)` and returns
the `Trajectory` that simulation returns.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.training.optim import Optimizer
from dynsim.trajectory import Trajectory
from odes.yz import eq10 as attention
from odes.yz import fixed_attention, lemma3, population
from odes.yz import symmetric as symmetric_layer
from odes.yz import theorem4 as single_common


class Theory(NamedTuple):
    """One rung of the ladder.

    Attributes:
        name: by which it is asked for.
        title: for legends and tables.
        assumes: what it takes for granted, in words.
        solve: the solver.
        inapplicable: why it does not describe (task, optimizer), or None when it does.
        variant: whether it varies or isolates a part of another rung, and so is looked at on
            demand rather than by default.
        zero_start: whether it holds from zero weights alone and takes no `init`.
    """

    name: str
    title: str
    assumes: str
    solve: Callable[..., Trajectory]
    inapplicable: Callable[[SequenceClasses, Optimizer], str | None]
    variant: bool = False
    zero_start: bool = False


def _flow(flow: population.Flow, title: str, assumes: str, variant: bool = False) -> Theory:
    def inapplicable(task: SequenceClasses, optimizer: Optimizer) -> str | None:
        del task
        try:
            population.checked_flow(optimizer, flow)
        except ValueError as error:
            return str(error)
        return None

    solve = functools.partial(population.solve, flow=flow)
    return Theory(flow, title, assumes, solve, inapplicable, variant)


_LIMITS = "T, batch -> infinity, eta -> 0"
_EQ10 = "T -> infinity, Y = 0 at the start, 1/M -> 0, Lemma 3's decoder"

THEORIES: dict[str, Theory] = {
    theory.name: theory
    for theory in (
        _flow("plain", "population flow", _LIMITS),
        _flow("matched", "matched momentum flow", f"{_LIMITS} at fixed momentum"),
        _flow("corrected", "flow corrected in eta", f"{_LIMITS} to second order", variant=True),
        Theory(
            "symmetric",
            "symmetric reduction",
            f"{_LIMITS}, symmetric task, zero weights at the start",
            symmetric_layer.solve,
            symmetric_layer.inapplicable,
            variant=True,
            zero_start=True,
        ),
        _flow("heavy-ball", "heavy-ball flow", f"{_LIMITS}, 1 - mu -> 0"),
        _flow("rescaled", "flow at eta/(1-mu)", f"{_LIMITS}, no inertia"),
        _flow("matched-adam", "matched Adam flow", f"{_LIMITS} at fixed decays, first step exact"),
        _flow("adam", "Adam's flow", f"{_LIMITS}, 1 - b -> 0"),
        Theory(
            "lemma3",
            "flow by Lemma 3's update",
            f"{_LIMITS}, Y = 0 at the start, Lemma 3's decoder",
            lemma3.solve,
            lemma3.inapplicable,
            variant=True,
        ),
        Theory(
            "eq10-finite-m",
            "Eq. 10 at finite M",
            "T -> infinity, Y = 0 at the start, Lemma 3's decoder",
            functools.partial(attention.solve, finite_m=True),
            attention.inapplicable,
            variant=True,
        ),
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
        Theory(
            "eq10-remark-1",
            "Eq. 10, Remark 1's rate",
            f"{_EQ10}, slowed down by 1 - rho as for identical overlaps rho and K = M",
            functools.partial(attention.solve, remark_1=True),
            attention.inapplicable,
            variant=True,
        ),
        Theory(
            "theorem4",
            "Theorem 4",
            f"{_EQ10}, a single common token, equal normalisers, overlap -> 0, 1/K -> 0",
            single_common.solve,
            single_common.inapplicable,
            variant=True,
        ),
        Theory(
            "fixed_attention",
            "decoder at fixed attention",
            "T -> infinity, Y = 0 at the start, eta_Z = 0, eta_Y -> 0, Lemma 3's decoder",
            functools.partial(fixed_attention.solve, decoder="closed"),
            fixed_attention.inapplicable,
            variant=True,
        ),
        Theory(
            "fixed_attention-discrete",
            "discrete decoder at fixed attention",
            "T -> infinity, Y = 0 at the start, eta_Z = 0, Lemma 3's decoder",
            functools.partial(fixed_attention.solve, decoder="discrete"),
            fixed_attention.inapplicable,
            variant=True,
        ),
    )
}


def theory(
    name: str, task: SequenceClasses, optimizer: Optimizer, zero_start: bool = True
) -> Theory:
    """The theory called `name`; `zero_start` tells whether the run starts from zero weights.

    Raises:
        ValueError: if there is none of that name, or it does not describe the task, the
            optimiser or the start; the message says which assumption fails.
    """
    checks.choice("theory", name, tuple(THEORIES))
    found = THEORIES[name]
    problem = found.inapplicable(task, optimizer)
    if found.zero_start and not zero_start:
        problem = "it starts from zero weights"
    if problem:
        raise ValueError(f"theory {name!r} does not apply: {problem}")
    return found


def applicable(
    task: SequenceClasses, optimizer: Optimizer, variants: bool = False, zero_start: bool = True
) -> tuple[str, ...]:
    """Names of the theories that describe `task` and `optimizer`, most exact first; `variants`
    adds those that are looked at on demand, `zero_start` is as in `theory`."""
    return tuple(
        name
        for name, rung in THEORIES.items()
        if (variants or not rung.variant)
        and (zero_start or not rung.zero_start)
        and rung.inapplicable(task, optimizer) is None
    )
