"""The comparison and its command: numbers again from the arrays, and from arrays made by hand."""

import contextlib
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from jaxtyping import Array, PRNGKeyArray
from scipy.stats import chi2

import dynsim
import sweeps
from dynsim import Status, Trajectory
from dynsim.trajectory import counts
from odes.theory import Theory, always
from sweeps import cli
from sweeps.comparison import command, picture
from sweeps.comparison.command import Compare, compare, planned
from sweeps.comparison.errors import Comparison
from sweeps.comparison.scatter import average, spread
from sweeps.systems.experiment import Experiment, experiment
from tests.sweeps.ending import ended

pytestmark = pytest.mark.usefixtures("quick_theory")

SEEDS = 30
TINY = "--d 4 --length 7 --batch 8 --num-test 64 --decay 0.2 --eta-2 0.1 --stage-2 0.5"
COMMANDS = {
    "yz": "--steps 12 --length 24 --batch 8 --times 12 --theories plain spread",
    "two_stage": f"{TINY} --times 9 --theories ode anchored sde",
}
"""Training of 12 steps, and of 6 + 25 steps."""
LEARNED = "P is learned at step"
Written = tuple[dict[str, Any], dict[str, np.ndarray], str]


@pytest.fixture(scope="module", params=["yz", pytest.param("two_stage", marks=pytest.mark.full)])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Report, arrays and text of a comparison."""
    out, text = tmp_path_factory.mktemp("compare") / "out", io.StringIO()
    words = f"compare {request.param} --seeds {SEEDS} {COMMANDS[request.param]} --out {out}"
    with contextlib.redirect_stdout(text):
        assert cli.main(words.split()) == 0
    files = {f"compare.{suffix}" for suffix in ("json", "npz", "png")}
    assert {path.name for path in out.iterdir()} == files | {f"compare_{request.param}.run.json"}
    with np.load(out / "compare.npz", allow_pickle=False) as arrays:
        return json.loads((out / "compare.json").read_text()), dict(arrays), text.getvalue()


def ratio(part: np.ndarray, whole: np.ndarray) -> Any:
    size = np.linalg.norm(whole)
    return pytest.approx(np.linalg.norm(part) / size, rel=1e-9, abs=1e-12) if size else None


@pytest.mark.more
def test_the_report_is_what_the_arrays_say(written: Written) -> None:
    """Errors of each theory at its own times, in percent and in sampling errors; predicted and
    measured standard deviations; and what each run of a problem is about."""
    report, arrays, text = written
    training = report["simulation"]
    times = arrays["simulation/times"][0]
    for theory, found in report["theories"].items():
        at = np.searchsorted(times, arrays[f"{theory}/times"][0])
        np.testing.assert_array_equal(times[at], arrays[f"{theory}/times"][0])
        for name, errors in found["relative_error"].items():
            runs = arrays[f"simulation/{name}"].astype(float)[:, at]
            solved = arrays[f"{theory}/{name}"].astype(float)
            mean, chance = runs.mean(0), runs.std(0, ddof=1) / SEEDS**0.5
            off = solved.mean(0) - mean
            floored = np.linalg.norm(mean[-1]) < np.linalg.norm(chance[-1])
            end = ratio(off[-1], chance[-1] if floored else mean[-1])
            assert errors == {"over_time": ratio(off, mean), "at_end": end, "floored": floored}
            assert found["sampling_errors"][name] == ratio(off, chance)
            if len(at) == len(times):
                assert training["sampling_error"][name]["over_time"] == ratio(chance, mean)
            if scatter := found.get("spread_at_end", {}).get(name):
                stored = f"{theory}/{name}_std"
                own = arrays[stored][0] if stored in arrays else solved.std(0, ddof=1)
                for part, values in (("predicted", own), ("measured", runs.std(0, ddof=1))):
                    assert scatter[part] == pytest.approx(np.sqrt(np.mean(values[-1] ** 2)))
                few = math.sqrt(2 * (SEEDS - 1))
                assert scatter["error"] == pytest.approx(scatter["measured"] / few, rel=1e-9)
        assert theory in text
    assert training["status"] == {"OK": SEEDS}
    assert f"{SEEDS} OK" in text
    sizes = {name: arrays[f"{name}/times"].shape for name in report["theories"]}
    if "sde" in sizes:
        assert sizes == {"ode": (1, 9), "anchored": (SEEDS, 9), "sde": (48, 9)}
        never = [step is None for step in report["theories"]["sde"]["summary"][LEARNED]]
        assert never == (arrays["sde/K1"] >= 0.2).all(1).tolist()
        return
    # Descent is always there; standard deviations are predicted at nine of ten times.
    every = dict.fromkeys(("descent-finite-t", "descent", "plain"), (1, 10))
    assert sizes == every | {"spread": (1, 9)}
    peak = training["summary"]["step of the largest speed"]
    assert peak == times[arrays["simulation/speed"].mean(-1).argmax(1)].tolist()
    # Variances of two classes: a chi-square, 1e-4 of each side. Two hundred runs have 7 % less than
    # is predicted, of the next order in 1/T and 1/B.
    found, free = report["theories"]["spread"]["spread_at_end"]["z_top_distinct"], 2 * (SEEDS - 1)
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
        (
            {"steps": 9, "length": 16},
            {"theories": ("eq10", "best")},
            {"descent": 1, "eq10": 1, "plain": 1},
        ),
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
def test_theories_have_as_many_runs_as_differ(
    run: dict[str, Any],
    options: dict[str, Any],
    sizes: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "begin", lambda sweeps: None)
    sweeps, theories, _ = planned(Compare(experiment(**run), seeds=40, root=7, **options))
    found = {name: sweep.axes["seed"]["range"] for name, sweep in sweeps.items()}
    assert found == {"simulation": 40} | sizes
    assert [*theories] == [*sizes]
    assert {sweep.root for sweep in sweeps.values()} == {7}
    adaptive = {"plain"} if "rtol" in options else set()
    assert {name for name, sweep in sweeps.items() if sweep.rtol == 1e-5} == adaptive
    if noisy := sweeps.get("spread"):
        every = dynsim.log_times(1000, 64)
        sweeps, *_ = planned(Compare(experiment(**run).at({"steps": 1000}), theories=("spread",)))
        places = np.searchsorted(every, sweeps["spread"].times)
        np.testing.assert_array_equal(every[places], sweeps["spread"].times)
        # Evenly among the times of the comparison, with both ends.
        assert (len(places), places[0], places[-1]) == (9, 0, len(every) - 1)
        assert np.ptp(np.diff(places)) <= 1
        assert {*noisy.names} == {n + end for n in dynsim.Layer.COMPARED for end in ("", "_std")}


def test_all_theories_include_variants_and_by_default_the_rest_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "begin", lambda sweeps: None)
    run = experiment(steps=9, length=64)
    usual, every = (planned(Compare(run, theories=each))[1] for each in ((), ("all",)))
    assert {"plain", "eq10", "spread", "descent"} <= {*usual} < {*every}
    assert {"corrected", "symmetric", "lemma3", "spread-squares"} <= {*every} - {*usual}
    assert {each.variant for each in usual.values()} == {False}
    *_, left_out = planned(Compare(run.at({"length": 16})))
    assert "expansion in 1/T" in left_out["spread"]
    with pytest.raises(ValueError, match=r"seed = 3: the runs of a comparison have the seeds"):
        sweeps.compare(seed=3)
    with pytest.raises(ValueError, match=r"setps = 5: is not a setting; did you mean steps"):
        sweeps.compare(setps=5)
    lone = experiment("two_stage", core="fixed")
    for theories in ((), ("best",)):
        with pytest.raises(ValueError, match="none of the system's theories describes these runs"):
            planned(Compare(lone, theories=theories))


def test_an_error_in_a_theory_comes_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def solve(*args: object, **options: object) -> Trajectory:
        raise ArithmeticError("a slip in its equations")

    mine = Theory("mine", "mine", "", solve, lambda training: None, adaptive=False)
    monkeypatch.setattr(command, "computed", lambda sweep: pytest.fail("something ran"))
    config = Compare(experiment("linear_icl", steps=5), seeds=1, times=3, theories=("plain",))
    with pytest.raises(ArithmeticError, match="a slip in its equations"):
        compare(config, [mine])


# A comparison of its own.
@pytest.mark.full(
    "test_the_report_is_what_the_arrays_say",
    "extension/test_extension.py::test_its_system_is_compared_with_its_theory",
)
def test_json_prints_the_report_alone(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    arguments = "compare --steps 12 --seeds 1 --length inf --batch inf --times 6 --theories plain"
    arguments += f" --start uniform --json --out {tmp_path}"
    assert cli.main(arguments.split()) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["config"]["run"]["problem"]["length"] == "inf"
    # With one run there is no standard deviation; descent is the very same computation.
    assert numbers["simulation"]["sampling_error"]["loss"]["at_end"] is None
    descent = numbers["theories"]["descent"]["relative_error"]
    assert all(e["over_time"] is None or e["over_time"] < 1e-5 for e in descent.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--steps 0", "steps = 0: must be an integer from 1 to 2147483647"),
        ("--seeds 0", "seeds = 0"),
        ("--eta-y -1", "rule.eta.Y = -1: must be a number in [0, inf)"),
        ("--momentum 1", "rule.momentum = 1: must be a number in [0, 1)"),
        ("--rule adam --momentum 0.9", "momentum = 0.9: adam does not have it; sgd"),
        ("--task syn-huge", "problem.task = 'syn-huge': "),
        ("--task absent.npz", "task file absent.npz: no such file"),
        ("--task syn-medium --num-queries 0", "num_queries = 0"),
        ("--batch inf --length 9", "length = 9: the theory is an expansion in 1/T"),
        ("--length 1", "length = 1"),
        ("--theories eq11", "theories = 'eq11': did you mean eq10? It must be one of best, all, d"),
        ("--theories plain plain", "theories = 'plain': is named twice"),
        ("--theories theorem4", "theory 'theorem4' does not apply"),
        ("--theories matched", "does not describe optimizer = sgd"),
        ("--length 16 --theories plain-finite-t", "length = 16: the theory is an expansion in 1/T"),
        ("--K 5", "K = 5: syn-small does not have it; overlapping does"),
        ("--seed 1", "seed = 1: the runs of a comparison have the seeds 0 to 7"),
        ("--rtol 0", "rtol = 0: must be a number in [1e-13, 1)"),
        ("--problem saxe --theories sde --rtol 1e-5", "('sde',) uses it"),
        ("--root 4294967296", "root = 4294967296: must be an integer from 0 to 4294967295"),
    ],
)
def test_bad_input_ends_with_one_line_and_writes_nothing(
    options: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "out"
    assert ended(["compare", "--quiet", "--out", str(out), *options.split()]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert not out.exists()


def test_an_output_path_that_is_a_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "file"
    path.write_text("kept")
    assert cli.main(["compare", "--out", str(path)]) == 2
    assert "exists and is not a folder" in capsys.readouterr().err
    assert path.read_text() == "kept"


RUN = experiment("saxe", steps=9)
OK, DIVERGED = Status.OK, Status.DIVERGED


def recorded(status: Any = None, times: Any = None, **values: Any) -> xr.Dataset:
    """Runs over `seed` of arrays (R, S, ...) by name."""
    arrays = {name: np.array(each, float) for name, each in values.items()}
    number, length = next(iter(arrays.values())).shape[:2]
    found = {n: (("seed", "time", *"ab"[: x.ndim - 2]), x) for n, x in arrays.items()}
    ends = ("seed", [OK] * number if status is None else status)
    at = range(length) if times is None else times
    return xr.Dataset({**found, "status": ends}, {"time": np.array(at, float)})


def made(
    training: xr.Dataset, run: Experiment = RUN, drawn: bool = False, **predictions: xr.Dataset
) -> Comparison:
    """A comparison of these datasets."""
    theories = {n: Theory(n, n, "", lambda *_: None, always, drawn=drawn) for n in predictions}  # pyright: ignore
    names = tuple(str(name) for name in training.data_vars if name not in ("status", "time"))
    return Comparison(run, {}, training, predictions, theories, names, {"other": "why"})


def test_errors_have_a_floor_where_the_mean_vanishes() -> None:
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


def test_a_theory_of_fewer_times_is_compared_at_these() -> None:
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
        figure, (upper, lower) = plt.subplots(2)
        line = picture.plot_entries(found, "x", ax=upper).containers[0].lines[0]
        np.testing.assert_array_equal(line.get_xydata(), [[0, 1], [9, 5]])
        distance = picture.plot_distance(found, "x", ax=lower).lines[0]
        # Root mean squares over entries, of the largest mean (5, 5).
        want = np.sqrt([4 / 2, 9 / 2]) / 5
        np.testing.assert_allclose(distance.get_xydata().T, [[0, 9], want], rtol=1e-12)
        plt.close(figure)


@pytest.mark.parametrize("bad", ["simulation", "theory"])
def test_a_side_whose_runs_all_failed_has_its_status_alone(bad: str) -> None:
    """In the report, in the text and in the picture."""
    rng = np.random.default_rng(0)
    ends = {"simulation": [OK] * 3, "theory": [OK] * 2} | {bad: [DIVERGED] * (2 + (bad[0] == "s"))}
    sizes = {"loss": 3.0, "loss_std": 2.0, "loss_error": 1.0, "loss_std_error": 1.0}
    sides = {
        name: recorded(
            status, **{n: size + rng.uniform(size=(len(status), 4, 2)) for n, size in sizes.items()}
        )
        for name, status in ends.items()
    }
    training = sides["simulation"][["loss", "status"]]
    for drawn in (False, True):
        found = made(training, drawn=drawn, theory=sides["theory"])
        side = found.report["theories"]["theory"]
        assert side["status"] == counts(np.array(ends["theory"]))
        nothing = {"over_time": None, "at_end": None, "floored": False}
        assert side["relative_error"] == {"loss": nothing}
        assert side["sampling_errors"] == {"loss": None}
        assert f"{len(ends[bad])} DIVERGED" in str(found)
        plt.close(picture.draw(found))


class Halving(dynsim.Problem):
    """A problem that says when its loss is halved."""

    def init(self, key: PRNGKeyArray) -> Array:
        return jnp.ones(1)

    def population_loss(self, params: Array) -> Array:
        return jnp.sum(params**2)

    def summary(self, times: np.ndarray, recorded: Any) -> dict[str, float]:
        below = recorded["loss"] <= 0.5
        step = float(times[below.argmax()]) if below.any() else math.inf
        return {"halved at": step, "last": recorded["loss"][-1]}


def test_a_problem_of_ones_own_sums_up_each_run() -> None:
    """Of training and of theories, without runs that diverged."""
    loss, status = [[4.0, 0.4, 0.1], [0, 0, 0], [4, 0.6, 0.3], [4, 1, 1]], [OK, DIVERGED, OK, OK]
    theory = recorded(times=[0, 4, 9], loss=[[4, 0.6, 0.5]])
    runs = recorded(status, [0, 4, 9], loss=loss)
    found = made(runs, experiment(Halving(), steps=9), theory=theory)
    assert found.summary("simulation") == {"halved at": [4, 9, math.inf], "last": [0.1, 0.3, 1]}
    assert found.report["simulation"]["summary"]["halved at"] == [4, 9, None]
    assert found.report["theories"]["theory"]["summary"] == {"halved at": [9], "last": [0.5]}
    text = re.sub(" +", " ", str(found))
    assert "\nhalved at 6.5 ± 3.5 (1 of 3 never) 9\nlast 0.4667 ± 0.47 0.5" in text


def test_variances_within_and_between_starts_add_up() -> None:
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


def test_a_predicted_deviation_is_drawn_with_its_error() -> None:
    """As a line on each side of the mean, within a band."""
    sizes = {"loss": 5.0, "loss_std": 2.0, "loss_error": 0.0, "loss_std_error": 0.25}
    predicted = recorded(**{name: np.full((1, 4), size) for name, size in sizes.items()})
    runs = recorded(loss=np.random.default_rng(0).normal(size=(3, 4)))
    figure, ax = plt.subplots()
    picture.plot_entries(made(runs, theory=predicted), "loss", ax=ax)
    _, *bands = ax.collections
    heights = [{*band.get_paths()[0].vertices[:, 1]} for band in bands]
    assert heights == [{2.75, 3.25}, {6.75, 7.25}]
    dotted = [{*line.get_ydata()} for line in ax.lines if line.get_linestyle() == ":"]
    assert dotted == [{3.0}, {7.0}]
    plt.close(figure)
