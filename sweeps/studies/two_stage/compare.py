"""The command `dynsim compare two_stage`: training on prompts against the reduced ODE."""

import dataclasses
from pathlib import Path
from typing import ClassVar

from dynsim import checks
from dynsim.decoding import Count
from odes.two_stage import LADDER
from sweeps.compare.comparison import BEST, chosen, deliver
from sweeps.compare.settings import CompareOptions, Times
from sweeps.runner.cluster import hosts
from sweeps.studies.two_stage import report
from sweeps.studies.two_stage.experiment import runs
from sweeps.studies.two_stage.outcome import TwoStageComparison
from sweeps.studies.two_stage.theory import predict
from sweeps.systems.two_stage import TwoStage


@dataclasses.dataclass(frozen=True)
class CompareTwoStage(CompareOptions, TwoStage):
    """Train attention on prompts in two stages, solve the reduced ODE, and compare them.

    Attributes:
        theories: names of the theories to compare with (ode, infinite, anchored, sde, seeds). All
            that apply if omitted.
        times: number of times to record, a third of them in the first stage.
    """

    # Its theories are more than engines, and its description lists them.
    SYSTEM: ClassVar[str] = ""

    seeds: Count = 6
    times: Times = 128

    def check(self) -> None:
        """Raise `ValueError`, naming the field, for what the constructors do not see."""
        super().check()
        self.check_options(fewest_times=3)
        for name in self.theories:
            checks.choice("theories", name, (BEST, *LADDER.theories()))
            self._check_described(f"theories = {name!r}")

    def described(self) -> tuple[str, ...]:
        """The theories to compare with."""
        if self.core != "fresh" or self.bias:
            return ()
        return chosen(self.theories, tuple(LADDER.theories()))

    def _check_described(self, field: str) -> None:
        if self.core != "fresh" or self.bias:
            raise ValueError(
                f"{field}: the reduced ODE describes core = 'fresh' without a bias, got "
                f"core = {self.core!r}, bias = {self.bias}"
            )


def compare(config: CompareTwoStage) -> TwoStageComparison:
    """Train `config.seeds` runs, integrate the theories at the same times.

    Raises:
        ValueError: naming the setting, its value and what is allowed, before anything runs.
    """
    config.check()
    found = runs(TwoStage.of(config), config.seeds, config.times, root=config.root)
    return TwoStageComparison(config, found, predict(found, config.described()))


def run(config: CompareTwoStage) -> list[Path] | None:
    """Run `dynsim compare two_stage`: print the table, or the report as JSON, and write files."""
    hosts.use_all_cores()
    result = compare(config)
    return deliver(result, report.draw(result), report.table(result))
