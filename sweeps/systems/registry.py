"""The registry of systems and engines: what a sweep file finds by name."""

from dynsim import checks
from sweeps.systems import qkv as embedded
from sweeps.systems.base import Engine, Run
from sweeps.systems.transformer import engines as text_engines
from sweeps.systems.transformer.settings import TextTraining
from sweeps.systems.two_stage import engines as two_stage_engines
from sweeps.systems.two_stage.settings import TwoStage
from sweeps.systems.yz import engines as yz_engines
from sweeps.systems.yz.problem import TASKS
from sweeps.systems.yz.settings import Training

SYSTEMS: dict[str, type[Run]] = {
    **dict.fromkeys(TASKS, Training),
    "two-stage": TwoStage,
    "text": TextTraining,
}
"""Classes of runs by the names of their tasks."""
ENGINES: dict[str, Engine] = {
    **yz_engines.ENGINES,
    **embedded.ENGINES,
    **two_stage_engines.ENGINES,
    **text_engines.ENGINES,
}
"""Engines by the name under which a sweep asks for them."""


def run_class(task: str, engine: str) -> type[Run]:
    """The class of the runs of `task`, as `engine` may extend it; `Training` for the path of an
    .npz file and for names that it will refuse."""
    found = SYSTEMS.get(task, Training)
    if engine in ENGINES and issubclass(ENGINES[engine].system, found):
        return ENGINES[engine].system
    return found


def engine(name: str) -> Engine:
    """The engine called `name`; raises `ValueError` if there is none."""
    return ENGINES[checks.choice("engine", name, tuple(ENGINES))]
