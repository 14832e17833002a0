"""Sweeps shared by the workers of an executor: kills, load balance, and overhead."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np

import sweeps
from sweeps.runner import cluster, driver, tiles, worker
from sweeps.runner.agreement import ProgramCheck
from sweeps.runner.config import create
from sweeps.runner.fit import layout_of
from sweeps.runner.program.identity import Identity
from sweeps.runner.spec import Sweep
from sweeps.runner.store import Variable
from sweeps.runner.store.store import Store
from sweeps.systems.experiment import experiment
from tests.benchmarks.kills import same
from tests.benchmarks.timing import seconds

WORKERS = 4
CHUNKS = 64
CHUNK = 16
"""Number of runs in a chunk."""
KILLS = 10
PAUSE = 0.1
"""Seconds that a chunk takes in the measurement of load balance."""
SLOW = 4
"""Factor by which one of these workers is slower."""
EMPTY = 2000
"""Number of empty chunks handed out to measure throughput."""
MANY = 20_000
"""Number of chunks in the resumed store."""


class Killing(Executor):
    """An executor that kills one of its workers after `every` chunks, up to `kills` times."""

    def __init__(self, inner: Executor, kills: int, every: int) -> None:
        self.inner, self.kills, self.every = inner, kills, every
        self.done = self.killed = 0
        self.names: set[str] = set()
        self.moments = random.Random(0)

    def submit(self, function: Callable, /, *given: object, **named: object) -> Future:
        future = self.inner.submit(function, *given, **named)
        future.add_done_callback(self._look)
        return future

    def _look(self, future: Future) -> None:
        answer = None if future.cancelled() or future.exception() else future.result()
        if not isinstance(answer, worker.Done):
            return
        self.done += 1
        self.names.add(answer.worker)
        if self.done % self.every == 0 and self.killed < self.kills:
            victim = self.moments.choice(sorted(self.names))
            self.names.discard(victim)
            self.killed += 1
            os.kill(int(victim.split(":")[1]), signal.SIGKILL)


def report() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as name:
        for part in (kills, driver_killed, balance, overhead, feed, resume):
            yield from part(Path(name))


def sweep() -> Sweep:
    points = CHUNKS * CHUNK // 8
    return Sweep(
        experiment(steps=100, start="uniform"),
        {"eta_y": {"logspace": [0.1, 10, points]}, "seed": {"range": 8}},
        record=("entropy", "loss"),
    )


def kills(folder: Path) -> Iterator[str]:
    sweeps.run(sweep(), folder / "one", chunk=CHUNK, tile=CHUNK)
    with cluster.executor(f"local:{WORKERS}") as executor:
        killing = Killing(executor, KILLS, CHUNKS // (KILLS + 1))
        sweeps.run(sweep(), folder / "killed", executor=killing, chunk=CHUNK, tile=CHUNK)
    yield (
        f"{WORKERS} workers, {CHUNKS} chunks, {killing.killed} workers killed: "
        f"{int(Store.open(folder / 'killed').done().sum())} chunks stored, arrays identical to one "
        f"process's: {same(folder / 'one', folder / 'killed')}"
    )


def drive(out: str) -> None:
    with cluster.executor("local:2") as executor:
        sweeps.run(sweep(), out, executor=executor, chunk=CHUNK, tile=CHUNK)


def driver_killed(folder: Path) -> Iterator[str]:
    """Kill the driver while its workers compute chunks, and resume with another driver."""
    out = folder / "driven"
    main = "import sys; from tests.benchmarks import workers; workers.drive(sys.argv[1])"
    command = [sys.executable, "-c", main, str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and _stored(out) < CHUNKS // 4:
        time.sleep(0.05)
    process.kill()
    process.wait()
    before = _stored(out)
    subprocess.run(command, check=True, capture_output=True)
    yield (
        f"driver killed after {before} of {CHUNKS} chunks, run again: {_stored(out)} stored, "
        f"arrays identical: {same(folder / 'one', out)}"
    )


def balance(folder: Path) -> Iterator[str]:
    """Compare workers with known chunk times, one of them slower, with the ideal balance and with
    fixed shares."""
    ideal = CHUNKS * PAUSE / (WORKERS - 1 + 1 / SLOW)
    store, job = _empty(folder / "balance", CHUNKS)
    with instead(paused), cluster.executor(f"local:{WORKERS}") as executor:
        # All workers import what they need, and one becomes the slow one.
        warm = [executor.submit(paused, job, -i) for i in range(1, 4 * WORKERS)]
        for future in warm:
            future.result()
        took = seconds(lambda: _compute(executor, store, job))
    with ThreadPoolExecutor(WORKERS) as threads:
        shares = seconds(lambda: list(threads.map(_share, range(WORKERS))))
    yield (
        f"one of {WORKERS} workers {SLOW} times slower: {took:.2f} s, ideal {ideal:.2f} s (ratio "
        f"{took / ideal:.2f}); fixed shares take {shares:.2f} s ({shares / ideal:.2f})"
    )


def paused(job: worker.SweepJob, number: int) -> worker.Done:
    marker = Path(job.address + ".slow")
    try:
        marker.touch(exist_ok=False)
        marker.write_text(worker.worker_name())
    except FileExistsError:
        pass
    time.sleep(PAUSE * (SLOW if marker.read_text() == worker.worker_name() else 1))
    return worker.Done(worker.worker_name(), 1, 0)


@contextlib.contextmanager
def instead(compute: Callable[..., worker.Done]) -> Iterator[None]:
    """Let the driver call `compute`, which stores no chunks, and treat all chunks as stored after
    the first look."""
    own, done, asked = driver.compute, Store.done, iter([False])
    check = ProgramCheck.check_worker

    def stored(self: Store) -> np.ndarray:
        return np.full(self.layout.num_chunks, next(asked, True))

    def unchecked(self: ProgramCheck, worker: str, number: int) -> None:
        pass

    driver.compute, Store.done = compute, stored
    ProgramCheck.check_worker = unchecked
    try:
        yield
    finally:
        driver.compute, Store.done, ProgramCheck.check_worker = own, done, check


def _share(k: int) -> None:
    for _ in range(k, CHUNKS, WORKERS):
        time.sleep(PAUSE * (SLOW if k == 0 else 1))


def overhead(folder: Path) -> Iterator[str]:
    """Time the same sweep on workers and in one process on all devices, both warm."""

    def run(name: str, executor: Executor | None = None) -> float:
        out = folder / name
        return seconds(lambda: sweeps.run(sweep(), out, executor=executor, chunk=CHUNK, tile=CHUNK))

    run("compiling")
    one = run("warm")
    with cluster.executor(f"local:{WORKERS}") as executor:
        run("first", executor)
        took = run("second", executor)
    yield (
        f"{CHUNKS * CHUNK} runs, warm: {WORKERS} workers {took:.2f} s, one process with "
        f"{len(jax.devices())} devices {one:.2f} s (ratio {took / one:.2f})"
    )


def feed(folder: Path) -> Iterator[str]:
    store, job = _empty(folder / "feed", EMPTY)
    with instead(nothing), cluster.executor(f"local:{WORKERS}") as executor:
        executor.submit(nothing, job, 0).result()
        took = seconds(lambda: _compute(executor, store, job))
    yield f"empty chunks: {EMPTY / took:.0f} per second through {WORKERS} workers"


def _compute(executor: Executor, store: Store, job: worker.SweepJob) -> None:
    check = ProgramCheck(store, Identity(sweep(), "cpu"), tiles.mesh(), {})
    driver.Workers(executor, job, sweep()).compute(store, store.done(), check)


def nothing(job: worker.SweepJob, number: int) -> worker.Done:
    return worker.Done(worker.worker_name(), 1, 0)


def resume(folder: Path) -> Iterator[str]:
    store, _ = _empty(folder / "many", MANY)
    empty = {name: np.zeros((1, 1), v.dtype) for name, v in store.variables.items()}
    for region in map(store.layout.region, range(store.layout.num_chunks)):
        if region[0].start < MANY - 1:
            store.write(region, empty)
    with ThreadPoolExecutor(1) as executor:
        took = seconds(lambda: sweeps.run(_many(MANY), folder / "many", executor=executor))
    left = int((~Store.open(folder / "many").done()).sum())
    yield f"{MANY} chunks, of which {left} are left: resumed and completed in {took:.1f} s"


def _many(chunks: int) -> Sweep:
    return Sweep(
        experiment(), {"eta_y": {"linspace": [0.1, 4, chunks]}, "seed": [0]}, record=("loss",)
    )


def _empty(path: Path, chunks: int) -> tuple[Store, worker.SweepJob]:
    wanted = _many(chunks)
    variables = {
        name: Variable((), (), np.dtype(kind))
        for name, kind in (("loss", "float32"), ("first_bad_step", "int32"), ("status", "int8"))
    }
    store = create(str(path), wanted, layout_of(wanted.dims, 1), variables)
    return store, driver.job_of(Identity(wanted, "cpu"), store.storage, None)


def _stored(out: Path) -> int:
    return int(Store.open(out).done().sum()) if out.exists() else 0
