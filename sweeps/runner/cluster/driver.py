"""Handing the chunks of a sweep to the workers of an executor, whichever it is.

Chunks are disjoint and their status is written last, so that one that is computed twice does no
harm, and whoever dies takes nothing along but the chunk in flight.
"""

import collections
import contextlib
import dataclasses
import json
import os
import pickle
import pkgutil
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from sweeps import output
from sweeps.runner.cluster import jobs
from sweeps.runner.cluster.jobs import Declined, Done, Failed, Job
from sweeps.runner.files import from_table
from sweeps.runner.progress import shown, stoppable
from sweeps.runner.spec import Sweep
from sweeps.runner.store.base import Place, Report, StoreError
from sweeps.runner.store.manifest import fingerprint
from sweeps.runner.store.reuse import Reused, take_over
from sweeps.runner.store.store import Store

TRIES = 3
"""How often a chunk is computed in vain before it is given up."""
MOST_AT_ONCE = 4096
"""Chunks that an executor is given at once: more than it has workers, and few enough to be taken
back quickly when the user stops."""
POLL = 0.2
"""Seconds between two looks at whether the user wants to stop."""
PATIENCE = 20
"""How often a chunk is offered, one `POLL` after the other if nothing else is going on, before who
has failed at it may try again: others may only be slower to take it."""
MOST_NAMED = 10
"""Chunks that an error lists one by one."""


class ChunksFailed(RuntimeError):  # noqa: N818  (a result: most chunks are there)
    """Chunks that no worker could compute; all others are stored.

    Attributes:
        reasons: by the number of the chunk, what happened the last time.
    """

    def __init__(self, message: str, reasons: dict[int, str]) -> None:
        super().__init__(message)
        self.reasons = reasons


class Task(NamedTuple):
    """A chunk to be computed, the workers that have failed at it, as often as they have, and how
    often they have declined it since."""

    number: int
    failed: tuple[str, ...] = ()
    declined: int = 0

    @property
    def avoid(self) -> tuple[str, ...]:
        """Workers that shall not compute it."""
        return self.failed if self.declined < PATIENCE else ()


def run(
    executor: Executor,
    sweep: Sweep,
    where: Place,
    store: Store | None,
    chunk: int | None,
    tile: int | None,
    report: Report | None,
    sources: Sequence[Reused] = (),
    strict: bool = False,
) -> xr.Dataset:
    """As `sweeps.run`, of which the arguments are; `store` is what is at `where`, None where a
    store can be made."""
    assert where.address is not None
    work = job(sweep, where.address, tile, where.durable)
    if store is None:
        make_store(executor, work, sweep, chunk, report)
        store = Store.open(where)
    with store.lock(report=report):
        # What devices the workers have is theirs to know.
        done = store.go_on((0, 1), output.versions(), strict, report)
        with store.timed((0, 1), done):
            take_over(store, sources)
            work_off(executor, store, work)
    return store.dataset()


def job(sweep: Sweep, address: str, tile: int | None, durable: bool = False) -> Job:
    """The job of a sweep, with the sweep itself where workers cannot read from its JSON what it is.

    Raises:
        ValueError: when they cannot be sent it either.
    """
    config = sweep.as_json()
    digest = fingerprint(config)
    try:
        same = fingerprint(from_table(json.loads(json.dumps(config))).as_json()) == digest
    except (TypeError, ValueError):
        same = False
    if same:
        return Job(address, digest, tile, durable)
    try:
        # Dask brings it: it sends classes and functions of a notebook by their code.
        dumps = pkgutil.resolve_name("cloudpickle:dumps")
    except ImportError:
        dumps = pickle.dumps
    try:
        sent = dumps(dataclasses.replace(sweep))
        # Some functions, such as compiled ones, arrive without their names.
        if fingerprint(pickle.loads(sent).as_json()) != digest:
            raise ValueError("it arrives as another one")
    except (TypeError, ValueError, AttributeError, pickle.PicklingError) as error:
        raise ValueError(f"executor: its workers cannot be sent this sweep ({error})") from None
    return Job(address, digest, tile, durable, sent)


def make_store(
    executor: Executor,
    job: Job,
    sweep: Sweep,
    chunk: int | None,
    report: Report | None,
) -> None:
    """Let a worker, which has the devices, plan the sweep and make its store.

    Raises:
        StoreError: when it cannot.
    """
    with stoppable() as check, _collected() as (submit, finished):
        submit(executor, jobs.make, job, json.dumps(sweep.as_json()), chunk)
        answer = _outcome(_next(finished, check))
    if isinstance(answer, Failed):
        raise StoreError(f"{job.address}: worker {answer.worker} made no store: {answer.reason}")
    if report:
        report(answer)


def work_off(executor: Executor, store: Store, job: Job) -> None:
    """Have all chunks computed that are not stored yet.

    Raises:
        ChunksFailed: when all that can be done is done, but not all.
        StoreError: when the executor breaks; what is finished is stored.
        Interrupted: after Ctrl-C or SIGTERM, with all finished chunks stored.
    """
    done = store.done()
    waiting = collections.deque(Task(int(n)) for n in np.flatnonzero(~done))
    # Chunks that a worker has failed at and was offered again.
    left: list[Task] = []
    running: dict[Future[Any], Task] = {}
    given_up: dict[int, str] = {}
    with (
        shown(store.layout.num_runs, store.runs_in(done)) as advance,
        stoppable() as check,
        _collected() as (submit, finished),
    ):
        while waiting or left or running:
            while waiting and len(running) < MOST_AT_ONCE:
                task = waiting.popleft()
                future = submit(executor, jobs.compute, job, task.number, task.avoid)
                running[future] = task
            if not running:
                time.sleep(POLL)
                check()
                waiting.extend(left)
                left.clear()
                continue
            future = _next(finished, check)
            # Of a bucket: whether this is still its writer.
            store.check()
            task = running.pop(future)
            match _outcome(future):
                case Declined():
                    left.append(task._replace(declined=task.declined + 1))
                    continue
                case Failed(worker, reason):
                    task = task._replace(failed=(*task.failed, worker), declined=0)
                    if len(task.failed) < TRIES:
                        waiting.append(task)
                    else:
                        given_up[task.number] = f"{reason} (on {', '.join(task.failed)})"
                case Done(_, runs, diverged):
                    advance(runs, diverged)
            # Some worker has come free: it may be another one.
            waiting.extend(left)
            left.clear()
    if given_up:
        raise ChunksFailed(_message(store, given_up), given_up)


@contextlib.contextmanager
def _collected() -> Iterator[tuple[Callable[..., Future[Any]], queue.SimpleQueue[Future[Any]]]]:
    """A function that submits to an executor, and the queue in which its futures appear when they
    are done. Those that are not done in the end are cancelled."""
    finished: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
    submitted: set[Future[Any]] = set()

    def submit(executor: Executor, *call: Any) -> Future[Any]:
        jobs.DRIVER = os.getpid()
        try:
            future = executor.submit(*call)
        except RuntimeError as error:  # BrokenExecutor is one, and so is one that was shut down
            raise StoreError(_broken(error)) from error
        submitted.add(future)
        future.add_done_callback(submitted.discard)
        future.add_done_callback(finished.put)
        return future

    try:
        yield submit, finished
    finally:
        for future in list(submitted):
            future.cancel()


def _next(finished: queue.SimpleQueue[Future[Any]], check: Callable[[], None]) -> Future[Any]:
    """The next future that is done; `check` is called while there is none."""
    while True:
        check()
        with contextlib.suppress(queue.Empty):
            return finished.get(timeout=POLL)


def _outcome(future: Future[Any]) -> Any:
    """What a worker answered; a worker that died, or an answer that never came, has `Failed`."""
    try:
        return future.result()
    except (BrokenExecutor, CancelledError) as error:
        raise StoreError(_broken(error)) from error
    except Exception as error:
        # What went wrong between driver and worker, by the executor's own kinds of errors.
        return Failed("a worker", f"{type(error).__name__}: {error}")


def _broken(error: BaseException) -> str:
    why = ": ".join(part for part in (type(error).__name__, str(error)) if part)
    return (
        f"executor: takes no more work ({why}). What was finished is stored; run the sweep again "
        "with a new executor to go on."
    )


def _message(store: Store, reasons: dict[int, str]) -> str:
    lines = []
    for number, reason in sorted(reasons.items())[:MOST_NAMED]:
        region = store.layout.region(number)
        where = ", ".join(
            f"{dim} {part.start}:{part.stop}" for dim, part in zip(store.dims, region, strict=True)
        )
        lines.append(f"chunk {number} ({where}): {reason}")
    if len(reasons) > MOST_NAMED:
        lines.append(f"and {len(reasons) - MOST_NAMED} more")
    return (
        f"{store.name}: {len(reasons)} of {store.layout.num_chunks} chunks failed {TRIES} times "
        "each, all others are stored; run the sweep again to try them anew:\n  "
        + "\n  ".join(lines)
    )
