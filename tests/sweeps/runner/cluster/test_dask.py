"""Workers in processes of their own: Dask's, one of which is killed, and other executors'."""

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sweeps
from sweeps import Sweep, experiment
from sweeps.lines import unstopped
from sweeps.runner import cluster, driver
from sweeps.runner.store.store import Store

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


LETHAL = """
import ctypes, os, signal, sys
import dynsim, jax, jax.numpy as jnp, numpy as np

def called(scale):
    if scale > 50:
        print("called", scale, flush=True)
        end()
    return np.float32(0)

def end():
    {end}

class Lethal(dynsim.Problem):
    '''Its loss calls Python, which ends the process where `scale` is large.'''
    scale: float = 1.0

    def init(self, key):
        return jax.random.normal(key)

    def draw(self, key, batch):
        return jax.random.normal(key, (batch,))

    def loss(self, params, data):
        like = jax.ShapeDtypeStruct((), jnp.float32)
        found = jax.pure_callback(called, like, jnp.float32(self.scale), vmap_method="sequential")
        return jnp.mean((params - data) ** 2) + found
"""
FILE = """
record = ["batch_loss"]
axes.scale = [1, 2, 3, 99, 5, 6]
[run]
problem = "lethal:Lethal"
rule = "sgd"
eta = 0.1
steps = 2
batch = 2
"""
SCRIPT = """
import json, sys
from concurrent.futures import ProcessPoolExecutor
import dynsim, sweeps
from lethal import Lethal

if __name__ == "__main__":
    run = sweeps.Experiment(Lethal(), dynsim.sgd(0.1), 2, 2)
    sweep = sweeps.Sweep(run, {{"scale": {values}}}, record=["batch_loss"])
    {make}
    with made:
        try:
            sweeps.run(sweep, "s", executor=executor, chunk=1, tile=1)
        except (sweeps.ChunksFailed, sweeps.StoreError) as error:
            print(json.dumps(str(error)))
    print("over", flush=True)
"""
DASK = """import distributed
    made = distributed.Client(distributed.LocalCluster(
        n_workers={workers}, threads_per_worker={threads}, dashboard_address=None))
    executor = made.get_executor()"""
LOKY = """import loky
    made = executor = loky.ProcessPoolExecutor(2)"""
PROCESSES = """import multiprocessing
    made = executor = ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))"""
COMMAND = ("-m", "dynsim", "sweep", "s.toml", "--out", "s", "--chunk", "1", "--tile", "1")
LIMIT = 300
"""Seconds after which a process counts as hanging."""


@contextlib.contextmanager
def begun(folder: Path, end: str, *words: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Start Python in a folder where code of a user ends its process by `end`."""
    (folder / "lethal.py").write_text(LETHAL.format(end=end))
    (folder / "s.toml").write_text(FILE)
    paths = os.pathsep.join([str(Path(__file__).parents[4]), str(folder)])
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = os.environ | {"PYTHONPATH": paths} | variables
    command = [sys.executable, *words]
    with subprocess.Popen(command, cwd=folder, env=environment, text=True, **pipes) as process:
        watchdog = threading.Timer(LIMIT, process.kill)
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            process.kill()


def stored(folder: Path) -> list[int]:
    return np.flatnonzero(Store.open(folder / "s").done()).tolist()


# Each death costs a start of a process that imports JAX.
@pytest.mark.full(
    "sweeps/runner/cluster/test_driver.py"
    "::test_a_chunk_over_which_three_workers_die_is_named_and_the_others_are_done"
)
@pytest.mark.parametrize(
    "end",
    ["os._exit(1)", "ctypes.string_at(0)", "os.kill(os.getpid(), signal.SIGKILL)", "os.abort()"],
    ids=["exit", "segmentation fault", "killed", "abort"],
)
def test_a_chunk_that_kills_its_workers_is_named_each_time(end: str, tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    for _ in range(2):
        with begun(tmp_path, end, *COMMAND, "--dask", "local:2") as process:
            output, errors = process.communicate()
        assert process.returncode == 1
        *_, first, last = errors.splitlines()
        assert "1 of 6 chunks failed" in first
        assert last == "  chunk 3 (scale 3:4): its worker died 3 times"
        assert output.count("called") == 3
        assert stored(tmp_path) == [0, 1, 2, 4, 5]


@pytest.mark.full(
    "sweeps/runner/cluster/test_driver.py"
    "::test_chunks_queued_on_workers_that_died_over_another_one_have_not_failed"
)
@pytest.mark.parametrize(
    ("lethal", "workers", "threads"), [({1}, 2, 1), ({0, 1, 2, 3, 5}, 2, 1), ({0, 1, 2}, 1, 4)]
)
def test_chunks_that_kill_the_workers_of_a_client_are_named(
    lethal: set[int], workers: int, threads: int, tmp_path: Path
) -> None:
    """Without settings of ours. If many workers die, Dask closes them for good by default."""
    pytest.importorskip("distributed")
    values = [99 + i if i in lethal else 1 + i for i in range(6)]
    make = DASK.format(workers=workers, threads=threads)
    script = SCRIPT.format(values=values, make=make)
    (tmp_path / "script.py").write_text(script)
    with begun(tmp_path, "os._exit(1)", "script.py") as process:
        output, errors = process.communicate()
    assert process.returncode == 0, errors
    lines = output.splitlines()
    said = json.loads(lines[-2])
    assert said.splitlines()[1:] == [
        f"  chunk {i} (scale {i}:{i + 1}): its worker died 3 times" for i in sorted(lethal)
    ]
    assert stored(tmp_path) == sorted({*range(6)} - lethal)


@pytest.mark.full(
    "sweeps/runner/cluster/test_driver.py"
    "::test_an_executor_that_breaks_names_the_chunks_that_were_computed"
)
@pytest.mark.parametrize("make", [PROCESSES, LOKY], ids=["processes", "loky"])
def test_a_pool_that_breaks_names_the_chunk_that_broke_it(make: str, tmp_path: Path) -> None:
    if make == LOKY:
        pytest.importorskip("loky")
    script = SCRIPT.format(values=[1, 2, 3, 99, 5, 6], make=make)
    (tmp_path / "script.py").write_text(script)
    with begun(tmp_path, "os._exit(1)", "script.py") as process:
        output, errors = process.communicate()
    assert process.returncode == 0, errors
    said = json.loads(output.splitlines()[-2])
    assert "  chunk 3 (scale 3:4)" in said.splitlines()[1:]


# Processes that import JAX.
@pytest.mark.full(
    "sweeps/runner/cluster/test_driver.py::test_an_error_of_a_callback_is_one_message_with_its_line"
)
@pytest.mark.parametrize("dask", [("--dask", "local:2"), ()], ids=["dask", "here"])
def test_an_error_of_a_user_is_one_message_without_tracebacks(
    dask: tuple[str, ...], tmp_path: Path
) -> None:
    pytest.importorskip("distributed")
    with begun(tmp_path, "raise KeyError('no luck')", *COMMAND, *dask) as process:
        _, errors = process.communicate()
    assert process.returncode == (1 if dask else 2)
    assert "Traceback" not in errors
    assert errors.count("KeyError: 'no luck'") == 1
    assert f"{tmp_path / 'lethal.py'}, line 12: raise KeyError" in errors


HANGING = """
import time

def wait(what):
    print(what, flush=True)
    time.sleep(10000)

def dask_setup(nanny):
    {setup}

def dask_teardown(nanny):
    {teardown}
"""


# Processes that import JAX.
@pytest.mark.full("sweeps/runner/test_progress.py::test_what_never_ends_is_waited_for_a_while")
@pytest.mark.parametrize(
    ("setup", "teardown", "end", "seen"),
    [
        ("wait('creating')", "pass", "pass", "creating"),
        ("pass", "wait('closing')", "pass", "closing"),
        ("pass", "wait('closing')", "__import__('time').sleep(10000)", "called"),
        ("pass", "pass", "__import__('time').sleep(10000)", "called"),
    ],
    ids=["creating", "closing", "computing and closing", "computing"],
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_ends_a_driver_whatever_it_waits_for(
    setup: str, teardown: str, end: str, seen: str, number: signal.Signals, tmp_path: Path
) -> None:
    pytest.importorskip("distributed")
    (tmp_path / "hanging.py").write_text(HANGING.format(setup=setup, teardown=teardown))
    preload = {"DASK_DISTRIBUTED__NANNY__PRELOAD": str(tmp_path / "hanging.py")}
    with begun(tmp_path, end, *COMMAND, "--dask", "local:2", **preload) as process:
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith(seen):
            assert line, "it has ended"
        process.send_signal(number)
        _, errors = process.communicate()
    assert process.returncode == 128 + number, errors
    assert "stopped" in errors
    assert "Traceback" not in errors


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
