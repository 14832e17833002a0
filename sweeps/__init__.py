"""Many trainings and many theories: sweeps, comparison, diagrams, figures, the command line."""

from sweeps.config import Training
from sweeps.engine import Interrupted, run, valid
from sweeps.engine import open_sweep as open  # noqa: A004  (used as sweeps.open, like zarr.open)
from sweeps.files import load
from sweeps.spec import Sweep
from sweeps.store import StoreError

__all__ = ["Interrupted", "StoreError", "Sweep", "Training", "load", "open", "run", "valid"]
