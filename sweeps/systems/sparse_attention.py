"""Retrieval of one token (the emergence of sparse attention): settings, engines and labels."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from dynsim import Trajectory, checks
from dynsim.decoding import CountOrInf, Decay, Positive, Rate, Share, Size, Steps
from dynsim.precision import DType
from dynsim.sparse_attention.model import TABLE, TRAINED
from dynsim.sparse_attention.simulate import simulate_retrieval
from dynsim.sparse_attention.task import Retrieval, retrieval
from dynsim.training.constant.descent import Descent, Kind
from odes.sparse_attention import early, ladder
from odes.theory import Theory
from sweeps.systems.base import (
    Engine,
    Fields,
    Labels,
    Run,
    Settings,
    System,
    Times,
    known,
    steps_of,
)
from sweeps.systems.choice import RULES, Choice, Chooses, descent
from sweeps.systems.solving import integrate

RATES = ("eta", "momentum", "b1", "b2", "eps")
SIZES = ("length", "d", "B")
"""The rule that reads a number; others are read by all."""


class Fixed(NamedTuple):
    """What runs of one program share besides their numbers, as in `SparseAttention`."""

    kind: Kind
    steps: int
    batch: int | float


@dataclasses.dataclass(frozen=True)
class SparseAttention(Chooses, Run[Fixed]):
    """Attention scores and a read-out that learn to retrieve one token of many.

    Attributes:
        task: sparse-attention.
        length: sequence length T.
        d: dimension of a token.
        B: number of copies of the relevant token.
        p: probability that the relevant token is one fixed token.
        optimizer: update rule; all weights share one learning rate.
        eta: learning rate.
        momentum: for momentum: heavy-ball coefficient mu in [0, 1); 0.9 if omitted.
        b1: for adam: decay of the first moment; 0.9 if omitted.
        b2: for adam: decay of the second moment; 0.999 if omitted.
        eps: for adam: epsilon; 1e-8 if omitted.
        steps: optimiser steps of a run.
        batch: sequences per step; inf for the population loss.
        dtype: precision of training; theories are solved in float64.
    """

    AXES: ClassVar = Fields(
        traced=(*RATES, "p"),
        static=(*SIZES, "steps", "batch"),
        whole=(*SIZES, "steps"),
        counts=("batch",),
    )

    task: Literal["sparse-attention"] = "sparse-attention"
    length: Size = 64
    d: Size = 64
    B: Size = 1
    p: Share = 0.0
    optimizer: Kind = "sgd"
    eta: Rate = 1.0
    momentum: Decay | None = None
    b1: Decay | None = None
    b2: Decay | None = None
    eps: Positive | None = None
    steps: Steps = 1200
    batch: CountOrInf = 32
    dtype: DType = "float32"

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What the optimiser reads."""
        return (Choice("optimizer", self.optimizer, RULES),)

    def make_task(self) -> Retrieval:
        """The task; `ValueError` for numbers that describe none."""
        return retrieval(self.length, self.d, self.B, self.p)

    def make_optimizer(self) -> Descent:
        """The update rule; `ValueError` for numbers that cannot be."""
        return descent(self)

    def numbers(self) -> dict[str, ArrayLike]:
        """The numbers of the optimiser and p by name."""
        optimizer = self.make_optimizer()
        checks.real("p", self.p, 0, 1)
        return {**{name: getattr(optimizer, name) for name in RATES}, "p": self.p}

    def fixed(self) -> Fixed:
        """What its program takes for granted: neither the task's sizes, which it says itself."""
        return Fixed(self.optimizer, self.steps, self.batch)

    def steps_recorded(self, times: Times) -> tuple[int, ...]:
        """The optimiser steps at which a run records; `ValueError` unless they increase within
        [0, steps]."""
        return steps_of(times, self.steps)

    @staticmethod
    def stiffness(numbers: Mapping[str, Float[np.ndarray, " P"]]) -> Float[np.ndarray, " P"]:
        """The learning rate."""
        return numbers["eta"]


def _assemble(
    settings: Settings[Fixed], task: Retrieval, numbers: Mapping[str, Array]
) -> tuple[Retrieval, Descent]:
    rates = {name: numbers[name] for name in RATES}
    task = dataclasses.replace(task, p=numbers["p"])
    return task, Descent(**rates, kind=settings.fixed.kind)


def _simulate(
    settings: Settings[Fixed], task: Retrieval, optimizer: Descent, key: PRNGKeyArray
) -> Trajectory:
    fixed = settings.fixed
    return simulate_retrieval(
        task,
        optimizer,
        key,
        steps=fixed.steps,
        batch=fixed.batch,
        times=known(settings.times),
        record=settings.record,
        dtype=settings.dtype,
        checkpoint=settings.checkpoint,
    )


def _solve(
    settings: Settings[Fixed],
    task: Retrieval,
    optimizer: Descent,
    key: PRNGKeyArray,
    *,
    theory: Theory[Retrieval, Descent],
) -> Trajectory:
    del key
    return integrate(theory.solve, settings, task, optimizer)


def _described(
    fixed: Fixed, task: Retrieval, optimizer: Descent, *, theory: Theory[Retrieval, Descent]
) -> None:
    del fixed
    # An axis p has many values.
    if np.ndim(task.p) == 0:
        ladder.theory(theory, task, optimizer)


NUMBERS = 2**10
"""Bytes of an adaptive solver of a few numbers."""


def _bytes(task: Retrieval, settings: Settings[Fixed]) -> int:
    fixed = settings.fixed
    drawn = 1 if math.isinf(fixed.batch) else int(fixed.batch)
    return settings.width * (4 * (task.d**2 + task.T) + 6 * drawn * task.d)


def _rung(theory: Theory[Retrieval, Descent]) -> Engine[Fixed]:
    return Engine(
        functools.partial(_solve, theory=theory),
        _assemble,
        early.CLOSED if theory.name == "escape" else TABLE,
        lambda task, settings: NUMBERS,
        functools.partial(_described, theory=theory),
        adaptive=True,
        tile=64,
        variant=theory.variant,
        title=theory.title,
        assumes=theory.assumes,
    )


def _registered() -> dict[str, Engine[Any]]:
    """Engines of the theories of other packages that need task and optimiser alone."""
    return {name: _rung(each) for name, each in ladder.registered().items() if not each.needs}


SYSTEM = System(
    name="sparse_attention",
    tasks=("sparse-attention",),
    run=SparseAttention,
    engines={
        "simulation": Engine(
            _simulate, _assemble, TRAINED, _bytes, tile=8, trains=True, goes_on=True
        ),
        **{name: _rung(theory) for name, theory in ladder.THEORIES.items()},
    },
    labels=Labels(
        about={
            "length": ("tokens of a sequence", "tokens"),
            "eta": ("learning rate", "1/step"),
            "steps": ("optimiser steps", "step"),
            "loss": ("population mean square error / 2", "1"),
            "batch_loss": ("mean square error / 2 of the next batch", "1"),
            "attention": ("attention on the token that matters", "1"),
            "readout": ("weights along W*", "1"),
            "gap": ("score of the token that matters above the others", "1"),
        }
    ),
    more=_registered,
)
