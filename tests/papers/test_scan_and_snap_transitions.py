"""Transition times against closed forms, and the theorems' criteria on text."""

import dataclasses
import json
import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from matplotlib import colors
from scipy import optimize

import dynsim
import sweeps
from dynsim.classes.tasks import TaskTable
from odes import predictions
from papers.scan_and_snap import controls, families, peaks, snap, word_panels, words
from papers.scan_and_snap.collapse import Collapse
from papers.scan_and_snap.snap import Snap
from sweeps import cli, drawing

pytestmark = pytest.mark.usefixtures("quick_theory")


def gamma_peak(K, M, eta):
    """K (e^x + (M-1) x - 1) / (M eta), where x e^{-x} / (1 + (M-1) e^{-x}) is largest."""
    x = optimize.brentq(lambda x: M - 1 + np.exp(x) * (1 - x), 1, 10)
    return K * (np.exp(x) + (M - 1) * x - 1) / (M * eta)


def test_predicted_peaks_are_those_of_gamma():
    M, K, eta, mu = 40, 3, 0.02, 0.9
    want = gamma_peak(K, M, eta / (1 - mu))
    task = dynsim.Syn(K, classes_per_query=1, num_common=1, M=M)
    run = sweeps.experiment(task=task, eta_y=eta, momentum=mu, steps=2000)
    assert peaks.predicted_as_measured(run, 80) == pytest.approx(want, rel=3e-3)
    sweep = sweeps.Sweep(run, {"eta_y": [eta, 2 * eta], "seed": {"range": 2}})
    found = sweeps.evaluate(sweep, peaks.predicted)
    assert found.dims == ("eta_y",)
    np.testing.assert_allclose(found, [want, want / 2], rtol=1e-9)


def test_horizons_follow_the_predicted_peak_of_the_smallest_effective_rate():
    sweep = families.of_family(families.FAMILIES["size"], seeds=2)["simulation"]
    sizes = zip(sweep.fields["num_queries"], sweep.fields["M"], strict=True)
    longest = [families.HORIZON * gamma_peak(*size, families.RATES[0]) for size in sizes]
    np.testing.assert_array_equal(sweep.fields["steps"], np.ceil(longest))
    for each in families.of_family(families.FAMILIES["momentum"], seeds=2).values():
        np.testing.assert_allclose(each.fields["eta_y"], np.array(families.RATES) / 10)
        np.testing.assert_allclose(each.fields["eta_z"], np.array(families.RATES) / 1000)


def test_a_task_of_ones_own_has_the_theories_that_describe_it():
    """One query has two classes, the other has one: no symmetric reduction."""
    probs = [[0.5, 0.5, 0, 0], [0.5, 0, 0.5, 0], [0.5, 0, 0, 0.5]]
    plan = Collapse(task=TaskTable(probs, query=[0, 1, 1])).sweeps()
    assert {name: each.theory for name, each in plan.items()} == {
        "task-simulation": "simulation",
        "task-symmetric": "plain",
        "task-symmetric-descent": "descent",
    }
    sweep = plan["task-simulation"]
    found = sweeps.evaluate(sweep, peaks.predicted).isel(batch=0, length=0)
    np.testing.assert_allclose(found * found.eta_y, gamma_peak(3, 4, 1.0), rtol=1e-9)
    assert sweep.first.steps == np.ceil(families.HORIZON * found.max())
    both = Snap(rates=2, steps=20, task=dynsim.Overlapping(K=3)).sweeps()
    assert both["both-symmetric"].theory == "symmetric"
    assert both["both-symmetric"].fields["eta_y"] == pytest.approx(np.geomspace(0.1, 10, 5))


@pytest.fixture(scope="module")
def flow():
    """The exact flow at three rates of each control."""
    run, found = sweeps.experiment(task=dynsim.SynSmall(), steps=600), {}
    for name in controls.CONTROLS:
        sweep = controls.sweep(run, name, "symmetric", 2, 1)
        axes = {field: values[::2] for field, values in sweep.fields.items()}
        data = sweeps.run(dataclasses.replace(sweep, axes=axes))
        found[name] = controls.by_rate(data, name, dynsim.SynSmall().build())
    return found


@pytest.mark.more
def test_consequences_of_section_6_hold_for_the_flow(flow):
    rises = {  # of eta_Y at fixed eta_Z, eta_Z at fixed eta_Y, both
        (name, observable): np.diff(controls.final(data, observable)["mean"]) > 0
        for name, data in flow.items()
        for observable in ("entropy", "z_top_distinct")
    }
    assert rises["eta_y", "entropy"].all()
    assert not rises["eta_y", "z_top_distinct"].any()
    assert not rises["both", "entropy"].any()
    assert rises["both", "z_top_distinct"].all()
    assert rises["eta_z", "z_top_distinct"].all()
    for name in ("eta_y", "both"):
        peak = flow[name].measured_peak.values[:2]  # the third one is within the first step
        assert peak[1] < peak[0] / 5
        assert (np.diff(flow[name].snap) < 0).all()
    # eta_Z over two decades, where eta_Y moves the peak in proportion.
    peak = flow["eta_z"].measured_peak.values
    assert np.ptp(peak) / peak[0] < 0.03


def test_curves_and_bars_of_snap(flow):
    """Two runs 0.1 above and below the flow at eta_Y = 0.1, and the closed form's times."""
    exact = flow["eta_y"]
    apart = xr.DataArray([-0.1, 0.1], dims="seed")
    trained = exact.isel(rate=[0]).assign(entropy=exact.entropy.isel(rate=[0]) + apart)
    ax = plt.figure().subplots()
    snap.plot_curves(trained, exact, r"\eta_Y", ax)
    mean, curve, bar, peak = ax.get_lines()
    for line in (mean, curve):
        np.testing.assert_allclose(line.get_ydata(), exact.entropy[0, 1:], rtol=1e-12)
    band = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert band.max() == pytest.approx(exact.entropy[0, 1:].max() + 0.1 * np.sqrt(2))
    # K = 2, M = 34: t0' = K ln M / eta_Y, and t0 = 2 K x / eta_Y at the largest e^x = (M-1) x.
    root = optimize.brentq(lambda x: np.exp(x) - 33 * x, 1, 10)
    np.testing.assert_allclose(bar.get_xdata(), [2 * np.log(34) / 0.1, 4 * root / 0.1], rtol=1e-9)
    np.testing.assert_allclose(peak.get_xdata(), gamma_peak(2, 34, 0.1), rtol=1e-9)


def test_slopes_are_exponents_and_bars_deviations_of_runs():
    """Of two runs at each of three rates; theories have one solution."""

    def last(values, *dims, **more):
        extra = {name: (("rate", "time"), np.transpose([each])) for name, each in more.items()}
        gains = ((*dims, "time"), np.array(values, float)[..., None])
        return xr.Dataset({"z_top_distinct": gains, **extra}, {"rate": [1, 2, 4]})

    column = {
        "simulation": last([[1, 3], [2, 4], [3, 9]], "rate", "seed"),
        "symmetric": last([2, 4, 8], "rate"),
        "eq10": last([3, 12, 48], "rate", B=[6, 3, 1.5]),
    }
    ax = plt.figure().subplots()
    snap.plot_final(column, ax)
    (mean, _, (bars,)), *others = ax.containers
    np.testing.assert_allclose(mean.get_ydata(), [2, 3, 6])
    around = np.array([[2.0], [3], [6]]) + np.sqrt([[2], [2], [18]]) * [-1, 1]
    np.testing.assert_allclose([bar[:, 1] for bar in bars.get_segments()], around)
    assert [each[2] for each in others] == [(), (), ()]
    labels = [each.get_label().split("$")[1] for each in ax.containers]
    assert labels == ["+0.79", "+1.00", "+2.00", "-1.00"]


@pytest.mark.parametrize("names", [("overlap",), ("momentum", "sampling")])
def test_collapse_is_drawn_for_any_number_of_families(names):
    """Of runs whose speed peaks 5 % late."""
    figure = Collapse(families=names, seeds=2)
    data = {}
    for name, sweep in figure.sweeps().items():
        late = 1.05 * sweeps.evaluate(sweep, peaks.predicted)
        late = late.expand_dims(seed=2) if "simulation" in name else late
        time = late * xr.DataArray(np.geomspace(0.5, 2, 7), dims="record")
        speed = np.exp(-(np.log(time / late) ** 2)).expand_dims({"class": 2})
        data[name] = xr.Dataset({"speed": speed, "status": xr.zeros_like(late)}).assign(time=time)
    picture = figure.draw(data)
    assert len(picture.figure.axes) == 1 + len(names)
    line = picture.figure.axes[0].get_lines()[0]
    np.testing.assert_allclose(line.get_ydata(), 1.05 * line.get_xdata())


def test_criterion_of_eq_10_by_its_formula():
    """sum_n pi(n)^2 f_n o sum_n' beta_nn' (f_n f_n . f_n' - f_n'), beta = -(G^-1) off-diagonal."""
    probs = np.random.default_rng(0).dirichlet(np.ones(6), 3)
    task = dynsim.sequence_classes(probs, query=[0, 0, 1], prior=[0.5, 0.3, 0.2])
    f = task.probs / np.linalg.norm(task.probs, axis=1, keepdims=True)
    inverse = np.linalg.inv(f @ f.T)
    drift = np.zeros((2, 6))
    for n, query in enumerate((0, 0, 1)):
        for other in set(range(3)) - {n}:
            pull = f[n] * (f[n] @ f[other]) - f[other]
            drift[query] -= task.prior[n] ** 2 * inverse[n, other] * f[n] * pull
    found = words.criteria(task, eq10=True)
    np.testing.assert_array_equal(found["eq10-start"], np.sign(drift[[0, 0, 1]]))
    flow = np.sign(predictions.drift_at_start(task))
    np.testing.assert_array_equal(found["flow-start"], flow)
    assert (found["eq10-start"] != flow).any()


@pytest.mark.parametrize("queries", [1, 3])
def test_criteria_agree_where_the_theorem_speaks(queries):
    """On the paper's own tasks distinct tokens gain and common ones lose, by every criterion."""
    task = dynsim.Syn(queries, 2, num_common=3, num_distinct=4).build()
    present = np.asarray(task.probs) > 0
    expected = predictions.sign_of_drift(task)
    assert set(expected[present]) == {-1, 1}
    for name, signs in words.criteria(task, eq10=True).items():
        np.testing.assert_array_equal(signs[present], expected[present], err_msg=name)
        if name != "theorem-2":
            # A query's row holds the distinct tokens of its other class as well.
            assert (signs != 0).sum() == task.K * (3 + 2 * 4)


def scored(actual, predicted, judged, weight):
    pairs = ("class", "token")
    signs = (xr.DataArray(each, dims=("time", *pairs)) for each in (actual, predicted))
    return words.score(*signs, *(xr.DataArray(each, dims=pairs) for each in (judged, weight)))


def test_scores_by_hand():
    """Two classes of three tokens; the last token of class 1 is not judged, a 0 is silence."""
    actual, predicted = [[[1, -1, -1], [1, 1, 1]]], [[[1, 1, -1], [0, 1, 1]]]
    weight = [[0.1, 0.4, 0.2], [0.3, 0.1, 9.0]]
    found = scored(actual, predicted, [[True] * 3, [True, True, False]], weight)
    assert found.spoken == pytest.approx(4 / 5)
    assert found.right.values == pytest.approx([3 / 4])
    assert found["weighted"].values == pytest.approx([0.4 / 0.8])
    assert found.base.values == pytest.approx([2 / 4])
    assert found.base_weighted.values == pytest.approx([0.6 / 0.8])
    np.testing.assert_allclose(found.by_class, [[2 / 3, 1]])


def test_silence_is_nan_and_standing_still_is_wrong():
    judged, weight = [[True] * 2], [[1.0] * 2]
    silent = scored([[[1, 1]]], [[[0, 0]]], judged, weight)
    assert silent.spoken == 0
    assert all(silent[name].isnull().all() for name in ("right", "base", "weighted", "by_class"))
    assert scored([[[0, 0]]], [[[1, 1]]], judged, weight).right == 0


def test_without_eq_10_the_other_criteria_are_drawn():
    """Classes that are not independent; the most probable two tokens of each are judged."""
    probs = [[0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0, 0.4, 0.6]]
    task = dynsim.sequence_classes(probs, query=[0, 0, 1])
    found = words.fates(dynsim.Layer(task, math.inf), task, dynsim.sgd(1.0, 1.0), steps=3, top=2)
    assert found.missing.keys() == {"eq10"}
    assert "linearly independent" in found.missing["eq10"]
    assert found.signs.keys() == {"theorem-2", "owned", "owned-local", "flow-start", "plain"}
    assert found.z.time.values.tolist() == [2, 3]
    assert found.top.values.astype(int).tolist() == [[1, 1, 0], [1, 1, 0], [0, 1, 1]]
    text = (("$x", "b", "c"), np.arange(3), np.array([5, 3, 2]))
    none = {"stop_mass": np.zeros(3), "rare_mass": np.zeros(3), "coverage": 0.5, "length": 4}
    estimate = dynsim.classes.Estimate(task, *text, **none)
    figure = word_panels.draw(estimate, found)
    *panels, empty, strip, _ = figure.axes
    assert not empty.axison
    assert [panel.get_title() for panel in panels] == [r"\$x \$x", r"\$x b", "b c"]
    labels = [[label.get_text() for label in panel.get_yticklabels()] for panel in panels]
    assert labels == [[r"\$x", "b"], [r"\$x", "b"], ["c", "b"]]
    widths = [bar.get_width() for bar in panels[2].patches]
    np.testing.assert_allclose(widths, found.z[-1, 2, [2, 1]])
    for n, panel in enumerate(panels):
        right = np.sign(found.z) == found.signs["flow-start"]
        for bar, token in zip(panel.patches, np.argsort(-np.array(probs[n]))[:2], strict=True):
            colour = drawing.colour(int(not right[-1, n, token]))
            assert colors.same_color(bar.get_facecolor(), colour)
    # A row for each rule that speaks, and one for the more frequent sign.
    spoken = [score.right for score in found.scores.values() if score.spoken]
    np.testing.assert_array_equal(strip.collections[0].get_array()[:-1], spoken)


# Two trainings and a flow.
@pytest.mark.full(
    "test_without_eq_10_the_other_criteria_are_drawn",
    "test_criteria_agree_where_the_theorem_speaks",
)
def test_figure_of_generated_text(tmp_path):
    """Topic words gain and stop words lose, as predicted, far above the trivial base rate."""
    assert cli.main(["figure", "corpus", "--steps", "60", "--out", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "corpus.json").read_text())
    task = dynsim.TaskFile(tmp_path / "corpus.npz").build()
    with np.load(tmp_path / "corpus.npz") as arrays:
        z, scores = arrays["z"], {n: arrays[n] for n in arrays.files if n.startswith("score/")}
    assert scores["score/owned-local/base"][-1] < 0.8
    for name in ("owned-local", "eq10-start", "flow-start", "eq10", "plain"):
        assert scores[f"score/{name}/right"][-1] == 1, name
    assert z.shape[1:] == (task.K, task.M) == (6, len(report["words"]))
    captain, ship = report["classes"].index("the captain"), report["words"].index("ship")
    assert z[-1, captain, ship] > 0 > z[-1, captain, report["words"].index("<eos>")]
    assert report["overlap"]["all"][0] == pytest.approx(1 / 3, abs=0.05)


def test_the_table_has_median_and_largest_deviation():
    """Of all peaks, and of those from 10 steps on."""
    steps = np.array([5.0, 10.0, 40.0])
    error = {"simulation": [0.9, 1.02, 1.01], "symmetric": [np.nan, 1.02, 1.04]}
    error |= {"symmetric-descent": [1, 1, 1], "gamma": [1, 1, 1]}
    measured = {name: ("eta_y", steps * np.array(factor)) for name, factor in error.items()}
    rows = [*peaks.lines("size", xr.Dataset({"predicted": ("eta_y", steps)} | measured))]
    assert rows[0] == ["size", "simulation", 3, 3, "+1.00", "-10.00", "+1.50", "+2.00"]
    assert rows[1] == ["size", "symmetric", 3, 2, "+3.00", "+4.00", "+3.00", "+4.00"]
