"""The attention layer in ordinary parameters U, W_Q, W_K and W_V."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import equinox as eqx

from dynsim import QKV
from dynsim.yz.model import Init
from odes.qkv import LADDER
from sweeps.systems.problems.options import problem_system
from sweeps.systems.yz.labels import LABELS
from sweeps.systems.yz.memory import LAYER
from sweeps.systems.yz.tasks import ClassOptions

NEW: tuple[str, ...] = ("head_width", "slope")
"""Settings that stores of earlier versions do not name: they are stored where they are given."""


@dataclasses.dataclass(frozen=True)
class QKVOptions(ClassOptions):
    """The task and the rates of a layer in U, W_Q, W_K and W_V.

    Attributes:
        init: of the system yz; here weights start by scale, value_scale and embedding.
    """

    SHARED: ClassVar = (*ClassOptions.SHARED, "init")

    init: Init = "zero"

    @property
    def usual(self) -> Any:
        """The problem on its task, which decides what its sizes may be."""
        # Its widths are checked once they are set.
        return eqx.tree_at(lambda problem: problem.task, self.MADE, self.held)

    def check(self) -> None:
        """As of `ClassOptions`; its `init` is of Y and Z, and nobody reads it here."""
        if self.init != "zero":
            raise ValueError(
                f"init = {self.init!r}: the system qkv does not read it, yz does; its weights "
                "start by scale, value_scale and embedding"
            )
        super().check()

    def reads(self, field: str, axes: Mapping[str, Sequence[Any]]) -> bool:
        """As of `ClassOptions`, but weights start as the fields here say, not as `init`."""
        left_out = field in NEW and field not in axes and getattr(self, field) is None
        return field != "init" and not left_out and super().reads(field, axes)


SYSTEM = problem_system(
    QKV(LAYER),
    "qkv",
    descends=lambda problem: dataclasses.replace(problem, length=math.inf),
    options=QKVOptions,
    theories=LADDER.built_in.values(),
    registered=LADDER.registered,
    labels=LABELS,
    tile=8,
    batch=128,
)
QKVTraining: Any = SYSTEM.run
"""Settings of a run."""
