"""Workers in processes of their own: Dask's, one of which is killed, and other executors'."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sweeps
from sweeps import Sweep, experiment
from sweeps.lines import unstopped
from sweeps.runner import cluster, driver

SWEEP = Sweep(
    experiment(steps=4, length=8, batch=4),
    {"eta_y": {"linspace": [0.1, 4, 8]}, "seed": {"range": 2}},
    record=("loss", "entropy"),
)
CHUNKS = 8


class Killing(Executor):
    """Another executor, of which the worker that has stored the first chunk is killed."""

    def __init__(self, inner: Executor) -> None:
        self.inner, self.killed = inner, 0

    def submit(self, function: Callable, /, *given: object, **named: object) -> Future:
        future = self.inner.submit(function, *given, **named)
        future.add_done_callback(self._kill)
        return future

    def _kill(self, future: Future) -> None:
        answer = None if future.cancelled() or future.exception() else future.result()
        if isinstance(answer, driver.Done) and not self.killed:
            self.killed = int(answer.worker.split(":")[1])
            os.kill(self.killed, signal.SIGKILL)


@pytest.fixture(scope="module")
def whole() -> dict[str, np.ndarray]:
    found = sweeps.run(SWEEP, chunk=2, tile=2).load()
    return {str(name): array.values for name, array in found.variables.items()}


@pytest.fixture
def queues() -> Any:
    """dask-jobqueue, without the handler of Ctrl-C that it sets when it is imported."""
    with unstopped():
        return pytest.importorskip("dask_jobqueue")


@pytest.fixture(autouse=True)
def one_compilation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers share what they compile."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def assert_complete(out: Path, whole: dict[str, np.ndarray]) -> None:
    found = sweeps.open(out).load()
    for name, values in whole.items():
        # The same programs in the same batches: equal to the last bit.
        np.testing.assert_array_equal(found[name].values, values)


# Processes that import JAX.
@pytest.mark.full(
    "sweeps/runner/cluster/test_driver.py::test_a_worker_that_fails_at_everything_spoils_no_chunk",
    "sweeps/runner/cluster/test_driver.py::test_chunks_are_those_of_one_process",
)
def test_a_killed_worker_of_dask_loses_nothing(
    whole: dict[str, np.ndarray], tmp_path: Path
) -> None:
    pytest.importorskip("distributed")
    said: list[str] = []
    with cluster.executor("local:2", report=said.append) as executor:
        killing = Killing(executor)
        sweeps.run(SWEEP, tmp_path / "s", executor=killing, chunk=2, tile=2, report=said.append)
    assert killing.killed
    assert "16 runs in 8 chunks" in said[-1]
    assert_complete(tmp_path / "s", whole)


# Processes that import JAX.
@pytest.mark.full("sweeps/runner/cluster/test_driver.py::test_chunks_are_those_of_one_process")
@pytest.mark.parametrize("kind", ["processes", "loky"])
def test_other_executors(kind: str, whole: dict[str, np.ndarray], tmp_path: Path) -> None:
    if kind == "loky":
        executor = pytest.importorskip("loky").ProcessPoolExecutor(2)
    else:
        executor = ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))
    with executor:
        sweeps.run(SWEEP, tmp_path / "s", executor=executor, chunk=2, tile=2)
    assert_complete(tmp_path / "s", whole)


@pytest.mark.parametrize(
    ("where", "toml", "message"),
    [
        ("localhost:8786", None, r"dask = 'localhost:8786': must be the address of a scheduler"),
        ("local:0", None, r"dask = 'local:0': needs a number of workers"),
        ("local:x", None, r"dask = 'local:x': needs a number of workers"),
        ("slurm", None, r"dask = 'slurm': needs config, a TOML file"),
        ("local:2", "", r"dask = 'local:2': reads no config"),
        ("slurm", "jobs = 0", r"config = .*: jobs = 0: must be"),
        ("slurm", "job = 1", r"config = .*: key = 'job': did you mean 'jobs'\?"),
        ("slurm", "cluster = 3", r"config = .*: cluster must be a table"),
        ("slurm", "cluster.processes = 4", r"config = .*: cluster.processes: a job is one worker"),
        ("slurm", "cluster.walltime = '1h'", r"walltime = '1h': must be \[D-\]HH:MM:SS"),
        ("slurm", "cluster.memory = '4GB'\ncluster.queues = 'x'", r"config = .*queues"),
    ],
)
def test_bad_input_is_named(
    where: str, toml: str | None, message: str, tmp_path: Path, queues: Any
) -> None:
    config = None
    if toml is not None:
        config = tmp_path / "cluster.toml"
        config.write_text(toml)
    with pytest.raises(ValueError, match=message), cluster.executor(where, config):
        pass


def test_a_queue_leaves_ctrl_c_as_it_was(
    tmp_path: Path, queues: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == queues.__name__]:
        monkeypatch.delitem(sys.modules, name)
    config = tmp_path / "cluster.toml"
    config.write_text("cluster.queues = 'x'")
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match="queues"), cluster.executor("slurm", config):
        pass
    assert f"{queues.__name__}.runner" in sys.modules
    assert signal.getsignal(signal.SIGINT) is before


def test_a_job_in_the_queue_is_one_worker_that_ends_in_time(tmp_path: Path, queues: Any) -> None:
    config = tmp_path / "cluster.toml"
    config.write_text(
        "jobs = 16\n[cluster]\nqueue = 'gpu'\nwalltime = '1-02:00:00'\nmemory = '32GB'\n"
        "job_cpu = 8\njob_extra_directives = ['--gres=gpu:1']\n"
    )
    jobs_wanted, options = cluster.options_of(config)
    assert jobs_wanted == 16
    with queues.SLURMCluster(**options) as made:
        script = made.job_script()
    for line in ("#SBATCH -p gpu", "#SBATCH --gres=gpu:1", "#SBATCH --cpus-per-task=8"):
        assert line in script
    assert "export EQX_ON_ERROR=nan" in script
    # A worker of one thread and without Dask's limit on memory, which ends at nine tenths of the
    # 26 hours, give or take a twentieth of that.
    (command,) = (line for line in script.splitlines() if "distributed.cli.dask_worker" in line)
    assert "--nworkers 1" in command or "--nworkers" not in command
    assert command.split("--nthreads ")[-1].startswith("1 ")
    assert command.split("--memory-limit ")[-1].startswith("0 ")
    assert "--lifetime 84240s --lifetime-stagger 4212s" in command
