"""Many trainings and many theories: sweeps, comparison, diagrams, figures, the command line.

Names are imported on first use, so that the command line can print help without JAX.
"""

import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweeps.commands.explain import explain
    from sweeps.commands.views.explore import explore
    from sweeps.commands.views.movie import movie
    from sweeps.comparison.command import compare
    from sweeps.figures import Figure, Picture
    from sweeps.output import drawing
    from sweeps.runner.driver import ChunksFailed
    from sweeps.runner.labels import crossing, difference, evaluate, moments, relative_error, valid
    from sweeps.runner.program.jobs import forget
    from sweeps.runner.progress import Interrupted
    from sweeps.runner.run import open_sweep as open  # noqa: A004  (as in zarr.open)
    from sweeps.runner.run import run
    from sweeps.runner.spec import Sweep, load
    from sweeps.runner.store import StoreError
    from sweeps.studies.optimum.best import best, transfer
    from sweeps.studies.phase import figure as diagrams
    from sweeps.studies.phase.figure import phase
    from sweeps.studies.scaling import scaling
    from sweeps.systems.base import Labels, Prediction, Row, System
    from sweeps.systems.experiment import Experiment, experiment
    from sweeps.systems.registry import register

__all__ = [
    "ChunksFailed",
    "Experiment",
    "Figure",
    "Interrupted",
    "Labels",
    "Picture",
    "Prediction",
    "Row",
    "StoreError",
    "Sweep",
    "System",
    "best",
    "compare",
    "crossing",
    "diagrams",
    "difference",
    "drawing",
    "evaluate",
    "experiment",
    "explain",
    "explore",
    "forget",
    "load",
    "moments",
    "movie",
    "open",
    "phase",
    "register",
    "relative_error",
    "run",
    "scaling",
    "transfer",
    "valid",
]

_SOURCES = {
    **{name: f"sweeps.systems.base:{name}" for name in ("Labels", "Prediction", "Row", "System")},
    "register": "sweeps.systems.registry:register",
    "ChunksFailed": "sweeps.runner.driver:ChunksFailed",
    "Interrupted": "sweeps.runner.progress:Interrupted",
    "StoreError": "sweeps.runner.store:StoreError",
    "Sweep": "sweeps.runner.spec:Sweep",
    "Experiment": "sweeps.systems.experiment:Experiment",
    "experiment": "sweeps.systems.experiment:experiment",
    "best": "sweeps.studies.optimum.best:best",
    "compare": "sweeps.comparison.command:compare",
    "explain": "sweeps.commands.explain:explain",
    "Figure": "sweeps.figures:Figure",
    "Picture": "sweeps.figures:Picture",
    "crossing": "sweeps.runner.labels:crossing",
    "drawing": "sweeps.output.drawing",
    "difference": "sweeps.runner.labels:difference",
    "evaluate": "sweeps.runner.labels:evaluate",
    "explore": "sweeps.commands.views.explore:explore",
    "forget": "sweeps.runner.program.jobs:forget",
    "load": "sweeps.runner.spec:load",
    "moments": "sweeps.runner.labels:moments",
    "movie": "sweeps.commands.views.movie:movie",
    "open": "sweeps.runner.run:open_sweep",
    "diagrams": "sweeps.studies.phase.figure",
    "phase": "sweeps.studies.phase.figure:phase",
    "relative_error": "sweeps.runner.labels:relative_error",
    "run": "sweeps.runner.run:run",
    "scaling": "sweeps.studies.scaling:scaling",
    "transfer": "sweeps.studies.optimum.best:transfer",
    "valid": "sweeps.runner.labels:valid",
}


def __getattr__(name: str) -> Any:
    if name not in _SOURCES:
        raise AttributeError(f"module 'sweeps' has no attribute {name!r}")
    # The next access needs no function.
    value = globals()[name] = pkgutil.resolve_name(_SOURCES[name])
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
