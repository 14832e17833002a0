"""Distributes the chunks of a sweep to the workers of any executor.

A worker receives the address of the store and the number of a chunk, computes and writes the chunk
itself, and returns a few bytes. It keeps its compiled programs from one chunk to the next. Chunks
are disjoint and their records are written last and only once, so computing one twice does no harm,
and a worker that dies loses only its current chunk. The driver trusts the contents of the store,
not the answers of workers.

A worker marks a chunk in the store while it computes it. So a mark that remains shows over which
chunk a worker died, whatever the executor reports, and however many chunks were queued behind it.
"""

import collections
import contextlib
import functools
import itertools
import json
import os
import pickle
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    wait,
)
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dynsim import Status, checks
from dynsim.precision import check_process, precision
from sweeps import output
from sweeps.language.describe import called, main_name
from sweeps.lines import printable
from sweeps.runner import tiles
from sweeps.runner.agreement import Agreement, OtherProgramError
from sweeps.runner.cluster import are_lost, lasting
from sweeps.runner.config import config_of, from_config
from sweeps.runner.program.identity import Identity
from sweeps.runner.progress import POLL, RESUME, Interrupted, begun, count, shown, stoppable
from sweeps.runner.run import create
from sweeps.runner.spec import Sweep
from sweeps.runner.store import Report, StoreError
from sweeps.runner.store.manifest import fingerprint
from sweeps.runner.store.place import Place, place
from sweeps.runner.store.reuse import Reused, take_over
from sweeps.runner.store.store import Store
from sweeps.runner.work import Work

TRIES = 3
"""Number of failures after which a chunk is given up."""
MOST_AT_ONCE = 1024
"""Maximum number of submitted chunks: more than an executor has workers, and few enough to cancel
quickly when the user stops."""
MOST_NAMED = 10
"""Maximum number of chunks that an error lists individually."""
LONGEST = 30.0
"""Maximum seconds that a failing worker pauses after each failure, so that others take over."""
CANCELLING = 10.0
"""Maximum seconds to wait until calls are cancelled, after the user stops."""
MARK = ".tried"
"""Ending of the file that marks a chunk while a worker computes it."""
_BUSY = threading.Lock()
"""Held while a chunk is computed, as the threads of a worker share its devices."""
_FAILED: collections.Counter[str] = collections.Counter()
"""Number of consecutive failures of a worker."""
Answer = TypeVar("Answer")


class ChunksFailed(RuntimeError):  # noqa: N818  (a result: most chunks are there)
    """Chunks that no worker could compute; all others are stored.

    Attributes:
        reasons: the last failure of each chunk, by chunk number.

    Example:
        >>> try:
        ...     raise sweeps.ChunksFailed("1 of 4 chunks failed", {3: "the worker was killed"})
        ... except sweeps.ChunksFailed as error:
        ...     print(error.reasons)
        ...
        {3: 'the worker was killed'}
    """

    def __init__(self, message: str, reasons: dict[int, str]) -> None:
        super().__init__(message)
        self.reasons = reasons


class Job(NamedTuple):
    """The settings that all chunks of a sweep share.

    Attributes:
        address: address of the store, which workers and driver can all reach.
        digest: hash of the sweep's configuration, with which a worker checks that it has found the
            same store.
        tile: largest number of runs that a device computes at once; by default chosen as in
            `sweeps.run`, for the devices of the worker.
        durable: whether a chunk must survive a power failure before it counts.
        strict: whether to raise an error for chunks of other versions.
        sweep: the pickled sweep if its configuration cannot rebuild it, as with functions and
            problems passed as objects.
        store: id of the store, once it has been made.
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

    def made(self, config: Mapping[str, Any]) -> Sweep:
        """Rebuild the sweep from its configuration or its pickled form."""
        return from_config(config) if self.sweep is None else pickle.loads(self.sweep)

    def place(self) -> Place:
        """Return the place of the store."""
        found = place(self.address)
        found.durable |= self.durable
        return found


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


class _BrokenError(StoreError):
    """An executor that accepts no more work."""


def job(identity: Identity, where: Place, tile: int | None, strict: bool = False) -> Job:
    """Return the job of a sweep. It includes the pickled sweep if workers cannot rebuild it from
    JSON; raises `ValueError` if it cannot be pickled either."""
    sweep = identity.sweep
    assert where.address is not None
    config = config_of(sweep)
    digest = fingerprint(config)
    found = Job(where.address, digest, tile, where.durable, strict, main=main_name())
    try:
        same = fingerprint(config_of(from_config(json.loads(json.dumps(config))))) == digest
    except (TypeError, ValueError):
        same = False
    # Not every worker can import the module that runs as a script.
    if same and "__main__" not in identity.outside:
        return found
    try:
        # Comes with Dask; pickles classes and functions of a notebook by value.
        from cloudpickle import dumps
    except ImportError:
        dumps = pickle.dumps
    try:
        sent = dumps(sweep)
        # Some functions, such as compiled ones, lose their names.
        if fingerprint(config_of(pickle.loads(sent))) != digest:
            raise ValueError("it changes when it is pickled")
    except (TypeError, ValueError, AttributeError, pickle.PicklingError) as error:
        if same:
            return found
        raise ValueError(f"executor: its workers cannot be sent this sweep ({error})") from None
    return found._replace(sweep=sent)


def make_store(
    executor: Executor,
    job: Job,
    sweep: Sweep,
    where: Place,
    chunk: int | None,
    report: Report | None,
) -> Store:
    """Let a worker, which has the devices, plan the sweep and create its store, or `StoreError`."""
    nothing = Interrupted(f"stopped: no run is stored in {job.address} yet.", RESUME)
    config = config_of(sweep)
    anew = job._replace(attempt=uuid.uuid4().hex)
    with lasting(executor), stoppable(lambda: nothing) as check, contextlib.ExitStack() as stack:
        future = _submit(executor, make, anew, json.dumps(config), chunk)
        stack.callback(_cancel, [future])
        while not wait([future], POLL).done:
            check()
            _check_workers(executor)
    match _outcome(future):
        case Died():
            raise StoreError(f"{job.address}: the worker that should create the store died")
        case Failed(worker, reason):
            raise StoreError(f"{job.address}: worker {worker} could not create the store: {reason}")
        case str(plan) if report:
            report(plan)
    store = Store.open(where)
    store.require(config)
    return store


def work_off(
    executor: Executor, store: Store, job: Job, agreement: Agreement, sources: Sequence[Reused] = ()
) -> None:
    """Compute all chunks that are neither stored nor completely available from the sources, with
    the programs of this process. Raises `ChunksFailed` if some chunks failed and all others are
    stored, `StoreError` if the executor breaks, and `Interrupted` after a signal."""
    take_over(store, sources, lambda part: agreement.of(agreement.sweep.static_values(part)))
    job = job._replace(store=store.id, fence=store.place.fence)
    store.place.several(store.place.remove, _marked(store))
    done = store.done()
    waiting = collections.deque(np.flatnonzero(~done).tolist())
    # With each chunk, the number of deaths at the time.
    running: dict[Future[Any], tuple[int, int]] = {}
    attempts = map(f"{uuid.uuid4().hex}-{{}}".format, itertools.count())
    tries: collections.Counter[int] = collections.Counter()
    deaths: collections.Counter[int] = collections.Counter()
    reasons: dict[int, str] = {}

    def failed(number: int, reason: str) -> None:
        reasons[number] = reason
        tries[number] += 1
        if tries[number] < TRIES:
            waiting.append(number)

    with (
        lasting(executor),
        _naming_chunks(store),
        shown(store.layout.num_runs, store.layout.runs_in(done)) as shown_runs,
        stoppable(store.interrupted) as check,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(_cancel, running)
        while waiting or running:
            while waiting and len(running) < MOST_AT_ONCE:
                number = waiting.popleft()
                future = _submit(executor, compute, job._replace(attempt=next(attempts)), number)
                running[future] = number, deaths.total()
            for future in wait(running, POLL, FIRST_COMPLETED).done:
                number, before = running.pop(future)
                match _outcome(future):
                    case Done(str(worker), int(runs), int(diverged)):
                        _check_program(agreement, number, worker)
                        shown_runs.stored(runs, diverged)
                        reasons[number] = "a worker reports it as stored, but it is not"
                    case Died(True):
                        deaths[number] += 1
                        failed(number, f"its worker died {count(deaths[number], 'time')}")
                    case Died() if deaths.total() > before:
                        # It was queued on a worker that died over another chunk.
                        waiting.append(number)
                    case Died():
                        failed(number, "its worker died before it began")
                    case Failed(str(worker), str(reason)):
                        failed(number, f"{reason} (on {worker})")
                    case answer:
                        failed(number, f"a worker answered {type(answer).__name__}")
            check()
            _check_workers(executor)
            # Check that the store still exists and this process is still its writer.
            store.check()
            if not (waiting or running):
                # Check the store itself, not the answers.
                for number in np.flatnonzero(~store.done()).tolist():
                    if tries[number] < TRIES:
                        failed(number, reasons[number])
    if deaths:
        store.place.several(store.place.remove, _marked(store))
    given_up = {number: reasons[number] for number in np.flatnonzero(~store.done()).tolist()}
    if given_up:
        raise ChunksFailed(_message(store, given_up), given_up)


def _check_program(agreement: Agreement, number: int, worker: str) -> None:
    """Raise `StoreError` for a chunk of different code than this process has. All chunks of that
    code are removed."""
    store = agreement.store
    chosen = agreement.sweep.static_values(store.layout.region(number))
    # There is nothing to compare if the worker reported a chunk that is not stored.
    if agreement.knows(chosen) or not store.done()[number]:
        return
    try:
        agreement.of(chosen)
    except OtherProgramError as error:
        agreement.replace(error)
        raise StoreError(
            f"{store.name}: worker {worker} runs different code from this process, as when a file "
            "was edited after the worker imported it. Its chunks were removed; restart the workers "
            "and run the same command again:",
            *(f"  {line}" for line in error.why),
        ) from None


def _marked(store: Store) -> dict[str, int]:
    """Return the chunks that workers are computing, or were when they died, by mark."""
    files = store.place.files(store.place.records)
    marks = [name.split(".") for name in files if name.endswith(MARK)]
    return {f"{store.place.records}/{'.'.join(mark)}": int(mark[0]) for mark in marks}


@contextlib.contextmanager
def _naming_chunks(store: Store) -> Iterator[None]:
    """Name the chunks that were being computed in the error of an executor that breaks."""
    try:
        yield
    except _BrokenError as error:
        if not (numbers := sorted({*_marked(store).values()})):
            raise
        lines = _listed(_where(store, number) for number in numbers)
        raise StoreError(f"{error} When it broke, its workers computed:", *lines) from error


def _submit(executor: Executor, *call: Any) -> Future[Any]:
    try:
        return executor.submit(*call)
    except RuntimeError as error:  # a BrokenExecutor is one; so is the error after a shutdown
        raise _broken(error) from error


def _check_workers(executor: Executor) -> None:
    if are_lost(executor):
        raise _broken(RuntimeError("all of its workers have ended and cannot be started again"))


def _cancel(futures: Iterable[Future[Any]]) -> None:
    """Cancel calls. Dask waits for its scheduler to answer, which may never happen."""
    left = [future for future in futures if not future.done()]
    begun(lambda: [future.cancel() for future in left]).wait(CANCELLING)


def _outcome(future: Future[Any]) -> Any:
    """Return a worker's answer, or `Failed` or `Died` if it never answered."""
    try:
        return future.result()
    except (BrokenExecutor, CancelledError) as error:
        raise _broken(error) from error
    except Exception as error:
        # Errors between driver and worker have types of the executor's own.
        if type(error).__name__ == "KilledWorker":
            return Died(begun=False)
        return Failed("a worker", f"{type(error).__name__}: {error}")


def _broken(error: BaseException) -> _BrokenError:
    # The text of some has several lines.
    why = ": ".join(part for part in (type(error).__name__, " ".join(str(error).split())) if part)
    return _BrokenError(
        f"executor: accepts no more work ({why}). Finished chunks are stored; run the sweep again "
        "with a new executor to resume."
    )


def _where(store: Store, number: int) -> str:
    parts = zip(store.dims, store.layout.region(number), strict=True)
    return f"chunk {number} ({', '.join(f'{dim} {part.start}:{part.stop}' for dim, part in parts)})"


def _listed(items: Iterable[str]) -> list[str]:
    """Return indented lines for the first items, and for the number of the others."""
    named = list(items)
    more = [f"and {len(named) - MOST_NAMED} more"] if len(named) > MOST_NAMED else []
    return [f"  {line}" for line in named[:MOST_NAMED] + more]


def _message(store: Store, reasons: dict[int, str]) -> str:
    first = (
        f"{store.name}: {len(reasons)} of {store.layout.num_chunks} chunks failed {TRIES} times "
        "each, all others are stored; run the sweep again to retry them:"
    )
    why = {number: each.replace("\n", "\n    ") for number, each in reasons.items()}
    named = _listed(f"{_where(store, number)}: {each}" for number, each in why.items())
    return "\n".join(map(printable, "\n".join((first, *named)).split("\n")))


def name() -> str:
    """Return the name of this worker, from its host and process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def make(job: Job, config: str, chunk: int | None) -> str | Failed:
    """Create the store of a job, with at most `chunk` runs in a chunk, by default a tile for each
    of the worker's devices. `config` is the sweep's configuration as JSON. Returns a readable
    plan."""

    def plan() -> str:
        sweep = job.made(json.loads(config))
        with precision(sweep.dtype):
            mesh = tiles.mesh(None, sweep.dtype)
            work = Work(sweep, mesh, chunk=chunk, tile=job.tile, chunk_tiles=mesh.size)
            create(job.place(), sweep, work.plan.layout, work.variables())
        return str(work.plan)

    return _answer(plan, job.main)


def compute(job: Job, number: int) -> Done | Died | Failed:
    """Compute and store chunk `number` of a job."""

    def chunk() -> Done | Died:
        began = time.perf_counter()
        shared = job._replace(attempt="")
        store = _store(shared)
        store.check()
        mark = f"{store.place.records}/{number}.{job.attempt}{MARK}"
        # A bucket takes equal contents for one's own; hosts and processes may have equal names.
        if not store.place.put(mark, uuid.uuid4().bytes):
            # The executor has repeated the call of a worker that died.
            return Died(begun=True)
        try:
            work, agreement = _work(shared)
            region = store.layout.region(number)
            with precision(work.sweep.dtype):
                program = agreement.of(work.sweep.static_values(region))
                arrays = work.compute(region, store.variables)
            # The driver may have detected in the meantime that this code differs.
            agreement.confirm(work.sweep.static_values(region))
            store.write(region, arrays, time.perf_counter() - began, program)
        finally:
            store.place.remove(mark)
        codes = arrays["status"]
        return Done(name(), codes.size, int((codes != Status.OK).sum()))

    return _answer(chunk, job.main)


@functools.lru_cache(maxsize=2)
def _store(job: Job) -> Store:
    # The driver reports about the store.
    store = Store.open(job.place(), report=lambda line: None)
    # Checked before importing anything that a configuration names.
    if store.id != job.store or store.fingerprint != job.digest:
        raise StoreError(f"{job.address}: contains another sweep here than on the driver")
    store.held = store.place.watch(job.fence)
    return store


@functools.lru_cache(maxsize=2)
def _work(job: Job) -> tuple[Work, Agreement]:
    store = _store(job)
    sweep = job.made(store.config)
    if fingerprint(config_of(sweep)) != job.digest:
        raise StoreError(f"{job.address}: this worker builds another sweep from it than the driver")
    with precision(sweep.dtype):
        mesh = tiles.mesh(None, sweep.dtype)
        work = Work(sweep, mesh, layout=store.layout, tile=job.tile)
        environment = {**output.environment(), **work.identity.parts()}
        store.enter(environment, job.strict)
        return work, Agreement(store, work.identity, mesh, environment, alone=False)


def _answer(ask: Callable[[], Answer], main: str) -> Answer | Failed:
    """Return the result of `ask`, or `Failed` with the error as text: not all can be pickled.
    Classes of the driver's script belong to the module `main`."""
    try:
        # A fork does not release locks either.
        check_process()
        with _BUSY, called(main), checks.callbacks_of_user():
            answer = ask()
    # A package may raise SystemExit, which must not end the worker.
    except (Exception, SystemExit) as error:
        time.sleep(min(0.1 * 2 ** _FAILED[name()], LONGEST))
        _FAILED[name()] += 1
        line = checks.line_of_user(error)
        return Failed(name(), f"{type(error).__name__}: {error}{line and f' ({line})'}")
    del _FAILED[name()]
    return answer
