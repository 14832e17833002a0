"""`dynsim compare`: training against theory, for any problem."""

import dataclasses
import importlib
from pathlib import Path
from types import ModuleType

from sweeps.compare.settings import CompareOptions
from sweeps.systems import registry
from sweeps.systems.experiment import Experiment

GENERIC = "sweeps.compare.generic"


@dataclasses.dataclass(frozen=True)
class Compare(CompareOptions):
    """Train runs of a problem, solve its theories, and compare them.

    Attributes:
        times: number of logarithmically spaced times to record, besides step 0.
    """


def run(config: Compare) -> list[Path] | None:
    """Compare, write the files, and print the table, or the report as JSON."""
    return module_of(config.run)[0].run(config)


def module_of(run: Experiment) -> tuple[ModuleType, type[CompareOptions]]:
    """What compares the runs of a problem, and its settings: its system's, or the general ones."""
    path, _, settings = (registry.system_of(run).compare or GENERIC).partition(":")
    module = importlib.import_module(path)
    return module, getattr(module, settings) if settings else Compare
