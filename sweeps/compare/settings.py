"""What every comparison can be asked for, whatever the system."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, ClassVar

import annotated_types as at

from dynsim import checks
from dynsim.decoding import Count, Seed
from sweeps.language.tree import settle
from sweeps.output import check_directory
from sweeps.systems import registry
from sweeps.systems.base import MOST_TIMES

Training: Any = registry.system("yz").run

Times = Annotated[int, at.Ge(2), at.Le(MOST_TIMES)]


@dataclasses.dataclass(frozen=True)
class CompareOptions:
    """Options that are mixed into the runs of a system.

    Attributes:
        seeds: number of runs.
        out: folder for the figure, compare.json and compare.npz.
        theories: names of the theories to compare with; "best" is the most exact one that applies.
            All that apply if omitted.
        times: number of times to record, besides step 0.
        root: root of the random keys; run i uses fold_in(key(root), i).
        json: print the report as JSON, and nothing else, to standard output.
    """

    SYSTEM: ClassVar[str] = "yz"

    seeds: Count = 8
    out: Path = Path("out/compare")
    theories: tuple[str, ...] = ()
    times: Times = 64
    root: Seed = 0
    json: bool = False

    def about(self) -> str:
        """The system and the task."""
        task = self.task  # pyright: ignore[reportAttributeAccessIssue]
        return ": ".join(dict.fromkeys((self.SYSTEM, task)))

    def check_options(self, fewest_times: int = 2) -> None:
        """Raise `ValueError`, naming the field, for options that cannot be."""
        settle(self)
        checks.integer("times", self.times, fewest_times)
        twice = [name for name in self.theories if self.theories.count(name) > 1]
        if twice:
            raise ValueError(f"theories = {twice[0]!r}: is named twice")
        check_directory(self.out)


@dataclasses.dataclass(frozen=True)
class Compare(CompareOptions, Training):
    """Train the attention layer in Y and Z, solve its theories, and compare them.

    Attributes:
        times: number of logarithmically spaced times to record, besides step 0.
    """

    def check(self) -> None:
        """Raise `ValueError`, naming the field, for what the constructors do not see."""
        super().check()
        self.check_options()
        if self.value("eta_y") == 0 and self.init == "zero":
            given = "eta_y" if self.ratio is None else "ratio"
            raise ValueError(f"{given} = 0: nothing moves from zero weights; must be positive")
