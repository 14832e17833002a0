"""Several processes, on one machine or many, that share the work and the store of a sweep.

Without a driver, processes divide the chunks by number and do not exchange results:
`jax.distributed` only gives each process its index, and lets accelerators of several hosts start
together. With a driver, they are Dask workers: on this machine, in the queue of a cluster, or
connected to a scheduler that is already running.
"""

import atexit
import contextlib
import dataclasses
import importlib
import inspect
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Annotated, Any

import jax

from dynsim import checks
from dynsim.decoding import Form
from sweeps import output
from sweeps.language.tree import check_fields
from sweeps.lines import read_toml, unstopped
from sweeps.runner.progress import in_thread
from sweeps.systems.experiment import Experiment

HEARTBEAT = 30
"""Seconds after which a process that died may restart and rejoin."""
ABORT_AFTER = 60
"""Additional seconds for JAX's own timeout, which must come long after ours."""
QUEUES = {name.lower(): name for name in ("SLURM", "PBS", "SGE", "LSF", "OAR", "Moab", "HTCondor")}
"""Batch systems that dask-jobqueue supports, with its spelling."""
_WHERE = Form(
    rf".*://.*|local:.+|{'|'.join(QUEUES)}",
    "the address of a scheduler (tcp://HOST:8786), local:N for N workers here, or one of "
    + ", ".join(QUEUES),
)
Where = Annotated[str, _WHERE]
"""The scheduler or workers of Dask to use."""
ENVIRONMENT = {"EQX_ON_ERROR": "nan", "JAX_NUM_CPU_DEVICES": "1"}
"""Environment of workers, set before they import JAX, as on the command line. A worker has one
thread, which a single CPU device keeps busy."""
SETTINGS = {
    # An idle worker gets one chunk at a time. A prefetched chunk would wait behind another one
    # while a faster worker is idle.
    "distributed.scheduler.worker-saturation": 1.0,
    # A worker that is silent for this long counts as dead. Compiling may keep it silent.
    "distributed.scheduler.worker-ttl": "1 hour",
    # Number of workers that may die with a chunk in their queue. One that dies over a chunk counts
    # against that chunk alone, see `sweeps.runner.driver`.
    "distributed.scheduler.allowed-failures": 3,
    # JAX manages memory itself; its arrays look like a leak to Dask's nannies.
    "distributed.worker.memory.terminate": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.target": False,
    "distributed.nanny.pre-spawn-environ": ENVIRONMENT,
}
NOT_OPTIONS = {"self", "args", "kwargs", "job_kwargs", "base_class_kwargs", "scheduler", "job_cls"}
QUIET = ("distributed.client", "distributed.scheduler")
"""Loggers of Dask in the driver whose messages are not shown."""
WAIT = 60
"""Seconds to wait for a scheduler to answer."""
CLOSING = 10
"""Maximum seconds to wait for workers to end, which some never do."""
LIFETIME = 0.9
"""Fraction of its walltime after which a worker in a batch queue ends by itself between two chunks,
so that no chunk is cut off."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hosts:
    """How to find the other processes; by default there are none.

    Attributes:
        distributed: let jax.distributed detect the cluster (Slurm, Open MPI, TPU pods).
        coordinator: host:port on which process 0 listens, if jax.distributed cannot detect the
            cluster. Processes with a given number do not need jax.distributed.
        processes: number of processes.
        process: index of this process, from 0.
        patience: seconds to wait for the other processes.
    """

    distributed: bool = False
    coordinator: str | None = None
    processes: int | None = None
    process: int | None = None
    patience: int = 300

    def connect(self) -> tuple[int, int]:
        """Connect, and return the index of this process and the number of processes. Call it before
        JAX runs anything. Raises `ValueError` if the numbers are incomplete or inconsistent, or no
        other process is found."""
        if (self.processes is None) != (self.process is None) and not self.distributed:
            raise ValueError(
                f"processes = {self.processes}, process = {self.process}: set both, or distributed"
            )
        if self.processes is not None:
            checks.integer("processes", self.processes, 1)
        if self.process is not None:
            checks.integer("process", self.process, 0)
            if self.processes is not None and self.process >= self.processes:
                raise ValueError(
                    f"process = {self.process}: must be below processes = {self.processes}"
                )
        if self.coordinator is None and not self.distributed:
            if self.process is None or self.processes is None:
                return 0, 1
            return self.process, self.processes
        checks.integer("patience", self.patience, 1)
        # A process that died must not end the others, which have chunks of their own.
        jax.config.update("jax_enable_recoverability", True)
        connection: Future[None] = Future()

        def initialize() -> None:
            try:
                jax.distributed.initialize(
                    self.coordinator,
                    self.processes,
                    self.process,
                    # At its own timeout JAX aborts the process with a C++ traceback.
                    initialization_timeout=2 * self.patience + ABORT_AFTER,
                    heartbeat_timeout_seconds=HEARTBEAT,
                )
                connection.set_result(None)
            except Exception as error:
                connection.set_exception(error)

        threading.Thread(target=initialize, daemon=True, name="dynsim-connect").start()
        try:
            connection.result(self.patience)
        except TimeoutError:
            # The thread is still connecting, and prints a traceback when Python exits.
            atexit.register(_exit_at_once)
            where = self.coordinator or "the cluster"
            raise ValueError(
                f"distributed: the processes did not find each other at {where} within patience = "
                f"{self.patience} s"
            ) from None
        except (ValueError, RuntimeError) as error:
            raise ValueError(
                f"distributed: the processes did not find each other ({error})"
            ) from None
        return jax.process_index(), jax.process_count()


def _exit_at_once() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(2)


def use_all_cores() -> None:
    """Make one CPU device per core, unless the user has chosen a number: a single run is too small
    to keep several cores busy. Call it before JAX runs anything."""
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    # JAX defines its options at import, where type checkers cannot see them.
    if jax.config.jax_num_cpu_devices == -1:  # pyright: ignore[reportAttributeAccessIssue]
        with contextlib.suppress(RuntimeError):  # JAX is running, so the number is fixed
            # Batch systems limit the cores of a process, which not every platform reports.
            reports = hasattr(os, "sched_getaffinity")
            cores = len(os.sched_getaffinity(0)) if reports else os.cpu_count()
            jax.config.update("jax_num_cpu_devices", cores or 1)


@contextlib.contextmanager
def executor(
    where: str, config: Path | None = None, report: Callable[[str], None] = print
) -> Iterator[Executor]:
    """Yield an executor of Dask workers: behind the scheduler at an address, "local:4" for four
    workers on this machine, each with its own GPU if there are any, or in the queue of a batch
    system as configured by a TOML file. Raises `ValueError` for invalid settings, if Dask is not
    installed, or if no scheduler answers at the address."""
    kind, _, number = where.partition(":")
    if not re.fullmatch(_WHERE.pattern, where):
        raise ValueError(f"dask = {where!r}: must be {_WHERE.text}")
    is_queue = where in QUEUES
    if is_queue != (config is not None):
        need = "needs config, a TOML file" if is_queue else "reads no config"
        raise ValueError(f"dask = {where!r}: {need}")
    distributed, settings = _imported("distributed"), _imported("dask.config")
    for name in QUIET:
        # The driver raises its own error for the failures that they log.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with settings.set(SETTINGS), contextlib.ExitStack() as end:
        stack = contextlib.ExitStack()
        end.callback(lambda: in_thread(stack.close).wait(CLOSING))
        if kind == "local":
            target = stack.enter_context(_local(number, distributed))
        elif config is not None:
            target = stack.enter_context(_queued(kind, config, report))
        else:
            target = where
        try:
            # Not the default of this process, whose other work with Dask would end with this block.
            client = distributed.Client(target, timeout=WAIT, set_as_default=False)
            stack.enter_context(client)
        except (OSError, ValueError) as error:
            raise ValueError(f"dask = {where!r}: no scheduler answers there ({error})") from None
        if target is where:
            # A scheduler of the user has settings of its own, which may make sweeps slower. The
            # lambda is sent by value, so dynsim need not be installed there.
            saturation = client.run_on_scheduler(
                lambda dask_scheduler: dask_scheduler.WORKER_SATURATION
            )
            if saturation != 1.0:
                report(
                    f"dask: its scheduler has worker-saturation {saturation}, so chunks queue "
                    "behind others; start it with "
                    "DASK_DISTRIBUTED__SCHEDULER__WORKER_SATURATION=1.0"
                )
            if (threads := max(client.nthreads().values(), default=1)) > 1:
                report(
                    f"dask: its workers have up to {threads} threads, of which only one is used; "
                    "start them with --nthreads 1"
                )
        yield client.get_executor(pure=False, retries=0)


@contextlib.contextmanager
def _local(number: str, distributed: Any) -> Iterator[Any]:
    if not number.isdecimal() or int(number) < 1:
        raise ValueError(f"dask = 'local:{number}': needs a number of workers, at least 1")
    # NVIDIA GPUs, in the form that CUDA_VISIBLE_DEVICES uses.
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        numbers = (path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
        gpus = sorted((number for number in numbers if number.isdecimal()), key=int)
    else:
        names = map(str.strip, visible.split(","))
        gpus = [name for name in names if name not in ("", "-1")]
    if gpus and int(number) > len(gpus):
        raise ValueError(
            f"dask = 'local:{number}': a worker has a GPU of its own, and {len(gpus)} are visible "
            "here; CUDA_VISIBLE_DEVICES= in the environment makes workers use the CPU"
        )
    options = {
        # Ctrl-C reaches all processes of a terminal; only the driver should handle it.
        "preload": ["import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"],
        "nthreads": 1,
        "memory_limit": 0,
        "host": "127.0.0.1",
        "silence_logs": logging.CRITICAL,
    }
    environments = [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus] or [{}] * int(number)
    workers = {
        i: {"cls": distributed.Nanny, "options": {**options, "env": environments[i]}}
        for i in range(int(number))
    }
    scheduler = {"cls": distributed.Scheduler, "options": {"host": "127.0.0.1", "dashboard": False}}
    with distributed.SpecCluster(workers, scheduler, silence_logs=logging.CRITICAL) as cluster:
        yield cluster


@contextlib.contextmanager
def _queued(kind: str, config: Path, report: Callable[[str], None]) -> Iterator[Any]:
    jobs, options = options_of(config)
    # Its import installs a Ctrl-C handler that would end an interrupted sweep with exit status 0.
    with unstopped():
        queues = _imported("dask_jobqueue")
    cluster_class = getattr(queues, f"{QUEUES[kind]}Cluster")
    # Invalid options are checked first: a half-built cluster raises again when it is collected.
    classes = cluster_class.job_cls.__mro__
    inits = [vars(c)["__init__"] for c in classes if "__init__" in vars(c)]
    signatures = map(inspect.signature, (cluster_class, *inits))
    known = {name for signature in signatures for name in signature.parameters}
    for name in options:
        checks.choice(f"config = {config}: cluster", name, sorted(known - NOT_OPTIONS))
    try:
        cluster = cluster_class(**options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"config = {config}: {error}") from None
    with cluster:
        report(f"each of {jobs} jobs is:\n{cluster.job_script()}")
        # Unlike `scale`, `adapt` replaces jobs that have ended.
        cluster.adapt(minimum_jobs=jobs, maximum_jobs=jobs, interval="10s")
        yield cluster


def options_of(config: Path) -> tuple[int, dict[str, Any]]:
    """Read the number of jobs, each of one worker, and the options of dask-jobqueue's class from
    `jobs` and `cluster` in a TOML file. Adds the options that sweeps require."""
    checks.regular("config", config)
    try:
        table = read_toml(config)
    except (OSError, ValueError) as error:
        raise ValueError(f"config = {config}: not readable as TOML ({error})") from None
    for name in table:
        checks.choice(f"config = {config}: key", name, ("jobs", "cluster"))
    jobs = checks.integer(f"config = {config}: jobs", table.get("jobs", 1), 1)
    options = table.get("cluster", {})
    if not isinstance(options, Mapping):
        raise ValueError(f"config = {config}: cluster must be a table")
    for name in ("processes", "nanny"):
        if name in options:
            raise ValueError(
                f"config = {config}: cluster.{name}: a job is one worker; leave it out"
            )
    extra = ["--nthreads", "1", "--memory-limit", "0"]
    if "walltime" in options:
        lifetime = int(LIFETIME * seconds_of(options["walltime"]))
        extra += ["--lifetime", f"{lifetime}s", "--lifetime-stagger", f"{lifetime // 20}s"]
    exports = [f"export {name}={value}" for name, value in ENVIRONMENT.items()]
    return jobs, {
        "cores": 1,
        **options,
        "processes": 1,
        "worker_extra_args": [*options.get("worker_extra_args", ()), *extra],
        "job_script_prologue": [*exports, *options.get("job_script_prologue", ())],
    }


def seconds_of(walltime: object) -> int:
    """Convert a walltime as batch systems write it, [D-]HH:MM:SS or [D-]HH:MM, to seconds."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d)(?::(\d\d))?", str(walltime))
    if match is None:
        raise ValueError(f"walltime = {walltime!r}: must be [D-]HH:MM:SS")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def keep_restarting(executor: Executor) -> contextlib.AbstractContextManager[object]:
    """Context in which Dask's workers on this machine are restarted however often they die."""
    if not _nannies(executor):
        return contextlib.nullcontext()
    # Some time after a death, Dask stops the restart of a worker that is not back, and a sweep may
    # then wait for workers for ever.
    return _imported("dask.config").set({"distributed.deploy.lost-worker-timeout": "1000 days"})


def are_lost(executor: Executor) -> bool:
    """Return whether Dask has given up all workers on this machine, as it does with one that
    cannot be started again. Its scheduler would wait for others for ever."""
    nannies = _nannies(executor)
    return bool(nannies) and all(n.status.name in ("closed", "failed") for n in nannies)


def _nannies(executor: Executor) -> list[Any]:
    """Return Dask's supervisors of workers on this machine."""
    # An executor has no public reference to its client.
    workers = getattr(getattr(getattr(executor, "_client", None), "cluster", None), "workers", None)
    workers = workers.values() if isinstance(workers, Mapping) else ()
    return [worker for worker in workers if type(worker).__name__ == "Nanny"]


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.split(".")[0].replace("_", "-")
        raise ValueError(f'dask: needs the package {package}; install "dynsim[dask]"') from None


def begin(settings: Any) -> None:
    """Check settings, a frozen dataclass, against their annotations, and `out`; then use all cores.

    Raises:
        ValueError: naming the setting, its value and what is allowed.
    """
    check_fields(settings)
    if hasattr(settings, "run"):
        checks.kind("run", settings.run, Experiment)
    output.check_directory(settings.out)
    use_all_cores()
