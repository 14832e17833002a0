"""Running the seeds of a two-stage experiment."""

from pathlib import Path

from sweeps.runner.run import run
from sweeps.studies.two_stage.runs import Runs, from_dataset, sweep
from sweeps.systems.experiment import Experiment


def runs(
    training: Experiment, seeds: int, times: int, out: Path | None = None, root: int = 0
) -> Runs:
    """Run the experiment, or read what `out` holds of it."""
    return from_dataset(training, run(sweep(training, seeds, times, root), out))
