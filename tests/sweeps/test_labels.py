"""Names, units and coordinates of results, and how values are selected."""

import math

import numpy as np
import xarray as xr

import dynsim
import sweeps
from dynsim import Status
from sweeps import Sweep, experiment
from sweeps.runner import labels
from sweeps.runner.store import CHECKPOINT
from sweeps.systems import registry
from tests.doors import refuses


def values(number):
    """An axis of so many powers of two in falling order, with words and two seeds."""
    eta = 2.0 ** -np.arange(number)
    loss = np.arange(2.0 * number).reshape(number, 2)
    coords = {"eta": eta, "rule": ("seed", ["sgd", "adam"]), "seed": [3, 8]}
    return xr.Dataset({"loss": (("eta", "seed"), loss)}, coords)


def test_values_are_selected_one_after_the_other():
    data = values(7)
    found = labels.select(data, ["eta=0.125", "seed=8"])
    assert float(found.loss) == 7
    # The last digit may differ.
    assert labels.select(data, [f"eta={math.nextafter(0.25, 1)!r}"]).loss.values.tolist() == [4, 5]
    assert labels.select(data, []).equals(data)
    worded = data.swap_dims(seed="rule")
    assert labels.select(worded, ["rule=adam"]).loss.values[0] == 1
    # All digits of whole numbers count.
    steps = {"steps": [2**53, 2**53 + 1, 2**53 + 3]}
    whole = xr.Dataset({"loss": ("steps", np.arange(3.0))}, steps)
    found = [float(labels.select(whole, [f"steps={n}"]).loss) for n in steps["steps"]]
    assert found == [0, 1, 2]
    refuses(lambda: labels.select(whole, [f"steps={10**400}"]), "steps")
    for entry, *named in (
        ("rule=adm", "'adm'", "'adam'"),
        ("eta", "'eta'", "NAME=NUMBER"),
        ("eta=x", "'eta=x'", "NAME=NUMBER"),
        ("time=1", "'time'", "eta, rule"),
        ("eta=0.4", "eta = 0.4", "7 values from 0.015625 to 1", "0.25, 0.5"),
        ("eta=5", "eta = 5", "0.5, 1"),
    ):
        refuses(lambda entry=entry: labels.select(worded, [entry]), "where", *named)


def test_differences_match_axes_that_mean_the_same():
    """0.1 of a list and of a geometric progression, and two spellings of one rate."""
    listed, spaced = np.array([0.1, 0.3, 1.0]), np.geomspace(0.1, 10, 3) * (1 + 2**-52)
    assert 0.1 not in spaced
    theory = xr.Dataset({"loss": ("eta.W0", [1.0, 2, 3]), "status": ("eta.W0", [0, 0, 0])})
    training = xr.Dataset({"loss": ("eta_W0", [10.0, 20, 30]), "status": ("eta_W0", [0, 0, 0])})
    found = labels.difference(
        theory.assign_coords({"eta.W0": listed}), training.assign_coords(eta_W0=spaced)
    )
    assert dict(found.sizes) == {"eta.W0": 2}
    assert found["eta.W0"].values.tolist() == [0.1, 1]
    assert found.loss.values.tolist() == [1 - 10, 3 - 20]


def test_codes_of_a_status_have_their_meanings():
    found = labels.about(registry.system("yz"), "status")
    meanings = dict(zip(found["flag_values"], found["flag_meanings"].split(), strict=True))
    assert meanings == {-1: "NOT_COMPUTED", **{int(each): each.name for each in Status}}


def swept(problem="yz", **axes):
    options = {name: axes.pop(name) for name in ("times", "record", "checkpoint") if name in axes}
    record = ("loss", "speed") if problem == "yz" else ("loss",)
    return Sweep(experiment(problem), axes or {"seed": [0]}, **{"record": record} | options)


def test_units_are_those_of_the_system_or_of_the_setting():
    sweep = swept(eta_y=[0.1, 0.2], batch=[4, 8])
    found = {
        name: labels.about(sweep.system, name, axis) for name, axis in sweep.varied.named.items()
    }
    assert found["eta_y"] == {"long_name": "learning rate of Y", "units": "1/step"}
    assert found["batch"]["units"] == "1"
    other = swept("qkv", eta=[0.1, 0.2])
    (axis,) = other.varied.named.values()
    rate = labels.about(other.system, "eta", axis)
    assert axis.field.doc.startswith(rate["long_name"])
    assert rate["units"] == "1/step"
    assert labels.about(sweep.system, "my_own_name") == {"long_name": "my own name", "units": "1"}
    steps = {"long_name": "optimiser steps", "units": "step"}
    assert labels.about(sweep.system, "steps") == steps
    assert labels.about(sweep.system, "time")["units"] == "step"
    assert labels.about(sweep.system, CHECKPOINT)["units"] == "byte"


def test_axes_of_records_have_names():
    at_end, several = swept(times="end"), swept(times=3)
    assert labels.inner_dims(at_end, "loss", 0) == ()
    assert labels.inner_dims(at_end, "speed", 1) == ("class",)
    assert labels.inner_dims(several, "loss", 1) == ("time",)
    assert labels.inner_dims(several, "speed", 2) == ("time", "class")
    # Somebody's own has numbers in place of names, and one that is no longer by class as well.
    assert labels.inner_dims(several, "mine", 3) == ("time", "mine_0", "mine_1")
    assert labels.inner_dims(at_end, "speed", 2) == ("speed_0", "speed_1")
    assert labels.inner_dims(swept(times=(7,)), "loss", 0) == ()
    for name, dims in (("status", ()), ("first_bad_step", ()), (CHECKPOINT, ("byte",))):
        assert labels.inner_dims(several, name, len(dims)) == dims
    # Runs that have times of their own record them one after the other.
    assert labels.inner_dims(swept(steps=[2, 5], times=3), "loss", 1) == ("record",)
    assert labels.inner_dims(swept("two_stage", times=3), "loss", 1) == ("record",)
    assert labels.inner_dims(swept("two_stage", times="end"), "loss", 0) == ()


def test_coordinates_are_axes_times_and_values_of_observables():
    found = labels.coordinates(swept(eta_y=[0.1, 0.2], times=(0, 4), record=("recall",)))
    assert found.keys() == {"eta_y", "threshold", "time"}
    assert found["eta_y"][0] == ("eta_y",)
    assert found["eta_y"][1].tolist() == [0.1, 0.2]
    assert (found["time"][0], found["time"][1].tolist()) == (("time",), [0, 4])
    thresholds = registry.system("yz").labels.values["threshold"]
    np.testing.assert_array_equal(found["threshold"][1], thresholds)
    dims, time = labels.coordinates(swept(times=(7,)))["time"]
    assert (dims, time.shape, float(time)) == ((), (), 7)
    assert "time" not in labels.coordinates(swept("two_stage", times=3))


def test_times_of_shorter_runs_are_filled_up():
    dims, time = labels.coordinates(swept(eta_y=[0.1], steps=[2, 50], times=5))["time"]
    assert dims == ("steps", "record")
    few, many = (list(dynsim.log_times(steps, 5)) for steps in (2, 50))
    assert len(few) < len(many)
    want = [few + [np.nan] * (len(many) - len(few)), many]
    np.testing.assert_array_equal(time, want)
    dims, time = labels.coordinates(swept(steps=[2, 50], times="end"))["time"]
    assert (dims, time.tolist()) == (("steps",), [2, 50])


def test_differences_have_units_and_the_worse_status():
    """Common values of an axis and common times alone; a theory is repeated for every seed."""
    about = {"long_name": "population loss", "units": "nat"}
    loss = np.arange(12.0).reshape(2, 2, 3)
    training = xr.Dataset(
        {
            "loss": (("eta", "seed", "time"), loss, {"units": "bit"}),
            "entropy": (("eta",), [1.0, 2.0]),
            "first_bad_step": (("eta", "seed"), np.full((2, 2), -1)),
            "status": (("eta", "seed"), [[0, 1], [0, 0]], {"long_name": "how"}),
        },
        {"eta": [0.1, 0.2], "seed": [0, 1], "time": [0, 5, 9]},
        {"title": "runs"},
    )
    theory = xr.Dataset(
        {"loss": (("eta", "time"), [[10.0, 20], [30, 40]], about), "status": ("eta", [0, 2])},
        {"eta": [0.2, 0.3], "time": [5, 9]},
        {"title": "theory"},
    )
    found = labels.difference(theory, training)
    assert {*found.data_vars} == {"loss", "status"}
    assert (found.eta.values.tolist(), found.time.values.tolist()) == ([0.2], [5, 9])
    np.testing.assert_array_equal(
        found.loss.transpose("eta", "seed", "time"), [[[10 - 7, 20 - 8], [10 - 10, 20 - 11]]]
    )
    assert found.loss.attrs == about | {"long_name": "theory minus simulation: population loss"}
    assert found.status.values.tolist() == [[0, 0]]
    assert found.status.attrs == {"long_name": "how"}
    assert found.attrs == {"theory": '{"title": "theory"}', "simulation": '{"title": "runs"}'}
    turned = labels.difference(theory.assign_coords(eta=[0.1, 0.2]), training).status
    # That of training, or else that of the theory.
    np.testing.assert_array_equal(turned.transpose("eta", "seed"), [[0, 1], [2, 2]])
    away = theory.assign_coords(eta=[0.5, 0.6])
    refuses(lambda: labels.difference(away, training), "eta")
    refuses(lambda: labels.difference(theory.rename(loss="mine"), training), "mine")


def test_crossings_of_runs_are_those_of_their_trajectories():
    """Of a falling, a rising and a level curve, at two levels of each."""
    time, curves = np.array([0.0, 10, 30]), np.array([[4.0, 2, 0], [0, 1, 5], [2, 2, 2]])
    values = xr.DataArray(curves, {"time": time}, ("run", "time"))
    levels = xr.DataArray([[3.0, 1], [3, 0.5], [3, 1]], dims=("run", "level"))
    found = sweeps.crossing(values, levels).transpose("run", "level")
    np.testing.assert_allclose(found, [[5, 20], [20, 5], [np.nan] * 2])
    one = dynsim.Trajectory(time, {"x": curves[0]}, None, np.array(0), np.array(-1), "")
    assert found[0, 1] == one.crossing_time("x", 1.0)
    assert sweeps.crossing(values.transpose(), 3.0).values[:2].tolist() == [5, 20]
