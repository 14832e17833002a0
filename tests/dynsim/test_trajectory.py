"""The result type: what it says of itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import xarray as xr

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


@pytest.mark.parametrize(
    "change",
    [lambda leaf: None, lambda leaf: leaf[-1], lambda leaf: leaf[:0], lambda leaf: "a word"],
    ids=["none", "last", "empty", "text"],
)
def test_trees_made_of_a_run_are_shown_as_well(change: Callable[[Any], Any]) -> None:
    run = Trajectory(np.array([0.0]), {"loss": np.ones(1)}, None, STATUS[0], STATUS[0] - 1, "eq10")
    assert repr(jax.tree.map(change, run)).startswith("Trajectory(")


def test_a_batch_becomes_a_dataset_that_netcdf_takes(tmp_path: Path) -> None:
    times = np.broadcast_to([0.0, 7.0], (2, 3, 2))
    values = {"loss": np.arange(12.0).reshape(2, 3, 2), "xi": np.zeros((2, 3, 2, 5))}
    covariance = np.broadcast_to(4 * np.eye(6), (2, 3, 2, 6, 6))
    run = Trajectory(times, values, None, STATUS, STATUS - 1, "spread", covariance)
    made = run.to_xarray(("rate", "seed"), {"xi": ("class",)})
    made.to_netcdf(tmp_path / "run.nc", engine="h5netcdf")
    found = xr.load_dataset(tmp_path / "run.nc", engine="h5netcdf")
    xr.testing.assert_identical(found, made)
    assert found["xi"].dims == ("rate", "seed", "time", "class")
    assert float(found["loss"].isel(rate=1, seed=2).sel(time=7)) == 11
    assert float(found["loss_std"].max()) == 2
    assert (
        found["status"].attrs["flag_meanings"].split()[int(found["status"][1, 0])]
        == "SOLVER_FAILED"
    )


def test_runs_with_times_of_their_own_keep_them() -> None:
    times = np.array([[0.0, 1.0], [0.0, 2.0]])
    status = np.zeros(2, int)
    made = Trajectory(times, {"loss": times}, None, status, status - 1).to_xarray()
    assert made["loss"].dims == ("run", "record")
    np.testing.assert_array_equal(made["time"], times)
    with pytest.raises(ValueError, match=r"runs = \('a', 'b'\): must be 1 different names"):
        Trajectory(times, {"loss": times}, None, status, status - 1).to_xarray(("a", "b"))


@pytest.mark.usefixtures("unchecked")
def test_names_of_runs_are_a_list() -> None:
    times, status = np.array([[0.0, 1.0], [0.0, 2.0]]), np.zeros(2, int)
    with pytest.raises(ValueError, match="runs = 3: must be 1 different names"):
        Trajectory(times, {"loss": times}, None, status, status - 1).to_xarray(3)


def test_the_spread_is_read_off_the_covariance() -> None:
    # Two runs at one time of a number and of a pair; covariances by name, "loss" before "xi".
    runs = np.random.default_rng(0).normal(size=(2, 1, 3, 3))
    covariance = runs @ runs.swapaxes(-1, -2)
    values = {"xi": np.zeros((2, 1, 2)), "loss": np.zeros((2, 1))}
    times, status = np.zeros((2, 1)), np.zeros(2, int)
    run = Trajectory(times, values, None, status, status - 1, "spread", covariance)
    variance = np.diagonal(covariance, axis1=-2, axis2=-1)
    np.testing.assert_allclose(run.std["loss"], variance[..., 0] ** 0.5)
    np.testing.assert_allclose(run.std["xi"], variance[..., 1:] ** 0.5)
    with pytest.raises(ValueError, match="std: eq10 predicts no standard deviation across seeds"):
        _ = Trajectory(times, values, None, status, status - 1, "eq10").std


def test_statistics_across_runs_are_those_of_valid_ones_with_their_errors() -> None:
    rng, status = np.random.default_rng(0), np.zeros((2, 1000), int)
    # Of an exponential distribution mean and deviation are 1, and the fourth moment is 9: the error
    # of the deviation is sqrt(8 / n) / 2.
    loss = rng.exponential(size=(2, 1000, 1))
    status[0, 0], loss[0, 0] = Status.DIVERGED, np.inf
    times = np.zeros((2, 1000, 1))
    found = Trajectory(times, {"loss": loss}, None, status, status - 1).across_runs()["loss"]
    valid = loss.ravel()[1:]
    np.testing.assert_allclose([found.mean[0], found.std[0]], [valid.mean(), valid.std(ddof=1)])
    assert found.mean_error[0] == pytest.approx(1999**-0.5, rel=0.1)
    # The fourth moment of 1999 draws has an error of 40 % or so.
    assert found.std_error[0] == pytest.approx((8 / 1999) ** 0.5 / 2, rel=0.3)
    status[...] = Status.DIVERGED
    with pytest.raises(ValueError, match="runs: 0 of 2000 are valid; must be at least 2"):
        Trajectory(times, {"loss": loss}, None, status, status - 1).across_runs()


def test_crossing_times_are_those_of_straight_lines_up_to_the_first_bad_step() -> None:
    times = np.broadcast_to(np.array([0, 10, 30, 40]), (3, 4))
    # From 4 to 2 within 10 steps, to 1 at step 30; from below, back and up again; not valid.
    loss = np.array([[4.0, 2, 1, 0], [0, 5, 0, 5], [4, 4, 4, np.inf]])
    status = np.array([0, 0, Status.DIVERGED])
    values = {"loss": loss, "pair": np.stack([loss, 3 * loss], axis=-1)}
    run = Trajectory(times, values, None, status, np.array([-1, -1, 35]))
    np.testing.assert_allclose(run.crossing_time("loss", 1.5), [20, 3, np.nan])
    np.testing.assert_allclose(run.crossing_time("pair", 3)[0], [5, 30])
    np.testing.assert_array_equal(run.crossing_time("loss", 4.5)[[0, 2]], np.nan)
    # A run that starts at the level is above it.
    assert run.crossing_time("loss", 4)[0] == 0
    one = jax.tree.map(lambda leaf: leaf[0], run)
    assert one.crossing_time("loss", 1.5) == 20
    with pytest.raises(KeyError, match="'z' was not recorded; recorded: loss, pair"):
        run.crossing_time("z", 1)
