"""Distributes the chunks of a sweep to the workers of any executor.

Chunks are disjoint and their records are written last and only once, so computing one twice does no
harm, and a worker that dies loses only its current chunk. The driver trusts the contents of the
store, not the answers of workers.
"""

import collections
import contextlib
import itertools
import json
import pickle
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    wait,
)
from typing import NamedTuple

import numpy as np

from sweeps.language.describe import main_name
from sweeps.lines import printable
from sweeps.runner.agreement import ProgramCheck
from sweeps.runner.cluster import are_lost, keep_restarting
from sweeps.runner.config import config_of, from_config
from sweeps.runner.program.identity import Identity
from sweeps.runner.progress import (
    POLL,
    RESUME,
    Interrupted,
    count,
    in_thread,
    progress_bar,
    stoppable,
)
from sweeps.runner.spec import Sweep
from sweeps.runner.store import Report, StoreError
from sweeps.runner.store.manifest import fingerprint
from sweeps.runner.store.reuse import ReusableRuns, copy_chunks
from sweeps.runner.store.storage import Storage
from sweeps.runner.store.store import Store
from sweeps.runner.worker import MARK, Died, Done, Failed, SweepJob, compute, create_store

MAX_TRIES = 3
"""Number of failures after which a chunk is given up."""
MAX_SUBMITTED = 1024
"""Maximum number of submitted chunks: more than an executor has workers, and few enough to cancel
quickly when the user stops."""
MAX_LISTED = 10
"""Maximum number of chunks that an error lists individually."""
CANCELLING = 10.0
"""Maximum seconds to wait until calls are cancelled, after the user stops."""


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


class _BrokenError(StoreError):
    """An executor that accepts no more work, because of an error."""

    def __init__(self, error: BaseException) -> None:
        # The text of some errors has several lines.
        why = ": ".join(filter(None, (type(error).__name__, " ".join(str(error).split()))))
        super().__init__(
            f"executor: accepts no more work ({why}). Finished chunks are stored; run the sweep "
            "again with a new executor to resume."
        )


def job_of(identity: Identity, where: Storage, tile: int | None, strict: bool = False) -> SweepJob:
    """Return the job of a sweep. It includes the pickled sweep if workers cannot rebuild it from
    JSON; raises `ValueError` if it cannot be pickled either."""
    sweep = identity.sweep
    assert where.address is not None
    config = config_of(sweep)
    digest = fingerprint(config)
    job = SweepJob(where.address, digest, tile, where.durable, strict, main=main_name())
    try:
        rebuilt = from_config(json.loads(json.dumps(config)))
        in_json = fingerprint(config_of(rebuilt)) == digest
    except (TypeError, ValueError):
        in_json = False
    # Not every worker can import the module that runs as a script.
    if in_json and "__main__" not in identity.outside:
        return job
    try:
        # Comes with Dask; pickles classes and functions of a notebook by value.
        from cloudpickle import dumps
    except ImportError:
        dumps = pickle.dumps
    try:
        pickled = dumps(sweep)
        # Some functions, such as compiled ones, lose their names.
        if fingerprint(config_of(pickle.loads(pickled))) != digest:
            raise ValueError("it changes when it is pickled")
    except (TypeError, ValueError, AttributeError, pickle.PicklingError) as error:
        if in_json:
            return job
        raise ValueError(f"executor: its workers cannot be sent this sweep ({error})") from None
    return job._replace(sweep=pickled)


class Workers(NamedTuple):
    """The workers of an executor, which compute a sweep in chunks of at most `chunk` runs."""

    executor: Executor
    job: SweepJob
    sweep: Sweep
    chunk: int | None = None

    def create_store(self, where: Storage, report: Report | None) -> Store:
        """Let a worker, which has the devices, plan the sweep and create its store, or raise
        `StoreError`."""
        address, config = self.job.address, config_of(self.sweep)
        nothing = Interrupted(f"stopped: no run is stored in {address} yet.", RESUME)
        with (
            keep_restarting(self.executor),
            stoppable(lambda: nothing) as check,
            contextlib.ExitStack() as stack,
        ):
            job = self.job._replace(attempt=uuid.uuid4().hex)
            future = self._submit(create_store, job, json.dumps(config), self.chunk)
            stack.callback(_cancel, [future])
            while not wait([future], POLL).done:
                check()
                self._check_alive()
        match _outcome(future):
            case Died():
                raise StoreError(f"{address}: the worker that should create the store died")
            case Failed(worker, reason):
                raise StoreError(f"{address}: worker {worker} could not create the store: {reason}")
            case str(plan) if report:
                report(plan)
        store = Store.open(where)
        store.require(config)
        return store

    def compute(
        self,
        store: Store,
        done: np.ndarray,
        program_check: ProgramCheck,
        sources: Sequence[ReusableRuns] = (),
    ) -> None:
        """Compute all chunks that are neither `done` nor completely available from the sources,
        with the programs of this process. Raises `ChunksFailed` if some chunks failed and all
        others are stored, `StoreError` if the executor breaks, and `Interrupted` after a signal."""
        if sources:
            sweep = self.sweep
            copy_chunks(
                store, sources, lambda part: program_check.program(sweep.static_values(part))
            )
            done = store.done()
        job = self.job._replace(store=store.id, fence=store.storage.fence)
        attempts = map(f"{uuid.uuid4().hex}-{{}}".format, itertools.count())
        # Marks of an earlier driver.
        store.storage.map(store.storage.remove, _marks(store))
        waiting = collections.deque(np.flatnonzero(~done).tolist())
        # Of each call: its chunk, and how many workers had died when it was submitted.
        running: dict[Future[object], tuple[int, int]] = {}
        tries: collections.Counter[int] = collections.Counter()
        deaths: collections.Counter[int] = collections.Counter()
        reasons: dict[int, str] = {}

        def retry(number: int, reason: str) -> None:
            reasons[number] = reason
            tries[number] += 1
            if tries[number] < MAX_TRIES:
                waiting.append(number)

        with (
            keep_restarting(self.executor),
            _naming_chunks(store),
            progress_bar(store.layout.num_runs, store.layout.runs_in(done)) as bar,
            stoppable(store.interrupted) as check,
            contextlib.ExitStack() as stack,
        ):
            stack.callback(_cancel, running)
            while waiting or running:
                while waiting and len(running) < MAX_SUBMITTED:
                    number = waiting.popleft()
                    future = self._submit(compute, job._replace(attempt=next(attempts)), number)
                    running[future] = number, deaths.total()
                for future in wait(running, POLL, FIRST_COMPLETED).done:
                    number, deaths_before = running.pop(future)
                    match _outcome(future):
                        case Done(str(worker), int(runs), int(diverged)):
                            program_check.check_worker(worker, number)
                            bar.stored(runs, diverged)
                            # Retried below if the store does not have it.
                            reasons[number] = "a worker reports it as stored, but it is not"
                        case Died(True):
                            deaths[number] += 1
                            retry(number, f"its worker died {count(deaths[number], 'time')}")
                        case Died() if deaths.total() > deaths_before:
                            # It was queued on a worker that died over another chunk.
                            waiting.append(number)
                        case Died():
                            retry(number, "its worker died before it began")
                        case Failed(str(worker), str(reason)):
                            retry(number, f"{reason} (on {worker})")
                        case answer:
                            retry(number, f"a worker answered {type(answer).__name__}")
                check()
                self._check_alive()
                # Check that the store still exists and this process is still its writer.
                store.check()
                if not (waiting or running):
                    # Check the store itself, not the answers.
                    for number in np.flatnonzero(~store.done()).tolist():
                        if tries[number] < MAX_TRIES:
                            retry(number, reasons[number])
        if deaths:
            store.storage.map(store.storage.remove, _marks(store))
        failed = {number: reasons[number] for number in np.flatnonzero(~store.done()).tolist()}
        if failed:
            first = (
                f"{store.name}: {len(failed)} of {store.layout.num_chunks} chunks failed "
                f"{MAX_TRIES} times each, all others are stored; run the sweep again to retry them:"
            )
            lines = "\n".join((first, *_listed(store, failed))).split("\n")
            raise ChunksFailed("\n".join(map(printable, lines)), failed)

    def _submit(self, call: Callable[..., object], *arguments: object) -> Future[object]:
        try:
            return self.executor.submit(call, *arguments)
        except RuntimeError as error:  # a BrokenExecutor is one; so is the error after a shutdown
            raise _BrokenError(error) from error

    def _check_alive(self) -> None:
        if are_lost(self.executor):
            error = RuntimeError("all of its workers have ended and cannot be started again")
            raise _BrokenError(error)


def _outcome(future: Future[object]) -> object:
    """Return a worker's answer, or `Failed` or `Died` if it never answered."""
    try:
        return future.result()
    except (BrokenExecutor, CancelledError) as error:
        raise _BrokenError(error) from error
    except Exception as error:
        # Errors between driver and worker have types of the executor's own.
        if type(error).__name__ == "KilledWorker":
            return Died(begun=False)
        return Failed("a worker", f"{type(error).__name__}: {error}")


def _cancel(futures: Collection[Future[object]]) -> None:
    pending = [future for future in futures if not future.done()]
    # Dask waits for its scheduler to answer, which may never happen.
    in_thread(lambda: [future.cancel() for future in pending]).wait(CANCELLING)


def _marks(store: Store) -> dict[str, int]:
    """Return the chunks that workers are computing, or were when they died, by mark."""
    folder = store.storage.records
    marks = [name for name in store.storage.files(folder) if name.endswith(MARK)]
    return {f"{folder}/{mark}": int(mark.split(".")[0]) for mark in marks}


@contextlib.contextmanager
def _naming_chunks(store: Store) -> Iterator[None]:
    """Name the chunks that were being computed in the error of an executor that breaks."""
    try:
        yield
    except _BrokenError as error:
        if not (numbers := sorted({*_marks(store).values()})):
            raise
        lines = _listed(store, dict.fromkeys(numbers, ""))
        raise StoreError(f"{error} When it broke, its workers computed:", *lines) from error


def _listed(store: Store, reasons: Mapping[int, str]) -> list[str]:
    """Return indented lines for the first chunks with their reasons, and the number of others."""
    lines = []
    for number, reason in itertools.islice(reasons.items(), MAX_LISTED):
        parts = zip(store.dims, store.layout.region(number), strict=True)
        region = ", ".join(f"{dim} {part.start}:{part.stop}" for dim, part in parts)
        why = reason.replace("\n", "\n    ")
        lines.append(f"  chunk {number} ({region}){why and f': {why}'}")
    if len(reasons) > MAX_LISTED:
        lines.append(f"  and {len(reasons) - MAX_LISTED} more")
    return lines
