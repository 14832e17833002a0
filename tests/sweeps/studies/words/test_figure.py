"""Text against theory: the criteria, their scores, and the figure."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest

import dynsim
from dynsim.classes.corpus import Estimate
from dynsim.classes.task import SequenceClasses, overlap_report, sequence_classes
from odes import predictions
from sweeps.studies.words import fates
from sweeps.studies.words import fates as text_theory
from sweeps.studies.words.figure import CorpusFigure, corpus, draw, run
from tests.systems.layers import simulate

pytestmark = pytest.mark.usefixtures("quick_theory")

OPTIMIZER = dynsim.sgd(1.0, 1.0)


def uneven() -> SequenceClasses:
    """Three classes of two queries with unequal priors, all tokens common."""
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(6), 3)
    return sequence_classes(probs, query=[0, 0, 1], prior=[0.5, 0.3, 0.2])


def test_criterion_of_the_plain_update_is_the_first_motion() -> None:
    """The first step moves Y alone and the second one Z, by eta_Y eta_Z times the criterion."""
    task, rate = uneven(), 1e-4
    run = simulate(
        task,
        dynsim.sgd(rate, rate),
        steps=2,
        length=math.inf,
        batch=math.inf,
        times=np.array([2]),
        record=("z",),
        dtype="float64",
    )
    moved = np.asarray(run.observables["z"])[0] / rate**2
    np.testing.assert_allclose(moved, fates.plain_drift(task), rtol=2e-3, atol=1e-8)


def test_criterion_of_eq_10_by_its_formula() -> None:
    """sum_n pi(n)^2 f_n o sum_n' beta_nn' (f_n f_n . f_n' - f_n'), beta = -(G^-1) off-diagonal."""
    task = uneven()
    f = task.probs / np.linalg.norm(task.probs, axis=1, keepdims=True)
    inverse = np.linalg.inv(f @ f.T)
    drift = np.zeros((2, 6))
    for n, query in enumerate((0, 0, 1)):
        for other in set(range(3)) - {n}:
            pull = f[n] * (f[n] @ f[other]) - f[other]
            drift[query] -= task.prior[n] ** 2 * inverse[n, other] * f[n] * pull
    np.testing.assert_allclose(fates.eq10_drift(task), drift[[0, 0, 1]], rtol=1e-9)


@pytest.mark.parametrize("queries", [1, 3])
def test_rules_agree_where_the_theorem_speaks(queries: int) -> None:
    """On the paper's own tasks distinct tokens gain and common ones lose, by every rule."""
    task = dynsim.Syn(queries, 2, num_common=3, num_distinct=4).build()
    present = np.asarray(task.probs) > 0
    found = fates.rules(task, OPTIMIZER, 0.8)
    assert found.keys() == fates.RULES.keys()
    expected = predictions.sign_of_drift(task)
    assert set(expected[present]) == {-1, 1}
    for name, signs in found.items():
        np.testing.assert_array_equal(signs[present], expected[present], err_msg=name)
        if name != "theorem-2":
            # A query's row holds the distinct tokens of its other class as well.
            assert (signs != 0).sum() == task.K * (3 + 2 * 4)


def test_scores_by_hand() -> None:
    """Two classes of three tokens; the last token of class 1 is not judged, a 0 is silence."""
    actual = np.array([[[1, -1, -1], [1, 1, 1]]])
    predicted = np.array([[[1, 1, -1], [0, 1, 1]]], np.int8)
    judged = np.array([[True] * 3, [True, True, False]])
    weight = np.array([[0.1, 0.4, 0.2], [0.3, 0.1, 9.0]])
    found = text_theory.score(actual, predicted, judged, weight)
    assert found.spoken == pytest.approx(4 / 5)
    assert found.right == pytest.approx([3 / 4])
    assert found.weighted == pytest.approx([0.4 / 0.8])
    assert found.base == pytest.approx([2 / 4])
    assert found.base_weighted == pytest.approx([0.6 / 0.8])
    np.testing.assert_allclose(found.by_class, [[2 / 3, 1]])


def test_fates_are_moves_from_the_start_scored_on_the_most_probable_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a training that is made up, with a theory that ends well and one that fails."""
    task, rng, asked = uneven(), np.random.default_rng(2), []
    z, loss, accuracy = (rng.normal(size=(5, *shape)) for shape in ((3, 6), (), ()))
    predicted = rng.normal(size=(4, 3, 6))

    def train(problem: Any, rule: Any, key: Any, **options: Any) -> Any:
        asked.append((problem, rule, key, options.pop("times").tolist(), options))
        observables = {"z": z, "loss": loss, "accuracy": accuracy}
        return SimpleNamespace(observables=observables, status=np.array(dynsim.Status.MAX_STEPS))

    def theory(status: int) -> Any:
        def solve(given: Any, rule: Any, times: np.ndarray, *, record: Any) -> Any:
            assert (given, rule, record) == (task, OPTIMIZER, ("z",))
            np.testing.assert_array_equal(times, [2, 3, 4, 5])
            return SimpleNamespace(observables={"z": predicted}, status=np.array(status))

        return SimpleNamespace(why_not=lambda *given: None, solve=solve)

    monkeypatch.setattr(fates.dynsim, "train", train)
    theories = {"plain": dynsim.Status.OK, "eq10": dynsim.Status.SOLVER_FAILED}
    monkeypatch.setattr(fates, "THEORIES", {n: theory(each) for n, each in theories.items()})
    found = fates.fates(task, OPTIMIZER, steps=5, top=2, length=7, batch=11, seed=4)
    fates.fates(task, OPTIMIZER, steps=5, length=7, embedded={"width": 9, "scale": 2.0})
    (layer, rule, key, times, options), (factors, *_, more) = asked
    assert (layer.length, rule, times) == (7, OPTIMIZER, [0, 2, 3, 4, 5])
    assert key == jax.random.key(4)
    record = ("z", "loss", "accuracy")
    assert options == {"steps": 5, "batch": 11, "record": record, "dtype": "float64"}
    assert (factors.width, factors.scale, factors.length, more["batch"]) == (9, 2, 7, math.inf)
    moved = z[1:] - z[0]
    np.testing.assert_array_equal(found.z, moved)
    np.testing.assert_array_equal([found.loss, found.accuracy], [loss[1:], accuracy[1:]])
    np.testing.assert_array_equal(found.times, [2, 3, 4, 5])
    assert found.status == dynsim.Status.MAX_STEPS
    assert found.missing == {"eq10": "its solve ended as SOLVER_FAILED"}
    np.testing.assert_array_equal(found.signs["plain"], np.sign(predicted))
    probs, prior = np.asarray(task.probs), np.asarray(task.prior)
    judged = [(n, place) for n in range(3) for place in np.argsort(-probs[n])[:2]]
    weight = {(n, place): prior[n] * probs[n, place] for n, place in judged}
    for name, score in found.scores.items():
        signs = found.signs[name]
        spoken = [[at for at in judged if signs[(s, *at)]] for s in range(4)]
        assert score.spoken == pytest.approx(sum(map(len, spoken)) / 24)
        for s, pairs in enumerate(spoken):
            if not pairs:
                # A rule may say nothing of these tokens.
                assert np.isnan([score.right[s], score.base_weighted[s]]).all()
                continue
            actual = [np.sign(moved[(s, *at)]) for at in pairs]
            right = [a == signs[(s, *at)] for a, at in zip(actual, pairs, strict=True)]
            for weights, got, base in (
                (np.ones(len(pairs)), score.right, score.base),
                ([weight[at] for at in pairs], score.weighted, score.base_weighted),
            ):
                assert got[s] == pytest.approx(np.average(right, weights=weights))
                shares = [np.average(np.array(actual) == sign, weights=weights) for sign in (1, -1)]
                assert base[s] == pytest.approx(max(shares))


def test_silence_is_nan_and_standing_still_is_wrong() -> None:
    ones = np.ones((1, 1, 2), np.int8)
    judged, weight = np.ones((1, 2), bool), np.ones((1, 2))
    silent = text_theory.score(ones, 0 * ones, judged, weight)
    assert silent.spoken == 0
    assert np.isnan([silent.right, silent.base, silent.by_class[0]]).all()
    assert text_theory.score(0 * ones, ones, judged, weight).right == 0


def test_top_tokens() -> None:
    task = sequence_classes([[0.2, 0.5, 0.3, 0], [0, 0, 0, 1]], query=[0, 0])
    expected = [[False, True, True, False], [False, False, False, True]]
    np.testing.assert_array_equal(text_theory.top_tokens(task, 2), expected)


def test_without_eq_10() -> None:
    """Classes that are not independent: training, flow and the other rules remain."""
    task = sequence_classes([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0.5, 0.5]], query=[0, 0, 1])
    found = text_theory.fates(task, OPTIMIZER, steps=3)
    assert found.missing.keys() == {"eq10"}
    assert "linearly independent" in found.missing["eq10"]
    assert found.signs.keys() == {"theorem-2", "owned", "owned-local", "flow-start", "plain"}
    np.testing.assert_array_equal(found.times, [2, 3])
    estimate = Estimate(
        task,
        words=("$x", "b", "c"),
        tokens=np.arange(3),
        windows=np.array([5, 3, 2]),
        stop_mass=np.zeros(3),
        rare_mass=np.zeros(3),
        coverage=0.5,
        length=4,
    )
    figure = draw(estimate, found)
    *panels, empty, strip, _ = figure.axes
    assert not empty.axison
    assert [panel.get_title() for panel in panels] == [r"\$x \$x", r"\$x b", "b c"]
    labels = [[label.get_text() for label in panel.get_yticklabels()] for panel in panels]
    assert labels == [[r"\$x", "b"], [r"\$x", "b"], ["b", "c"]]
    np.testing.assert_allclose(
        [bar.get_width() for bar in panels[2].patches], found.z[-1, 2, [1, 2]]
    )
    # A row for each rule that speaks, and one for the more frequent sign.
    spoken = [score.right for score in found.scores.values() if score.spoken]
    (mesh,) = strip.collections
    assert len(strip.get_yticks()) == len(spoken) + 1 >= 4
    np.testing.assert_array_equal(mesh.get_array()[:-1], spoken)
    written = [text.get_text().strip() for text in strip.texts]
    assert written[:-1] == [f"{share[-1]:.2f}" for share in spoken]
    plt.close(figure)
    lines = fates.table(estimate, overlap_report(task), found)
    assert "linearly independent" in lines
    assert "$x b" in lines
    with pytest.raises(ValueError, match="steps = 1: must be an integer >= 2"):
        text_theory.fates(task, OPTIMIZER, steps=1)


# Two trainings and a flow.
@pytest.mark.full(
    "test_without_eq_10",
    "test_rules_agree_where_the_theorem_speaks",
    "dynsim/classes/test_estimated.py::test_known_law_is_recovered",
)
def test_figure_of_generated_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Topic words gain and stop words lose, as predicted, far above the trivial base rate."""
    config = CorpusFigure(steps=60, top=8, out=tmp_path)
    paths = run(config)
    assert {path.name for path in paths} == {"corpus.png", "corpus.npz", "corpus.json"}
    assert "the captain" in capsys.readouterr().out
    report = json.loads((tmp_path / "corpus.json").read_text())
    assert len(report["classes"]) == 6
    scores = report["scores"]
    assert scores["owned-local"]["base"] < 0.8
    for name in ("owned-local", "eq10-start", "flow-start", "eq10", "plain"):
        assert scores[name]["right"] == 1, name
    task = dynsim.TaskFile(tmp_path / "corpus.npz").build()
    with np.load(tmp_path / "corpus.npz") as arrays:
        z = arrays["z"]
    assert z.shape[1:] == (task.K, task.M) == (6, len(report["words"]))
    words = report["words"]
    captain = report["classes"].index("the captain")
    assert z[-1, captain, words.index("ship")] > 0 > z[-1, captain, words.index("<eos>")]
    assert report["overlap"]["all"][0] == pytest.approx(1 / 3, abs=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch = 0: must be an integer from 1 to 2147483647, or inf"),
        ({"corpus": Path("nowhere")}, "path = nowhere: no such file"),
        ({"length": 1}, "length = 1: must be an integer from 2"),
        ({"threshold": 0.4}, "threshold = 0.4"),
    ],
)
def test_bad_options(tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(CorpusFigure(out=tmp_path, **options))


def test_a_folder_needs_its_training_file_alone(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a b\n")
    found = corpus(CorpusFigure(corpus=tmp_path, train="text.txt"))
    assert found.train.size == 3
    assert found.valid is None


def test_titles_of_all_rules() -> None:
    names = (*fates.RULES, *text_theory.THEORIES)
    assert len({fates.title(name) for name in names}) == len(names)
