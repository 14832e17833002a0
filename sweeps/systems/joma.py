"""Hidden nodes and attention (JoMA) on sequence classes."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dynsim import SequenceClasses
from dynsim.decoding import Rate
from dynsim.joma.model import JoMA as Problem
from dynsim.joma.task import fig2
from dynsim.yz.model import Init
from odes.joma import LADDER
from sweeps.systems.base import Labels
from sweeps.systems.problems.options import problem_system
from sweeps.systems.yz.memory import LAYER
from sweeps.systems.yz.tasks import TASKS, ClassOptions, Given


@dataclasses.dataclass(frozen=True)
class JoMAOptions(ClassOptions):
    """The task, the rates and the start of an MLP layer and attention.

    Attributes:
        task: a task of the system yz; or joma: 20 classes of one query with distinct tokens in
            bumps, as in the paper's Fig. 2.
        num_queries: for syn-medium and syn: number of queries; 1 if omitted, as in Theorem 1.
        eta_y: learning rate of the MLP's weights V; 0.1 if omitted.
        eta_z: learning rate of the attention logits Z.
        init: of the system yz; here weights start by scale.
    """

    DEFAULT_ETA_Y: ClassVar[float] = 0.1
    SHARED: ClassVar = (*ClassOptions.SHARED, "init")

    task: Given = "syn-medium"
    eta_z: Rate = 0.1
    init: Init = "zero"

    @functools.cached_property
    def held(self) -> SequenceClasses:
        """The task; `ValueError` as of `ClassOptions`."""
        if self.task != "joma":
            return super().held
        self.choices[0].check(self)
        return fig2()

    def check(self) -> None:
        """Raise `ValueError`, naming the field, for what the constructors do not see."""
        if self.init != "zero":
            raise ValueError(
                f"init = {self.init!r}: the system joma does not read it, yz does; its weights "
                "start by scale"
            )
        super().check()

    def value(self, name: str) -> Any:
        """As of `ClassOptions`, but for a single query."""
        own = name == "num_queries" and self.num_queries is None and self.K is None
        return 1 if own else super().value(name)

    def reads(self, field: str, axes: Mapping[str, Sequence[Any]]) -> bool:
        """As of `ClassOptions`, but weights start by the scale, not as `init`."""
        return field != "init" and super().reads(field, axes)


SYSTEM = problem_system(
    Problem(LAYER),
    "joma",
    descends=lambda problem: dataclasses.replace(problem, length=math.inf),
    options=JoMAOptions,
    theories=LADDER.built_in.values(),
    registered=LADDER.registered,
    labels=Labels(
        about={
            "eta_y": ("learning rate of the MLP", "1/step"),
            "eta_z": ("learning rate of the attention logits", "1/step"),
            "scale": ("standard deviation of a starting weight", "1"),
            "temperature": ("temperature of the attention", "1"),
            "steps": ("optimiser steps", "step"),
            "loss": ("population loss", "nat"),
            "batch_loss": ("loss of the next batch", "nat"),
            "entropy": ("entropy of attention", "nat"),
            "correlation": ("correlation of both sides of Theorem 1", "1"),
            "weight": ("norm of the weights of a token", "1"),
        },
        inner_dims={
            **dict.fromkeys(("conserved", "weight"), ("token",)),
            "logits": ("query", "token"),
            "attended": ("class", "token"),
        },
    ),
    tile=32,
    batch=math.inf,
)._replace(tasks=(*TASKS, "joma"))
JoMA: Any = SYSTEM.run
"""Settings of a run."""
