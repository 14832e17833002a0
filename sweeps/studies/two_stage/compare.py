"""The command `dynsim compare two_stage`: training on prompts against the reduced equations."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from dynsim.decoding import Count
from sweeps.compare.command import run
from sweeps.compare.settings import CompareOptions
from sweeps.studies.two_stage.runs import Times, settings

__all__ = ["CompareTwoStage", "run"]


@dataclasses.dataclass(frozen=True)
class CompareTwoStage(CompareOptions):
    """Train attention on prompts in two stages, solve the reduced ODE, and compare them.

    Attributes:
        theories: names of the theories to compare with (ode, infinite, anchored, sde, seeds). All
            that apply if omitted.
        times: number of times to record, a third of them in the first stage.
    """

    RUN: ClassVar[Mapping[str, Any]] = {"problem": "two_stage"}

    seeds: Count = 6
    times: Times = 128

    def check(self) -> None:
        """Raise `ValueError`, naming the field, for settings that are not allowed."""
        settings(self.run)
        super().check()
