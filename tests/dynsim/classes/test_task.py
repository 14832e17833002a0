"""Tasks: the published layouts, distinct and common tokens, and errors for bad tables."""

import re

import jax
import numpy as np
import pytest

import dynsim
from dynsim.classes.tasks import syn

GOOD = np.array([[0.5, 0.5, 0, 0], [0.5, 0, 0.25, 0.25]])


def test_syn_small_has_the_published_layouts() -> None:
    authors, paper = dynsim.SynSmall().build(), dynsim.SynSmall("paper").build()
    assert (authors.K, authors.M, authors.num_queries) == (2, 34, 2)
    assert (paper.K, paper.M, paper.num_queries) == (2, 30, 2)
    np.testing.assert_array_equal(authors.query, [30, 31])
    np.testing.assert_array_equal(authors.next_token, [32, 33])
    # Weight 1 for each of 10 common tokens and linspace(0.1, 1, 10), which sums to 5.5.
    np.testing.assert_allclose(authors.probs[0, :10], 1 / 15.5, rtol=1e-15)
    np.testing.assert_allclose(authors.probs[1, 20:30], np.arange(1, 11) / 155, rtol=1e-15)
    np.testing.assert_array_equal(authors.probs[:, :30], paper.probs)
    np.testing.assert_array_equal(authors.support[1], [*range(10), *range(20, 30)])


@pytest.mark.parametrize("queries", [1, 3, 5, 10])
def test_syn_medium_has_two_classes_for_each_query(queries: int) -> None:
    task = dynsim.SynMedium(queries).build()
    assert task.K == 2 * queries
    assert task.M == 10 + 10 * task.K + queries + task.K
    np.testing.assert_array_equal(np.bincount(task.query_index), 2)
    assert task.distinct().sum() == 10 * task.K


def test_tokens_common_to_a_query_come_between_common_and_distinct_ones() -> None:
    task = syn(2, 1, num_common=3, num_common_per_query=2, num_distinct=1)
    np.testing.assert_array_equal(task.support, [[0, 1, 2, 3, 4, 7], [0, 1, 2, 5, 6, 8]])


@pytest.mark.parametrize("layout", ["authors", "paper"])
def test_a_syn_task_is_that_of_loops_over_its_tokens(layout: str) -> None:
    """Two queries with three classes each; 4 tokens common to all, 2 for each query, 5 distinct
    ones for each class; and two outputs that never occur."""
    contextual = 4 + 2 * 2 + 6 * 5
    M = contextual + 2 + (8 if layout == "authors" else 0)
    task = syn(2, 3, num_common=4, num_distinct=5, num_common_per_query=2, M=M, layout=layout)
    weights = np.zeros((6, M))
    for n, query in enumerate([0, 0, 0, 1, 1, 1]):
        weights[n, [0, 1, 2, 3, 4 + 2 * query, 5 + 2 * query]] = 1
        weights[n, 8 + 5 * n : 13 + 5 * n] = [0.1, 0.325, 0.55, 0.775, 1]
    np.testing.assert_allclose(task.probs, weights / weights.sum(1, keepdims=True), rtol=1e-12)
    offset = contextual if layout == "authors" else 0
    np.testing.assert_array_equal(task.query, offset + np.array([0, 0, 0, 1, 1, 1]))
    np.testing.assert_array_equal(
        task.next_token, np.arange(6) + (offset + 2 if layout == "authors" else 0)
    )
    np.testing.assert_allclose(task.prior, np.full(6, 1 / 6), rtol=1e-15)


@pytest.mark.parametrize(("off", "fits"), [(0.9e-5, True), (1.1e-5, False), (-1.1e-5, False)])
def test_rows_may_miss_one_by_a_hundred_thousandth(off: float, fits: bool) -> None:
    rows = [[0.5, 0.5 + off], [0.25, 0.75]]
    if fits:
        assert abs(dynsim.sequence_classes(rows, [0, 1]).probs[0].sum() - 1) < 1e-15
        return
    with pytest.raises(ValueError, match=r"probs\[0\] \(class 0\): sums to"):
        dynsim.sequence_classes(rows, [0, 1])


@pytest.mark.parametrize("numbers", [(1, 1, 2), (0, 0, 1), (3, 0, 0), (0, 2, 0)])
def test_a_kind_of_tokens_may_be_absent(numbers: tuple[int, int, int]) -> None:
    common, distinct, of_query = numbers
    task = syn(2, 1, num_common=common, num_distinct=distinct, num_common_per_query=of_query)
    np.testing.assert_array_equal((task.probs > 0).sum(1), sum(numbers))


def test_a_prior_is_made_to_sum_to_one() -> None:
    """Within the tolerance of what is given, here of float32."""
    prior = np.float32([0.1, 0.2, 0.7]).astype(float) * (1 + 3e-7)
    task = dynsim.sequence_classes(np.eye(3), [0, 1, 2], prior=prior)
    assert abs(task.prior.sum() - 1) < 1e-15


def test_a_single_class_overlaps_with_none() -> None:
    task = dynsim.Overlapping(1, 0.2).build()
    assert (task.K, task.M) == (1, 10)


def test_distinct_and_common_globally_and_within_a_query() -> None:
    # Token 0 is in classes 0 and 2, token 1 in 0 and 1; classes 0, 1 share a query, 2 has its own.
    probs = [[0.5, 0.5, 0, 0, 0], [0, 0.5, 0.5, 0, 0], [0.5, 0, 0, 0.5, 0]]
    task = dynsim.sequence_classes(probs, query=[4, 4, 3])
    want = np.array([[0, 0, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0]], bool)
    np.testing.assert_array_equal(task.distinct(), want)
    np.testing.assert_array_equal(task.common(), (np.array(probs) > 0) & ~want)
    want_local = np.array([[1, 0, 0, 0, 0], [0, 0, 1, 0, 0], [1, 0, 0, 1, 0]], bool)
    np.testing.assert_array_equal(task.distinct(local=True), want_local)


def test_a_task_is_a_pytree_that_survives_jit_and_keeps_float64() -> None:
    task = dynsim.SynSmall().build()
    assert task.probs.dtype == np.float64
    with pytest.raises(ValueError, match="read-only"):
        task.probs[0, 0] = 1
    with pytest.raises(ValueError, match="read-only"):
        task.prior[0] = 1
    back = jax.jit(lambda t: t)(task)
    assert back.M == task.M
    np.testing.assert_array_equal(back.query_index, task.query_index)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"probs": [[0.6, 0.5, -0.1, 0], GOOD[1]]}, "probs[0] (class 0), token 2 = -0.1"),
        ({"probs": [GOOD[0], [0.5, np.nan, 0.5, 0]]}, "probs[1] (class 1), token 1 = nan"),
        ({"probs": [GOOD[0], [0.5, 0.4, 0, 0]]}, "probs[1] (class 1): sums to 0.9"),
        ({"probs": [[0, 0, 0, 0], GOOD[1]]}, "probs[0] (class 0): has no support"),
        ({"probs": np.full((5, 4), 0.25), "query": [0] * 5}, "K = 5 classes but M = 4 tokens"),
        ({"probs": [0.5, 0.5]}, "shape (K, M)"),
        ({"probs": [[], []]}, "shape (K, M)"),
        ({"probs": [[1.0]], "query": [0]}, "probs: M = 1: the vocabulary needs at least 2 tokens"),
        ({"prior": [1.0]}, "prior: must have shape (2,), one per class, got (1,)"),
        ({"probs": [["a", "b"]]}, "probs: must be an array of real numbers"),
        ({"query": [0, 4]}, "query[1] (class 1) = 4: must be a token id in [0, 4)"),
        ({"query": [0, -1]}, "query[1] (class 1) = -1"),
        ({"query": [0]}, "query: must have shape (2,)"),
        ({"query": [0, 1.5]}, "query[1] (class 1) = 1.5"),
        ({"next_token": [2, 2]}, "next_token[1] (class 1) = 2: already the next token of class 0"),
        ({"next_token": [2, 9]}, "next_token[1] (class 1) = 9"),
        ({"prior": [0.5, 0.6]}, "prior: sums to 1.1"),
        ({"prior": [1.0, 0.0]}, "prior[1] (class 1) = 0: must be positive"),
        ({"prior": [1.5, -0.5]}, "prior, class 1 = -0.5"),
    ],
)
def test_a_bad_table_is_named(change: dict, message: str) -> None:
    arguments = {"probs": GOOD, "query": [0, 1], **change}
    with pytest.raises(ValueError, match=re.escape(message)):
        dynsim.sequence_classes(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_queries": 0}, "num_queries = 0: must be an integer >= 1"),
        ({"classes_per_query": 1.5}, "classes_per_query = 1.5"),
        ({"num_common": 0, "num_distinct": 0}, "a class needs at least one token"),
        ({"layout": "other"}, "layout = 'other': must be one of authors, paper"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_bad_synthetic_task_is_named(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        dynsim.Syn(**{"num_queries": 2, "classes_per_query": 1, **arguments}).build()
