"""Handing the chunks of a sweep to the workers of an executor, whichever it is.

A worker is told where the store is and the number of a chunk, computes and writes it where it
stands, and answers with a few bytes. It keeps its compiled programs from one chunk to the next.
Chunks are disjoint and their records are written last and once, so that one that is computed
twice does no harm, and whoever dies takes nothing along but the chunk in flight. What counts in the
end is what the store has, not what workers have answered.
"""

import collections
import contextlib
import functools
import json
import os
import pickle
import pkgutil
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
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

from dynsim import Status
from dynsim.precision import precision
from sweeps import output
from sweeps.lines import printable
from sweeps.runner import tiles
from sweeps.runner.agreement import Agreement, OtherProgramError
from sweeps.runner.config import config_of, from_config
from sweeps.runner.progress import RESUME, Interrupted, shown, stoppable
from sweeps.runner.run import create
from sweeps.runner.spec import Sweep
from sweeps.runner.store import Report, StoreError
from sweeps.runner.store.manifest import fingerprint
from sweeps.runner.store.place import Place, place
from sweeps.runner.store.reuse import Reused, take_over
from sweeps.runner.store.store import Store
from sweeps.runner.work import Work

TRIES = 3
"""How often a chunk is computed in vain before it is given up."""
MOST_AT_ONCE = 1024
"""Chunks that an executor is given at once: more than it has workers, and few enough to be taken
back quickly when the user stops."""
POLL = 0.2
"""Seconds between two looks at whether the user wants to stop."""
MOST_NAMED = 10
"""Chunks that an error lists one by one."""
DRIVER = 0
"""Number of the process that drives a sweep from here, which only a forked worker has inherited."""
LONGEST = 30.0
"""Seconds that a worker waits at most after it has failed once more, so that others, which may not
fail, take the chunks."""
_BUSY = threading.Lock()
"""Held while a chunk is computed: the threads of a worker share its devices."""
_FAILED: collections.Counter[str] = collections.Counter()
"""How often a worker has failed since it last did not."""
Answer = TypeVar("Answer")


class ChunksFailed(RuntimeError):  # noqa: N818  (a result: most chunks are there)
    """Chunks that no worker could compute; all others are stored.

    Attributes:
        reasons: by the number of the chunk, what happened the last time.

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
    """What all chunks of a sweep have in common.

    Attributes:
        address: of the store, which worker and driver both reach and which says what the sweep is.
        digest: the hash of the sweep's configuration, by which a worker sees that it has found the
            same store.
        tile: largest number of runs that a device works on at once; by default as of
            `sweeps.run`, by the devices of the worker.
        durable: whether a chunk has to outlast a loss of power before it counts.
        strict: whether to refuse to go on with chunks that were made by other versions.
        sweep: the sweep itself, pickled, where its configuration cannot make it, as of functions
            and of problems that are given as they are.
        store: id of the store, once it has been made.
        fence: words by which a worker knows that the driver still is the writer.
    """

    address: str
    digest: str
    tile: int | None
    durable: bool = False
    strict: bool = False
    sweep: bytes | None = None
    store: str | None = None
    fence: str = ""

    def made(self, config: Mapping[str, Any]) -> Sweep:
        """The sweep that its configuration describes."""
        return from_config(config) if self.sweep is None else pickle.loads(self.sweep)

    def place(self) -> Place:
        """Where the store is, or can be."""
        found = place(self.address)
        found.durable |= self.durable
        return found


class Done(NamedTuple):
    """A chunk that is stored, and how many of its runs diverged."""

    worker: str
    runs: int
    diverged: int


class Failed(NamedTuple):
    """A chunk that is not, and why."""

    worker: str
    reason: str


def job(sweep: Sweep, where: Place, tile: int | None, strict: bool = False) -> Job:
    """The job of a sweep, with the sweep itself where workers cannot read from its JSON what it is;
    `ValueError` when they cannot be sent it either."""
    assert where.address is not None
    config = config_of(sweep)
    digest = fingerprint(config)
    found = Job(where.address, digest, tile, where.durable, strict)
    try:
        same = fingerprint(config_of(from_config(json.loads(json.dumps(config))))) == digest
    except (TypeError, ValueError):
        same = False
    if same:
        return found
    try:
        # Dask brings it: it sends classes and functions of a notebook by their code.
        dumps = pkgutil.resolve_name("cloudpickle:dumps")
    except ImportError:
        dumps = pickle.dumps
    try:
        sent = dumps(sweep)
        # Some functions, such as compiled ones, arrive without their names.
        if fingerprint(config_of(pickle.loads(sent))) != digest:
            raise ValueError("it changes when it is pickled")
    except (TypeError, ValueError, AttributeError, pickle.PicklingError) as error:
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
    """Let a worker, which has the devices, plan the sweep and make its store. `StoreError` when it
    cannot."""
    nothing = Interrupted(f"stopped: no run is stored in {job.address} yet.", RESUME)
    config = config_of(sweep)
    with stoppable(lambda: nothing) as check:
        future = _submit(executor, make, job, json.dumps(config), chunk)
        while not wait([future], POLL).done:
            check()
    match _outcome(future):
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
    """Have all chunks computed that are not stored yet, and that the sources do not have whole, by
    the programs of this process. `ChunksFailed` when all that can be done is done, but not all;
    `StoreError` when the executor breaks; `Interrupted` after a signal."""
    take_over(store, sources, lambda part: agreement.of(agreement.sweep.static_values(part)))
    job = job._replace(store=store.id, fence=store.place.fence)
    done = store.done()
    waiting = collections.deque(np.flatnonzero(~done).tolist())
    running: dict[Future[Any], int] = {}
    tries: collections.Counter[int] = collections.Counter()
    reasons: dict[int, str] = {}

    def failed(number: int, reason: str) -> None:
        reasons[number] = reason
        tries[number] += 1
        if tries[number] < TRIES:
            waiting.append(number)

    with (
        shown(store.layout.num_runs, store.layout.runs_in(done)) as shown_runs,
        stoppable(store.interrupted) as check,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(lambda: [future.cancel() for future in running])
        while waiting or running:
            while waiting and len(running) < MOST_AT_ONCE:
                number = waiting.popleft()
                running[_submit(executor, compute, job, number)] = number
            for future in wait(running, POLL, FIRST_COMPLETED).done:
                number = running.pop(future)
                match _outcome(future):
                    case Done(str(worker), int(runs), int(diverged)):
                        _check_program(agreement, number, worker)
                        shown_runs.stored(runs, diverged)
                        reasons[number] = "a worker reports it as stored, but it is not"
                    case Failed(str(worker), str(reason)):
                        failed(number, f"{reason} (on {worker})")
                    case answer:
                        failed(number, f"a worker answered {type(answer).__name__}")
            check()
            # Whether the store is still there, and this is still its writer.
            store.check()
            if not (waiting or running):
                # No answer is believed.
                for number in np.flatnonzero(~store.done()).tolist():
                    if tries[number] < TRIES:
                        failed(number, reasons[number])
    given_up = {number: reasons[number] for number in np.flatnonzero(~store.done()).tolist()}
    if given_up:
        raise ChunksFailed(_message(store, given_up), given_up)


def _check_program(agreement: Agreement, number: int, worker: str) -> None:
    """Raise `StoreError` for a chunk of other code than this process has; it is removed, with all
    others of that code."""
    store = agreement.store
    chosen = agreement.sweep.static_values(store.layout.region(number))
    # Without the chunk, which the worker only says is there, there is nothing to compare.
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


def _submit(executor: Executor, *call: Any) -> Future[Any]:
    global DRIVER
    DRIVER = os.getpid()
    try:
        return executor.submit(*call)
    except RuntimeError as error:  # BrokenExecutor is one, and so is one that was shut down
        raise _broken(error) from error


def _outcome(future: Future[Any]) -> Any:
    """What a worker answered; a worker that died, or an answer that never came, has `Failed`."""
    try:
        return future.result()
    except (BrokenExecutor, CancelledError) as error:
        raise _broken(error) from error
    except Exception as error:
        # What went wrong between driver and worker, by the executor's own kinds of errors.
        return Failed("a worker", f"{type(error).__name__}: {error}")


def _broken(error: BaseException) -> StoreError:
    why = ": ".join(part for part in (type(error).__name__, str(error)) if part)
    return StoreError(
        f"executor: accepts no more work ({why}). Finished chunks are stored; run the sweep again "
        "with a new executor to resume."
    )


def _message(store: Store, reasons: dict[int, str]) -> str:
    lines = [
        f"{store.name}: {len(reasons)} of {store.layout.num_chunks} chunks failed {TRIES} times "
        "each, all others are stored; run the sweep again to retry them:"
    ]
    for number, reason in list(reasons.items())[:MOST_NAMED]:
        parts = zip(store.dims, store.layout.region(number), strict=True)
        where = ", ".join(f"{dim} {part.start}:{part.stop}" for dim, part in parts)
        lines.append(f"  chunk {number} ({where}): {reason}")
    if len(reasons) > MOST_NAMED:
        lines.append(f"  and {len(reasons) - MOST_NAMED} more")
    return "\n".join(map(printable, lines))


def name() -> str:
    """The name of this worker, of its host and process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def make(job: Job, config: str, chunk: int | None) -> str | Failed:
    """Make the store of a job, with at most `chunk` runs in a chunk, by default a tile for each of
    the worker's devices. `config` is that of the sweep, as JSON. Returns the plan for people."""

    def plan() -> str:
        sweep = job.made(json.loads(config))
        with precision(sweep.dtype):
            mesh = tiles.mesh(None, sweep.dtype)
            work = Work(sweep, mesh, chunk=chunk, tile=job.tile, chunk_tiles=mesh.size)
            create(job.place(), sweep, work.plan.layout, work.variables())
        return str(work.plan)

    return _answer(plan)


def compute(job: Job, number: int) -> Done | Failed:
    """Compute and store chunk `number` of a job."""

    def chunk() -> Done:
        began = time.perf_counter()
        work, store, agreement = _opened(job)
        store.check()
        region = store.layout.region(number)
        with precision(work.sweep.dtype):
            program = agreement.of(work.sweep.static_values(region))
            arrays = work.compute(region, store.variables)
        # Meanwhile the driver may have found out that this is other code.
        agreement.confirm(work.sweep.static_values(region))
        store.write(region, arrays, time.perf_counter() - began, program)
        codes = arrays["status"]
        return Done(name(), codes.size, int((codes != Status.OK).sum()))

    return _answer(chunk)


@functools.lru_cache(maxsize=2)
def _opened(job: Job) -> tuple[Work, Store, Agreement]:
    # What is to be said of the store, the driver says.
    store = Store.open(job.place(), report=lambda line: None)
    # Before anything is imported that a configuration names.
    if store.id != job.store or store.fingerprint != job.digest:
        raise StoreError(f"{job.address}: contains another sweep here than on the driver")
    sweep = job.made(store.config)
    if fingerprint(config_of(sweep)) != job.digest:
        raise StoreError(f"{job.address}: this worker builds another sweep from it than the driver")
    store.held = store.place.watch(job.fence)
    with precision(sweep.dtype):
        mesh = tiles.mesh(None, sweep.dtype)
        work = Work(sweep, mesh, layout=store.layout, tile=job.tile)
        environment = {**output.environment(), **work.identity.parts()}
        store.enter(environment, job.strict)
        return work, store, Agreement(store, work.identity, mesh, environment, alone=False)


def _answer(ask: Callable[[], Answer]) -> Answer | Failed:
    """What `ask` returns; an error as text, because not all errors can be sent to a process."""
    if DRIVER not in (0, os.getpid()):
        # Before anything of JAX is touched, which would wait for threads that were not forked.
        return Failed(
            name(),
            "its process was forked from one in which JAX runs, and would hang; give the executor "
            "mp_context=multiprocessing.get_context('spawn')",
        )
    try:
        with _BUSY:
            answer = ask()
    # What a package of somebody else raises may be a wish to end, which is none of the worker's.
    except (Exception, SystemExit) as error:
        time.sleep(min(0.1 * 2 ** _FAILED[name()], LONGEST))
        _FAILED[name()] += 1
        return Failed(name(), f"{type(error).__name__}: {error}")
    del _FAILED[name()]
    return answer
