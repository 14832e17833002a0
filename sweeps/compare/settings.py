"""Options of every comparison, whatever the problem."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import annotated_types as at

from dynsim.decoding import Seed
from sweeps.language.axes import MOST_VALUES
from sweeps.language.tree import check_fields, encode
from sweeps.output import check_directory
from sweeps.runner.spec import Tolerance
from sweeps.systems.base import MOST_TIMES
from sweeps.systems.experiment import Experiment
from sweeps.systems.kinds import language

Times = Annotated[int, at.Ge(2), at.Le(MOST_TIMES)]


@dataclasses.dataclass(frozen=True)
class CompareOptions:
    """A run, and how to compare it with theories.

    Attributes:
        run: what is trained.
        seeds: number of runs.
        out: folder for the figure, compare.json and compare.npz.
        theories: names of the theories to compare with; "best" is the most exact one that applies.
            All that apply if omitted.
        times: number of times to record, besides step 0.
        rtol: relative tolerance of theories with an adaptive solver; by default that of the
            theory.
        root: root of the random keys; run i uses fold_in(key(root), i).
        json: print the report as JSON, and nothing else, to standard output.
    """

    RUN: ClassVar[Mapping[str, Any]] = {"problem": "yz"}

    run: Experiment
    seeds: Annotated[int, at.Ge(1), at.Le(MOST_VALUES)] = 8
    out: Path = Path("out/compare")
    theories: tuple[str, ...] = ()
    times: Times = 64
    rtol: Tolerance | None = None
    root: Seed = 0
    json: bool = False

    def check(self) -> None:
        """Raise `ValueError`, naming the field, for invalid settings."""
        check_fields(self)
        twice = [name for name in self.theories if self.theories.count(name) > 1]
        if twice:
            raise ValueError(f"theories = {twice[0]!r}: is named twice")
        if self.run.seed:
            raise ValueError(
                f"seed = {self.run.seed}: the runs of a comparison have the seeds 0 to "
                f"{self.seeds - 1}; choose another root"
            )
        self.run.check()
        check_directory(self.out)

    def as_json(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        own = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return {**own, "out": str(self.out), "run": encode(language(), self.run)}
