"""Sequence classes: the published layouts, loops over tokens, and tasks in files."""

import hashlib
from pathlib import Path
from typing import IO

import equinox as eqx
import jax
import numpy as np
import pytest

import dynsim
from dynsim.classes.tasks import TaskTable, syn
from dynsim.joma import fig2

PROBS, QUERY = [[0.5, 0.5, 0, 0], [0.5, 0, 0.25, 0.25]], [0, 1]


@pytest.mark.parametrize("layout", ["authors", "paper"])
def test_syn_small_has_the_published_layouts(layout: str) -> None:
    task = dynsim.SynSmall(layout).build()
    at = 30 if layout == "authors" else 0
    assert (task.K, task.M, task.num_queries) == (2, 34 if at else 30, 2)
    np.testing.assert_array_equal(task.query, [at, at + 1])
    np.testing.assert_array_equal(task.next_token, [32, 33] if at else [0, 1])
    # Weight 1 for each of 10 common tokens and linspace(0.1, 1, 10), which sums to 5.5.
    np.testing.assert_allclose(task.probs[0, :10], 1 / 15.5, rtol=1e-15)
    np.testing.assert_allclose(task.probs[1, 20:30], np.arange(1, 11) / 155, rtol=1e-15)
    np.testing.assert_array_equal(task.support[1], [*range(10), *range(20, 30)])


@pytest.mark.parametrize("layout", ["authors", "paper"])
@pytest.mark.parametrize(
    ("queries", "per_query", "common", "of_query", "distinct", "more"),
    [(2, 3, 4, 2, 5, 2), (3, 2, 10, 0, 10, 0),
     (1, 2, 0, 0, 1, 0), (2, 1, 3, 0, 0, 0), (2, 1, 0, 2, 0, 3)],
)  # fmt: skip
def test_a_syn_task_is_that_of_loops_over_its_tokens(
    layout: str, queries: int, per_query: int, common: int, of_query: int, distinct: int, more: int
) -> None:
    """Tokens common to all, then those of each query, then those of each class; `more` outputs that
    never occur."""
    K = queries * per_query
    contextual = common + queries * of_query + K * distinct
    M = max(contextual, K) + more + (queries + K if layout == "authors" else 0)
    numbers = {"num_common": common, "num_distinct": distinct, "M": M, "layout": layout}
    task = syn(queries, per_query, **numbers, num_common_per_query=of_query)
    if of_query == 0:
        described = dynsim.Syn(queries, per_query, **numbers)
        assert eqx.tree_equal(described.build(), task)
        assert described.sizes == (K, M)
    weights = np.zeros((K, M))
    for n in range(K):
        query = n // per_query
        weights[n, [*range(common), *(common + of_query * query + i for i in range(of_query))]] = 1
        first = common + queries * of_query + distinct * n
        weights[n, first : first + distinct] = np.linspace(0.1, 1, distinct)
    np.testing.assert_allclose(task.probs, weights / weights.sum(1, keepdims=True), rtol=1e-12)
    offset = contextual if layout == "authors" else 0
    np.testing.assert_array_equal(task.query, offset + np.arange(K) // per_query)
    last = offset + queries if layout == "authors" else 0
    np.testing.assert_array_equal(task.next_token, last + np.arange(K))
    np.testing.assert_allclose(task.prior, np.full(K, 1 / K), rtol=1e-15)


def test_a_task_builds_what_its_function_returns() -> None:
    rows, classes = (PROBS, QUERY, [2, 3], [0.25, 0.75]), dynsim.sequence_classes
    for task, want in (
        (dynsim.SynMedium(), syn(3, 2)),
        (dynsim.SynMedium(1, "paper"), syn(1, 2, layout="paper")),
        (dynsim.Syn(), syn(3, 2)),
        (dynsim.JoMAClasses(), fig2()),
        (dynsim.JoMAClasses("random"), fig2("random")),
        (TaskTable(np.array(PROBS), *rows[1:]), classes(*rows)),
    ):
        assert eqx.tree_equal(task.build(), want)
        assert task.sizes == (want.K, want.M)
        assert task.contents() == {}


def test_sizes_of_named_tasks_need_no_table() -> None:
    # Tables of these sizes would not fit into any memory.
    assert dynsim.Overlapping(K=10**8).sizes == (10**8, 5 + 5 * 10**8)
    assert dynsim.Syn(num_queries=10**8).sizes == (2 * 10**8, 10 + 23 * 10**8)
    assert dynsim.SynMedium(10**8, "paper").sizes == (2 * 10**8, 10 + 20 * 10**8)


@pytest.mark.parametrize(("K", "overlap"), [(1, 0.3), (5, 0.4), (3, 0.0)])
def test_classes_overlap_as_much_as_is_asked(K: int, overlap: float) -> None:
    task = dynsim.Overlapping(K, overlap)
    built = task.build()
    f = built.probs / np.linalg.norm(built.probs, axis=1, keepdims=True)
    np.testing.assert_allclose(f @ f.T, overlap + (1 - overlap) * np.eye(K), rtol=1e-12)
    assert ((built.probs > 0).sum(1) == (10 if overlap else 5)).all()
    assert task.sizes == (built.K, built.M) == (K, 5 + 5 * K)


def test_rows_and_priors_are_made_to_sum_to_one() -> None:
    """Within the tolerance of what is given: 1e-5 for a row."""
    task = dynsim.sequence_classes([[0.5, 0.5 + 0.9e-5], [0.25, 0.75]], [0, 1])
    assert abs(task.probs[0].sum() - 1) < 1e-15
    prior = np.float32([0.1, 0.2, 0.7]).astype(float) * (1 + 3e-7)
    task = dynsim.sequence_classes(np.eye(3), [0, 1, 2], prior=prior)
    assert abs(task.prior.sum() - 1) < 1e-15


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
    for array in (task.probs, task.prior):
        assert not array.flags.writeable
    back = jax.jit(lambda t: t)(task)
    assert back.M == task.M
    np.testing.assert_array_equal(back.query_index, task.query_index)


@pytest.mark.parametrize("name", ["task.npz", "task.csv"])
def test_a_task_in_a_file_is_known_by_its_arrays(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    want = dynsim.sequence_classes(PROBS, QUERY, [2, 3], [0.25, 0.75])
    if path.suffix == ".csv":
        path.write_text(
            "query,0,1,2,3,prior,next_token\n0,0.5,0.5,0,0,0.25,2\n1,0.5,0,0.25,0.25,0.75,3\n"
        )
    else:
        dynsim.save_task(path, want)
        assert [each.name for each in tmp_path.iterdir()] == [name]
        # Others may read it.
        assert path.stat().st_mode & 0o777 == 0o644
    task = dynsim.TaskFile(str(path))
    assert eqx.tree_equal(task.build(), want)
    assert task.sizes == (2, 4)
    arrays = {"probs": PROBS, "query": QUERY, "next_token": [2, 3], "prior": [0.25, 0.75]}
    digest = hashlib.sha256()
    for field, values in arrays.items():
        array = np.array(values, "<i8" if field in ("query", "next_token") else "<f8")
        digest.update(f"{field}{array.shape}".encode() + array.tobytes())
    assert task.contents() == {"task_holds": digest.hexdigest()[:16]}


def test_a_table_may_have_a_single_class(tmp_path: Path) -> None:
    (tmp_path / "task.csv").write_text("0,query,1\n0.25,1,0.75\n")
    found = dynsim.TaskFile(tmp_path / "task.csv").build()
    assert eqx.tree_equal(found, dynsim.sequence_classes([[0.25, 0.75]], [1]))


def test_what_cannot_be_written_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing beside it."""
    dynsim.save_task(tmp_path / "task.npz", dynsim.SynSmall("paper").build())
    whole = (tmp_path / "task.npz").read_bytes()

    def full(file: IO[bytes], **arrays: np.ndarray) -> None:
        file.write(b"begun")
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match="no space left"):
        dynsim.save_task(tmp_path / "task.npz", dynsim.SynSmall().build())
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"task.npz": whole}


@pytest.mark.parametrize("frequencies", ["bumps", "random"])
def test_classes_of_fig_2_of_joma_are_shares_of_twenty_tokens(frequencies: str) -> None:
    """Numbers between 0 and 1/2 by NumPy's generator, and bumps of height 1 in their place."""
    X = np.random.default_rng(0).random((20, 20)) / 2
    if frequencies == "bumps":
        for token in range(10):
            X[token] = [np.exp(-((token - n / 2) ** 2) / 30) for n in range(20)]
    task = fig2(frequencies)
    np.testing.assert_allclose(task.probs, X.T / X.T.sum(1, keepdims=True), rtol=1e-12)
    np.testing.assert_array_equal(task.query_index, np.zeros(20))
    np.testing.assert_array_equal(task.query, np.zeros(20))
    np.testing.assert_array_equal(task.next_token, range(20))
