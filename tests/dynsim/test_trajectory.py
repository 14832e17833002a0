"""The result type: what it says of itself."""

import numpy as np
import pytest

from dynsim import Status, Trajectory
from dynsim.trajectory import counts

STATUS = np.array([[0, 1, 0], [3, 1, 0]])


def test_statuses_are_counted_by_name() -> None:
    assert counts(STATUS) == {"OK": 3, "DIVERGED": 2, "SOLVER_FAILED": 1}
    assert counts(np.int32(Status.MAX_STEPS)) == {"MAX_STEPS": 1}
    # A store has -1 where nothing was run yet.
    assert counts(np.array([-1, -1])) == {}


def test_a_batch_shows_its_statuses_and_means_over_valid_runs() -> None:
    loss = np.where(STATUS == Status.OK, 2.0, np.nan)[..., None]
    times = np.broadcast_to([7.0], (2, 3, 1))
    shown = repr(Trajectory(times, {"loss": loss}, None, STATUS, STATUS - 1, "simulation"))
    assert "simulation: 2x3 runs, 1 times" in shown
    assert "status OK 3, DIVERGED 2, SOLVER_FAILED 1" in shown
    assert "mean at the end 2" in shown


def test_a_single_run_shows_its_status_alone() -> None:
    status, first_bad = np.array(1, np.int32), np.array(0, np.int32)
    run = Trajectory(np.array([0.0]), {"loss": np.ones(1)}, None, status, first_bad, "eq10")
    assert "status DIVERGED)" in repr(run)
    with pytest.raises(KeyError, match="'xi' was not recorded; recorded: loss"):
        run["xi"]
