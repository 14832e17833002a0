"""The attention layer in Y and Z (Scan and Snap): training, and every theory of the ladder."""

from typing import Any

from odes.yz import ladder
from sweeps.systems.problems.options import problem_system
from sweeps.systems.yz.engines import ENGINES
from sweeps.systems.yz.labels import LABELS
from sweeps.systems.yz.tasks import ClassOptions

SYSTEM = problem_system(
    ClassOptions.MADE,
    "yz",
    options=ClassOptions,
    names={"start": "init"},
    registered=ladder.registered,
    labels=LABELS,
    batch=128,
)._replace(engines=ENGINES, compare="sweeps.compare.report:Compare")
Training: Any = SYSTEM.run
"""Settings of a run."""
