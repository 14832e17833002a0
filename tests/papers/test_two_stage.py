"""The two-stage figures: training against the measured table, the reduced ODE and the claims, and
what is drawn and counted."""

import functools

import numpy as np
import pytest
import xarray as xr

import sweeps
from odes.two_stage import claims, finite_length
from papers import two_stage
from papers.two_stage import finite, phase
from papers.two_stage.figure import FigureTwoStage
from tests.papers import made

pytestmark = pytest.mark.usefixtures("optimised_sweeps")

# Means and standard deviations over six seeds of an independent implementation, after stage 1
# and at the end.
TABLE = {
    "K1": ((0.088, 0.006), (0.048, 0.002)),
    "K2": ((0.720, 0.004), (0.514, 0.005)),
    "K2_signal": ((0.692, 0.001), (0.503, 0.006)),
    "K1_signal": ((0.075, 0.018), (0.047, 0.003)),
    "K2_gated": ((0.693, 0.001), (0.472, 0.006)),
    "J": ((0.103, 0.007), (0.034, 0.002)),
    "accuracy_P": ((0.996, 0.001), (1.0, 0.001)),
    "accuracy_Q": ((0.504, 0.013), (0.748, 0.012)),
    "auc_Q": ((0.503, 0.012), (1.0, 0.001)),
    "best_accuracy_Q": ((0.518, 0.011), (0.999, 0.001)),
    "W_norm": ((8.15, 0.2), (2.87, 0.04)),
    "V_norm": ((7.91, 0.2), (2.81, 0.04)),
    "W_signal_norm": ((2.06, 0.22), (2.23, 0.04)),
    "V_signal_norm": ((0.196, 0.006), (2.54, 0.03)),
    "W_trace": ((1.95, 0.21), (2.22, 0.04)),
    "V_trace_abs": ((0.058, 0.026), (2.43, 0.04)),
}


SEEDS, TIMES = 6, 64
LIMITS = {"K1": 0.05, "K2": 0.02, "W_norm": 0.02, "V_norm": 0.02, "W_trace": 0.02}
# Minutes of training; training and equations have default tests by themselves.
FULL = pytest.mark.full(
    "odes/two_stage/test_claims.py::test_verdicts_follow_the_numbers",
    "dynsim/two_stage/test_simulate.py::test_a_run_is_the_algorithm_step_by_step",
    "odes/two_stage/test_solve.py::test_nominal_run_has_the_numbers_of_the_reduction",
)


@pytest.fixture(scope="module")
def train():
    """A function from settings to the runs, which trains each of them once."""

    @functools.cache
    def found(problem="two_stage", seeds=SEEDS, times=TIMES, **changes):
        run = sweeps.experiment(problem, **changes)
        return two_stage.ended(sweeps.run(two_stage.training(run, seeds, times)).load(), run)

    return found


@pytest.fixture(scope="module")
def ode():
    """The reduced ODE for the runs."""
    return sweeps.run(two_stage.ode(sweeps.experiment("two_stage"), TIMES)).load().isel(seed=0)


@FULL
@pytest.mark.parametrize("name", TABLE)
def test_the_measured_table(train, name):
    """Two means of six runs differ by 0.58 standard deviations in the root mean square; three times
    that is allowed, with the larger of the two deviations: our own may be the larger one, because
    a run that learns Q late moves everything that is measured on Q."""
    runs = train()
    for at, (mean, deviation) in zip((runs.switch, -1), TABLE[name], strict=True):
        here = runs[name][:, at]
        scatter = max(deviation, float(here.std("seed", ddof=1)))
        assert float(here.mean("seed")) == pytest.approx(mean, abs=3 * 0.58 * scatter)


@FULL
def test_times_at_which_the_components_are_learned(train):
    # 3.3 +- .6 and 85 +- 8, six seeds each; the same three standard errors of a difference.
    runs = train()
    assert claims.learning_times(runs, "P").mean() == pytest.approx(3.3, abs=1.0)
    assert claims.learning_times(runs, "Q").mean() == pytest.approx(85, abs=14)


@FULL
@pytest.mark.parametrize("name", LIMITS)
def test_reduced_ode_against_the_mean_of_the_runs(train, ode, name):
    """The limit is on what the theory is off by; the standard error of the mean comes on top,
    because K1 alone has 6 % of it over six seeds, nearly all before t = 2."""
    runs = train()
    mean, std = runs[name].mean("seed").values, runs[name].std("seed", ddof=1).values

    def over_time(values):
        return float(np.sqrt(np.trapezoid(values**2, runs.eta_time[0])))

    error = over_time(std / np.sqrt(SEEDS))
    assert over_time(ode[name].values - mean) <= LIMITS[name] * over_time(mean) + error


@FULL
def test_the_claims(train, ode):
    runs, forever = train(), train(control="forever")
    found = [*claims.stages(runs, runs.switch, ode), *claims.large_rate_alone(forever)]
    problem = sweeps.experiment("two_stage").problem
    curves = (claims.truncations(problem, runs, at, 2) for at in (runs.switch, -1))
    found += claims.directions(*curves)
    traces = claims.traces(runs, runs.switch)
    # In single runs the last one fails: the trace of V's noise-made entries is as large as b - a.
    assert [c.text for c in (*found, *traces[:3]) if not c.holds] == []


@pytest.mark.full(
    "odes/two_stage/test_claims.py::test_verdicts_follow_the_numbers",
    "odes/two_stage/test_maps.py::test_floor_of_the_specialised_loss",
)
def test_a_trained_bias_removes_the_floor_and_keeps_the_stages(train):
    """Without it the accuracy of Q ends at three quarters."""
    runs = [train("two_stage-fast", 3, 3, **each) for each in ({"bias": True}, {})]
    bias, plain = (each.mean("seed") for each in runs)
    assert bias.accuracy_Q[-1] > 0.95
    assert bias.accuracy_Q[runs[1].switch] < 0.6
    assert float(plain.accuracy_Q[-1]) == pytest.approx(0.75, abs=0.03)
    assert bias.K2[-1] < plain.K2[-1] - 0.03


def test_the_figure_draws_the_runs_that_ended_well(monkeypatch):
    monkeypatch.setattr(claims, "NUM_PROMPTS", 16)
    figure = FigureTwoStage(seeds=3)
    square, row = {"row": 32, "column": 32}, {"row": 32}
    shapes = {"W_singular": row, "V_singular": row}
    shapes |= {"W_signal": square, "V_signal": square, "state": {"number": 7}}
    data = made.results(figure, "record", **shapes)
    for name, each in data.items():
        time = ("seed", "record"), np.tile([0.0, 25, 50, 500, 5000, 12050], (each.sizes["seed"], 1))
        data[name] = each.assign(time=time, eta_time=time)
    data["preset"]["status"][1] = 1
    picture = figure.draw(data)
    kept = data["preset"].K1[[0, 2]]
    np.testing.assert_array_equal(picture.arrays["preset"]["K1"], kept)
    ax = picture.figure.axes[0]
    np.testing.assert_allclose(ax.lines[0].get_ydata(), kept.mean("seed")[1:])
    # The end of stage 1 is the third of these times.
    assert ax.lines[-1].get_xdata()[0] == 50
    assert {claim["name"] for claim in picture.report["preset"]} >= {"a.2", "trace", "threshold"}
    assert picture.text.startswith("preset: 2 runs")


def test_points_are_counted_on_their_side_of_the_line():
    """A line at tau = 1 and a grid of factor 2: tau = 0.5 and 2 are within a cell of it."""
    tau = np.array([0.25, 0.5, 1.0, 2.0, 4.0])
    auc = np.array([[0.95, 0.8], [0.5, 0.5], [0.5, 0.5], [0.9, 0.9], [0.5, 0.7]])
    simulated = xr.DataArray(auc, {"tau": tau, "r": [1.0, 2.0]})
    assert tuple(phase.count(simulated, np.array([1.0, 1.0])).values()) == (6, 2, 1, 2, 1)


def test_the_plane_of_the_phases_is_drawn():
    figure = phase.TwoStagePhase(resolution=3, points=2, seeds=2)
    assert figure.eta_time == 200
    data = made.results(figure)
    data = {name: each.isel(time=-1) for name, each in data.items()}
    picture = figure.draw(data)
    assert picture.arrays["theory"]["auc"].shape == (3, 3)
    dots = picture.figure.axes[0].collections[-1]
    mean = data["simulation"].auc_Q.mean("seed").transpose("tau", "r")
    np.testing.assert_array_equal(dots.get_array(), mean.values.ravel())
    lines = picture.arrays["lines"]
    assert (lines["finite_time"] < lines["infinite_time"]).all()


@pytest.mark.usefixtures("quick_theory")
def test_errors_at_finite_length_are_measured_at_the_ends_of_the_stages(tmp_path, monkeypatch):
    monkeypatch.setattr(finite.TwoStageFinite, "LENGTHS", (9, 33))
    monkeypatch.setattr(finite_length, "PROMPTS_AT_ONCE", 64)
    numbers = {"d": 4, "decay": 0.2, "eta_2": 0.1, "stage_2": 0.5}
    run = sweeps.experiment("two_stage", **numbers)
    picture = finite.TwoStageFinite(run, samples=400, prompts=128, out=tmp_path).draw({})
    end = picture.arrays["K1, end of stage 2"]
    assert (np.abs(end.gaussian) < 0.6 * np.abs(end.infinite)).all()
    assert picture.arrays["variance"].shape == (3, 7)
    assert [ax.get_title() for ax in picture.figure.axes] == ["end of stage 1", "end of stage 2"]


def test_errors_have_an_exponent_where_sampling_cannot_have_made_them():
    """1/L in one case, within two errors of nothing in the other."""
    figure = finite.TwoStageFinite()
    lengths = np.array(figure.LENGTHS, float)
    made = finite_length.LossErrors(1 / lengths, *2 * [0.1 / lengths], 0.07 / lengths)
    lines = [*figure.rows("K1", made)]
    assert lines[-1].strip() == "infinite like L^-1.00"
    errors = {f"{loss}, {moment}": made for loss in ("K1", "K2") for moment in figure.MOMENTS}
    for ax in figure.panels(errors).axes:
        # Two losses, each without variance and with it, and two guides.
        slopes = [np.polyfit(*np.log(np.array(line.get_data(), float)), 1)[0] for line in ax.lines]
        assert sorted(np.round(slopes, 6)) == [-2, -1, -1, -1, -1, -1]
