"""The attention layer in Y and Z (Scan and Snap): training, and every theory of the ladder."""

from sweeps.systems.base import System
from sweeps.systems.yz.engines import ENGINES, registered
from sweeps.systems.yz.labels import LABELS
from sweeps.systems.yz.problem import TASKS
from sweeps.systems.yz.settings import Training

SYSTEM = System(
    name="yz",
    tasks=tuple(TASKS),
    run=Training,
    engines=ENGINES,
    labels=LABELS,
    more=registered,
    compare="sweeps.compare.report:Compare",
)
