"""Sequence classes estimated from text: by hand, from a known law, and their overlaps."""

import numpy as np
import pytest

from dynsim import Overlapping, Syn, sequence_classes
from dynsim.classes.estimated import estimate_classes
from dynsim.classes.overlap import overlap_report, owned
from dynsim.classes.task import SequenceClasses

WORDS = ("q", "r", "x", "y", "a", "b", "c", "<unk>")
Q, R, X, Y, A, B, C, UNK = range(8)


def test_counts_by_hand() -> None:
    """Windows of three tokens: x follows q with a a and a b before it, y follows it with b b."""
    text = [A, A, Q, X, A, B, Q, X, B, B, Q, Y, C]
    found = estimate_classes(text, WORDS, num_queries=1, classes_per_query=2, length=3)
    assert found.names == ("q x", "q y")
    assert found.words == ("q", "x", "y", "a", "b")
    np.testing.assert_array_equal(found.tokens, [Q, X, Y, A, B])
    np.testing.assert_array_equal(found.windows, [2, 1])
    np.testing.assert_allclose(found.task.prior, [2 / 3, 1 / 3])
    np.testing.assert_allclose(found.task.probs, [[0, 0, 0, 3 / 4, 1 / 4], [0, 0, 0, 0, 1]])
    # Ten windows have a token after them.
    assert found.coverage == pytest.approx(3 / 10)
    assert not found.rare_mass.any()
    assert not found.stop_mass.any()


def test_numbers_by_default() -> None:
    """Three classes for each of four queries, on a text of five that have four next tokens each;
    and the fifty most frequent contextual tokens of a class, of sixty that are drawn evenly."""
    rng = np.random.default_rng(0)
    query = np.arange(2000) % 5
    pairs = np.stack([query, 5 + 4 * query + rng.integers(4, size=2000)])
    found = estimate_classes(pairs.T.ravel(), [f"w{i}" for i in range(25)])
    np.testing.assert_array_equal(np.bincount(found.task.query_index), 4 * [3])
    assert found.length == 35
    text = np.c_[2 + rng.integers(60, size=(400, 33)), np.zeros(400, int), np.ones(400, int)]
    words = [f"w{i}" for i in range(62)]
    one = {"num_queries": 1, "classes_per_query": 1, "exclude": words[2:]}
    assert (estimate_classes(text.ravel(), words, **one).task.probs > 0).sum() == 50


@pytest.mark.parametrize(
    ("text", "options", "names"),
    [
        # Of q x, x q, q r and r y the last one alone has three tokens before its query.
        ([Q, X, Q, R, Y], {"length": 4}, ("r y",)),
        # r twice, the second time before the last token, and q once.
        ([A, Q, R, Y, R, C], {"length": 2}, ("r y",)),
        # x follows q three times and r twice: r has to do with y, which follows it once.
        ([*(A, B, Q, X) * 3, *(A, B, R, X) * 2, A, B, R, Y],
         {"num_queries": 2, "length": 3, "exclude": "ab"}, ("q x", "r y")),
        # Excluded words are context only.
        ([A, B, Q, UNK, A, C, Q, UNK, UNK, B, Q, X],
         {"length": 3, "exclude": ("<unk>", "a", "b", "c")}, ("q x",)),
    ],
)  # fmt: skip
def test_queries_and_next_tokens(text: list[int], options: dict, names: tuple[str, ...]) -> None:
    found = estimate_classes(text, WORDS, **{"num_queries": 1, "classes_per_query": 1} | options)
    assert found.names == names


def test_rare_and_stop_words() -> None:
    """Before q x: a four times, b three times, c once, of which b is the text's most frequent."""
    text = [A, A, B, C, Q, X, A, A, B, B, Q, X, B, B]
    options = {"num_queries": 1, "classes_per_query": 1, "exclude": ("a", "b", "c")}

    def law(**more: object) -> tuple[dict[str, float], float, float]:
        found = estimate_classes(text, WORDS, length=5, **options, **more)
        row = dict(zip(found.words, found.task.probs[0], strict=True))
        return {w: p for w, p in row.items() if p}, found.rare_mass[0], found.stop_mass[0]

    assert law() == ({"a": 4 / 8, "b": 3 / 8, "c": 1 / 8}, 0, 0)
    assert law(tokens_per_class=2) == (pytest.approx({"a": 4 / 7, "b": 3 / 7}), 1 / 8, 0)
    merged = {"a": 4 / 8, "b": 3 / 8, "<unk>": 1 / 8}
    assert law(tokens_per_class=2, rare="merge") == (merged, 1 / 8, 0)
    assert law(stop_words=1) == (pytest.approx({"a": 4 / 5, "c": 1 / 5}), 0, 3 / 8)


def sample_text(task: SequenceClasses, num: int, length: int, seed: int) -> np.ndarray:
    """`num` sequences of the task, one after the other, with their next tokens."""
    rng = np.random.default_rng(seed)
    classes = rng.choice(task.K, num, p=task.prior)
    rows = np.empty((num, length + 1), np.int64)
    for n in range(task.K):
        own = classes == n
        rows[own, :-2] = rng.choice(task.M, (own.sum(), length - 1), p=task.probs[n])
    rows[:, -2] = np.asarray(task.query)[classes]
    rows[:, -1] = np.asarray(task.next_token)[classes]
    return rows.ravel()


def test_known_law_is_recovered() -> None:
    """Within standard errors, which the independent tokens of this text do have."""
    base = Syn(2, 2, num_common=4, num_distinct=3).build()
    prior = np.array([0.4, 0.3, 0.2, 0.1])
    task = sequence_classes(base.probs, base.query, base.next_token, prior)
    num, length = 4000, 8
    text = sample_text(task, num, length, seed=0)
    # Contextual tokens follow one another; as queries they would compete with the real ones.
    words = [f"w{token}" for token in range(task.M)]
    exclude = [words[token] for token in np.flatnonzero(task.probs.sum(0))]
    numbers = {"num_queries": 2, "classes_per_query": 2, "length": length}
    found = estimate_classes(text, words, **numbers, exclude=exclude)
    order = np.argsort(-found.windows)
    np.testing.assert_array_equal(found.tokens[found.task.next_token][order], task.next_token)
    np.testing.assert_array_equal(found.tokens[found.task.query][order], task.query)
    error = np.sqrt(prior * (1 - prior) / num)
    assert (np.abs(found.task.prior[order] - prior) < 4 * error).all()
    probs = np.zeros_like(task.probs)
    probs[:, found.tokens] = found.task.probs[order]
    tokens = found.windows[order][:, None] * (length - 1)
    error = np.sqrt(task.probs * (1 - task.probs) / tokens)
    assert (np.abs(probs - task.probs) <= 4 * error).all()
    # Four standard errors of a whole table are seldom all used up: the spread fits as well.
    used = ((probs - task.probs) / np.where(error > 0, error, 1))[task.probs > 0]
    assert 0.6 < np.sqrt((used**2).mean()) < 1.4


def test_overlap_of_a_known_task() -> None:
    """Three classes of overlap 0.3: E = 0.3 (1 1^T - I), its eigenvalues 0.6 and -0.3."""
    report = overlap_report(Overlapping(3, 0.3).build())
    assert report.all == pytest.approx((0.3, 0.3))
    assert report.across == pytest.approx((0.3, 0.3))
    assert np.isnan(report.within).all()
    assert report.spectral == pytest.approx(0.6)
    numbers = (report.distinct, report.common, report.nearly_distinct, report.negative)
    assert numbers == (15, 5, 0, 0)
    # The common ones carry sqrt(0.3 / 0.7) of the weight of the distinct ones.
    np.testing.assert_allclose(report.distinct_mass, 1 / (1 + np.sqrt(0.3 / 0.7)))


def test_pairs_within_and_across_queries() -> None:
    """f of (1, 0), (0.6, 0.8), (0, 1): overlaps 0.6 within the first query, 0.8 and 0 across."""
    rows = np.array([[1, 0, 0], [0.6, 0.8, 0], [0, 1, 0]])
    task = sequence_classes(rows / rows.sum(1, keepdims=True), query=[0, 0, 1])
    report = overlap_report(task)
    assert report.within == pytest.approx((0.6, 0.6))
    assert report.across == pytest.approx((0.4, 0.8))
    assert report.all == pytest.approx(((0.6 + 0.8) / 3, 0.8))


def test_ownership_by_hand() -> None:
    """Token 0 is at 0.8 of 1.0 class 0's; token 1 is shared; token 2 is class 2's of all."""
    task = sequence_classes([[0.8, 0.2, 0], [0.2, 0.8, 0], [0, 0.2, 0.8]], query=[0, 0, 1])
    expected = [[1, 0, 0], [0, 0, 0], [0, 0, 1]]
    np.testing.assert_array_equal(owned(task, 0.8), np.array(expected, bool))
    np.testing.assert_array_equal(owned(task, 0.81).sum(), 1)
    # Within its query class 1 owns 0.8 of token 1, and class 2, alone, owns all that it has.
    local = [[1, 0, 0], [0, 1, 0], [0, 1, 1]]
    np.testing.assert_array_equal(owned(task, 0.8, local=True), np.array(local, bool))
    report = overlap_report(task, 0.8)
    assert (report.distinct, report.common, report.nearly_distinct) == (1, 2, 1)
    report = overlap_report(task, 0.8, local=True)
    assert (report.distinct, report.common, report.nearly_distinct) == (2, 2, 2)
    np.testing.assert_allclose(report.owned_mass, [0.8, 0.8, 1])
    # 0.8 times the sum 0.6 + 0.15 is more than 0.6 by rounding; nobody owns what nobody has.
    task = sequence_classes([[0.6, 0.4, 0], [0.15, 0.85, 0]], query=[0, 1])
    np.testing.assert_array_equal(owned(task, 0.8), [[True, False, False], [False] * 3])


def test_negative_coefficients_of_theorem_1() -> None:
    """beta = -G^-1, of f = (1, 0, 0), (0.6, 0.8, 0) and (0, 0.6, 0.8), has the cofactors' signs:
    negative for classes 0 and 2 alone. One class has no pairs."""
    rows = np.array([[1, 0, 0], [0.6, 0.8, 0], [0, 0.6, 0.8]])
    task = sequence_classes(rows / rows.sum(1, keepdims=True), query=[0, 1, 2])
    assert overlap_report(task).negative == pytest.approx(1 / 3)
    # Of two equal classes: the pseudoinverse of a matrix of ones has entries 1/4.
    twice = sequence_classes([[0.3, 0.7], [0.3, 0.7]], query=[0, 1])
    assert overlap_report(twice).negative == 1
    alone = overlap_report(Overlapping(1, 0.2).build())
    assert (alone.negative, alone.spectral) == (0, pytest.approx(0, abs=1e-12))
    assert np.isnan([alone.all, alone.within, alone.across]).all()
