"""What a worker does: one chunk of a sweep at a time, computed and written where it stands.

A worker is told where the store is and the number of a chunk, and answers with a few bytes. It
keeps its compiled programs from one chunk to the next.
"""

import functools
import json
import os
import pickle
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from dynsim import Status
from dynsim.precision import precision
from sweeps import output
from sweeps.runner import tiles
from sweeps.runner.agreement import Agreement
from sweeps.runner.config import config_of, from_config
from sweeps.runner.spec import Sweep
from sweeps.runner.store.base import Place, StoreError
from sweeps.runner.store.creation import create
from sweeps.runner.store.local import place
from sweeps.runner.store.manifest import fingerprint
from sweeps.runner.store.store import Store
from sweeps.runner.work import Work

Answer = TypeVar("Answer")


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


class Done(NamedTuple):
    """A chunk that is stored: its numbers of runs and of those that diverged."""

    worker: str
    runs: int
    diverged: int


class Failed(NamedTuple):
    """A chunk that is not, and why."""

    worker: str
    reason: str


DRIVER = 0
"""Number of the process that drives a sweep from here, which only a forked worker has inherited."""
LONGEST = 30.0
"""Seconds that a worker waits at most after it has failed once more, so that others, which may not
fail, take the chunks."""
_BUSY = threading.Lock()
"""Held while a chunk is computed: the threads of a worker share its devices."""
_FAILED: Counter[str] = Counter()
"""How often a worker has failed since it last did not."""


def name() -> str:
    """The name of this worker, of its host and process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def make(job: Job, config: str, chunk: int | None) -> str | Failed:
    """Make the store of a job, if there is none, with at most `chunk` runs in a chunk, by default
    a tile for each of the worker's devices. `config` is the sweep as JSON, `Sweep.as_json`. Returns
    the plan as a line for people."""

    def plan() -> str:
        sweep = job.made(json.loads(config))
        with precision(sweep.dtype):
            mesh = tiles.mesh(None, sweep.dtype)
            work = Work(sweep, mesh, chunk=chunk, tile=job.tile, chunk_tiles=mesh.size)
            create(_place(job), sweep, work.plan.layout, work.variables())
        return str(work.plan)

    return _answer(plan)


def compute(job: Job, number: int) -> Done | Failed:
    """Compute and store chunk `number` of a job."""

    def chunk() -> Done:
        began = perf_counter()
        work, store, agreement = _opened(job)
        store.check()
        region = store.layout.region(number)
        with precision(work.sweep.dtype):
            program = agreement.of(work.sweep.static_values(region))
            arrays = work.compute(region, store.variables)
        # Meanwhile the driver may have found out that this is other code.
        agreement.confirm(work.sweep.static_values(region))
        store.write(region, arrays, perf_counter() - began, program)
        codes = arrays["status"]
        return Done(name(), codes.size, int((codes != Status.OK).sum()))

    return _answer(chunk)


@functools.lru_cache(maxsize=2)
def _opened(job: Job) -> tuple[Work, Store, Agreement]:
    # What is to be said of the store, the driver says.
    store = Store.open(_place(job), report=lambda line: None)
    # Before anything is imported that a configuration names.
    if store.id != job.store or store.fingerprint != job.digest:
        raise StoreError(f"{job.address}: holds another sweep here than where it was started")
    sweep = job.made(store.config)
    if fingerprint(config_of(sweep)) != job.digest:
        raise StoreError(f"{job.address}: this worker makes another sweep of it than the driver")
    store.held = store.place.watch(job.fence)
    with precision(sweep.dtype):
        mesh = tiles.mesh(None, sweep.dtype)
        work = Work(sweep, mesh, layout=store.layout, tile=job.tile)
        environment = {**output.environment(), **work.identity.parts()}
        store.enter(environment, job.strict)
        return work, store, Agreement(store, work.identity, mesh, environment, alone=False)


def _place(job: Job) -> Place:
    found = place(job.address)
    found.durable |= job.durable
    return found


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
