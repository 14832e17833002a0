"""The driver of an executor: every chunk is computed, whatever workers do; what fails is named.
An executor of our own makes its workers fail, lie, and die as often as a table says."""

import collections
import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
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
from dynsim import precision
from sweeps import ChunksFailed, Experiment, StoreError, Sweep
from sweeps.runner import driver, worker
from sweeps.runner.store.store import Store
from tests.sweeps.runner.curves import Curve

RUN = Experiment(Curve(), dynsim.sgd(0.1), 4, 3)
RATES = [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4]
SWEEP = Sweep(RUN, {"eta": RATES, "seed": {"range": 2}}, record=("w",))
CHUNKS = range(4)
"""Of four rates with one seed each."""
PATIENCE = 10
"""Seconds to wait for the driver on a busy machine."""
KilledWorker = type("KilledWorker", (Exception,), {})
"""As Dask raises it, for a call that was queued on four workers that died."""
Fault = Callable[["Call"], Any]


class Call:
    """A call for a chunk: the number of it, how often it was called for before, and what Dask would
    do for it."""

    def __init__(self, executor: "Faulty", job: worker.SweepJob, number: int) -> None:
        self.executor, self.job, self.number = executor, job, number
        self.before = executor.submitted[number]
        executor.submitted[number] += 1

    def compute(self) -> Any:
        return worker.compute(self.job, self.number)

    def begin(self) -> None:
        """As a worker that computes the chunk does, and leaves where it dies."""
        storage = self.job.storage()
        records = f"status/.chunks-{self.job.store}"
        storage.records = records
        storage.put(f"{records}/{self.number}.{self.job.attempt}.tried", b"")

    def die(self) -> Any:
        """Over the chunk, for which an executor calls another worker."""
        self.begin()
        return self.compute()

    def wait_for(self, number: int, times: int) -> None:
        """Until a chunk has been called for so often."""
        end = time.monotonic() + PATIENCE
        while self.executor.submitted[number] < times and time.monotonic() < end:
            time.sleep(0.005)


class Faulty(ThreadPoolExecutor):
    def __init__(self, fault: Fault = Call.compute, threads: int = 1) -> None:
        super().__init__(threads)
        self.fault = fault
        self.submitted: collections.Counter[int] = collections.Counter()

    def submit(self, function: Callable, /, *given: Any, **named: Any) -> Future:
        if function is worker.compute:
            return super().submit(self.fault, Call(self, *given))
        return super().submit(function, *given, **named)


def run(out: Path, executor: Executor, sweep: Sweep = SWEEP, chunk: int = 4) -> Any:
    with executor:
        return sweeps.run(sweep, out, executor=executor, chunk=chunk, tile=2, progress=False)


@pytest.fixture(scope="module")
def whole() -> Any:
    return sweeps.run(SWEEP, tile=2).load()


def fails(number: int, answer: Callable[[Call], Any], times: int = 10**6) -> Fault:
    """Workers that fail at a chunk."""
    return lambda call: (
        answer(call) if call.number == number and call.before < times else call.compute()
    )


def raises(error: BaseException) -> Callable[[Call], Any]:
    def answer(call: Call) -> None:
        raise error

    return answer


def queued(call: Call) -> Any:
    """Workers die over chunk 0, and calls for chunk 1, queued on them, are given up with them."""
    if call.number == 0:
        return call.die()
    if call.number == 1 and call.before < 2:
        # The driver knows of the death by now.
        call.wait_for(0, call.before + 2)
        raise KilledWorker
    return call.compute()


def lies(call: Call) -> Any:
    """Answers something else, or that a chunk is stored which is not."""
    wrong = (None, "done", worker.Done("w", "2", 0), worker.Done("w", 2, 0))  # type: ignore
    return wrong[call.number] if call.before == 0 else call.compute()


def failed(call: Call) -> Any:
    return worker.Failed("a worker", f"ValueError: no luck {call.before}")


DIED = "its worker died 3 times"
FAULTS: dict[str, tuple[Fault, dict[int, str]]] = {
    "none": (Call.compute, {}),
    "fails": (fails(2, failed), {2: "no luck 2"}),
    "fails twice": (fails(2, failed, 2), {}),
    "raises": (fails(3, raises(OSError("no device"))), {3: "OSError: no device"}),
    "all fail": (failed, dict.fromkeys(CHUNKS, "no luck 2")),
    "lies at first": (lies, {}),
    "always lies": (fails(0, lambda call: worker.Done("w", 2, 0)), {0: "but it is not"}),
    "dies over a chunk": (fails(1, Call.die), {1: DIED}),
    "dies over two": (
        lambda call: call.die() if call.number in (0, 3) else call.compute(),
        {0: DIED, 3: DIED},
    ),
    "dies twice": (fails(1, Call.die, 2), {}),
    "dies behind another": (queued, {0: DIED}),
    "dies before it begins": (fails(2, raises(KilledWorker())), {2: "died before it began"}),
}


@pytest.mark.parametrize("how", FAULTS)
def test_what_fails_is_named_and_everything_else_is_computed(
    how: str, whole: Any, tmp_path: Path
) -> None:
    fault, reasons = FAULTS[how]
    executor = Faulty(fault)
    with pytest.raises(ChunksFailed) if reasons else contextlib.nullcontext() as caught:
        run(tmp_path / "s", executor)
    if caught is not None:
        first, *lines = str(caught.value).splitlines()
        assert f"{len(reasons)} of 4 chunks" in first
        assert [*caught.value.reasons] == [*reasons]
        for line, (number, reason) in zip(lines, reasons.items(), strict=True):
            (rate, seed) = divmod(number, 2)
            where = f"eta {4 * rate}:{4 * rate + 4}, seed {seed}:{seed + 1}"
            assert line.startswith(f"  chunk {number} ({where})")
            assert reason in line
            assert reason in caught.value.reasons[number]
            assert executor.submitted[number] == 3
    store = Store.open(tmp_path / "s")
    assert {*np.flatnonzero(~store.done()).tolist()} == {*reasons}
    assert not [*(tmp_path / "s").rglob("*.tried")]
    # Nothing is lost: the next one does what is left, and again what has lost a file since.
    (tmp_path / "s/w/c/0/1/0").unlink(missing_ok=True)
    found = run(tmp_path / "s", Faulty())
    for name in whole.variables:
        np.testing.assert_array_equal(found[name], whole[name])


def test_ten_chunks_that_failed_are_named_and_the_rest_counted(tmp_path: Path) -> None:
    sweep = Sweep(RUN, {"eta": {"linspace": [0.1, 0.2, 13]}}, record=("w",))
    with pytest.raises(ChunksFailed) as caught:
        run(tmp_path / "s", Faulty(failed), sweep, 1)
    _, *lines = str(caught.value).splitlines()
    assert len(lines) == 11
    assert lines[9].startswith("  chunk 9 (eta 9:10)")
    assert "3 more" in lines[10]
    assert len(caught.value.reasons) == 13


def breaks(call: Call) -> Any:
    if call.number == 2:
        call.begin()
    if call.number >= 2:
        raise BrokenProcessPool("a process died")
    return call.compute()


def test_an_executor_that_breaks_names_the_chunks_that_were_computed(
    whole: Any, tmp_path: Path
) -> None:
    with pytest.raises(StoreError) as caught:
        run(tmp_path / "s", Faulty(breaks))
    first, *named = str(caught.value).splitlines()
    assert "a process died" in first
    assert named == ["  chunk 2 (eta 4:8, seed 0:1)"]
    # Not those of an earlier call.
    executor = Faulty()
    executor.shutdown()
    with pytest.raises(StoreError, match="no more work") as caught:
        run(tmp_path / "s", executor)
    assert "chunk 2" not in str(caught.value)
    np.testing.assert_array_equal(run(tmp_path / "s", Faulty()).w, whole.w)


class Maker(Faulty):
    def submit(self, function: Callable, /, *given: Any, **named: Any) -> Future:
        assert function is not worker.compute
        return super().submit(self.fault, given[0])


@pytest.mark.parametrize(
    ("fault", "named"),
    [(raises(KilledWorker()), "create the store died"), (raises(OSError("no disk")), "no disk")],
)
def test_a_worker_that_makes_no_store_is_an_error(fault: Any, named: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=named):
        run(tmp_path / "s", Maker(fault))
    assert not (tmp_path / "s").exists()


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

    sweeps.run(SWEEP, tmp_path / "s", chunk=4, tile=2)
    store = Store.open(tmp_path / "s")
    store.chunks.remove(2)
    monkeypatch.setattr(driver, "CANCELLING", 0.01)
    # Of a store that is there, and of one that has to be made.
    for name, stored in (("s", "12 of 16 runs"), ("t", "no run")):
        with pytest.raises(sweeps.Interrupted, match=stored):
            run(tmp_path / name, Executes())
    assert not ended
    over.set()


class Calling(Curve):
    """Its loss calls Python, which fails where `scale` is 3."""

    scale: float = 1.0

    def loss(self, params: Any, data: Any) -> Any:
        like = jax.ShapeDtypeStruct((), jnp.float32)
        found = jax.pure_callback(called, like, jnp.float32(self.scale), vmap_method="sequential")
        return super().loss(params, data) + found


def called(scale: np.ndarray) -> np.ndarray:
    return np.float32({1.0: 0, 2.0: 0}[float(scale)])


LINE = called.__code__.co_firstlineno + 1


@pytest.mark.more
def test_an_error_of_a_callback_is_one_message_with_its_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    sweep = Sweep(
        Experiment(Calling(), dynsim.sgd(0.1), 2, 2),
        {"scale": [1.0, 2.0, 3.0]},
        record=("batch_loss",),
    )
    with caplog.at_level(logging.DEBUG), pytest.raises(ChunksFailed) as caught:
        run(tmp_path / "s", Faulty(), sweep, 1)
    assert [*caught.value.reasons] == [2]
    _, line = str(caught.value).splitlines()
    assert f"KeyError: 3.0 ({__file__}, line {LINE}: return np.float32(" in line
    assert "Traceback" not in str(caught.value) + caplog.text + "".join(capfd.readouterr())


def test_forked_workers_are_refused_before_they_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As seen from a child: the driver's number is not its own."""
    monkeypatch.setattr(precision, "_PROCESS", {os.getpid() + 1})
    found = worker.compute(worker.SweepJob(str(tmp_path), "", None), 0)
    assert isinstance(found, worker.Failed)
    assert "get_context('spawn')" in found.reason
    # One of a user, who may call anything.
    key = jax.random.key(0)
    train = lambda: dynsim.train(Curve(), dynsim.sgd(0.1), key, steps=1)
    for call in (lambda: sweeps.run(SWEEP), train):
        with pytest.raises(RuntimeError, match=r"get_context\('spawn'\)"):
            call()


Nanny = type("Nanny", (), {"status": SimpleNamespace(name="closed")})
"""As Dask's, for a worker that could not be started again."""


class Losing(Faulty):
    """Dask without a worker, whose scheduler waits."""

    _client = SimpleNamespace(cluster=SimpleNamespace(workers={0: Nanny(), 1: Nanny()}))

    def submit(self, function: Callable, /, *given: Any, **named: Any) -> Future:
        return Future() if function is worker.compute else super().submit(function, *given, **named)


def test_a_sweep_without_any_worker_ends(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    for _ in range(2):
        with pytest.raises(StoreError, match="all of its workers have ended"):
            run(tmp_path / "s", Losing())
    assert run(tmp_path / "s", Faulty()).status.shape == (8, 2)


def test_a_worker_of_another_store_fails_and_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another configuration, whatever it says about itself, and of the same that has been made
    anew; a lost lock; and failures in a row are waited after: from a tenth of a second on, twice as
    long each time, and up to half a minute."""
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    monkeypatch.setattr(worker, "worker_name", lambda: "a worker")
    sweeps.run(SWEEP, tmp_path / "s", chunk=4, tile=2)
    store = Store.open(tmp_path / "s")
    job = worker.SweepJob(str(tmp_path / "s"), store.fingerprint, 2, store=store.id)
    done = worker.compute(job, 0)
    assert done == worker.Done("a worker", 4, 0)
    for other, why in (
        (job._replace(digest="another"), "contains another sweep here"),
        (job._replace(store="another"), "contains another sweep here"),
        *([(worker.SweepJob(str(tmp_path / "nothing"), "", None), "no such sweep")] * 9),
    ):
        found = worker.compute(other, 0)
        assert isinstance(found, worker.Failed)
        assert why in found.reason
    assert waited == pytest.approx([min(0.1 * 2**i, 30) for i in range(11)])
    assert worker.compute(job, 1) == worker.Done("a worker", 4, 0)
    worker.compute(worker.SweepJob(str(tmp_path / "nothing"), "", None), 0)
    assert waited[-1] == 0.1
