"""Processes that do not find each other say so, in time and in a line; what Dask and JAX are asked
for, without them."""

import atexit
import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from sweeps.runner import cluster
from sweeps.runner.cluster import Hosts


def test_processes_that_do_not_find_each_other_are_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over, left = threading.Event(), []
    # As JAX, which waits and then aborts the process.
    monkeypatch.setattr(jax.distributed, "initialize", lambda *_, **__: over.wait())
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    monkeypatch.setattr(atexit, "register", left.append)
    hosts = Hosts(coordinator="host0:1234", processes=2, process=1, patience=1)
    message = "did not find each other at host0:1234 within patience = 1 s"
    try:
        with pytest.raises(ValueError, match=re.escape(message)):
            hosts.connect()
    finally:
        over.set()
    (leave,) = left
    monkeypatch.setattr(os, "_exit", left.append)
    leave()
    assert left == [leave, 2]
    with pytest.raises(ValueError, match="patience = 0: must be an integer >= 1"):
        Hosts(coordinator="host0:1234", processes=2, process=1, patience=0).connect()


@pytest.mark.more
def test_processes_find_each_other_before_jax_is_used(tmp_path: Path) -> None:
    """Which it would refuse afterwards; in a process of its own, as this one has used it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "s.toml").write_text(
        "axes.eta_y = [1]\nrun = {problem = 'yz', steps = 1, batch = 1}\n"
    )
    words = ["sweep", "s.toml", "--out", "s", "--coordinator", f"127.0.0.1:{port}"]
    command = [sys.executable, "-m", "dynsim", *words, "--processes", "1", "--process", "0"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    found = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert "1 of 1 runs done" in found.stdout


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, (0, 1)),
        ({"processes": 3, "process": 0}, (0, 3)),
        ({"processes": 3, "process": 2}, (2, 3)),
        ({"processes": 3, "process": 3}, "process = 3: must be below processes = 3"),
        ({"processes": 3, "process": -1}, "process = -1: must be an integer >= 0"),
        ({"processes": 0, "process": 0}, "processes = 0: must be an integer >= 1"),
        ({"processes": 3}, "processes = 3, process = None: set both, or distributed"),
        ({"process": 0}, "processes = None, process = 0: set both, or distributed"),
    ],
)
def test_processes_with_numbers_need_nothing_else(
    given: dict[str, int], found: tuple[int, int] | str
) -> None:
    if isinstance(found, tuple):
        assert Hosts(**given).connect() == found
        return
    with pytest.raises(ValueError, match=re.escape(found)):
        Hosts(**given).connect()


def test_jax_waits_longer_than_its_users(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    config = SimpleNamespace(update=lambda *given: asked.append(given))
    joined = SimpleNamespace(initialize=lambda *given, **more: asked.append((given, more)))
    numbers = {"process_index": lambda: 1, "process_count": lambda: 2}
    monkeypatch.setattr(
        cluster, "jax", SimpleNamespace(config=config, distributed=joined, **numbers)
    )
    assert Hosts(distributed=True, patience=7).connect() == (1, 2)
    first = asked.pop(0)
    assert first == ("jax_enable_recoverability", True)
    waits = {"initialization_timeout": 74, "heartbeat_timeout_seconds": 30}
    assert asked == [((None, None, None), waits)]

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no cluster")

    joined.initialize = fail
    with pytest.raises(
        ValueError, match=r"^distributed: .* did not find each other \(no cluster\)$"
    ):
        Hosts(coordinator="host0:1", processes=2, process=0).connect()


@pytest.mark.parametrize(
    ("flags", "chosen", "cores", "made"),
    [
        ("", -1, 3, 3),
        ("--xla_other=1", -1, 1, 1),
        ("--xla_force_host_platform_device_count=2", -1, 3, None),
        ("", 4, 3, None),
        ("", -1, None, 5),
    ],
    ids=["all", "other flags", "flag", "option", "unknown platform"],
)
def test_there_is_a_device_for_each_core_unless_a_number_is_chosen(
    monkeypatch: pytest.MonkeyPatch, flags: str, chosen: int, cores: int | None, made: int | None
) -> None:
    asked: list[tuple[str, int]] = []
    config = SimpleNamespace(
        jax_num_cpu_devices=chosen, update=lambda name, number: asked.append((name, number))
    )
    monkeypatch.setattr(cluster, "jax", SimpleNamespace(config=config))
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    if cores is None:
        monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    else:
        allowed = {*range(0, 2 * cores, 2)}
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: allowed, raising=False)
    cluster.use_all_cores()
    assert asked == ([] if made is None else [("jax_num_cpu_devices", made)])


@pytest.fixture
def dask(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A stand-in for Dask that keeps what it is asked for.

    Attributes:
        made: the cluster's workers and scheduler.
        client: target and timeout of the client.
        settings: of Dask.
        saturation: of its scheduler.
        threads: of its workers.
    """
    found = SimpleNamespace(made=None, client=None, settings={}, saturation=1.0, threads={})

    class Cluster(contextlib.nullcontext):
        def __init__(self, workers: Any, scheduler: Any, **options: Any) -> None:
            super().__init__("a cluster")
            found.made = workers, scheduler

    class Client:
        def __init__(self, target: Any, timeout: float) -> None:
            found.client = target, timeout
            if target == "tcp://nowhere:1":
                raise OSError("timed out")

        def __enter__(self) -> "Client":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def run_on_scheduler(self, function: Any) -> float:
            return function(SimpleNamespace(WORKER_SATURATION=found.saturation))

        def nthreads(self) -> dict[str, int]:
            return found.threads

        def get_executor(self, **options: Any) -> Any:
            return options

    @contextlib.contextmanager
    def settings(given: dict[str, Any]) -> Iterator[None]:
        found.settings = given
        yield

    module = SimpleNamespace(
        SpecCluster=Cluster, Client=Client, Nanny="nanny", Scheduler="scheduler"
    )
    monkeypatch.setitem(sys.modules, "distributed", module)
    monkeypatch.setitem(sys.modules, "dask.config", SimpleNamespace(set=settings))
    return found


@pytest.mark.parametrize(
    ("visible", "number", "gpus"),
    [
        ("", 3, None),
        ("-1", 2, None),
        ("0, GPU-5,", 2, ["0", "GPU-5"]),
        ("0,2,-1", 1, ["0"]),
        ("0,2", 3, "a worker has a GPU of its own, and 2 are visible here"),
        ("", 0, "'local:0': needs a number of workers, at least 1"),
    ],
)
def test_workers_here_have_a_thread_and_a_gpu_each(
    dask: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    visible: str,
    number: int,
    gpus: list[str] | str | None,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if isinstance(gpus, str):
        with pytest.raises(ValueError, match=gpus), cluster.executor(f"local:{number}"):
            pass
        return
    said: list[str] = []
    with cluster.executor(f"local:{number}", report=said.append) as found:
        assert found == {"pure": False, "retries": 0}
    workers, scheduler = dask.made
    assert [*workers] == [*range(number)]
    for i, worker in workers.items():
        options = worker["options"]
        assert worker["cls"] == "nanny"
        assert options["env"] == ({"CUDA_VISIBLE_DEVICES": gpus[i]} if gpus else {})
        assert (options["nthreads"], options["memory_limit"]) == (1, 0)
        assert options["host"] == "127.0.0.1"
        assert options["preload"][0].endswith("signal.signal(signal.SIGINT, signal.SIG_IGN)")
    assert scheduler == {
        "cls": "scheduler",
        "options": {"host": "127.0.0.1", "dashboard": False},
    }
    assert dask.client == ("a cluster", 60)
    assert dask.settings["distributed.scheduler.worker-saturation"] == 1
    assert not any(dask.settings[name] for name in dask.settings if ".memory." in name)
    environment = dask.settings["distributed.nanny.pre-spawn-environ"]
    assert environment == {"EQX_ON_ERROR": "nan", "JAX_NUM_CPU_DEVICES": "1"}
    # The scheduler is ours, and its settings too.
    assert said == []


@pytest.mark.parametrize(
    ("saturation", "threads", "words"),
    [
        (1.0, {}, []),
        (1.0, {"a": 1, "b": 1}, []),
        (1.1, {"a": 1}, ["worker-saturation 1.1, so chunks queue"]),
        (1.0, {"a": 1, "b": 3}, ["up to 3 threads, of which only one is used"]),
    ],
)
def test_a_scheduler_of_others_is_looked_at(
    dask: SimpleNamespace, saturation: float, threads: dict[str, int], words: list[str]
) -> None:
    dask.saturation, dask.threads = saturation, threads
    said: list[str] = []
    with cluster.executor("tcp://there:8786", report=said.append):
        pass
    assert dask.client == ("tcp://there:8786", 60)
    assert len(said) == len(words)
    assert all(part in each for part, each in zip(words, said, strict=True))
    with (
        pytest.raises(ValueError, match=r"no scheduler answers there \(timed out\)"),
        cluster.executor("tcp://nowhere:1"),
    ):
        pass


@pytest.mark.parametrize(
    ("workers", "lasting"),
    [
        ({0: type("Nanny", (), {})()}, True),
        ({0: type("SLURMJob", (), {})()}, False),
        ({}, False),
        (["a worker"], False),
        (None, False),
    ],
    ids=["here", "jobs", "none", "others", "unknown"],
)
def test_workers_on_this_machine_are_started_again_however_often_they_die(
    workers: Any, lasting: bool
) -> None:
    """Also those of another's cluster. Batch systems have to submit jobs again."""
    config = pytest.importorskip("dask.config")
    pytest.importorskip("distributed")
    made = SimpleNamespace(_client=SimpleNamespace(cluster=SimpleNamespace(workers=workers)))
    name = "distributed.deploy.lost-worker-timeout"
    before = config.get(name)
    with cluster.lasting(made):  # pyright: ignore[reportArgumentType]
        assert (config.get(name) != before) is lasting
    assert config.get(name) == before


@pytest.mark.parametrize(
    ("missing", "where", "package"),
    [("distributed", "local:1", "distributed"), ("dask_jobqueue", "slurm", "dask-jobqueue")],
)
def test_a_missing_package_is_named(
    dask: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    missing: str,
    where: str,
    package: str,
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    config = tmp_path / "cluster.toml"
    config.write_text("jobs = 2")
    with (
        pytest.raises(ValueError, match=f"^dask: needs the package {package}; install"),
        cluster.executor(where, config if where == "slurm" else None),
    ):
        pass


@pytest.mark.parametrize(
    ("walltime", "seconds"),
    [("1-02:03:04", 93784), ("02:03:04", 7384), ("02:03", 7380), ("3-00:01", 259260)],
)
def test_walltimes_are_those_of_batch_systems(walltime: str, seconds: int) -> None:
    assert cluster.seconds(walltime) == seconds


def test_options_of_a_job_are_completed(tmp_path: Path) -> None:
    config = tmp_path / "cluster.toml"
    config.write_text(
        "[cluster]\nwalltime = '00:10:00'\nworker_extra_args = ['--name', 'x']\n"
        "job_script_prologue = ['module load x']\n"
    )
    jobs, options = cluster.options_of(config)
    # Nine tenths of 600 s, give or take a twentieth of that.
    lifetime = ["--lifetime", "540s", "--lifetime-stagger", "27s"]
    assert (jobs, options) == (
        1,
        {
            "cores": 1,
            "processes": 1,
            "walltime": "00:10:00",
            "worker_extra_args": [
                *("--name", "x", "--nthreads", "1", "--memory-limit", "0"),
                *lifetime,
            ],
            "job_script_prologue": [
                "export EQX_ON_ERROR=nan",
                "export JAX_NUM_CPU_DEVICES=1",
                "module load x",
            ],
        },
    )
    config.write_text("jobs = 0")
    with pytest.raises(ValueError, match="jobs = 0: must be an integer >= 1"):
        cluster.options_of(config)
