"""Peak times on analytic curves, the collapse on exact cases, and what the rates control."""

import csv
import dataclasses
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from scipy import optimize

import dynsim
import sweeps
from dynsim.classes.tasks import TaskTable
from sweeps import cli
from sweeps.runner.spec import Sweep
from sweeps.studies.transitions import collapse, peaks, snap
from sweeps.systems.experiment import experiment

pytestmark = pytest.mark.usefixtures("quick_theory")


@pytest.mark.parametrize("power", [1, 2.5])
def test_peak_of_t_to_the_p_times_exponential(power: float) -> None:
    # d/dt [p ln t - t/tau] = 0 at t = p tau. In ln t the third derivative over the second is 1, so
    # that a parabola through points d apart misses the peak by at most about d^2/4.
    for spacing in (0.05, 0.1, 0.2):
        t = np.exp(np.arange(0, 7, spacing))
        values = t**power * np.exp(-t / 20)
        assert peaks.peak_time(t, values) == pytest.approx(20 * power, rel=spacing**2 / 4)


def test_a_gaussian_in_log_time_is_exact_at_any_spacing() -> None:
    t = np.array([0, 1, 2, 9, 11, 40, np.nan])  # 0 has no logarithm, NaN pads
    values = 3 * np.exp(-(np.log(t / 7.7, where=t > 0, out=np.zeros(7)) ** 2))
    assert peaks.peak_time(t, values) == pytest.approx(7.7, rel=1e-12)


@pytest.mark.parametrize(
    "values",
    [[1, 2, 3], [3, 2, 1], [1, np.nan, 1], [-1, 2, 1], [0, 0, 0], [0, 2, 1], [1, 2, 0], [2, 2, 2]],
)
def test_a_peak_that_is_not_seen_is_nan(values: list[float]) -> None:
    assert np.isnan(peaks.peak_time(np.array([1, 2, 4]), np.array(values)))
    assert np.isnan(peaks.peak_time(np.array([0]), np.array([1])))


def test_peak_time_refuses_what_is_no_curve() -> None:
    with pytest.raises(ValueError, match=r"values: shape \(2,\): must be that of times"):
        peaks.peak_time(np.arange(3), np.ones(2))
    with pytest.raises(ValueError, match=r"values: shape \(2, 3\): must be that of times"):
        peaks.peak_time(np.ones((2, 3)), np.ones((2, 3)))
    for last in (2, 3):
        with pytest.raises(ValueError, match="times: must increase"):
            peaks.peak_time(np.array([1, 3, last]), np.ones(3))


def test_predicted_peaks_are_those_of_gamma() -> None:
    # K (e^x + (M-1) x - 1) / (M eta), where x e^{-x} / (1 + (M-1) e^{-x}) is largest; by search.
    M, K, eta, mu = 40, 3, 0.02, 0.9
    x = np.linspace(1, 8, 700_001)
    top = x[np.argmax(x / (M - 1 + np.exp(x)))]
    want = K * (np.exp(top) + (M - 1) * top - 1) / (M * eta / (1 - mu))
    task = dynsim.Syn(K, classes_per_query=1, num_common=1, M=M)
    run = experiment(task=task, eta_y=eta, momentum=mu)
    assert peaks.predicted_peak(run) == pytest.approx(want, rel=1e-5)
    times = np.exp(np.arange(0, 8, 0.1))
    assert peaks.gamma_peak(run, times) == pytest.approx(want, rel=3e-3)
    sweep = Sweep(run, {"eta_y": [eta, 2 * eta], "seed": {"range": 2}})
    found = peaks.over_points(sweep, peaks.predicted_peak)
    assert found.dims == ("eta_y",)
    np.testing.assert_allclose(found, [want, want / 2], rtol=1e-5)


@pytest.mark.full(
    "test_predicted_peaks_are_those_of_gamma",
    "test_a_larger_decoder_rate_snaps_earlier",
    "test_eta_z_does_not_set_the_time_of_the_transition",
)
def test_the_exact_flow_collapses_without_overlap_and_is_late_with_it() -> None:
    variants = collapse.variants(collapse.FAMILIES["overlap"], seeds=1)
    assert variants["simulation"].fields["overlap"] == (0.0, 0.1, 0.3, 0.6)
    axes = {"overlap": (0.0, 0.3), "eta_y": (0.3, 1.0), "eta_z": (0.003, 0.01)}
    by_theory = {
        theory: dataclasses.replace(variants[theory], axes=axes) for theory in collapse.THEORIES[1:]
    }
    stored = {theory: sweeps.run(sweep) for theory, sweep in by_theory.items()}
    predicted = peaks.over_points(by_theory["symmetric"], peaks.predicted_peak)
    flow = peaks.measured_peak(stored["symmetric"]) / predicted - 1
    # Without overlap rows of W are independent: Lemma 6 is the flow itself, but for eta_Z.
    assert np.abs(flow.sel(overlap=0)).max() < 3e-3
    assert (flow.sel(overlap=0.3) > 0.05).all()
    # The flow knows eta_Y t alone, so that its relative deviation does not depend on eta_Y.
    assert np.ptp(flow.sel(overlap=0.3).values) < 3e-3
    # Descent makes its first step with the full gradient of the start: it is early.
    early = peaks.measured_peak(stored["symmetric-descent"]) - peaks.measured_peak(
        stored["symmetric"]
    )
    assert (early < 0).all()
    assert (early > -0.5).all()


@pytest.mark.full("test_a_larger_decoder_rate_snaps_earlier")
def test_horizons_follow_the_predicted_peak() -> None:
    sweep = collapse.variants(collapse.FAMILIES["size"], seeds=2)["simulation"]
    longest = peaks.over_points(sweep, peaks.predicted_peak).max("eta_y")
    np.testing.assert_allclose(sweep.fields["steps"], collapse.HORIZON * longest.values, atol=1)
    momentum = collapse.variants(collapse.FAMILIES["momentum"], seeds=2)["symmetric"]
    np.testing.assert_allclose(momentum.fields["eta_y"], np.array(collapse.RATES) / 10)


def test_rates_of_a_family_are_effective_and_attention_is_a_hundred_times_slower() -> None:
    settings = {"task": "syn", "num_queries": 2, "num_common": 1, "M": 60, "momentum": 0.5}
    family = collapse.Family("", settings, {"num_common": (1, 2)}, "")
    for sweep in collapse.variants(family, seeds=2).values():
        np.testing.assert_allclose(sweep.fields["eta_y"], np.array(collapse.RATES) / 2)
        np.testing.assert_allclose(sweep.fields["eta_z"], np.array(collapse.RATES) / 200)


def test_the_table_takes_median_and_worst() -> None:
    """Of all peaks, and of those from 10 steps on."""
    steps = np.array([5.0, 10.0, 40.0])
    error = {"simulation": [0.9, 1.02, 1.01], "symmetric": [np.nan, 1.02, 1.04]}
    error |= {"symmetric-descent": [1, 1, 1], "gamma": [1, 1, 1]}
    ds = xr.Dataset(
        {"predicted": ("eta_y", steps)}
        | {name: ("eta_y", steps * np.array(factor)) for name, factor in error.items()}
    )
    rows = list(csv.reader(collapse.table({"size": ds}).splitlines()))[1:]
    assert rows[0] == ["size", "simulation", "3", "3", "+1.00", "-10.00", "+1.50", "+2.00"]
    assert rows[1] == ["size", "symmetric", "3", "2", "+3.00", "+4.00", "+3.00", "+4.00"]


@pytest.fixture(scope="module")
def flow() -> dict[str, xr.Dataset]:
    """The exact flow at three rates of each control."""
    config, found = snap.Snap(rates=2, steps=600), {}
    for name in snap.CONTROLS:
        sweep = snap.variant(config, name, "symmetric")
        axes = {field: values[::2] for field, values in sweep.fields.items()}
        sweep = dataclasses.replace(sweep, axes=axes)
        found[name] = snap.with_stages(sweep, sweeps.run(sweep))
    return found


@pytest.mark.parametrize("name", ["eta_y", "both"])
@pytest.mark.more
def test_a_larger_decoder_rate_snaps_earlier(flow: dict[str, xr.Dataset], name: str) -> None:
    peak = flow[name].measured_peak.values[:2]  # the third one is within the first step
    assert peak[1] < peak[0] / 5
    assert (np.diff(flow[name].snap) < 0).all()


def test_scaling_both_rates_up_makes_attention_sparser(flow: dict[str, xr.Dataset]) -> None:
    assert (np.diff(snap.final(flow["both"], "entropy")[0]) < 0).all()
    assert (np.diff(snap.final(flow["both"], "z_top_distinct")[0]) > 0).all()


def test_at_fixed_eta_z_a_smaller_eta_y_makes_attention_sparser(
    flow: dict[str, xr.Dataset],
) -> None:
    assert (np.diff(snap.final(flow["eta_y"], "entropy")[0]) > 0).all()
    assert (np.diff(snap.final(flow["eta_y"], "z_top_distinct")[0]) < 0).all()


def test_eta_z_does_not_set_the_time_of_the_transition(flow: dict[str, xr.Dataset]) -> None:
    peak = flow["eta_z"].measured_peak.values
    # eta_Z over two decades, where eta_Y moves the peak in proportion.
    assert np.ptp(peak) / peak[0] < 0.03
    gain = snap.final(flow["eta_z"], "z_top_distinct")[0]
    assert (np.diff(gain) > 0).all()


def test_the_curves_and_bars_of_snap_are_its_arrays(flow: dict[str, xr.Dataset]) -> None:
    """Two runs 0.1 above and below the flow at eta_Y = 0.1, and the closed form's times."""
    exact = flow["eta_y"]
    apart = xr.DataArray([-0.1, 0.1], dims="seed")
    trained = exact.isel(rate=[0]).assign(entropy=exact.entropy.isel(rate=[0]) + apart)
    _, ax = plt.subplots()
    data = {"simulation": trained, "symmetric": exact}
    snap.plot_curves(data, snap.CONTROLS["eta_y"], ax=ax)
    mean, curve, bar, peak = ax.get_lines()
    for line in (mean, curve):
        np.testing.assert_array_equal(line.get_xdata(), exact.time[1:])
        np.testing.assert_allclose(line.get_ydata(), exact.entropy[0, 1:], rtol=1e-12)
    # The band is the standard deviation of two runs.
    band = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert band.max() == pytest.approx(exact.entropy[0, 1:].max() + 0.1 * np.sqrt(2))
    # K = 2, M = 34: t0' = K ln M / eta_Y, and t0 = 2 K x / eta_Y at the largest e^x = (M-1) x.
    root = optimize.brentq(lambda x: np.exp(x) - 33 * x, 1, 10)
    np.testing.assert_allclose(bar.get_xdata(), [2 * np.log(34) / 0.1, 4 * root / 0.1], rtol=1e-9)
    # gamma peaks where x / (M - 1 + e^x) does.
    top = optimize.brentq(lambda x: 33 + np.exp(x) * (1 - x), 1, 10)
    want = 2 * (np.exp(top) + 33 * top - 1) / (34 * 0.1)
    np.testing.assert_allclose(peak.get_xdata(), want, rtol=1e-9)
    plt.close()


def test_final_gains_of_runs_have_their_standard_deviation() -> None:
    """Of two runs at each of three rates; theories have one solution."""

    def last(values: list[Any], *dims: str, **more: list[float]) -> xr.Dataset:
        known: dict[str, Any] = {
            name: (("rate", "time"), np.transpose([each])) for name, each in more.items()
        }
        gains = np.array(values, float)[..., None]
        return xr.Dataset(
            {"z_top_distinct": ((*dims, "time"), gains), **known}, {"rate": [1, 2, 4]}
        )

    data = {
        "simulation": last([[1, 3], [2, 4], [3, 9]], "rate", "seed"),
        "symmetric": last([2, 4, 8], "rate"),
        "eq10": last([3, 12, 48], "rate", B=[6, 3, 1.5]),
    }
    ax = snap.plot_final(data, snap.CONTROLS["eta_z"], ax=plt.figure().subplots())
    (mean, _, (bars,)), *others = ax.containers
    np.testing.assert_allclose(mean.get_ydata(), [2, 3, 6])
    around = np.array([[2.0], [3], [6]]) + np.sqrt([[2], [2], [18]]) * [-1, 1]
    np.testing.assert_allclose([bar[:, 1] for bar in bars.get_segments()], around)
    assert [each[2] for each in others] == [(), ()]
    # Means of the runs rise by 3/2 and by 2.
    labels = ax.get_legend_handles_labels()[1]
    assert [label.split("$")[1] for label in sorted(labels)] == ["+2.00", "-1.00", "+1.00", "+0.79"]
    assert ax.get_title() == "paper: final B rises"
    plt.close()


def test_slope_is_the_exponent_of_a_power_law() -> None:
    rates = np.array([0.1, 1, 7])
    assert snap.slope(rates, 3 * rates**-0.4) == pytest.approx(-0.4)


# Three controls by three theories.
@pytest.mark.full(
    "test_the_curves_and_bars_of_snap_are_its_arrays", "test_a_larger_decoder_rate_snaps_earlier"
)
def test_snap_is_drawn_with_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Eq. 10 takes long to compile; the exact flow stands in for it, with a B of its own.
    def run_sweep(sweep: Sweep, path: Path) -> xr.Dataset:
        if sweep.theory != "eq10":
            return sweeps.run(sweep, path)
        stand_in = dataclasses.replace(sweep, theory="symmetric", record=sweep.record[:-1])
        found = sweeps.run(stand_in)
        return found.assign(B=2 * found.z_top_distinct)

    monkeypatch.setattr("sweeps.studies.run_sweep", run_sweep)
    few = ["--rates", "2", "--seeds", "1", "--steps", "12", "--out", str(tmp_path)]
    assert cli.main(["figure", "snap", *few]) == 0
    rows = list(csv.DictReader((tmp_path / "snap.csv").read_text().splitlines()))
    assert len(rows) == 3 * 3 * 2
    stored = sweeps.open(tmp_path / "eta_y-simulation")
    gain = stored.z_top_distinct.isel(time=-1, seed=0).mean("class").values
    np.testing.assert_allclose([float(row["gain"]) for row in rows[:2]], gain, rtol=1e-4)
    # t0' = K ln M / eta_Y on Syn-Small.
    assert float(rows[0]["rise_end"]) == pytest.approx(2 * np.log(34) / 0.1, rel=1e-4)


@pytest.mark.more
def test_collapse_is_drawn_for_any_number_of_families() -> None:
    for names in (["size"], ["overlap", "momentum", "sampling"]):
        found = {}
        for name in names:
            sweep = collapse.variants(collapse.FAMILIES[name], seeds=2)["simulation"]
            predicted = peaks.over_points(sweep, lambda run: run.steps / run.setting("eta_y"))
            theories = dict.fromkeys((*collapse.THEORIES[1:], "gamma"), predicted)
            seeds = xr.DataArray([1.0, 1.1], dims="seed")
            found[name] = xr.Dataset(
                {"predicted": predicted, "simulation": predicted * seeds, **theories}
            )
        figure = collapse.draw(found)
        assert len(figure.axes) == 1 + len(names)
        line = figure.axes[0].get_lines()[0]  # measured against predicted, 5 % above in the mean
        np.testing.assert_allclose(line.get_ydata(), 1.05 * line.get_xdata())
        plt.close(figure)


@pytest.mark.parametrize(
    ("study", "options", "message"),
    [
        (collapse, {"families": ("size", "bad")}, "families = 'bad'"),
        (collapse, {"seeds": 0}, "seeds = 0: must be an integer from 1"),
        (snap, {"rates": 1}, "rates = 1"),
        (snap, {"steps": 9}, "steps = 9: must be an integer >= 10"),
    ],
)
def test_bad_input_is_named_and_nothing_written(
    study: Any, options: dict, message: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    settings = collapse.Collapse if study is collapse else snap.Snap
    with pytest.raises(ValueError, match=message):
        study.run(settings(**options, out=out))
    assert not out.exists()


def test_a_task_of_ones_own_is_a_family_with_the_theories_that_describe_it() -> None:
    """One query has two classes, the other has one: no symmetric reduction."""
    probs = [[0.5, 0.5, 0, 0], [0.5, 0, 0.5, 0], [0.5, 0, 0, 0.5]]
    task = TaskTable(probs, query=[0, 1, 1])
    wanted = collapse.Collapse(task=task).sweeps()
    assert {name: each.theory for name, each in wanted.items()} == {
        "task-simulation": "simulation",
        "task-symmetric": "plain",
        "task-symmetric-descent": "descent",
    }
    sweep = wanted["task-simulation"]
    # K (e^x + (M - 1) x - 1) / (M eta), where e^x (x - 1) = M - 1: of K = 3 and M = 4.
    x = optimize.brentq(lambda x: np.exp(x) * (x - 1) - 3, 1, 5)
    peak = 3 * (np.exp(x) + 3 * x - 1) / 4
    found = peaks.over_points(sweep, peaks.predicted_peak).isel(batch=0, length=0)
    np.testing.assert_allclose(found * found.eta_y, peak, rtol=1e-9)
    assert sweep.first.steps == np.ceil(collapse.HORIZON * peak / min(collapse.RATES))
    both = collapse.Collapse(families=("size",), task=dynsim.SynSmall()).sweeps()
    assert both["task-symmetric"].theory == "symmetric"
    assert {name.split("-")[0] for name in both} == {"size", "task"}


def test_snap_takes_a_task_of_ones_own() -> None:
    task = dynsim.Overlapping(K=3)
    wanted = snap.Snap(rates=2, steps=20, task=task).sweeps()
    assert {each.first.problem.task for each in wanted.values()} == {task}
    assert wanted["both-symmetric"].fields["eta_y"] == pytest.approx(np.geomspace(0.1, 10, 5))
