"""Tasks: each against the table that it describes, and errors for bad settings."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np
import pytest

import dynsim
from dynsim.classes import tasks
from dynsim.classes.task import sequence_classes
from dynsim.classes.tasks import TaskTable
from dynsim.decoding import Share
from dynsim.joma import fig2

PROBS, QUERY = [[0.5, 0.5, 0, 0], [0.5, 0, 0.25, 0.25]], [0, 1]
TASKS: list[tuple[dynsim.Task, Callable[[], dynsim.SequenceClasses]]] = [
    (dynsim.SynSmall(), lambda: tasks.syn(2, 1)),
    (dynsim.SynSmall("paper"), lambda: tasks.syn(2, 1, layout="paper")),
    (dynsim.SynMedium(), lambda: tasks.syn(3, 2)),
    (dynsim.SynMedium(1, "paper"), lambda: tasks.syn(1, 2, layout="paper")),
    (dynsim.Syn(), lambda: tasks.syn(3, 2)),
    (
        dynsim.Syn(2, 3, num_common=4, num_distinct=1, M=50, layout="paper"),
        lambda: tasks.syn(2, 3, num_common=4, num_distinct=1, M=50, layout="paper"),
    ),
    (dynsim.Syn(num_common=0), lambda: tasks.syn(3, 2, num_common=0)),
    (dynsim.JoMAClasses(), fig2),
    (dynsim.JoMAClasses("random"), lambda: fig2("random")),
    (TaskTable(PROBS, QUERY), lambda: sequence_classes(PROBS, QUERY)),
    (
        TaskTable(np.array(PROBS), QUERY, [2, 3], prior=[0.25, 0.75]),
        lambda: sequence_classes(PROBS, QUERY, [2, 3], [0.25, 0.75]),
    ),
]


class Pair(dynsim.Task):
    """Two classes that share a token."""

    share: Share = eqx.field(static=True, default=0.5)

    def build(self) -> dynsim.SequenceClasses:
        own = 1 - self.share
        return dynsim.sequence_classes([[self.share, own, 0], [self.share, 0, own]], QUERY)


@pytest.mark.parametrize(("K", "overlap"), [(1, 0.3), (5, 0.4), (3, 0.0)])
def test_classes_overlap_as_much_as_is_asked(K: int, overlap: float) -> None:
    task = dynsim.Overlapping(K, overlap)
    built = task.build()
    f = built.probs / np.linalg.norm(built.probs, axis=1, keepdims=True)
    np.testing.assert_allclose(f @ f.T, overlap + (1 - overlap) * np.eye(K), rtol=1e-12)
    assert ((built.probs > 0).sum(1) == (10 if overlap else 5)).all()
    assert task.sizes == (built.K, built.M) == (K, 5 + 5 * K)


@pytest.mark.parametrize(("task", "function"), TASKS)
def test_a_task_builds_what_its_function_returns(
    task: dynsim.Task, function: Callable[[], dynsim.SequenceClasses]
) -> None:
    built = task.build()
    assert eqx.tree_equal(built, function())
    assert task.sizes == (built.K, built.M)
    assert task.contents() == {}


def test_sizes_of_named_tasks_need_no_table() -> None:
    # Tables of these sizes would not fit into any memory.
    assert dynsim.Overlapping(K=10**8).sizes == (10**8, 5 + 5 * 10**8)
    assert dynsim.Syn(num_queries=10**8).sizes == (2 * 10**8, 10 + 23 * 10**8)
    assert dynsim.SynMedium(10**8, "paper").sizes == (2 * 10**8, 10 + 20 * 10**8)


@pytest.mark.parametrize("name", ["task.npz", "task.csv"])
def test_a_task_in_a_file_is_known_by_its_arrays(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    rows = "query,0,1,2,3\n0,0.5,0.5,0,0\n1,0.5,0,0.25,0.25\n"
    if path.suffix == ".csv":
        path.write_text(rows)
    else:
        dynsim.save_task(path, sequence_classes(PROBS, QUERY))
    task = dynsim.TaskFile(str(path))
    assert eqx.tree_equal(task.build(), sequence_classes(PROBS, QUERY))
    assert task.sizes == (2, 4)
    arrays = {"probs": PROBS, "query": [0, 1], "next_token": [0, 1], "prior": [0.5, 0.5]}
    digest = hashlib.sha256()
    for field, values in arrays.items():
        array = np.array(values, "<i8" if field in ("query", "next_token") else "<f8")
        digest.update(f"{field}{array.shape}".encode() + array.tobytes())
    assert task.contents() == {"task_holds": digest.hexdigest()[:16]}


def test_a_task_of_your_own_is_a_class_with_a_build() -> None:
    task = Pair(0.25)
    assert task.sizes == (2, 3)
    np.testing.assert_array_equal(task.build().probs, [[0.25, 0.75, 0], [0.25, 0, 0.75]])
    with pytest.raises(TypeError, match="build"):
        dynsim.Task()  # type: ignore[abstract]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pair(1.5), "share = 1.5: must be finite and in [0, 1]"),
        (lambda: dynsim.SynSmall("other"), "layout = 'other': must be one of authors, paper"),
        (lambda: dynsim.SynMedium(0), "num_queries = 0: must be an integer >= 1"),
        (lambda: dynsim.Syn(num_queries=1.5), "num_queries = 1.5: must be an integer >= 1"),
        (lambda: dynsim.Syn(M=78), "M = 78: must be an integer >= 79"),
        (
            lambda: dynsim.Syn(num_common=0, num_distinct=0),
            "0, 0, 0: a class needs at least one token",
        ),
        (lambda: dynsim.Overlapping(overlap=1.0), "overlap = 1.0: must be finite and in [0, 1)"),
        (lambda: dynsim.JoMAClasses("wide"), "frequencies = 'wide': must be one of bumps, random"),
        (
            lambda: TaskTable([["a"]], QUERY),
            "probs: must be an array of real numbers",
        ),
        (
            lambda: TaskTable(PROBS, [0, 4]).build(),
            "query[1] (class 1) = 4: must be",
        ),
        (lambda: dynsim.TaskFile("absent.npz").build(), "task file absent.npz: no such file"),
        (lambda: dynsim.TaskFile("task.txt").sizes, "task.txt: must end in .npz or .csv"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_settings_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_bumps_of_joma_are_gaussian_over_the_tokens() -> None:
    """Of class n around token n / 2, with variance 15."""
    logs = np.log(fig2("bumps").probs[:, :10].astype(float))
    # Differences of logarithms of float32.
    np.testing.assert_allclose(np.diff(logs, 2, axis=1), -1 / 15, atol=1e-5)
    np.testing.assert_allclose([logs[6, 0], logs[9, 4]], [logs[6, 6], logs[9, 5]], atol=1e-5)
