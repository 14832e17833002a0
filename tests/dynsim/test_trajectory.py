"""Results: spread, errors, crossing times and datasets against their definitions."""

from pathlib import Path

import jax
import numpy as np
import pytest
import xarray as xr

from dynsim import Status, Trajectory, log_times
from dynsim.trajectory import status_counts

STATUS = np.array([[0, 1, 0], [3, 1, 0]])


def test_statuses_are_counted_by_name() -> None:
    assert status_counts(STATUS) == {"OK": 3, "DIVERGED": 2, "SOLVER_FAILED": 1}
    assert status_counts(np.int32(Status.MAX_STEPS)) == {"MAX_STEPS": 1}
    # A store has -1 where nothing was run yet.
    assert status_counts(np.array([-1, -1])) == {}


def test_what_is_printed_has_means_over_valid_runs() -> None:
    loss = np.where(STATUS == Status.OK, 2.0, np.nan)[..., None]
    times = np.broadcast_to([7.0], (2, 3, 1))
    run = Trajectory(times, {"loss": loss}, None, STATUS, STATUS - 1, "simulation")
    assert "at the end 2" in repr(run)
    np.testing.assert_array_equal(run.ok, STATUS == 0)
    # Trees made of a run are printed as well.
    for change in (lambda leaf: None, lambda leaf: leaf[-1], lambda leaf: leaf[:0], lambda _: "a"):
        assert repr(jax.tree.map(change, run))


def test_times_are_spaced_by_equal_factors() -> None:
    assert log_times(1000, num=2).tolist() == [0, 1, 1000]
    assert log_times(10**6, num=7).tolist() == [0, *10 ** np.arange(7)]
    assert log_times(1).tolist() == [0, 1]
    np.testing.assert_array_equal(log_times(12345), log_times(12345, num=64))


def test_a_batch_becomes_a_dataset_that_netcdf_takes(tmp_path: Path) -> None:
    times = np.broadcast_to([0.0, 7.0], (2, 3, 2))
    values = {"loss": np.arange(12.0).reshape(2, 3, 2), "xi": np.zeros((2, 3, 2, 5))}
    covariance = np.broadcast_to(4 * np.eye(6), (2, 3, 2, 6, 6))
    errors = [{name: x + step for name, x in values.items()} for step in (1, 2)]
    run = Trajectory(times, values, None, STATUS, STATUS - 1, "spread", covariance, *errors)
    made = run.to_xarray(("rate", "seed"), {"xi": ("class",)})
    made.to_netcdf(tmp_path / "run.nc", engine="h5netcdf")
    found = xr.load_dataset(tmp_path / "run.nc", engine="h5netcdf")
    xr.testing.assert_identical(found, made)
    assert found["xi"].dims == ("rate", "seed", "time", "class")
    np.testing.assert_array_equal(found["time"], [0, 7])
    one = jax.tree.map(lambda leaf: leaf[1, 2], run).to_xarray(inner={"xi": ("class",)})
    xr.testing.assert_equal(one, made.isel(rate=1, seed=2))
    assert float(found["loss"].isel(rate=1, seed=2).sel(time=7)) == 11
    assert float(found["loss_std"].max()) == 2
    np.testing.assert_array_equal(found["loss_error"], values["loss"] + 1)
    np.testing.assert_array_equal(found["loss_std_error"], values["loss"] + 2)
    assert found["xi_std_error"].dims == found["xi_std"].dims == found["xi"].dims
    status = found["status"]
    assert status.attrs["flag_meanings"].split()[int(status[1, 0])] == "SOLVER_FAILED"
    assert status.attrs["flag_values"].tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(found["first_bad_step"], STATUS - 1)
    assert found["time"].attrs["units"] == found["first_bad_step"].attrs["units"] == "step"
    # Axes without names are numbered, and runs with times of their own keep them.
    assert run.to_xarray()["xi"].dims == ("run_0", "run_1", "time", "xi_0")
    times, status = np.array([[0.0, 1.0], [0.0, 2.0]]), np.zeros(2, int)
    made = Trajectory(times, {"loss": times}, None, status, status - 1).to_xarray()
    assert made["loss"].dims == ("run", "record")
    np.testing.assert_array_equal(made["time"], times)


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


def test_statistics_across_runs_are_those_of_valid_ones_with_their_errors() -> None:
    rng, status = np.random.default_rng(0), np.zeros((2, 1000), int)
    loss = 3 * rng.exponential(size=(2, 1000, 1))
    status[0, 0], loss[0, 0] = Status.DIVERGED, np.inf
    times = np.zeros((2, 1000, 1))
    observed = {"loss": loss, "small": 1e-3 * loss, "flat": np.full((2, 1000, 1), 0.25)}
    across = Trajectory(times, observed, None, status, status - 1).across_runs()
    found, valid = across["loss"], loss.ravel()[1:]
    np.testing.assert_allclose([found.mean[0], found.std[0]], [valid.mean(), valid.std(ddof=1)])
    # Errors by the jackknife, which leaves out one run at a time; equal but for terms in 1/n.
    without = (valid.sum() - valid) / 1998
    squares = ((valid**2).sum() - valid**2) / 1998
    stds = np.sqrt((squares - without**2) * 1998 / 1997)
    for error, left in ((found.mean_error, without), (found.std_error, stds)):
        want = np.sqrt(1998 / 1999 * ((left - left.mean()) ** 2).sum())
        assert error[0] == pytest.approx(want, rel=0.02)
    assert [each[0] for each in across["flat"]] == [0.25, 0, 0, 0]
    np.testing.assert_allclose(across["small"], 1e-3 * np.array(found), rtol=1e-9)
    # Two valid runs are enough.
    status[...] = Status.DIVERGED
    status[0, 1:3] = Status.OK
    across = Trajectory(times, {"loss": loss}, None, status, status - 1).across_runs()
    assert across["loss"].mean[0] == pytest.approx(loss[0, 1:3].mean())


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
