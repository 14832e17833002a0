"""Text against theory: the criteria, their scores, and the picture."""

import json
import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

import dynsim
from odes import predictions
from papers.scan_and_snap import word_panels, words
from papers.scan_and_snap.corpus import Corpus
from sweeps import cli

pytestmark = pytest.mark.usefixtures("quick_theory")
RULE = dynsim.sgd(1.0, 1.0)


def test_criterion_of_eq_10_by_its_formula() -> None:
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
def test_criteria_agree_where_the_theorem_speaks(queries: int) -> None:
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


def scored(actual: list, predicted: list, judged: list, weight: list) -> xr.Dataset:
    pairs = ("class", "token")
    signs = (xr.DataArray(each, dims=("time", *pairs)) for each in (actual, predicted))
    return words.score(*signs, *(xr.DataArray(each, dims=pairs) for each in (judged, weight)))


def test_scores_by_hand() -> None:
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


def test_silence_is_nan_and_standing_still_is_wrong() -> None:
    judged, weight = [[True] * 2], [[1.0] * 2]
    silent = scored([[[1, 1]]], [[[0, 0]]], judged, weight)
    assert silent.spoken == 0
    assert all(silent[name].isnull().all() for name in ("right", "base", "weighted", "by_class"))
    assert scored([[[0, 0]]], [[[1, 1]]], judged, weight).right == 0


@pytest.mark.more
def test_without_eq_10_the_other_criteria_are_drawn() -> None:
    """Classes that are not independent; the most probable two tokens of each are judged."""
    probs = [[0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0, 0.4, 0.6]]
    task = dynsim.sequence_classes(probs, query=[0, 0, 1])
    found = words.fates(dynsim.Layer(task, math.inf), task, RULE, steps=3, top=2)
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
    # A row for each rule that speaks, and one for the more frequent sign.
    spoken = [score.right for score in found.scores.values() if score.spoken]
    np.testing.assert_array_equal(strip.collections[0].get_array()[:-1], spoken)
    plt.close(figure)


# Two trainings and a flow.
@pytest.mark.full(
    "test_without_eq_10_the_other_criteria_are_drawn",
    "test_criteria_agree_where_the_theorem_speaks",
    "dynsim/classes/test_estimated.py::test_known_law_is_recovered",
)
def test_figure_of_generated_text(tmp_path: Path) -> None:
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


def test_a_folder_needs_its_training_file_alone(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a b\n")
    with pytest.raises(ValueError, match="tokens"):  # of which there are too few
        Corpus(corpus=tmp_path, train="text.txt").draw({})
    with pytest.raises(ValueError, match=r"train\.txt"):
        Corpus(corpus=tmp_path).draw({})
