"""The result type: what it says of itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import xarray as xr

from dynsim import Status, Trajectory, log_times
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


def test_every_observable_has_a_line_with_its_mean_at_the_end() -> None:
    """Of the runs that are valid; shapes without the axes of runs and time."""
    times = np.broadcast_to([1.0, 7.5], (2, 2))
    values = {
        "loss": np.array([[9.0, 2.0], [8.0, 5.0]]),
        "xi": np.arange(12.0).reshape(2, 2, 3),
    }
    status = np.array([0, 0])
    run = Trajectory(times, values, None, status, status - 1, "eq10")
    assert repr(run).splitlines() == [
        "Trajectory(eq10: 2 runs, 2 times in [1, 7.5] steps, status OK 2)",
        "  loss             ()         mean at the end 3.5",
        "  xi               (3,)       mean at the end 7",
    ]
    one = jax.tree.map(lambda leaf: leaf[1], run)
    assert repr(one).splitlines() == [
        "Trajectory(eq10: 2 times in [1, 7.5] steps, status OK)",
        "  loss             ()         at the end 5",
        "  xi               (3,)       mean at the end 10",
    ]
    bad = Trajectory(times, values, None, status + 1, status)
    assert repr(bad).splitlines()[:2] == [
        "Trajectory(unnamed: 2 runs, 2 times in [1, 7.5] steps, status DIVERGED 2)",
        "  loss             ()         mean at the end no valid run",
    ]


def test_times_are_spaced_by_equal_factors() -> None:
    assert log_times(1000, num=2).tolist() == [0, 1, 1000]
    assert log_times(10**6, num=7).tolist() == [0, *10 ** np.arange(7)]
    assert log_times(1).tolist() == [0, 1]
    np.testing.assert_array_equal(log_times(12345), log_times(12345, num=64))
    with pytest.raises(ValueError, match="num = 1: must be an integer >= 2"):
        log_times(10, num=1)
    with pytest.raises(ValueError, match="steps = 0: must be an integer >= 1"):
        log_times(0)


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
    errors = [{name: x + step for name, x in values.items()} for step in (1, 2)]
    run = Trajectory(times, values, None, STATUS, STATUS - 1, "spread", covariance, *errors)
    made = run.to_xarray(("rate", "seed"), {"xi": ("class",)})
    made.to_netcdf(tmp_path / "run.nc", engine="h5netcdf")
    found = xr.load_dataset(tmp_path / "run.nc", engine="h5netcdf")
    xr.testing.assert_identical(found, made)
    assert found["xi"].dims == ("rate", "seed", "time", "class")
    assert found["time"].dims == ("time",)
    np.testing.assert_array_equal(found["time"], [0, 7])
    one = jax.tree.map(lambda leaf: leaf[1, 2], run).to_xarray(inner={"xi": ("class",)})
    xr.testing.assert_equal(one, made.isel(rate=1, seed=2))
    assert float(found["loss"].isel(rate=1, seed=2).sel(time=7)) == 11
    assert float(found["loss_std"].max()) == 2
    np.testing.assert_array_equal(found["loss_error"], values["loss"] + 1)
    np.testing.assert_array_equal(found["loss_std_error"], values["loss"] + 2)
    assert found["xi_std_error"].dims == found["xi_std"].dims == found["xi"].dims
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


def test_axes_without_names_are_numbered_and_units_are_told() -> None:
    times = np.broadcast_to([0.0, 7.0], (2, 3, 2))
    values = {"loss": np.zeros((2, 3, 2)), "xi": np.zeros((2, 3, 2, 5, 4))}
    run = Trajectory(times, values, None, STATUS, STATUS - 1, "eq10")
    made = run.to_xarray()
    assert made["xi"].dims == ("run_0", "run_1", "time", "xi_0", "xi_1")
    assert made["time"].attrs == {"units": "step", "long_name": "optimiser steps"}
    assert made["first_bad_step"].attrs == {"units": "step"}
    assert made["status"].attrs["flag_values"] == [0, 1, 2, 3, 4]
    assert made.attrs == {"source": "eq10"}
    np.testing.assert_array_equal(made["first_bad_step"], STATUS - 1)
    for inner in ({"xi": ("a",)}, {"xi": ("a", "a")}, {"xi": "ab"}):
        with pytest.raises(ValueError, match=r"inner\['xi'\] = .*: must be 2 different names"):
            run.to_xarray(inner=inner)


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
    loss = rng.exponential(size=(2, 1000, 1))
    loss = 3 * loss
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
    for number in (0, 1, 2):
        status[...] = Status.DIVERGED
        status[0, 1 : number + 1] = Status.OK
        run = Trajectory(times, {"loss": loss}, None, status, status - 1)
        if number == 2:
            assert run.across_runs()["loss"].mean[0] == pytest.approx(loss[0, 1:3].mean())
            continue
        message = f"runs: {number} of 2000 are valid; must be at least 2"
        with pytest.raises(ValueError, match=message):
            run.across_runs()


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
