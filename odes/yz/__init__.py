"""Theories of the attention layer in Y and Z, one in each module, most exact first.

Each has a `solve(problem, rule, times, key=..., record=..., dtype=...)`. Finite-T theories use the
length of the layer; all others assume that it is infinite.
"""

import dataclasses
import functools
from typing import Any

from dynsim.classes.task import SequenceClasses
from dynsim.training.rule import Rule
from dynsim.trajectory import Times, Trajectory
from odes import general, symmetric
from odes.symmetric.solve import inapplicable
from odes.theory import Theory, Training, of_finite_length
from odes.yz import eq10, fixed_attention, lemma3, population, theorem4


def _both(theory: Theory) -> tuple[Theory, Theory]:
    """Return the finite-T theory followed by the given infinite-T theory."""

    def solve(task: SequenceClasses, rule: Rule, times: Times, **options: Any) -> Trajectory:
        length = getattr(task, "length", 128)
        return theory.solve(task, rule, times, length=length, **options)

    return dataclasses.replace(of_finite_length(theory), solve=solve), theory


def _flow(flow: str, title: str = "", variant: bool = False) -> tuple[Theory, Theory]:
    """Return a general flow of all weights of the layer, for finite and infinite T."""
    return _both(
        dataclasses.replace(
            _GENERAL[flow],
            title=title or _GENERAL[flow].title,
            assumes=f"T, {_GENERAL[flow].assumes}",
            solve=functools.partial(population.solve, flow=flow),
            variant=variant,
        )
    )


def _reduced(
    task: SequenceClasses, rule: Rule, times: Times, *, init: Any = None, **options: Any
) -> Trajectory:
    """Return `odes.symmetric.solve` for sequence classes."""
    if init is not None:
        raise ValueError("init: the symmetric reduction starts from zero weights; leave it out")
    return symmetric.solve(task, rule, times, **options)


_GENERAL = {theory.name: theory for theory in general.flows()}
_START = "T -> infinity, Y = 0 at the start"
_DECODER = "Lemma 3's decoder"
_EQ10 = f"{_START}, 1/M -> 0, {_DECODER}"
_REMARK_1 = "slowed down by 1 - rho as for identical overlaps rho and K = M"

BY_CLASS = {"lemma3": 24, "eq10": 12, "theorem4": 3, "fixed_attention": 1}
"""Number of (K, M) arrays in theories without an array of all weights, by the part of the name
before the first dash."""


def _memory(training: Training, times: int, record: tuple[Any, ...], arrays: int) -> int:
    task = training.problem
    return 8 * (arrays * task.K * task.M + times * len(record) * task.K)


def _sized(theory: Theory) -> Theory:
    """Return the theory with an estimate of its memory, if it holds such arrays."""
    if not (arrays := BY_CLASS.get(theory.name.split("-")[0])):
        return theory
    return dataclasses.replace(theory, memory=functools.partial(_memory, arrays=arrays))


_ALL: tuple[Theory, ...] = (
    *_flow("plain", "population flow"),
    *_flow("matched"),
    *_flow("corrected", variant=True),
    *_both(
        Theory(
            "symmetric",
            "symmetric reduction",
            "T, batch -> infinity, eta -> 0, symmetric task, zero weights at the start",
            _reduced,
            inapplicable,
            variant=True,
        )
    ),
    *_flow("heavy-ball"),
    *_flow("rescaled"),
    *_flow("matched-adam"),
    *_flow("corrected-adam", variant=True),
    *_flow("adam"),
    *_flow("matched-rmsprop"),
    *_flow("rmsprop"),
    lemma3.THEORY,
    eq10.theory("Eq. 10 at finite M", f"{_START}, {_DECODER}", finite_m=True, variant=True),
    eq10.theory("Eq. 10, time of SGD", _EQ10),
    eq10.theory(
        "Eq. 10, time of the paper",
        f"{_EQ10}, classes summed instead of averaged",
        convention="paper",
    ),
    eq10.theory("Eq. 10, Remark 1's rate", f"{_EQ10}, {_REMARK_1}", remark_1=True, variant=True),
    theorem4.theory(f"{_EQ10}, a single common token, equal normalisers, overlap -> 0, 1/K -> 0"),
    fixed_attention.theory(
        "decoder at fixed attention", f"{_START}, eta_Z = 0, eta_Y -> 0, {_DECODER}"
    ),
    fixed_attention.theory(
        "discrete decoder at fixed attention",
        f"{_START}, eta_Z = 0, {_DECODER}",
        decoder="discrete",
    ),
)
THEORIES = tuple(map(_sized, _ALL))
"""The theories, most exact first."""
