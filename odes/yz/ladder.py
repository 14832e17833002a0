"""The ladder of the attention layer: one signature, what each theory assumes, what it accepts.

Every theory is `solve(task, optimizer, times, init=..., record=..., dtype=...)` and returns
the `Trajectory` that simulation returns. Those of finite T take the length of a `dynsim.Layer`, or
one that is given; all others read it as infinite.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

from dynsim.classes.task import SequenceClasses
from dynsim.training.rule import Rule
from dynsim.trajectory import Times, Trajectory
from dynsim.yz import finite_length
from dynsim.yz.layer import Layer, layer
from dynsim.yz.observables import PREDICTED
from odes import general
from odes.theory import Inapplicable, Ladder, Theory, Training, of_finite_length, refusal
from odes.yz import eq10 as attention
from odes.yz import fixed_attention, lemma3, population
from odes.yz import symmetric as symmetric_layer
from odes.yz import theorem4 as single_common

__all__ = ["LADDER", "THEORIES", "Theory", "applicable", "registered", "theories", "theory"]


def _read(why_not: Callable[[SequenceClasses, Rule], str | None]) -> Inapplicable:
    """What reads the task and the rule of a training."""
    return lambda training: why_not(training.problem, training.rule)


def _both(theory: Theory) -> tuple[Theory, Theory]:
    """A theory of T infinite, and before it that of T finite."""
    found = of_finite_length(theory)

    def solve(
        task: SequenceClasses, optimizer: Rule, times: Times, *, length: Any = None, **options: Any
    ) -> Trajectory:
        length = layer(task, length).length
        return theory.solve(task, optimizer, times, length=length, **options)

    def inapplicable(training: Training) -> str | None:
        task: SequenceClasses = training.problem
        if isinstance(task, Layer):
            if math.isinf(task.length):
                return "length = inf: leaves nothing to theories of finite T; use those without"
            short = refusal(finite_length.check_length, task, task.length)
            if short:
                return short
        return theory.inapplicable(training)

    return dataclasses.replace(found, solve=solve, inapplicable=inapplicable), theory


def _flow(flow: str, title: str = "", variant: bool = False) -> tuple[Theory, Theory]:
    """A general flow, of all weights of the layer."""
    return _both(
        dataclasses.replace(
            _GENERAL[flow],
            title=title or _GENERAL[flow].title,
            assumes=f"T, {_GENERAL[flow].assumes}",
            solve=functools.partial(population.solve, flow=flow),
            variant=variant,
        )
    )


def _without_y(
    name: str, title: str, assumes: str, module: Any, variant: bool = False, **options: Any
) -> Theory:
    """A theory of a `module` that eliminates the decoder, with `options` of its `solve`."""
    bounded = module in (attention, single_common)
    decoder = {name: each for name, each in options.items() if name == "decoder"}
    return Theory(
        name,
        title,
        assumes,
        functools.partial(module.solve, **options),
        _read(functools.partial(module.inapplicable, **decoder)),
        variant,
        needs=("key",),
        # Eq. 10 and Theorem 4 carry the growth factor bound along.
        predicts=(lambda task: tuple(PREDICTED.functions)) if bounded else None,
        adaptive=module is not fixed_attention,
    )


_GENERAL = {theory.name: theory for theory in general.flows()}
_LIMITS = "T, batch -> infinity, eta -> 0"
_EQ10 = "T -> infinity, Y = 0 at the start, 1/M -> 0, Lemma 3's decoder"

LADDER: Ladder[SequenceClasses, Rule] = Ladder(
    "yz",
    (
        *_flow("plain", "population flow"),
        *_flow("matched"),
        *_flow("corrected", variant=True),
        *_both(
            Theory(
                "symmetric",
                "symmetric reduction",
                f"{_LIMITS}, symmetric task, zero weights at the start",
                symmetric_layer.solve,
                _read(symmetric_layer.inapplicable),
                variant=True,
                zero_start=True,
            )
        ),
        *_flow("heavy-ball"),
        *_flow("rescaled"),
        *_flow("matched-adam"),
        *_flow("corrected-adam", variant=True),
        *_flow("adam"),
        *_flow("matched-rmsprop"),
        *_flow("rmsprop"),
        _without_y(
            "lemma3",
            "flow by Lemma 3's update",
            f"{_LIMITS}, Y = 0 at the start, Lemma 3's decoder",
            lemma3,
            variant=True,
        ),
        _without_y(
            "eq10-finite-m",
            "Eq. 10 at finite M",
            "T -> infinity, Y = 0 at the start, Lemma 3's decoder",
            attention,
            variant=True,
            finite_m=True,
        ),
        _without_y("eq10", "Eq. 10, sgd clock", _EQ10, attention, clock="sgd"),
        _without_y(
            "eq10-paper",
            "Eq. 10, paper's clock",
            f"{_EQ10}, classes summed instead of averaged",
            attention,
            clock="paper",
        ),
        _without_y(
            "eq10-remark-1",
            "Eq. 10, Remark 1's rate",
            f"{_EQ10}, slowed down by 1 - rho as for identical overlaps rho and K = M",
            attention,
            variant=True,
            remark_1=True,
        ),
        _without_y(
            "theorem4",
            "Theorem 4",
            f"{_EQ10}, a single common token, equal normalisers, overlap -> 0, 1/K -> 0",
            single_common,
            variant=True,
        ),
        _without_y(
            "fixed_attention",
            "decoder at fixed attention",
            "T -> infinity, Y = 0 at the start, eta_Z = 0, eta_Y -> 0, Lemma 3's decoder",
            fixed_attention,
            variant=True,
        ),
        _without_y(
            "fixed_attention-discrete",
            "discrete decoder at fixed attention",
            "T -> infinity, Y = 0 at the start, eta_Z = 0, Lemma 3's decoder",
            fixed_attention,
            variant=True,
            decoder="discrete",
        ),
    ),
)
THEORIES = LADDER.built_in
"""The theories of this project by name, most exact first."""
registered, theories = LADDER.registered, LADDER.theories
theory, applicable = LADDER.theory, LADDER.applicable
