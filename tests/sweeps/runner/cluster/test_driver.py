"""The driver of an executor: every chunk is computed, whatever workers do; what fails is named."""

import json
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
import sweeps
from sweeps import Sweep, experiment
from sweeps.runner import driver
from sweeps.runner.config import config_of, from_config
from sweeps.runner.store import StoreError
from sweeps.runner.store.place import Folder, Place
from sweeps.runner.store.store import Store
from sweeps.runner.work import Work
from sweeps.systems.experiment import Times

SWEEP = Sweep(
    experiment(steps=4, length=8, batch=4),
    {"eta_y": [0.1, 0.5, 1, 2, 4, 8], "seed": {"range": 2}},
    record=("loss", "entropy"),
)
NUMBER = 6
"""Of chunks, of two runs each."""
Answer = driver.Done | driver.Failed
PATIENCE = 10
"""Seconds to wait for the driver on a busy machine."""
_pause = time.sleep


def run(out: Path, executor: Executor) -> None:
    sweeps.run(SWEEP, out, executor=executor, chunk=2, tile=2)


@pytest.fixture(scope="module")
def whole() -> dict[str, np.ndarray]:
    found = sweeps.run(SWEEP, chunk=2, tile=2).load()
    return {str(name): array.values for name, array in found.variables.items()}


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadPoolExecutor]:
    """Three threads, each of which counts as a worker."""
    monkeypatch.setattr(driver, "name", lambda: threading.current_thread().name)
    with ThreadPoolExecutor(3, "worker") as executor:
        # Threads are started as they are needed: here all are there from the beginning.
        all_there = threading.Barrier(3)
        list(executor.map(lambda _: all_there.wait(), range(3)))
        yield executor


def assert_same(out: Path, whole: dict[str, np.ndarray]) -> None:
    found = sweeps.open(out).load()
    for name, values in whole.items():
        np.testing.assert_array_equal(found[name].values, values)


@pytest.mark.more
def test_chunks_are_those_of_one_process(
    workers: ThreadPoolExecutor, whole: dict[str, np.ndarray], tmp_path: Path
) -> None:
    run(tmp_path / "s", workers)
    assert_same(tmp_path / "s", whole)
    # One that has lost a file since is computed anew, also the first.
    (tmp_path / "s/loss/c/0/0").unlink()
    run(tmp_path / "s", workers)
    assert_same(tmp_path / "s", whole)


def test_a_chunk_that_always_fails_is_named_and_the_others_are_done(
    workers: ThreadPoolExecutor,
    whole: dict[str, np.ndarray],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[str] = []
    compute = driver.compute

    def fails_at_4(job: driver.Job, number: int) -> Answer:
        if number != 4:
            return compute(job, number)
        tried.append(driver.name())
        return driver.Failed(driver.name(), "ValueError: no luck")

    with monkeypatch.context() as patch:
        patch.setattr(driver, "compute", fails_at_4)
        with pytest.raises(
            sweeps.ChunksFailed,
            match=r"1 of 6 chunks failed 3 times[^:]*:\n  chunk 4 \(eta_y 4:6, seed 0:1\)",
        ) as caught:
            run(tmp_path / "s", workers)
    assert list(caught.value.reasons) == [4]
    assert "no luck" in str(caught.value)
    assert len(tried) == driver.TRIES
    status = Store.open(tmp_path / "s").done()
    np.testing.assert_array_equal(status, np.arange(NUMBER) != 4)
    # Nothing is lost: the next one does what is left.
    run(tmp_path / "s", workers)
    assert_same(tmp_path / "s", whole)


@pytest.mark.more
def test_a_worker_that_fails_at_everything_spoils_no_chunk(
    workers: ThreadPoolExecutor,
    whole: dict[str, np.ndarray],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would be free again at once, and waits after each failure, twice as long as before."""
    waited: list[float] = []
    compute = Work.compute

    def broken(self: Work, *options: object) -> dict[str, np.ndarray]:
        if driver.name().endswith("_0"):
            raise OSError("no device")
        return compute(self, *options)

    monkeypatch.setattr(driver.time, "sleep", lambda seconds: (waited.append(seconds), _pause(1.0)))
    monkeypatch.setattr(Work, "compute", broken)
    run(tmp_path / "s", workers)
    assert_same(tmp_path / "s", whole)
    assert waited[:1] == [0.1]
    assert waited == sorted(waited)


def test_one_worker_alone_tries_three_times(
    whole: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []
    compute = driver.compute

    def fails_twice(job: driver.Job, number: int) -> Answer:
        tries.append(number)
        if tries.count(number) < driver.TRIES:
            return driver.Failed(driver.name(), "OSError: not yet")
        return compute(job, number)

    monkeypatch.setattr(driver, "compute", fails_twice)
    with ThreadPoolExecutor(1) as executor:
        run(tmp_path / "s", executor)
    assert sorted(tries) == sorted(3 * list(range(NUMBER)))
    assert_same(tmp_path / "s", whole)


def test_no_answer_is_believed(
    whole: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor that answers something else, or that a chunk is stored which is not."""
    compute, wrong = (
        driver.compute,
        iter([None, "done", driver.Done("w", "2", 0), driver.Done("w", 2, 0)]),
    )

    def wrong_at_first(job: driver.Job, number: int) -> object:
        return next(wrong, None) or compute(job, number) if number else driver.Done("w", 2, 0)

    with ThreadPoolExecutor(1) as executor:
        with monkeypatch.context() as patch:
            patch.setattr(driver, "compute", wrong_at_first)
            with pytest.raises(sweeps.ChunksFailed, match="but it is not") as caught:
                run(tmp_path / "s", executor)
        assert list(caught.value.reasons) == [0]
        assert Store.open(tmp_path / "s").done().tolist() == [False, *[True] * (NUMBER - 1)]
        run(tmp_path / "s", executor)
    assert_same(tmp_path / "s", whole)


def test_an_executor_that_breaks_keeps_what_is_stored(
    whole: dict[str, np.ndarray], tmp_path: Path
) -> None:
    class Breaking(ThreadPoolExecutor):
        given = 0

        def submit(self, function: Callable, /, *given: object, **named: object) -> Future:
            self.given += 1
            if self.given > 3:  # the store, and two chunks
                raise BrokenProcessPool("a process died")
            return super().submit(function, *given, **named)

    with Breaking(1) as executor, pytest.raises(StoreError, match=r"a process died.* are stored"):
        run(tmp_path / "s", executor)
    with ThreadPoolExecutor(1) as executor:
        run(tmp_path / "s", executor)
    assert_same(tmp_path / "s", whole)


class Dead(BaseException):
    """The end of a worker that computes, after which it does nothing."""


KilledWorker = type("KilledWorker", (Exception,), {})
"""As Dask raises it, for a call that was queued on four workers that died."""


class Deadly(ThreadPoolExecutor):
    """An executor whose workers may die over a chunk. As Dask, it repeats the call of one that did,
    and gives up calls that were queued on four of them; or it breaks, as that of Python."""

    def __init__(self, breaks: bool = False, queued: Sequence[int | None] = ()) -> None:
        super().__init__(1)
        self.breaks, self.queued, self.deaths, self.broken = breaks, iter(queued), 0, False
        self.calls: list[Any] = []
        self.called = threading.Condition()

    def submit(self, function: Callable, /, *given: Any, **named: object) -> Future:
        with self.called:
            self.calls.append(given[1])
            self.called.notify()
        return super().submit(self._repeated, function, *given)

    def _repeated(self, function: Callable, *given: Any) -> object:
        if self.broken:
            raise BrokenProcessPool("a process died")
        if function is driver.compute and given[1] == next(self.queued, None):
            # The driver knows of the first two deaths over chunk 0, as it submits it again.
            known = lambda: not self.deaths or self.calls.count(0) > min(self.deaths, 2)
            with self.called:
                self.called.wait_for(known, PATIENCE)
            raise KilledWorker
        for _ in range(4):
            try:
                return function(*given)
            except Dead as death:
                self.deaths += 1
                if self.breaks:
                    self.broken = True
                    raise BrokenProcessPool("a process died") from death
        raise KilledWorker


@pytest.fixture
def lethal(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Chunks over which workers die."""
    numbers: set[int] = set()
    compute, remove = Work.compute, Folder.remove

    def dies(self: Work, region: tuple[slice, ...], *options: Any) -> dict[str, np.ndarray]:
        if region[0].start // 2 in numbers:
            raise Dead
        return compute(self, region, *options)

    def stays(self: Folder, key: str) -> None:
        if not isinstance(sys.exc_info()[1], Dead):
            remove(self, key)

    monkeypatch.setattr(Work, "compute", dies)
    monkeypatch.setattr(Folder, "remove", stays)
    return numbers


FOUR = Sweep(
    experiment(steps=4, length=8, batch=4),
    {"eta_y": [0.1, 0.5, 1, 2, 4, 8, 9, 10]},
    record=("loss",),
)
"""Four chunks, of two runs each."""


@pytest.mark.parametrize("numbers", [{1}, {0, 3}, {0, 1, 2, 3}])
@pytest.mark.more
def test_a_chunk_over_which_three_workers_die_is_named_and_the_others_are_done(
    numbers: set[int], lethal: set[int], tmp_path: Path
) -> None:
    lethal |= numbers
    for _ in range(2):
        with Deadly() as executor, pytest.raises(sweeps.ChunksFailed) as caught:
            sweeps.run(FOUR, tmp_path / "s", executor=executor, chunk=2, tile=2)
        assert executor.deaths == driver.TRIES * len(numbers)
        assert caught.value.reasons == dict.fromkeys(numbers, "its worker died 3 times")
        for number in numbers:
            where = f"chunk {number} (eta_y {2 * number}:{2 * number + 2}): its worker died 3 times"
            assert where in str(caught.value)
        assert {*np.flatnonzero(~Store.open(tmp_path / "s").done()).tolist()} == numbers
        assert not [*(tmp_path / "s").rglob(f"*{driver.MARK}")]
    lethal.clear()
    with Deadly() as executor:
        sweeps.run(FOUR, tmp_path / "s", executor=executor, chunk=2, tile=2)
    np.testing.assert_array_equal(
        sweeps.open(tmp_path / "s").loss, sweeps.run(FOUR, chunk=2, tile=2).loss
    )


def test_chunks_queued_on_workers_that_died_over_another_one_have_not_failed(
    lethal: set[int], tmp_path: Path
) -> None:
    lethal.add(0)
    # Of the calls for chunks 0, 1, 2, 3, 0, 1, 0, 1, those for chunk 1 are given up.
    queued = [None, 1, None, None, None, 1, None, 1]
    with Deadly(queued=queued) as executor, pytest.raises(sweeps.ChunksFailed) as caught:
        sweeps.run(FOUR, tmp_path / "s", executor=executor, chunk=2, tile=2)
    assert [*caught.value.reasons] == [0]
    assert Store.open(tmp_path / "s").done().tolist() == [False, True, True, True]


def test_workers_that_die_before_they_begin_are_not_tried_for_ever(tmp_path: Path) -> None:
    """As where their installation is broken."""
    with Deadly() as executor:
        sweeps.run(FOUR, tmp_path / "s", executor=executor, chunk=2, tile=2)
    (record,) = (tmp_path / "s").rglob("2.json")
    record.unlink()
    message = "its worker died before it began"
    with Deadly(queued=[2, 2, 2]) as executor, pytest.raises(sweeps.ChunksFailed, match=message):
        sweeps.run(FOUR, tmp_path / "s", executor=executor, chunk=2, tile=2)


def test_a_worker_that_dies_before_there_is_a_store_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object) -> None:
        raise Dead

    with monkeypatch.context() as patch, Deadly() as executor:
        patch.setattr(driver, "create", dies)
        with pytest.raises(StoreError, match="the worker that should create the store died"):
            sweeps.run(FOUR, tmp_path / "s", executor=executor)
    assert not (tmp_path / "s").exists()


def test_an_executor_that_breaks_names_the_chunks_that_were_computed(
    lethal: set[int], tmp_path: Path
) -> None:
    lethal.add(2)
    with Deadly(breaks=True) as executor, pytest.raises(StoreError) as caught:
        sweeps.run(FOUR, tmp_path / "s", executor=executor, chunk=2, tile=2)
    first, *named = str(caught.value).splitlines()
    assert "a process died" in first
    assert named == ["  chunk 2 (eta_y 4:6)"]
    # Not those of an earlier call.
    executor = Deadly()
    executor.shutdown()
    with pytest.raises(StoreError, match="no more work") as caught:
        sweeps.run(FOUR, tmp_path / "s", executor=executor, chunk=2, tile=2)
    assert "chunk" not in str(caught.value).split("Finished chunks")[1]


def test_calls_that_cannot_be_cancelled_do_not_keep_a_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of Dask, whose scheduler may not answer."""
    over, ended = threading.Event(), []

    class Endless(Future):
        def cancel(self) -> bool:
            ended.append(over.wait(PATIENCE))
            return False

    class Executes(Executor):
        def submit(self, function: Callable, /, *given: Any, **named: object) -> Future:
            signal.raise_signal(signal.SIGTERM)
            return Endless()

    with ThreadPoolExecutor(1) as executor:
        sweeps.run(FOUR, tmp_path / "s", executor=executor, chunk=2)
    (record,) = (tmp_path / "s").rglob("2.json")
    record.unlink()
    monkeypatch.setattr(driver, "CANCELLING", 0.01)
    # Of a store that is there, and of one that has to be made.
    for name, stored in (("s", "6 of 8 runs are stored"), ("t", "no run is stored")):
        with pytest.raises(sweeps.Interrupted, match=stored):
            sweeps.run(FOUR, tmp_path / name, executor=Executes(), chunk=2)
    assert not ended
    over.set()


class Calling(dynsim.Problem):
    """Its loss calls Python, which fails in some runs.

    Attributes:
        scale: above 2, the call fails.
    """

    scale: float = 1.0

    def init(self, key: Any) -> Any:
        return jax.random.normal(key)

    def draw(self, key: Any, batch: int) -> Any:
        return jax.random.normal(key, (batch,))

    def loss(self, params: Any, data: Any) -> Any:
        like = jax.ShapeDtypeStruct((), jnp.float32)
        found = jax.pure_callback(called, like, jnp.float32(self.scale), vmap_method="sequential")
        return jnp.mean((params - data) ** 2) + found


def called(scale: np.ndarray) -> np.ndarray:
    return np.float32({1.0: 0, 2.0: 0}[float(scale)])


LINE = called.__code__.co_firstlineno + 1


@pytest.mark.more
def test_an_error_of_a_callback_is_one_message_with_its_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    run = sweeps.Experiment(Calling(), dynsim.sgd(0.1), 2, 2)
    sweep = Sweep(run, {"scale": [1.0, 2.0, 3.0]}, record=("batch_loss",))
    with (
        caplog.at_level(logging.DEBUG),
        ThreadPoolExecutor(1) as executor,
        pytest.raises(sweeps.ChunksFailed) as caught,
    ):
        sweeps.run(sweep, tmp_path / "s", executor=executor, chunk=1, tile=1)
    assert [*caught.value.reasons] == [2]
    _, line = str(caught.value).splitlines()
    assert f"KeyError: 3.0 ({__file__}, line {LINE}: return np.float32(" in line
    assert "Traceback" not in str(caught.value) + caplog.text + "".join(capfd.readouterr())


def test_forked_workers_are_refused_before_they_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As seen from a child: the driver's number is not its own."""
    monkeypatch.setattr(driver, "DRIVER", os.getpid() + 1)
    found = driver.compute(driver.Job(str(tmp_path), "", None), 0)
    assert isinstance(found, driver.Failed)
    assert "get_context('spawn')" in found.reason


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"out": None}, "executor: its workers write to a store"),
        ({"process": (0, 2)}, r"process = \(0, 2\): an executor has workers of its own"),
        ({"devices": jax.devices()}, "devices: an executor's workers have their own"),
    ],
)
def test_what_does_not_go_with_an_executor_is_refused(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    given = {"out": tmp_path / "s", **change}
    with ThreadPoolExecutor(1) as executor, pytest.raises(ValueError, match=message):
        sweeps.run(SWEEP, given.pop("out"), executor=executor, **given)
    assert not (tmp_path / "s").exists()


def test_another_store_at_the_address_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of another configuration, of which nothing is imported, whatever it says about itself;
    and one of the same that has been made anew. Failures in a row are waited after."""
    waited: list[float] = []
    monkeypatch.setattr(driver.time, "sleep", waited.append)
    monkeypatch.setattr(driver, "name", lambda: "a worker")
    nothing = driver.compute(driver.Job(str(tmp_path / "nothing"), "", None), 0)
    assert isinstance(nothing, driver.Failed)
    assert "no such sweep" in nothing.reason
    with ThreadPoolExecutor(1) as executor:
        run(tmp_path / "s", executor)
    store = Store.open(tmp_path / "s")
    job = driver.Job(str(tmp_path / "s"), store.fingerprint, 2, store=store.id)
    assert isinstance(driver.compute(job, 0), driver.Done)
    for other in (job._replace(digest="another"), job._replace(store="another")):
        found = driver.compute(other, 0)
        assert isinstance(found, driver.Failed)
        assert "contains another sweep here" in found.reason
    for _ in range(8):
        driver.compute(driver.Job(str(tmp_path / "nothing"), "", None), 0)
    # From a tenth of a second on, twice as long each time, and up to half a minute.
    assert waited == pytest.approx([0.1, *(min(0.1 * 2**i, 30) for i in range(10))])


@pytest.mark.parametrize(
    ("system", "theory", "axes", "times"),
    [
        # An infinite number, integers and a list have to come back as what they are.
        ("yz", "simulation", {"length": [8, math.inf], "seed": [0, 3]}, (0, 3)),
        ("yz", "eq10", {"eta_y": [0.1, 1e17 / 3]}, 3),
        ("qkv", "simulation", {"seed": [0, 3]}, "end"),
        ("two_stage", "ode", {"tau": [0.1, 0.2]}, 3),
        ("transformer", "simulation", {"seed": [0, 3]}, 2),
    ],
)
def test_workers_make_the_same_sweep_from_its_json(
    system: str, theory: str, axes: dict[str, list[float]], times: Times
) -> None:
    sweep = Sweep(experiment(system), axes, theory, times=times, root=5)
    config = config_of(sweep)
    again = from_config(json.loads(json.dumps(config)))
    assert config_of(again) == config
    assert (again.dims, again.times) == (sweep.dims, sweep.times)
    ours, theirs = (next(s.slices()) for s in (sweep, again))
    found, wanted = again.runs(theirs), sweep.runs(ours)
    assert found.call == wanted.call
    jax.tree.map(np.testing.assert_array_equal, found.numbers, wanted.numbers)


def test_chunks_are_submitted_1024_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interruption is looked for at least five times a second."""
    done, waited = np.zeros(3000, bool), []
    layout = SimpleNamespace(num_runs=6000, runs_in=lambda done: 2 * done.sum())
    where = Place()
    where.fence = "f"
    store = SimpleNamespace(
        id="s",
        place=where,
        done=done.copy,
        layout=layout,
        interrupted=None,
        check=lambda: None,
    )

    class Executes(Executor):
        def submit(self, function: Callable, /, *given: Any, **named: object) -> Future:
            job, number = given
            assert (function, job.store, job.fence) == (driver.compute, "s", "f")
            future: Future[driver.Done] = Future()
            future.set_result(driver.Done("w", 2, 0))
            done[number] = True
            return future

    def waits(running: Iterable[Future], seconds: float, until: str) -> Any:
        waited.append((len([*running]), seconds, until))
        return wait(running, seconds, until)

    monkeypatch.setattr(driver, "wait", waits)
    monkeypatch.setattr(driver, "take_over", lambda *_: None)
    monkeypatch.setattr(driver, "_check_program", lambda *_: None)
    job = driver.Job("somewhere", "", None)
    driver.work_off(Executes(), store, job, None)  # pyright: ignore[reportArgumentType]
    assert waited == [(n, 0.2, "FIRST_COMPLETED") for n in (1024, 1024, 3000 - 2 * 1024)]


@pytest.mark.parametrize("number", [1, 10, 11, 13])
def test_ten_chunks_that_failed_are_named_and_the_rest_counted(number: int) -> None:
    region = lambda chunk: (slice(2 * chunk, 2 * chunk + 2), slice(0, 1))
    layout = SimpleNamespace(num_chunks=20, region=region)
    store = SimpleNamespace(name="s", layout=layout, dims=("eta_y", "seed"))
    first, *named = driver._message(store, {i: f"why {i}" for i in range(number)}).splitlines()
    assert first.startswith(f"s: {number} of 20 chunks failed 3 times each")
    assert named[:10] == [
        f"  chunk {i} (eta_y {2 * i}:{2 * i + 2}, seed 0:1): why {i}"
        for i in range(min(number, 10))
    ]
    assert named[10:] == ([f"  and {number - 10} more"] if number > 10 else [])
