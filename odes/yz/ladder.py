"""The ladder of the attention layer: one signature, what each theory assumes, what it accepts.

Every theory is `solve(task, optimizer, times, init=..., record=..., dtype=...)` and returns
the `Trajectory` that simulation returns.
"""

import functools

from dynsim.classes.task import SequenceClasses
from dynsim.training.rule import Rule
from odes.solver.flows import checked_flow
from odes.theory import Ladder, Theory, of_finite_length, refusal
from odes.yz import eq10 as attention
from odes.yz import fixed_attention, lemma3, population
from odes.yz import symmetric as symmetric_layer
from odes.yz import theorem4 as single_common

__all__ = ["LADDER", "THEORIES", "Theory", "applicable", "registered", "theories", "theory"]


def _flow(
    flow: population.Flow, title: str, assumes: str, variant: bool = False
) -> tuple[Theory, Theory]:
    """A flow with T finite and with T infinite."""

    def inapplicable(task: SequenceClasses, optimizer: Rule) -> str | None:
        del task
        return refusal(checked_flow, optimizer, flow)

    solve = functools.partial(population.solve, flow=flow)
    found = Theory(flow, title, assumes, solve, inapplicable, variant)
    return of_finite_length(found), found


_LIMITS = "T, batch -> infinity, eta -> 0"
_EQ10 = "T -> infinity, Y = 0 at the start, 1/M -> 0, Lemma 3's decoder"

_SYMMETRIC = Theory(
    "symmetric",
    "symmetric reduction",
    f"{_LIMITS}, symmetric task, zero weights at the start",
    symmetric_layer.solve,
    symmetric_layer.inapplicable,
    variant=True,
    zero_start=True,
)

LADDER: Ladder[SequenceClasses, Rule] = Ladder(
    "yz",
    (
        *_flow("plain", "population flow", _LIMITS),
        *_flow("matched", "matched momentum flow", f"{_LIMITS} at fixed momentum"),
        *_flow("corrected", "flow corrected in eta", f"{_LIMITS} to second order", variant=True),
        of_finite_length(_SYMMETRIC),
        _SYMMETRIC,
        *_flow("heavy-ball", "heavy-ball flow", f"{_LIMITS}, 1 - mu -> 0"),
        *_flow("rescaled", "flow at eta/(1-mu)", f"{_LIMITS}, no inertia"),
        *_flow("matched-adam", "matched Adam flow", f"{_LIMITS} at fixed decays, first step exact"),
        *_flow("adam", "Adam's flow", f"{_LIMITS}, 1 - b -> 0"),
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
            functools.partial(fixed_attention.inapplicable, decoder="discrete"),
            variant=True,
        ),
    ),
)
THEORIES = LADDER.built_in
"""The theories of this project by name, most exact first."""
registered, theories = LADDER.registered, LADDER.theories
theory, applicable = LADDER.theory, LADDER.applicable
