"""The ladder of the attention layer: one signature, what each theory assumes, what it accepts.

Every theory is `solve(task, optimizer, times, init=..., record=..., dtype=...)` and returns
the `Trajectory` that simulation returns. Those of finite T take the length of a `dynsim.Layer`, or
one that is given; all others read it as infinite.
"""

import dataclasses
import functools
import math
from typing import Any

from dynsim.classes.task import SequenceClasses
from dynsim.training.rule import Rule
from dynsim.trajectory import Times, Trajectory
from dynsim.yz import finite_length
from dynsim.yz.layer import Layer, layer
from dynsim.yz.observables import PREDICTED
from odes import general
from odes.theory import Ladder, Theory, of_finite_length, refusal
from odes.yz import eq10 as attention
from odes.yz import fixed_attention, lemma3, population
from odes.yz import symmetric as symmetric_layer
from odes.yz import theorem4 as single_common

__all__ = ["LADDER", "THEORIES", "Theory", "applicable", "registered", "theories", "theory"]


def _both(theory: Theory) -> tuple[Theory, Theory]:
    """A theory of T infinite, and before it that of T finite."""
    found = of_finite_length(theory)

    def solve(
        task: SequenceClasses, optimizer: Rule, times: Times, *, length: Any = None, **options: Any
    ) -> Trajectory:
        length = layer(task, length).length
        return theory.solve(task, optimizer, times, length=length, **options)

    def inapplicable(task: SequenceClasses, optimizer: Rule) -> str | None:
        if isinstance(task, Layer):
            if math.isinf(task.length):
                return "length = inf: leaves nothing to theories of finite T; use those without"
            short = refusal(finite_length.check_length, task, task.length)
            if short:
                return short
        return theory.inapplicable(task, optimizer)

    return dataclasses.replace(found, solve=solve, inapplicable=inapplicable), theory


def _flow(flow: population.Flow, title: str = "", variant: bool = False) -> tuple[Theory, Theory]:
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


def _bounded(task: SequenceClasses) -> tuple[str, ...]:
    """What theories record that carry the growth factor bound along."""
    del task
    return tuple(PREDICTED.functions)


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
                symmetric_layer.inapplicable,
                variant=True,
                zero_start=True,
            )
        ),
        *_flow("heavy-ball"),
        *_flow("rescaled"),
        *_flow("matched-adam"),
        *_flow("adam"),
        *_flow("matched-rmsprop"),
        *_flow("rmsprop"),
        Theory(
            "lemma3",
            "flow by Lemma 3's update",
            f"{_LIMITS}, Y = 0 at the start, Lemma 3's decoder",
            lemma3.solve,
            lemma3.inapplicable,
            needs=("key",),
            variant=True,
        ),
        Theory(
            "eq10-finite-m",
            "Eq. 10 at finite M",
            "T -> infinity, Y = 0 at the start, Lemma 3's decoder",
            functools.partial(attention.solve, finite_m=True),
            attention.inapplicable,
            needs=("key",),
            predicts=_bounded,
            variant=True,
        ),
        Theory(
            "eq10",
            "Eq. 10, sgd clock",
            _EQ10,
            functools.partial(attention.solve, clock="sgd"),
            attention.inapplicable,
            needs=("key",),
            predicts=_bounded,
        ),
        Theory(
            "eq10-paper",
            "Eq. 10, paper's clock",
            f"{_EQ10}, classes summed instead of averaged",
            functools.partial(attention.solve, clock="paper"),
            attention.inapplicable,
            needs=("key",),
            predicts=_bounded,
        ),
        Theory(
            "eq10-remark-1",
            "Eq. 10, Remark 1's rate",
            f"{_EQ10}, slowed down by 1 - rho as for identical overlaps rho and K = M",
            functools.partial(attention.solve, remark_1=True),
            attention.inapplicable,
            needs=("key",),
            predicts=_bounded,
            variant=True,
        ),
        Theory(
            "theorem4",
            "Theorem 4",
            f"{_EQ10}, a single common token, equal normalisers, overlap -> 0, 1/K -> 0",
            single_common.solve,
            single_common.inapplicable,
            needs=("key",),
            predicts=_bounded,
            variant=True,
        ),
        Theory(
            "fixed_attention",
            "decoder at fixed attention",
            "T -> infinity, Y = 0 at the start, eta_Z = 0, eta_Y -> 0, Lemma 3's decoder",
            functools.partial(fixed_attention.solve, decoder="closed"),
            fixed_attention.inapplicable,
            needs=("key",),
            adaptive=False,
            predicts=_bounded,
            variant=True,
        ),
        Theory(
            "fixed_attention-discrete",
            "discrete decoder at fixed attention",
            "T -> infinity, Y = 0 at the start, eta_Z = 0, Lemma 3's decoder",
            functools.partial(fixed_attention.solve, decoder="discrete"),
            functools.partial(fixed_attention.inapplicable, decoder="discrete"),
            needs=("key",),
            adaptive=False,
            variant=True,
        ),
    ),
)
THEORIES = LADDER.built_in
"""The theories of this project by name, most exact first."""
registered, theories = LADDER.registered, LADDER.theories
theory, applicable = LADDER.theory, LADDER.applicable
