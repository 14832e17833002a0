"""What a worker of an executor does for a sweep: create its store, and compute chunks.

A worker receives the address of the store and the number of a chunk, computes and writes the chunk
itself, and returns a few bytes. It keeps its compiled programs from one chunk to the next.

A worker marks a chunk in the store while it computes it. So a mark that remains shows over which
chunk a worker died, whatever the executor reports, and however many chunks were queued behind it.
"""

import collections
import functools
import json
import os
import pickle
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from dynsim import Status, checks
from dynsim.precision import check_process, precision
from sweeps import output
from sweeps.language.describe import called
from sweeps.runner import tiles
from sweeps.runner.agreement import ProgramCheck
from sweeps.runner.config import config_of, create, from_config
from sweeps.runner.spec import Sweep
from sweeps.runner.store import StoreError
from sweeps.runner.store.manifest import fingerprint
from sweeps.runner.store.storage import Storage, as_storage
from sweeps.runner.store.store import Store
from sweeps.runner.work import Work

MAX_PAUSE = 30.0
"""Maximum seconds that a failing worker pauses after each failure, so that others take over."""
MARK = ".tried"
"""Ending of the file that marks a chunk while a worker computes it."""
_BUSY = threading.Lock()
"""Held while a chunk is computed, as the threads of a worker share its devices."""
_FAILURES: collections.Counter[str] = collections.Counter()
"""Number of consecutive failures of a worker, by name: a forked process inherits this counter."""
P = ParamSpec("P")
AnswerT = TypeVar("AnswerT")


class SweepJob(NamedTuple):
    """The settings that all chunks of a sweep share.

    Attributes:
        address: address of the store, which workers and driver can all reach.
        digest: hash of the sweep's configuration, with which a worker checks that it opened the
            same store.
        tile: largest number of runs that a device computes at once; by default chosen as in
            `sweeps.run`, for the devices of the worker.
        durable: whether a chunk must survive a power failure before it counts.
        strict: whether to raise an error for chunks of other versions.
        sweep: the pickled sweep if its configuration cannot rebuild it, as with functions and
            problems passed as objects.
        store: id of the store, once it exists.
        fence: token that a worker uses to check that the driver still holds the lock.
        main: name of the module that runs as a script on the driver, by which the classes in it
            are known.
        attempt: different for each submitted call, as some executors repeat calls, and others
            answer equal calls once.
    """

    address: str
    digest: str
    tile: int | None
    durable: bool = False
    strict: bool = False
    sweep: bytes | None = None
    store: str | None = None
    fence: str = ""
    main: str = ""
    attempt: str = ""

    def rebuild(self, config: Mapping[str, Any]) -> Sweep:
        """Rebuild the sweep from its configuration or its pickled form."""
        return from_config(config) if self.sweep is None else pickle.loads(self.sweep)

    def storage(self) -> Storage:
        """Return the place of the store."""
        where = as_storage(self.address)
        where.durable |= self.durable
        return where


class Done(NamedTuple):
    """A stored chunk, with its number of runs and how many diverged."""

    worker: str
    runs: int
    diverged: int


class Failed(NamedTuple):
    """A chunk that failed, and why."""

    worker: str
    reason: str


class Died(NamedTuple):
    """A chunk whose worker died: over this chunk if it had `begun`, else perhaps over another."""

    begun: bool


def worker_name() -> str:
    """Return the name of this worker, from its host and process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _errors_as_text(
    call: Callable[Concatenate[SweepJob, P], AnswerT],
) -> Callable[Concatenate[SweepJob, P], AnswerT | Failed]:
    """Let a call of the driver return `Failed` with its error as text: not all can be pickled."""

    @functools.wraps(call)
    def answer(job: SweepJob, *args: P.args, **kwargs: P.kwargs) -> AnswerT | Failed:
        try:
            # A fork does not release locks either.
            check_process()
            with _BUSY, called(job.main), checks.callbacks_of_user():
                result = call(job, *args, **kwargs)
        # A package may raise SystemExit, which must not end the worker.
        except (Exception, SystemExit) as error:
            time.sleep(min(0.1 * 2 ** _FAILURES[worker_name()], MAX_PAUSE))
            _FAILURES[worker_name()] += 1
            line = checks.line_of_user(error)
            reason = f"{type(error).__name__}: {error}{line and f' ({line})'}"
            return Failed(worker_name(), reason)
        del _FAILURES[worker_name()]
        return result

    return answer


@_errors_as_text
def create_store(job: SweepJob, config: str, chunk: int | None) -> str:
    """Create the store of a job, with at most `chunk` runs in a chunk, by default a tile for each
    of the worker's devices. `config` is the sweep's configuration as JSON. Returns a readable
    plan."""
    sweep = job.rebuild(json.loads(config))
    with precision(sweep.dtype):
        mesh = tiles.mesh(None, sweep.dtype)
        work = Work(sweep, mesh, chunk=chunk, tile=job.tile, chunk_tiles=mesh.size)
        create(job.storage(), sweep, work.plan.layout, work.variables())
    return str(work.plan)


@_errors_as_text
def compute(job: SweepJob, number: int) -> Done | Died:
    """Compute and store chunk `number` of a job."""
    began = time.perf_counter()
    # The same for all chunks, so that the store and the programs are cached.
    shared = job._replace(attempt="")
    store = _open_store(shared)
    store.check()
    mark = f"{store.storage.records}/{number}.{job.attempt}{MARK}"
    # A bucket takes equal contents for one's own; hosts and processes may have equal names.
    if not store.storage.put(mark, uuid.uuid4().bytes):
        # The executor has repeated the call of a worker that died.
        return Died(begun=True)
    try:
        work, program_check = _open_work(shared)
        region = store.layout.region(number)
        chosen = work.sweep.static_values(region)
        with precision(work.sweep.dtype):
            program = program_check.program(chosen)
            arrays = work.compute(region, store.variables)
        # The driver may have detected in the meantime that this code differs.
        program_check.confirm(chosen)
        store.write(region, arrays, time.perf_counter() - began, program)
    finally:
        store.storage.remove(mark)
    codes = arrays["status"]
    return Done(worker_name(), codes.size, int((codes != Status.OK).sum()))


@functools.lru_cache(maxsize=2)
def _open_store(job: SweepJob) -> Store:
    # The driver reports about the store.
    store = Store.open(job.storage(), report=lambda line: None)
    # Checked before importing anything that a configuration names.
    if store.id != job.store or store.fingerprint != job.digest:
        raise StoreError(f"{job.address}: contains another sweep here than on the driver")
    store.check_lock = store.storage.watch(job.fence)
    return store


@functools.lru_cache(maxsize=2)
def _open_work(job: SweepJob) -> tuple[Work, ProgramCheck]:
    store = _open_store(job)
    sweep = job.rebuild(store.config)
    if fingerprint(config_of(sweep)) != job.digest:
        raise StoreError(f"{job.address}: this worker builds another sweep from it than the driver")
    with precision(sweep.dtype):
        mesh = tiles.mesh(None, sweep.dtype)
        work = Work(sweep, mesh, layout=store.layout, tile=job.tile)
        environment = {**output.environment(), **work.identity.parts()}
        store.set_environment(environment, job.strict)
        return work, ProgramCheck(store, work.identity, mesh, environment, alone=False)
