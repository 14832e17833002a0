"""The command `dynsim compare two_stage`: training on prompts against the reduced ODE."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from dynsim.decoding import Count
from odes.hierarchy import applicable, theories
from sweeps.compare.comparison import chosen, deliver
from sweeps.compare.settings import CompareOptions
from sweeps.runner.cluster import hosts
from sweeps.studies.two_stage import report
from sweeps.studies.two_stage.experiment import runs
from sweeps.studies.two_stage.outcome import TwoStageComparison
from sweeps.studies.two_stage.runs import Times, settings
from sweeps.studies.two_stage.theory import predict
from sweeps.systems.registry import BEST


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
        for name in self.theories:
            if name != BEST:
                theories(self.run.built[0])[name].check(*self.run.built)

    def described(self) -> tuple[str, ...]:
        """The theories to compare with."""
        return chosen(self.theories, applicable(*self.run.built, variants=True))


def compare(config: CompareTwoStage) -> TwoStageComparison:
    """Train `config.seeds` runs, integrate the theories at the same times.

    Raises:
        ValueError: naming the setting, its value and what is allowed, before anything runs.
    """
    config.check()
    theories = config.described()
    found = runs(config.run, config.seeds, config.times, root=config.root)
    return TwoStageComparison(config, found, predict(found, theories))


def run(config: CompareTwoStage) -> list[Path] | None:
    """Run `dynsim compare two_stage`: print the table, or the report as JSON, and write files."""
    hosts.use_all_cores()
    result = compare(config)
    return deliver(result, report.draw(result), report.table(result))
