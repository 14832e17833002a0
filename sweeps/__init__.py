"""Many trainings and many theories: sweeps, comparison, diagrams, figures, the command line."""

from sweeps.runner.files import load
from sweeps.runner.run import Interrupted, run, valid
from sweeps.runner.run import open_sweep as open  # noqa: A004  (used as sweeps.open, like zarr.open)
from sweeps.runner.spec import Sweep
from sweeps.runner.store import StoreError
from sweeps.systems.yz.settings import Training

__all__ = ["Interrupted", "StoreError", "Sweep", "Training", "load", "open", "run", "valid"]
