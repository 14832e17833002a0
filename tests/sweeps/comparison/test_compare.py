"""Comparisons: numbers again from the arrays of a command, and by hand from made-up arrays."""

import json
import math

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from scipy.stats import chi2

import dynsim
from dynsim import Status
from dynsim.trajectory import status_counts
from odes.theory import Theory, describes_all
from sweeps import cli
from sweeps.comparison import command, picture, scatter
from sweeps.comparison.command import Compare, plan_comparison
from sweeps.comparison.errors import Comparison
from sweeps.comparison.scatter import average, sharpness_at_edge, spread
from sweeps.systems.experiment import experiment

pytestmark = pytest.mark.usefixtures("quick_theory")


@pytest.mark.more
def test_the_report_is_what_the_arrays_say(tmp_path):
    """Errors of each theory at its own times, and what each run of a problem is about."""
    words = "--seeds 30 --steps 12 --length 24 --batch 8 --times 12 --theories plain spread"
    assert cli.main(["compare", "yz", *words.split(), "--out", str(tmp_path)]) == 0
    files = {f"compare.{suffix}" for suffix in ("json", "npz", "png")}
    assert {path.name for path in tmp_path.iterdir()} == files | {"compare_yz.run.json"}
    report = json.loads((tmp_path / "compare.json").read_text())
    with np.load(tmp_path / "compare.npz", allow_pickle=False) as archive:
        arrays = dict(archive)
    training = report["simulation"]
    times = arrays["simulation/times"][0]
    for theory, found in report["theories"].items():
        at = np.searchsorted(times, arrays[f"{theory}/times"][0])
        np.testing.assert_array_equal(times[at], arrays[f"{theory}/times"][0])
        for name, errors in found["relative_error"].items():
            mean = arrays[f"simulation/{name}"].astype(float)[:, at].mean(0)
            off = arrays[f"{theory}/{name}"].astype(float).mean(0) - mean
            want = np.linalg.norm(off) / np.linalg.norm(mean)
            assert errors["over_time"] == pytest.approx(want, rel=1e-9, abs=1e-12)
    assert training["status"] == {"OK": 30}
    sizes = {name: arrays[f"{name}/times"].shape for name in report["theories"]}
    # Descent is always there; standard deviations are predicted at nine of ten times.
    every = dict.fromkeys(("descent-finite-t", "descent", "plain"), (1, 10))
    assert sizes == every | {"spread": (1, 9)}
    peak = training["summary"]["step of the largest speed"]
    assert peak == times[arrays["simulation/speed"].mean(-1).argmax(1)].tolist()
    # Variances of two classes: a chi-square, 1e-4 of each side. Two hundred runs have 7 % less than
    # is predicted, of the next order in 1/T and 1/B.
    found, free = report["theories"]["spread"]["spread_at_end"]["z_top_distinct"], 2 * 29
    low, high = np.sqrt(free / chi2.isf([1e-4, 1 - 1e-4], free))
    assert low / 1.1 < found["predicted"] / found["measured"] < high * 1.1


@pytest.mark.parametrize(
    ("run", "options", "sizes"),
    [
        # Of zero weights all seeds start alike.
        (
            {"steps": 9, "length": 64},
            {"theories": ("best", "spread", "plain", "plain-finite-t")},
            {"descent-finite-t": 1, "descent": 1, "plain-finite-t": 1, "spread": 1, "plain": 1},
        ),
        (
            {"steps": 9, "length": 64, "start": "uniform"},
            {"theories": ("plain", "spread")},
            {"descent-finite-t": 40, "descent": 40, "plain": 40, "spread": 32},
        ),
        # Too short for theories of finite T.
        ({"steps": 9, "length": 16}, {"theories": ("best",)}, {"descent": 1, "plain": 1}),
        (
            {"problem": "two_stage"},
            {},
            {"ode": 1, "infinite": 1, "anchored": 40, "sde": 48, "seeds": 48},
        ),
        (
            {"problem": "saxe", "batch": 8},
            {"theories": ("plain", "linear-noise"), "rtol": 1e-5},
            {"plain": 40, "linear-noise": 32},
        ),
    ],
    ids=["yz", "uniform", "short", "two_stage", "saxe"],
)
def test_theories_have_as_many_runs_as_differ(run, options, sizes, monkeypatch):
    monkeypatch.setattr(command, "compile_first", lambda sweeps: None)
    sweeps, theories, _ = plan_comparison(Compare(experiment(**run), seeds=40, root=7, **options))
    found = {name: sweep.axes["seed"]["range"] for name, sweep in sweeps.items()}
    assert found == {"simulation": 40} | sizes
    assert [*theories] == [*sizes]
    assert {sweep.root for sweep in sweeps.values()} == {7}
    adaptive = {"plain"} if "rtol" in options else set()
    assert {name for name, sweep in sweeps.items() if sweep.rtol == 1e-5} == adaptive
    if noisy := sweeps.get("spread"):
        every = dynsim.log_times(1000, 64)
        sweeps, *_ = plan_comparison(
            Compare(experiment(**run).at({"steps": 1000}), theories=("spread",))
        )
        places = np.searchsorted(every, sweeps["spread"].times)
        np.testing.assert_array_equal(every[places], sweeps["spread"].times)
        # Evenly among the times of the comparison, with both ends.
        assert (len(places), places[0], places[-1]) == (9, 0, len(every) - 1)
        assert np.ptp(np.diff(places)) <= 1
        assert {*noisy.names} == {n + end for n in dynsim.Layer.COMPARED for end in ("", "_std")}


RUN = experiment("saxe", steps=9)
OK, DIVERGED = Status.OK, Status.DIVERGED


def recorded(status=None, times=None, **values):
    """Runs over `seed` of arrays (R, S, ...) by name."""
    arrays = {name: np.array(each, float) for name, each in values.items()}
    number, length = next(iter(arrays.values())).shape[:2]
    found = {n: (("seed", "time", *"ab"[: x.ndim - 2]), x) for n, x in arrays.items()}
    ends = ("seed", [OK] * number if status is None else status)
    at = range(length) if times is None else times
    return xr.Dataset({**found, "status": ends}, {"time": np.array(at, float)})


def made(training, run=RUN, **predictions):
    """A comparison of these datasets."""
    theories = {n: Theory(n, n, "", lambda *_: None, describes_all) for n in predictions}
    names = tuple(str(name) for name in training.data_vars if name not in ("status", "time"))
    return Comparison(run, {}, training, predictions, theories, names, {"other": "why"})


def test_errors_have_a_floor_where_the_mean_vanishes():
    """The sampling error, where the mean at the end is smaller; runs that diverged do not count."""
    runs = {"a": [[3.0, 0.2], [5.0, -0.2]], "b": [[4.0, 0.0], [4.0, 0.0]], "c": [[1.0, 2.0]] * 2}
    # The mean at the end is the sampling error, and so no floor.
    runs["d"] = [[1.0, 2.0], [1.0, 0.0]]
    theory = {"a": [[4.0, 0.1]], "b": [[4.0, 8e-6]], "c": [[1.0, 1.0]], "d": [[1.0, 1.5]]}
    wild = {name: [each[0], [np.inf, np.nan], each[1]] for name, each in runs.items()}
    found = made(recorded([OK, DIVERGED, OK], **wild), theory=recorded(**theory))
    errors = {name: found.error("theory", name) for name in found.names}
    # The standard error of two numbers is half of their distance.
    assert errors["a"] == {
        "over_time": pytest.approx(0.1 / 4),
        "at_end": 0.5,
        "floored": True,
        "sampling_errors": pytest.approx(0.1 / np.hypot(1, 0.2)),
    }
    # Without a sampling error, nothing can be said against a mean of zero.
    assert np.isnan([errors["b"]["at_end"], errors["b"]["sampling_errors"]]).all()
    assert (errors["c"]["over_time"], errors["c"]["at_end"]) == (pytest.approx(5**-0.5), 0.5)
    assert (errors["d"]["at_end"], errors["d"]["floored"]) == (0.5, False)
    assert found.error("simulation", "a")["at_end"] == 1
    assert found.report["simulation"]["status"] == {"OK": 2, "DIVERGED": 1}
    np.testing.assert_array_equal(found.means["simulation"]["a"], [4, 0])
    assert np.isnan(spread(np.ones((1, 2)))).all()
    assert np.isnan(average(np.ones((0, 2)))).all()


def test_a_theory_of_fewer_times_is_compared_at_these():
    """Also where a schedule sets the times, which all runs have of their own."""
    for own in (False, True):
        runs = recorded(times=[0, 3, 5, 9], x=[[[1.0, 1]] * 4, [[1, 3], [5, 7], [9, 9], [3, 5]]])
        few = recorded(times=[0, 9], x=[[[1.0, 4], [5, 3]]])
        if own:
            runs, few = (
                each.rename(time="record")
                .drop_vars("record")
                .assign(time=(("seed", "record"), np.tile(each.time, (each.sizes["seed"], 1))))
                for each in (runs, few)
            )
        found = made(runs, few=few)
        assert [len(each.time) for each in found.sides.values()] == [4, 2]
        # Off by 0 and 2, 3 and 0, of means 1 and 2, 2 and 3.
        error = found.error("few", "x")
        assert error["over_time"] == pytest.approx((13 / 18) ** 0.5)
        assert error["at_end"] == pytest.approx(3 / 13**0.5)
        # Half the distance of two runs: 0 and 1, 1 and 2.
        assert error["sampling_errors"] == pytest.approx((13 / 6) ** 0.5)


@pytest.mark.parametrize("bad", ["simulation", "theory"])
def test_a_side_whose_runs_all_failed_has_its_status_alone(bad):
    ends = {"simulation": [OK] * 3, "theory": [OK] * 2} | {bad: [DIVERGED] * (2 + (bad[0] == "s"))}
    loss = np.random.default_rng(0).uniform(size=(3, 4, 2))
    sides = {name: recorded(status, loss=loss[: len(status)]) for name, status in ends.items()}
    found = made(sides["simulation"], theory=sides["theory"])
    side = found.report["theories"]["theory"]
    assert side["status"] == status_counts(np.array(ends["theory"]))
    assert side["relative_error"]["loss"] == {"over_time": None, "at_end": None, "floored": False}
    assert side["sampling_errors"] == {"loss": None}
    plt.close(picture.draw(found))


class Halving(dynsim.Problem):
    """A problem that says when its loss is halved."""

    def init(self, key):
        return jnp.ones(1)

    def population_loss(self, params):
        return jnp.sum(params**2)

    def summary(self, times, recorded):
        below = recorded["loss"] <= 0.5
        step = float(times[below.argmax()]) if below.any() else math.inf
        return {"halved at": step, "last": recorded["loss"][-1]}


def test_a_problem_of_ones_own_sums_up_each_run():
    """Of training and of theories, without runs that diverged."""
    loss, status = [[4.0, 0.4, 0.1], [0, 0, 0], [4, 0.6, 0.3], [4, 1, 1]], [OK, DIVERGED, OK, OK]
    theory = recorded(times=[0, 4, 9], loss=[[4, 0.6, 0.5]])
    runs = recorded(status, [0, 4, 9], loss=loss)
    found = made(runs, experiment(Halving(), steps=9), theory=theory)
    assert found.summary("simulation") == {"halved at": [4, 9, math.inf], "last": [0.1, 0.3, 1]}
    assert found.report["simulation"]["summary"]["halved at"] == [4, 9, None]
    assert found.report["theories"]["theory"]["summary"] == {"halved at": [9], "last": [0.5]}


def test_variances_within_and_between_starts_add_up():
    rng = np.random.default_rng(0)
    # Four starts, of which the last diverged; two times; one number.
    mean, variance = rng.normal(size=(4, 2)), rng.uniform(1, 2, size=(4, 2))
    runs = rng.normal(size=(5, 2))
    mean[3] = np.inf
    predicted = recorded([OK, OK, OK, DIVERGED], loss=mean, loss_std=np.sqrt(variance))
    got = made(recorded(loss=runs), theory=predicted).scatter("theory", "loss")
    assert got is not None
    want = variance[:3].mean(0) + mean[:3].var(0, ddof=1)
    np.testing.assert_allclose(got.predicted, np.sqrt(want), rtol=1e-12)
    np.testing.assert_allclose(got.measured, runs.std(0, ddof=1), rtol=1e-12)
    np.testing.assert_allclose(got.error, runs.std(0, ddof=1) / np.sqrt(8), rtol=1e-12)


def runs(sharpness, first_bad_step):
    """Runs with a record at steps 0, 1, 2, 4, 6."""
    found = {"preconditioned_sharpness": (("seed", "time"), np.array(sharpness))}
    bad = {"first_bad_step": ("seed", np.array(first_bad_step))}
    return xr.Dataset({**found, **bad}, {"time": [0.0, 1, 2, 4, 6]})


def test_the_edge_is_compared_from_where_the_central_flow_reaches_it():
    """By hand, with the records at 2, 4 and 6 as long as 1.5, 2 and 2: 1.5 * 3 + 2 * 1 + 2 * 2.5 =
    11.5 of 5.5, and of a second run, which ends before step 6, 1.5 * 2 + 2 * 2."""
    training = runs([[0, 9, 3, 1, 2.5], [0, 9, 2, 2, np.nan]], [-1, 6])
    central = runs([[0, 1, 2, 2, 1.5], [0, 1, 2, 2, 2]], [-1, -1])
    found = sharpness_at_edge(training, central)
    assert found is not None
    mean = (11.5 + 7) / 9
    weights, values = np.array([1.5, 2, 2, 1.5, 2]), np.array([3, 1, 2.5, 2, 2])
    varies = np.sqrt(weights @ (values - mean) ** 2 / 9)
    want = [2, mean, varies, 2 - 2 * 0.5 / 9]
    got = [found.step, found.training, found.varies, found.central]
    np.testing.assert_allclose(got, want, rtol=1e-12)
    assert sharpness_at_edge(training, runs([[0, 1, 1, 1, 1]] * 2, [-1, -1])) is None
    assert sharpness_at_edge(training, runs([[0, 1, 2, 2, 2]] * 2, [1, 1])) is None


NAMES = ("predicted", "predicted_error", "measured", "error", "strained")


@pytest.mark.parametrize(
    ("predicted", "own", "measured", "rounding", "strained"),
    [
        # As in 32 runs, which know their standard deviation to an eighth.
        (5.9e-10, 1e-11, 1.7e-5, 0.0, True),
        (4.6e-18, 0.0, 3.4e-3, 1e-6, True),
        (1.0, 0.0, 1.5, 0.0, True),
        (1.0, 0.0, 0.5, 0.0, True),
        # Less than three of its errors; less than a fifth; the error of the prediction is large.
        (1.0, 0.0, 1.3, 0.0, False),
        (1.0, 0.0, 0.7, 0.0, False),
        (1.0, 0.3, 1.5, 0.0, False),
        # Rounding errors; nothing scatters; a single run.
        (1e-12, 0.0, 1e-8, 1e-7, False),
        (0.0, 0.0, 0.0, 0.0, False),
        (1.0, 0.0, math.nan, 0.0, False),
    ],
)
def test_a_row_is_strained_where_errors_do_not_explain_the_difference(
    predicted, own, measured, rounding, strained
):
    values = np.array([[predicted], [own], [measured], [measured / 8]])
    found = scatter.Scatter(*values).at_end(rounding)
    assert found["strained"] == strained
    assert list(found) == list(NAMES)


def test_paths_of_a_theory_have_an_error_of_their_own():
    """Numbers written out: three paths, five runs, two times and two classes."""
    rng = np.random.default_rng(0)
    paths, runs = rng.normal(size=(3, 2, 2)), rng.normal(size=(5, 2, 2))
    found = scatter.over_paths(paths, runs)
    own, measured = paths.std(0, ddof=1), runs.std(0, ddof=1)
    np.testing.assert_allclose(found.predicted, own, rtol=1e-12)
    np.testing.assert_allclose(found.predicted_error, own / 2, rtol=1e-12)
    np.testing.assert_allclose(found.measured, measured, rtol=1e-12)
    np.testing.assert_allclose(found.error, measured / 8**0.5, rtol=1e-12)
    ends = found.at_end()
    for name, values in (("predicted", own), ("measured", measured)):
        assert ends[name] == pytest.approx(np.sqrt((values[-1] ** 2).mean()), rel=1e-12)


@pytest.mark.parametrize("width", [1.0, 0.1])
def test_starts_of_a_theory_have_an_error_of_their_own(width):
    """That over many repetitions with means of standard deviation `width`, which have an error of
    half of that, and a variance within each start of mean 2 and variance 1."""
    rng = np.random.default_rng(0)
    shape = (6, 4000, 2)
    mean = rng.normal(size=shape) * width * np.sqrt(1 + 0.5**2)
    std = np.sqrt(rng.gamma(4, 0.5, size=shape))
    runs = rng.normal(size=shape)
    found = scatter.over_starts(runs, mean, std, np.full(shape, 0.5 * width))
    # The mean over repetitions has an error of 1 %.
    np.testing.assert_allclose((found.predicted**2).mean(0), 2 + width**2, rtol=0.04)
    scattered = found.predicted.std(0)
    np.testing.assert_allclose(np.sqrt((found.predicted_error**2).mean(0)), scattered, rtol=0.15)
    one = scatter.over_starts(runs, mean[:1], std[:1], 0.5, np.full(shape, 0.1)[:1])
    np.testing.assert_array_equal(one.predicted, std[0])
    np.testing.assert_array_equal(one.predicted_error, np.full(shape[1:], 0.1))
