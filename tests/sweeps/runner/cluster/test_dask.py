"""How processes find each other, and workers of Dask: what they are told, and what becomes of a
sweep where they are killed, hang, or run code that does."""

import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import dynsim
import sweeps
from sweeps import Experiment, Sweep
from sweeps.lines import unstopped
from sweeps.runner import cluster
from sweeps.runner.cluster import Hosts
from sweeps.runner.store.store import Store
from tests.sweeps.runner.curves import Curve
from tests.sweeps.runner.processes import ROOT, started

# Another process of this machine may have the port of the dashboard.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*Port 8787 is already in use"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

FAULTS = (
    "sweeps/runner/cluster/test_driver.py::test_what_fails_is_named_and_everything_else_is_computed"
)


@pytest.fixture
def queues() -> Any:
    """dask-jobqueue, without the handler of Ctrl-C that it sets when it is imported."""
    with unstopped():
        return pytest.importorskip("dask_jobqueue")


@pytest.fixture(autouse=True)
def one_compilation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers share what they compile, and find the problem."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_processes_that_do_not_find_each_other_are_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In time, whatever JAX does, which would abort the process later."""
    over, asked, left = threading.Event(), [], []

    def never(*given: Any, **options: Any) -> None:
        asked.append((given, options))
        over.wait()

    monkeypatch.setattr(jax.distributed, "initialize", never)
    monkeypatch.setattr("atexit.register", left.append)
    before = jax.config.values["jax_enable_recoverability"]
    try:
        with pytest.raises(ValueError, match=r"at host0:1234 .* patience = 1 s"):
            Hosts(coordinator="host0:1234", processes=2, process=1, patience=1).connect()
        assert jax.config.values["jax_enable_recoverability"]
    finally:
        over.set()
        jax.config.update("jax_enable_recoverability", before)
    ((given, options),) = asked
    assert given == ("host0:1234", 2, 1)
    assert options["initialization_timeout"] > 2
    (leave,) = left
    monkeypatch.setattr(os, "_exit", left.append)
    leave()
    assert left == [leave, 2]


@pytest.mark.more
def test_processes_find_each_other_before_jax_is_used(tmp_path: Path) -> None:
    """Which it would refuse afterwards; in a process of its own, as this one has used it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "s.toml").write_text(
        "axes.eta_y = [1]\nrun = {problem = 'yz', steps = 1, batch = 1}\n"
    )
    words = ("-m", "dynsim", "sweep", "s.toml", "--out", "s", "--processes", "1", "--process", "0")
    with started(tmp_path, *words, "--coordinator", f"127.0.0.1:{port}") as process:
        _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert Store.open(tmp_path / "s").done().all()


def test_processes_with_numbers_need_nothing_else() -> None:
    assert Hosts().connect() == (0, 1)
    for number in (0, 2):
        assert Hosts(processes=3, process=number).connect() == (number, 3)


def test_there_is_a_device_for_each_core_unless_a_number_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    for flags, chosen, cores, made in (
        ("", -1, 3, 3),
        ("--xla_other=1", -1, 1, 1),
        ("--xla_force_host_platform_device_count=2", -1, 3, None),
        ("", 4, 3, None),
        # A platform that does not say how many cores a process has.
        ("", -1, None, 5),
    ):
        options: dict[str, int] = {}
        config = SimpleNamespace(jax_num_cpu_devices=chosen, update=options.__setitem__)
        monkeypatch.setattr(cluster, "jax", SimpleNamespace(config=config))
        monkeypatch.setenv("XLA_FLAGS", flags)
        if cores is None:
            monkeypatch.delattr(os, "sched_getaffinity", raising=False)
        else:
            own = {*range(cores)}
            monkeypatch.setattr(os, "sched_getaffinity", lambda _, own=own: own, raising=False)
        cluster.use_all_cores()
        assert options == ({} if made is None else {"jax_num_cpu_devices": made})


def told(worker: Any = None) -> dict[str, Any]:
    """What a worker of Dask knows of itself."""
    names = ("CUDA_VISIBLE_DEVICES", "EQX_ON_ERROR", "JAX_NUM_CPU_DEVICES")
    deaf = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return {name: os.environ.get(name) for name in names} | {"deaf": deaf, "pid": os.getpid()}


def test_workers_here_have_a_thread_and_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real ones, of which none starts JAX."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0, GPU-5,")
    said: list[str] = []
    with cluster.executor("local:2", report=said.append) as executor:
        client: Any = executor._client  # type: ignore  # it has no public reference
        found = client.run(told)
        assert {each["CUDA_VISIBLE_DEVICES"] for each in found.values()} == {"0", "GPU-5"}
        for each in found.values():
            assert each["deaf"]
            assert (each["EQX_ON_ERROR"], each["JAX_NUM_CPU_DEVICES"]) == ("nan", "1")
            assert each["pid"] != os.getpid()
        assert {*client.nthreads().values()} == {1}
        saturation = client.run_on_scheduler(
            lambda dask_scheduler: dask_scheduler.WORKER_SATURATION
        )
        assert saturation == 1
        assert executor.submit(os.getpid).result() in {each["pid"] for each in found.values()}
        with cluster.keep_restarting(executor):
            import dask

            assert dask.config.get("distributed.deploy.lost-worker-timeout") == "1000 days"
        # The scheduler is ours, and its settings too.
        assert said == []
        with cluster.executor(client.scheduler.address, report=said.append) as another:
            assert another.submit(max, 1, 2).result() == 2
        assert said == []
    with (
        distributed.LocalCluster(
            1, threads_per_worker=3, processes=False, dashboard_address=None
        ) as own,
        cluster.executor(own.scheduler_address, report=said.append),
    ):
        pass
    assert any("up to 3 threads" in line for line in said)
    # Other work of this process with Dask has no client that is closed.
    with pytest.raises(ValueError, match="No global client"):
        distributed.get_client()


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
    """At nine tenths of the 26 hours, give or take a twentieth of that."""
    config = tmp_path / "cluster.toml"
    config.write_text(
        "jobs = 16\n[cluster]\nqueue = 'gpu'\nwalltime = '1-02:00:00'\nmemory = '32GB'\n"
        "job_cpu = 8\njob_extra_directives = ['--gres=gpu:1']\n"
        "worker_extra_args = ['--name', 'x']\njob_script_prologue = ['module load x']\n"
    )
    jobs_wanted, options = cluster.options_of(config)
    assert (jobs_wanted, options["cores"], options["processes"]) == (16, 1, 1)
    with queues.SLURMCluster(**options) as made:
        script = made.job_script()
    for line in ("#SBATCH -p gpu", "#SBATCH --gres=gpu:1", "#SBATCH --cpus-per-task=8"):
        assert line in script
    for line in ("export EQX_ON_ERROR=nan", "export JAX_NUM_CPU_DEVICES=1", "module load x"):
        assert line in script
    (command,) = (line for line in script.splitlines() if "distributed.cli.dask_worker" in line)
    assert "--nworkers 1" in command or "--nworkers" not in command
    assert command.split("--nthreads ")[-1].startswith("1 ")
    assert command.split("--memory-limit ")[-1].startswith("0 ")
    assert "--name x" in command
    assert "--lifetime 84240s --lifetime-stagger 4212s" in command
    config.write_text("")
    assert cluster.options_of(config)[0] == 1


def test_walltimes_are_those_of_batch_systems() -> None:
    for walltime, seconds in (
        ("1-02:03:04", 93784),
        ("02:03:04", 7384),
        ("02:03", 7380),
        ("3-00:01", 259260),
    ):
        assert cluster.seconds_of(walltime) == seconds


# Processes that import JAX; of Dask they are in the tests below.
@pytest.mark.full(FAULTS)
@pytest.mark.parametrize("kind", ["processes", "loky"])
def test_workers_of_other_processes_compute_the_same(kind: str, tmp_path: Path) -> None:
    if kind == "loky":
        executor: Executor = pytest.importorskip("loky").ProcessPoolExecutor(2)
    else:
        executor = ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))
    rates = {"eta": {"linspace": [0.1, 0.4, 8]}, "seed": {"range": 2}}
    sweep = Sweep(Experiment(Curve(), dynsim.sgd(0.1), 4, 4), rates, record=("w",))
    with executor:
        found = sweeps.run(sweep, tmp_path / "s", executor=executor, chunk=2, tile=2).load()
    whole = sweeps.run(sweep, chunk=2, tile=2).load()
    for name in whole.variables:
        # The same programs in the same batches: equal to the last bit.
        np.testing.assert_array_equal(found[name], whole[name])


LETHAL = """
import ctypes, os, signal
import jax, jax.numpy as jnp, numpy as np
from tests.sweeps.runner.curves import Curve

def called(scale):
    if scale > 50:
        print("called", scale, flush=True)
        {end}
    return np.float32(0)

class Lethal(Curve):
    '''Its loss calls Python, which ends the process where `scale` is large.'''
    scale: float = 1.0

    def loss(self, params, data):
        like = jax.ShapeDtypeStruct((), jnp.float32)
        found = jax.pure_callback(called, like, jnp.float32(self.scale), vmap_method="sequential")
        return super().loss(params, data) + found
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


def begun(
    folder: Path, end: str, **variables: str
) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    """Start the sweep on workers of Dask, where code of a user ends its process by `end`."""
    (folder / "lethal.py").write_text(LETHAL.format(end=end))
    (folder / "s.toml").write_text(FILE)
    words = ("-m", "dynsim", "sweep", "s.toml", "--out", "s", "--chunk", "1", "--tile", "1")
    return started(folder, *words, "--dask", "local:2", **variables)


# Each death costs a start of a process that imports JAX.
@pytest.mark.full(FAULTS)
@pytest.mark.parametrize(
    "end",
    ["os._exit(1)", "ctypes.string_at(0)", "os.kill(os.getpid(), signal.SIGKILL)"],
    ids=["exit", "segmentation fault", "killed"],
)
def test_a_chunk_that_kills_its_workers_is_named_each_time(end: str, tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    for _ in range(2):
        with begun(tmp_path, end) as process:
            output, errors = process.communicate()
        assert process.returncode == 1
        assert errors.splitlines()[-1] == "  chunk 3 (scale 3:4): its worker died 3 times"
        assert output.count("called") == 3
        done = Store.open(tmp_path / "s").done()
        assert done.tolist() == [True, True, True, False, True, True]


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
SLEEP = "__import__('time').sleep(10000)"


# Processes that import JAX.
@pytest.mark.full("sweeps/runner/test_progress.py::test_what_never_ends_is_waited_for_a_while")
@pytest.mark.parametrize(
    ("setup", "teardown", "end", "seen"),
    [
        ("wait('creating')", "pass", "pass", "creating"),
        ("pass", "wait('closing')", "pass", "closing"),
        ("pass", "wait('closing')", SLEEP, "called"),
    ],
    ids=["creating", "closing", "computing and closing"],
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_ends_a_driver_whatever_it_waits_for(
    setup: str, teardown: str, end: str, seen: str, number: signal.Signals, tmp_path: Path
) -> None:
    pytest.importorskip("distributed")
    (tmp_path / "hanging.py").write_text(HANGING.format(setup=setup, teardown=teardown))
    preload = {"DASK_DISTRIBUTED__NANNY__PRELOAD": str(tmp_path / "hanging.py")}
    with begun(tmp_path, end, **preload) as process:
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith(seen):
            assert line, "it has ended"
        process.send_signal(number)
        _, errors = process.communicate()
    assert process.returncode == 128 + number, errors
    assert "stopped" in errors
    assert "Traceback" not in errors
