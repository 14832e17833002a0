"""Theories of the attention layer in Y and Z, one in each module, most exact first.

Each has a `solve(problem, rule, times, key=..., record=..., dtype=...)`. Finite-T theories use the
length of the layer; all others assume that it is infinite.
"""

import dataclasses
import functools

from odes import general, symmetric
from odes.symmetric.solve import inapplicable
from odes.theory import AnyTheory, Theory, of_finite_length
from odes.yz import eq10, fixed_attention, lemma3, population, theorem4


def _for_both_lengths(theory: AnyTheory) -> tuple[AnyTheory, AnyTheory]:
    """Return a theory at the length of the layer, and at infinite length. Its `solve` has an option
    `length`, which is infinite by default."""
    return of_finite_length(theory, functools.partial(theory.solve, length=None)), theory


def _flow(flow: str, title: str = "", variant: bool = False) -> tuple[AnyTheory, AnyTheory]:
    """Return a general flow of all weights of the layer, for finite and infinite T."""
    # Its description is that of any problem, its solver that of the layer, with an option `length`.
    general_flow = _GENERAL[flow]
    return _for_both_lengths(
        dataclasses.replace(
            general_flow,
            title=title or general_flow.title,
            assumes=f"T, {general_flow.assumes}",
            solve=functools.partial(population.solve, flow=flow),
            variant=variant,
        )
    )


_GENERAL = {theory.name: theory for theory in general.flows()}
_SYMMETRIC: AnyTheory = Theory(
    "symmetric",
    "symmetric reduction",
    "T, batch -> infinity, eta -> 0, symmetric task, zero weights at the start",
    symmetric.solve,
    inapplicable,
    variant=True,
)
THEORIES: tuple[AnyTheory, ...] = (
    *_flow("plain", "population flow"),
    *_flow("matched"),
    *_flow("corrected", variant=True),
    *_for_both_lengths(_SYMMETRIC),
    *_flow("heavy-ball"),
    *_flow("rescaled"),
    *_flow("matched-adam"),
    *_flow("corrected-adam", variant=True),
    *_flow("adam"),
    *_flow("matched-rmsprop"),
    *_flow("rmsprop"),
    lemma3.THEORY,
    *eq10.THEORIES,
    theorem4.THEORY,
    *fixed_attention.THEORIES,
)
"""The theories, most exact first."""
