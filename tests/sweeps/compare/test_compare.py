"""The comparison and the command: numbers recomputed from the arrays, files, errors."""

import json
from pathlib import Path
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from scipy.stats import chi2

import sweeps
from dynsim import Status, Trajectory
from dynsim.trajectory import counts
from odes.theory import Theory
from sweeps import cli
from sweeps.compare import command, comparison, picture, scatter
from sweeps.compare.command import Compare, compare
from sweeps.compare.comparison import chosen
from sweeps.compare.layer import SPREAD, LayerComparison
from sweeps.systems.experiment import experiment
from tests.sweeps.ending import ended

pytestmark = pytest.mark.usefixtures("quick_theory")

SEEDS = 30
RUN = {"steps": 12, "length": 24, "batch": 8}
SMALL = {"seeds": SEEDS, "times": 6, "theories": ("plain",)}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> LayerComparison:
    found = compare(Compare(experiment(**RUN), out=tmp_path_factory.mktemp("compare"), **SMALL))
    assert isinstance(found, LayerComparison)
    return found


@pytest.fixture(scope="module")
def written(compared: LayerComparison) -> Path:
    out = compared.config.out
    comparison.deliver(compared, picture.draw_layer(compared))
    (out / "table.txt").write_text(str(compared))
    return out


@pytest.mark.more
def test_the_report_is_what_the_arrays_say(written: Path) -> None:
    numbers = json.loads((written / "compare.json").read_text())
    with np.load(written / "compare.npz", allow_pickle=False) as arrays:
        simulation = {n: arrays[f"simulation/{n}"].astype(float) for n in ("loss", "speed")}
        plain = {n: arrays[f"plain/{n}"] for n in ("loss", "speed")}
        times = arrays["simulation/times"][0]
    assert simulation["loss"].shape == (SEEDS, times.size)
    assert plain["speed"].shape == (1, times.size, 2)
    np.testing.assert_array_equal(times[[0, -1]], [0, 12])
    for name, runs in simulation.items():
        difference = plain[name][0] - runs.mean(0)
        errors = numbers["theories"]["plain"]["relative_error"][name]
        over_time = np.sqrt((difference**2).sum() / (runs.mean(0) ** 2).sum())
        assert errors["over_time"] == pytest.approx(over_time, rel=1e-9)
        sampling = np.sqrt((runs.var(0, ddof=1) / SEEDS).sum() / (runs.mean(0) ** 2).sum())
        found = numbers["simulation"]["sampling_error"][name]["over_time"]
        assert found == pytest.approx(sampling, rel=1e-9)
        # How many sampling errors lie between them.
        found = numbers["theories"]["plain"]["sampling_errors"][name]
        assert found == pytest.approx(over_time / sampling, rel=1e-9)
    peak = simulation["speed"].mean((0, 2))
    assert numbers["simulation"]["peak_of_speed"]["time"] == times[np.argmax(peak)]
    # K ln(M) / eta_Y with K = 2, M = 34.
    assert numbers["predicted_stages"]["rise_end"] == pytest.approx([2 * np.log(34)] * 2)
    assert numbers["environment"]["simulation_precision"] == "float32"


def test_predicted_and_measured_spread_stand_side_by_side(written: Path) -> None:
    numbers = json.loads((written / "compare.json").read_text())
    with np.load(written / "compare.npz", allow_pickle=False) as arrays:
        runs = arrays["simulation/z_top_distinct"][:, -1].astype(float)
    found = numbers["spread_at_end"]["z_top_distinct"]
    # Root mean square over the two classes, and the sampling error by so many runs.
    measured = np.sqrt(runs.var(0, ddof=1).mean())
    assert found["measured"] == pytest.approx(measured, rel=1e-9)
    assert found["error"] == pytest.approx(measured / np.sqrt(2 * (SEEDS - 1)), rel=1e-9)
    # Variances of two classes: a chi-square, 1e-4 of each side. Two hundred runs have 7 % less than
    # is predicted, of the next order in 1/T and 1/B.
    free = 2 * (SEEDS - 1)
    low, high = np.sqrt(free / chi2.isf([1e-4, 1 - 1e-4], free))
    assert low / 1.1 < found["predicted"] / measured < high * 1.1
    table = (written / "table.txt").read_text()
    assert "descent-finite-t" in table
    assert "Standard deviation across seeds at the end." in table


# A comparison of its own.
@pytest.mark.full(
    "test_the_best_theory_stands_first_and_once",
    "test_bad_input_ends_with_one_line_and_writes_nothing",
)
def test_short_sequences_leave_theories_of_finite_length_out() -> None:
    # As a script asks for it; of the theories that apply, plain is the most exact then.
    result = sweeps.compare.compare(**{**RUN, **SMALL, "length": 16, "theories": ("best", "plain")})
    assert list(result.predictions) == ["descent", "plain"]
    assert "plain" in str(result)
    reason = "length = 16: the theory is an expansion in 1/T"
    assert result.report["left_out"].startswith(reason)
    assert f"Finite-T theories are left out. {reason}" in str(result)
    with pytest.raises(ValueError, match=reason):
        compare(Compare(experiment(**{**RUN, "length": 16}), theories=("plain-finite-t",)))


def test_files_are_complete_and_the_table_names_theories(written: Path) -> None:
    assert {path.name for path in written.iterdir()} == {
        "compare.json",
        "compare.npz",
        "compare.png",
        "table.txt",
    }
    assert not [p for p in written.iterdir() if p.name.startswith(".")]
    table = (written / "table.txt").read_text()
    for word in ("sampling", "descent", "plain", "z_top_distinct", f"{SEEDS} OK", "t0'"):
        assert word in table


def test_the_picture_shows_what_the_arrays_hold(compared: LayerComparison, written: Path) -> None:
    figure = picture.draw_layer(compared)
    loss, *_, speed = figure.axes[:4]
    with np.load(written / "compare.npz", allow_pickle=False) as arrays:
        times = arrays["simulation/times"][0, 1:]
        for ax, name in ((loss, "loss"), (speed, "speed")):
            runs, plain = (arrays[f"{source}/{name}"] for source in ("simulation", "plain"))
            if name == "speed":
                runs, plain = runs.mean(-1), plain.mean(-1)
            drawn = {str(line.get_label()).split(",")[0]: line for line in ax.get_lines()}
            theory = compared.about("plain")[0].split(",")[0]
            for label, values in ((theory, plain[0]), ("simulation", runs.mean(0))):
                np.testing.assert_array_equal(drawn[label].get_xdata(), times)
                # Means of runs in float32.
                np.testing.assert_allclose(drawn[label].get_ydata(), values[1:], rtol=1e-6)
    # K ln(M) / eta_Y with K = 2, M = 34; t0 is after the end.
    at = [line.get_xdata()[0] for line in speed.get_lines() if len(set(line.get_xdata())) == 1]
    assert 2 * np.log(34) in [pytest.approx(t) for t in at]
    assert max(at) <= 12
    assert (loss.get_xscale(), loss.get_yscale()) == ("log", "log")
    plt.close(figure)


def test_the_best_theory_stands_first_and_once() -> None:
    assert chosen((), ("a", "b")) == ("a", "b")
    assert chosen(("b", "best", "a"), ("a", "b")) == ("b", "a")
    with pytest.raises(ValueError, match="'best': none of the system's theories"):
        chosen(("best",), ())
    with pytest.raises(ValueError, match=r"setps = 5: is not a setting; did you mean steps"):
        sweeps.compare.compare(setps=5)
    with pytest.raises(ValueError, match="seed = 3: the runs of a comparison"):
        sweeps.compare.compare(seed=3)
    prediction = sweeps.explain(eta_y=2.0, eta_z=0.1, steps=50)
    assert prediction["regime"].prediction == "snapped"


# A comparison of its own.
@pytest.mark.full(
    "test_the_report_is_what_the_arrays_say",
    "extension/test_extension.py::test_its_system_is_compared_with_its_theory",
)
def test_json_prints_the_report_alone(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    # As many times as in `SMALL`, so that the programs of the theories are the same.
    arguments = ["compare", "--steps", "12", "--seeds", "1", "--length", "inf", "--batch", "inf"]
    arguments += ["--times", "6", "--theories", "plain", "--start", "uniform"]
    options = ["--out", str(tmp_path), "--json"]
    assert cli.main([*arguments, *options]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["config"]["run"]["problem"]["length"] == "inf"
    # With one run there is no spread to measure; descent is the very same computation.
    assert numbers["simulation"]["sampling_error"]["loss"]["at_end"] is None
    descent = numbers["theories"]["descent"]["relative_error"]
    assert all(e["over_time"] is None or e["over_time"] < 1e-5 for e in descent.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "0"], "steps = 0: must be an integer from 1 to 2147483647"),
        (["--seeds", "0"], "seeds = 0"),
        (["--eta-y", "-1"], "rule.eta.Y = -1: must be a number in [0, inf)"),
        (["--momentum", "1"], "rule.momentum = 1: must be a number in [0, 1)"),
        (["--rule", "adam", "--momentum", "0.9"], "momentum = 0.9: adam does not have it; sgd"),
        (["--task", "syn-huge"], "problem.task = 'syn-huge': "),
        (["--task", "absent.npz"], "task file absent.npz: no such file"),
        (["--task", "syn-medium", "--num-queries", "0"], "num_queries = 0"),
        (["--batch", "inf", "--length", "9"], "length = 9: the theory is an expansion in 1/T"),
        (["--length", "1"], "length = 1"),
        (["--theories", "eq11"], "theories = 'eq11': did you mean eq10? It must be one of"),
        (["--theories", "matched"], "does not describe optimizer = sgd"),
        (["--K", "5"], "K = 5: syn-small does not have it; overlapping does"),
        (["--seed", "1"], "seed = 1: the runs of a comparison have the seeds 0 to 7"),
        (["--rtol", "0"], "rtol = 0: must be a number in [1e-13, 1)"),
        (["--problem", "saxe", "--theories", "sde", "--rtol", "1e-5"], "('sde',) uses it"),
        (["--root", "4294967296"], "root = 4294967296: must be an integer from 0 to 4294967295"),
    ],
)
def test_bad_input_ends_with_one_line_and_writes_nothing(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "out"
    assert ended(["compare", "--quiet", "--out", str(out), *options]) == 2
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


def test_rtol_is_that_of_the_theories_with_an_adaptive_solver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned = []
    monkeypatch.setattr(command, "begin", planned.extend)
    monkeypatch.setattr(command, "computed", lambda sweep: pytest.fail("planned"))
    names = ("plain", "linear-noise")
    config = Compare(experiment("saxe", batch=8), times=3, theories=names, rtol=1e-5)
    with pytest.raises(pytest.fail.Exception, match="planned"):
        compare(config)
    found = {each.theory: each.rtol for each in planned}
    assert found == {"simulation": None, "plain": 1e-5, "linear-noise": None}


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
    "test_means_are_of_the_runs_that_ended_well",
    "sweeps/runner/test_run.py::test_diverged_runs_are_data_and_are_masked",
)
def test_runs_that_diverge_are_counted_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    wild = ["--eta-y", "1e6", "--eta-z", "1e6", "--length", "4", "--start", "uniform"]
    few = ["--steps", "20", "--seeds", "2", "--theories", "plain", "--out", str(tmp_path)]
    assert cli.main(["compare", *wild, *few]) == 0
    assert "DIVERGED" in capsys.readouterr().out
    assert (tmp_path / "compare.png").exists()


def datasets(**values: np.ndarray) -> xr.Dataset:
    """Runs over `seed` of arrays by name, with their status."""
    status = values.pop("status")
    found = {name: (("seed", "time"), each) for name, each in values.items()}
    times = np.arange(next(iter(values.values())).shape[1], dtype=float)
    return xr.Dataset({**found, "status": ("seed", status)}, {"time": times})


@pytest.mark.parametrize(
    ("names", "drawn", "seeds", "number"),
    [
        (("loss",), {"trains": True}, 40, 40),
        (("loss", "loss_std"), {"drawn": True}, 40, 32),
        (("loss", "loss_std"), {"trains": True}, 5, 5),
        (("loss", "loss_std"), {}, 40, 1),
    ],
)
def test_the_scatter_is_predicted_from_32_starts(
    names: tuple[str, ...], drawn: dict[str, bool], seeds: int, number: int
) -> None:
    flags = dict.fromkeys(("trains", "drawn", "seeded"), False) | drawn
    table = SimpleNamespace(names=lambda: names)
    theory = SimpleNamespace(observables=lambda problem: table, **flags)
    config = SimpleNamespace(seeds=seeds, run=SimpleNamespace(bare=None))
    assert comparison.Comparison.seeds(config, theory) == number  # pyright: ignore


def test_times_that_runs_have_of_their_own_are_those_of_the_first() -> None:
    """Steps that a schedule sets are the same for all seeds."""
    loss = np.arange(6.0).reshape(2, 3)
    times = (("seed", "record"), [[0.0, 4, 9], [0, 4, 9]])
    runs = xr.Dataset(
        {"loss": (("seed", "record"), loss), "time": times, "status": ("seed", [0, 0])}
    )
    made = comparison.Comparison(Compare(experiment(**RUN)), runs, {}, {}, ("loss",))
    np.testing.assert_array_equal(made.times, [0, 4, 9])
    found = comparison._arrays(runs)
    assert found.keys() == {"loss", "status", "times"}
    np.testing.assert_array_equal(found["times"], [[0, 4, 9], [0, 4, 9]])


@pytest.mark.parametrize(("times", "edges"), [([5.0], [5, 6]), ([2.0, 8, 50], [2, 4, 20, 50])])
def test_attention_is_drawn_from_time_to_time(times: list[float], edges: list[float]) -> None:
    """Each cell up to the geometric mean with the next time."""
    values = np.random.default_rng(0).uniform(size=(len(times), 3))
    figure, ax = plt.subplots()
    picture.plot_attention(np.array(times), values, 1, 0.8, ax=ax)
    (mesh,), (line,) = ax.collections, ax.lines
    corners = mesh.get_coordinates()
    np.testing.assert_allclose(corners[0, :, 0], edges, rtol=1e-12)
    np.testing.assert_array_equal(corners[:, 0, 1], range(4))
    np.testing.assert_array_equal(mesh.get_array(), values.T)
    assert mesh.get_clim() == (0, 0.8)
    assert line.get_ydata() == [1, 1]
    for common in (0, 3):
        other = figure.add_subplot()
        picture.plot_attention(np.array(times), values, common, 0.8, ax=other)
        assert not other.lines
    plt.close(figure)


def test_means_are_of_the_runs_that_ended_well() -> None:
    loss = np.array([[1.0, 2.0], [np.inf, np.nan], [3.0, 6.0]])
    status = np.array([Status.OK, Status.DIVERGED, Status.OK])
    fine = comparison.valid(datasets(loss=loss, status=status), "loss")
    np.testing.assert_array_equal(scatter.average(fine), [2, 4])
    np.testing.assert_allclose(scatter.spread(fine), [np.sqrt(2), np.sqrt(8)])
    assert np.isnan(scatter.spread(fine[:1])).all()
    assert np.isnan(scatter.average(fine[:0])).all()
    assert comparison.counted(counts(status)) == "2 OK, 1 DIVERGED"


def test_errors_at_the_end_have_a_floor_where_the_mean_vanishes() -> None:
    """The sampling error, where the mean is smaller."""
    ok = np.zeros(2, int)
    runs = {"a": [[3.0, 0.2], [5.0, -0.2]], "b": [[4.0, 0.0], [4.0, 0.0]], "c": [[1.0, 2.0]] * 2}
    # The mean at the end is the sampling error, and so no floor.
    runs["d"], theory_at_floor = [[1.0, 2.0], [1.0, 0.0]], [[1.0, 1.5]]
    theory = {"a": [[4.0, 0.1]], "b": [[4.0, 8e-6]], "c": [[1.0, 1.0]], "d": theory_at_floor}
    sides = [
        datasets(**{n: np.array(x) for n, x in side.items()}, status=ok[: len(side["a"])])
        for side in (runs, theory)
    ]
    config = Compare(experiment(**RUN))
    found = comparison.Comparison(config, sides[0], {"theory": sides[1]}, {}, (*"abcd",))
    errors = {name: found.relative_error("theory", name) for name in found.names}
    # The standard error of two numbers is half of their distance.
    assert errors["a"] == {"over_time": pytest.approx(0.1 / 4), "at_end": 0.5, "floored": True}
    # Without a sampling error, nothing can be said against a mean of zero.
    assert np.isnan(errors["b"]["at_end"])
    assert errors["c"] == {"over_time": pytest.approx(5**-0.5), "at_end": 0.5, "floored": False}
    assert errors["d"] == {
        "over_time": pytest.approx(0.5 / 2**0.5),
        "at_end": 0.5,
        "floored": False,
    }
    assert found.sampling_error("a")["at_end"] == 1
    assert comparison.cell(**errors["a"]) == "2.5 / 50*"


def test_variances_within_and_between_starts_add_up() -> None:
    rng = np.random.default_rng(0)
    # Four starts, of which the last diverged; two times; one number.
    mean, variance = rng.normal(size=(4, 2)), rng.uniform(1, 2, size=(4, 2))
    runs = rng.normal(size=(5, 2))
    mean[3] = np.inf
    predicted = datasets(loss=mean, loss_std=np.sqrt(variance), status=np.array([0, 0, 0, 1]))
    trained = datasets(loss=runs, status=np.zeros(5, int))
    config = Compare(experiment(**RUN))
    made = LayerComparison(config, trained, {}, {}, ("loss",), {SPREAD: predicted})
    got = made.scatter("loss")
    assert got is not None
    want = variance[:3].mean(0) + mean[:3].var(0, ddof=1)
    np.testing.assert_allclose(got.predicted, np.sqrt(want), rtol=1e-12)
    np.testing.assert_allclose(got.measured, runs.std(0, ddof=1), rtol=1e-12)
    np.testing.assert_allclose(got.error, runs.std(0, ddof=1) / np.sqrt(8), rtol=1e-12)


def test_a_predicted_deviation_is_drawn_with_its_error() -> None:
    """As a line on each side of the mean, within a band."""
    ok, rng = np.zeros(3, int), np.random.default_rng(0)
    names = {"loss": 5.0, "loss_std": 2.0, "loss_error": 0.0, "loss_std_error": 0.25}
    predicted = datasets(**{n: np.full((1, 4), x) for n, x in names.items()}, status=ok[:1])
    trained = datasets(loss=rng.normal(size=(3, 4)), status=ok)
    theory = SimpleNamespace(drawn=False, title="theory", assumes="")
    made = comparison.Comparison(
        *(Compare(experiment(**RUN)), trained, {"theory": predicted}),
        {"theory": theory},  # pyright: ignore
        ("loss",),
    )
    figure, ax = plt.subplots()
    picture.plot_entries(made, "loss", ax=ax)
    _, *bands = ax.collections
    heights = [{*band.get_paths()[0].vertices[:, 1]} for band in bands]
    assert heights == [{2.75, 3.25}, {6.75, 7.25}]
    dotted = [{*line.get_ydata()} for line in ax.lines if line.get_linestyle() == ":"]
    assert dotted == [{3.0}, {7.0}]
    plt.close(figure)
