"""Handing the chunks of a sweep to the workers of an executor, whichever it is.

Chunks are disjoint and their records are written last and once, so that one that is computed
twice does no harm, and whoever dies takes nothing along but the chunk in flight. What counts in the
end is what the store has, not what workers have answered.
"""

import collections
import contextlib
import json
import os
import pickle
import pkgutil
from collections.abc import Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    wait,
)
from typing import Any

import numpy as np
import xarray as xr
from jax.sharding import Mesh

from sweeps import output
from sweeps.lines import printable
from sweeps.runner.agreement import Agreement, OtherProgramError
from sweeps.runner.cluster import jobs
from sweeps.runner.cluster.jobs import Done, Failed, Job
from sweeps.runner.config import config_of, from_config
from sweeps.runner.identity import Identity
from sweeps.runner.progress import RESUME, Interrupted, shown, stoppable
from sweeps.runner.spec import Sweep
from sweeps.runner.store.base import Place, Report, StoreError
from sweeps.runner.store.manifest import fingerprint
from sweeps.runner.store.reuse import Reused, take_over
from sweeps.runner.store.store import Store

TRIES = 3
"""How often a chunk is computed in vain before it is given up."""
MOST_AT_ONCE = 1024
"""Chunks that an executor is given at once: more than it has workers, and few enough to be taken
back quickly when the user stops."""
POLL = 0.2
"""Seconds between two looks at whether the user wants to stop."""
MOST_NAMED = 10
"""Chunks that an error lists one by one."""


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


def run(
    executor: Executor,
    sweep: Sweep,
    where: Place,
    store: Store | None,
    chunk: int | None,
    tile: int | None,
    report: Report | None,
    sources: Sequence[Reused],
    strict: bool,
    environment: Mapping[str, str],
    identity: Identity,
    mesh: Mesh,
    accept_code: str | None,
) -> xr.Dataset:
    """As `sweeps.run`, of which the arguments are; `store` is what is at `where`, None where a
    store can be made; `environment`, `identity` and `mesh` are those of this process."""
    work = job(sweep, where, tile, strict)
    with where.lock(0, 1, report) as check:
        if store is None:
            make_store(executor, work, sweep, chunk, report)
            store = Store.open(where)
            store.require(config_of(sweep))
        store.held = check
        # What devices the workers have is theirs to know.
        versions = {n: value for n, value in environment.items() if n in output.PACKAGES}
        store.go_on((0, 1), versions, strict, report)
        store.enter(environment, strict=False)
        agreement = Agreement(store, identity, mesh, environment, report=report)
        agreement.check(accept_code)
        take_over(store, sources, lambda region: agreement.of(sweep.static_values(region)))
        work_off(executor, store, work._replace(store=store.id, fence=where.fence), agreement)
    return store.dataset()


def job(sweep: Sweep, where: Place, tile: int | None, strict: bool = False) -> Job:
    """The job of a sweep, with the sweep itself where workers cannot read from its JSON what it is.

    Raises:
        ValueError: when they cannot be sent it either.
    """
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
            raise ValueError("it arrives as another one")
    except (TypeError, ValueError, AttributeError, pickle.PicklingError) as error:
        raise ValueError(f"executor: its workers cannot be sent this sweep ({error})") from None
    return found._replace(sweep=sent)


def make_store(
    executor: Executor, job: Job, sweep: Sweep, chunk: int | None, report: Report | None
) -> None:
    """Let a worker, which has the devices, plan the sweep and make its store. `StoreError` when it
    cannot."""
    nothing = Interrupted(f"stopped: no run is stored in {job.address} yet.", RESUME)
    with stoppable(lambda: nothing) as check:
        future = _submit(executor, jobs.make, job, json.dumps(config_of(sweep)), chunk)
        while not wait([future], POLL).done:
            check()
    match _outcome(future):
        case Failed(worker, reason):
            raise StoreError(f"{job.address}: worker {worker} made no store: {reason}")
        case str(plan) if report:
            report(plan)


def work_off(executor: Executor, store: Store, job: Job, agreement: Agreement) -> None:
    """Have all chunks computed that are not stored yet, by the programs of this process.

    Raises:
        ChunksFailed: when all that can be done is done, but not all.
        StoreError: when the executor breaks; what is finished is stored.
        Interrupted: after Ctrl-C, SIGTERM or SIGHUP, with all finished chunks stored.
    """
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
                running[_submit(executor, jobs.compute, job, number)] = number
            for future in wait(running, POLL, FIRST_COMPLETED).done:
                number = running.pop(future)
                match _outcome(future):
                    case Done(str(worker), int(runs), int(diverged)):
                        _check_program(agreement, number, worker)
                        shown_runs.stored(runs, diverged)
                        reasons[number] = "a worker says that it is stored, and it is not"
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
    """Raise `StoreError` for a chunk that a worker has computed by other code than this process
    has; it is removed, with all others of that code."""
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
    jobs.DRIVER = os.getpid()
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
        f"executor: takes no more work ({why}). What was finished is stored; run the sweep again "
        "with a new executor to go on."
    )


def _message(store: Store, reasons: dict[int, str]) -> str:
    lines = [
        f"{store.name}: {len(reasons)} of {store.layout.num_chunks} chunks failed {TRIES} times "
        "each, all others are stored; run the sweep again to try them anew:"
    ]
    for number, reason in list(reasons.items())[:MOST_NAMED]:
        parts = zip(store.dims, store.layout.region(number), strict=True)
        where = ", ".join(f"{dim} {part.start}:{part.stop}" for dim, part in parts)
        lines.append(f"  chunk {number} ({where}): {reason}")
    if len(reasons) > MOST_NAMED:
        lines.append(f"  and {len(reasons) - MOST_NAMED} more")
    return "\n".join(map(printable, lines))
