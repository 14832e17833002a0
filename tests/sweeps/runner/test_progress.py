"""What long work says of itself, in a notebook and where nobody watches, and how it is stopped."""

import io
import os
import queue
import signal
import sys
import threading
import types
from pathlib import Path

import pytest

import dynsim
import sweeps
from sweeps import Experiment, Sweep
from sweeps.runner import progress
from sweeps.runner.store.store import Store
from tests.sweeps.runner.curves import Curve
from tests.sweeps.runner.processes import started

PATIENCE = 60
"""Seconds to wait for a line on a busy machine before the test fails."""
SWEEP = Sweep(Experiment(Curve(), dynsim.sgd(0.1), 4, 3), {"seed": {"range": 6}}, record="w")


class Log(io.StringIO):
    """A stream that hands on what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: queue.Queue[str] = queue.Queue()

    def write(self, text: str) -> int:
        self.lines.put(text)
        return len(text)

    def until(self, part: str) -> str:
        """The first line with `part` in it; `queue.Empty` if none comes."""
        line = ""
        while part not in line:
            line = self.lines.get(timeout=PATIENCE)
        return line


def watched(monkeypatch: pytest.MonkeyPatch) -> Log:
    """Called by tests themselves: pytest has a standard error of its own for fixtures."""
    found = Log()
    monkeypatch.setattr(sys, "stderr", found)
    return found


def test_the_clock_makes_lines_that_stand_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    log = watched(monkeypatch)
    monkeypatch.setattr(progress, "REFRESH_SECONDS", {False: 0.01})
    with progress.progress_bar(10, 2) as runs:
        runs.computed(1)
        log.until("3 of 10")
        runs.stored(2, 1)
        runs.computed(1, "2 of 4 programs compiled")
        line = log.until("5 of 10")
        waiting: list[str] = []
        progress.wait(lambda: waiting.append(log.until("compiling")), lambda: None, "compiling")
        while "compiling" in log.until("5 of 10"):
            pass
    # Two runs were there, two are stored since, of which one diverged, and one is computed.
    assert line.startswith("50 %: 5 of 10, ")
    assert "diverged=1, 2 of 4 programs compiled" in line
    assert waiting[0].startswith("compiling: 50 %: 5 of 10, ")
    assert line.endswith("\n")
    assert "\r" not in line
    for item in progress.track(("eq10", "plain"), "theory"):
        log.until(f", {item}\n")


def test_short_and_quiet_work_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    log = watched(monkeypatch)
    with progress.progress_bar(10, 2) as runs:
        runs.stored(8, 0)
    assert list(progress.track("abc")) == ["a", "b", "c"]
    monkeypatch.setattr(progress, "REFRESH_SECONDS", {False: 0.01})
    with progress.quiet(), progress.progress_bar(10, 2) as runs:
        progress.say("nothing")
        runs.stored(8, 0)
    progress.say("a line")
    assert "".join(log.lines.queue) == "a line\n"


@pytest.mark.more
def test_a_notebook_sees_one_line_change(monkeypatch: pytest.MonkeyPatch) -> None:
    log = watched(monkeypatch)
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    sweeps.run(SWEEP, progress=False)
    assert log.lines.empty()
    sweeps.run(SWEEP)
    shown = "".join(log.lines.queue)
    assert "6/6" in shown
    assert "\r" in shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_says_what_is_stored_and_how_to_resume(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def stopped(old: str, new: str) -> None:
        replace(old, new)
        if str(new).endswith("/0.json"):
            signal.raise_signal(number)

    monkeypatch.setattr(os, "replace", stopped)
    with pytest.raises(sweeps.Interrupted) as found:
        sweeps.run(SWEEP, out := tmp_path / "run", chunk=2)
    assert f"2 of 6 runs are stored in {out}" in str(found.value)
    assert found.value.number == number
    assert Store.open(out).done().tolist() == [True, False, False]


ENDLESS = """
import jax
from tests.sweeps.runner.curves import Curve

begun = []

def begin():
    if not begun:
        begun.append(True)
        print("begun", flush=True)

class Endless(Curve):
    def init(self, key):
        def halve(x):
            # Within the loop: next to it, it may wait for a thread until the loop ends.
            jax.debug.callback(begin)
            return x / 2

        halved = jax.lax.while_loop(lambda x: x < 1, halve, jax.random.uniform(key) / 2)
        return jax.numpy.ones(2) * halved
"""


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)]
)
@pytest.mark.more
def test_a_program_that_never_ends_is_stopped_by_the_first_signal(
    number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS)
    (tmp_path / "endless.toml").write_text(
        'record = ["batch_loss"]\n[run]\nproblem = "endless:Endless"\n[axes]\neta = [0.1, 0.2]\n'
    )
    words = ("-m", "dynsim", "sweep", "endless.toml", "--out", "out")
    with started(tmp_path, *words, JAX_NUM_CPU_DEVICES="2") as process:
        assert process.stdout is not None
        while line := process.stdout.readline():
            if line == "begun\n":
                process.send_signal(number)
                break
        _, errors = process.communicate()
    assert process.returncode == 128 + number, errors
    assert "0 of 2 runs" in errors


def test_waiting_ends_when_the_program_does_or_fails() -> None:
    """Without a check of signals where it is quick."""
    checks: list[bool] = []
    for block in (lambda: None, lambda: 1 / 0):
        progress.wait(block, lambda: checks.append(True))
    assert not checks


def test_what_never_ends_is_waited_for_a_while() -> None:
    ever = threading.Event()
    assert not progress.in_thread(ever.wait).wait(0.01)
    ever.set()
    assert progress.in_thread(lambda: 1 / 0).wait(PATIENCE)
