"""Sweeps in processes of their own: killed, interrupted, shared between two; nothing is lost."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import sweeps
from sweeps import Sweep, cli, experiment
from sweeps.runner.config import config_of
from sweeps.runner.spec import load
from sweeps.runner.store.store import Store
from tests.benchmarks import kills

ROOT = Path(__file__).parents[3]
AXES = {"eta_y": {"linspace": [0.1, 4, 40]}, "seed": {"range": 3}}
SWEEP = Sweep(
    experiment(steps=5, length=8, batch=4, momentum=0.9), AXES, record=("loss", "entropy")
)
SETTINGS = (
    "[axes]\neta_y = {linspace = [0.1, 4, 40]}\nseed = {range = 3}\n"
    '[run]\nproblem = "yz"\nsteps = 5\n'
)
TOML = f'record = ["loss", "entropy"]\n{SETTINGS}length = 8\nbatch = 4\nmomentum = 0.9\n'
CHUNKS = 60
TIMEOUT = 120
"""Seconds after which a process that should have ended counts as hung."""


class Workers:
    """Starts worker.py on one sweep file and one store; all share a compilation cache."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.file, self.out = folder / "s.toml", str(folder / "s")
        self.file.write_text(TOML)
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_NUM_CPU_DEVICES": "1",
        }
        self.errors = folder / "errors.txt"
        self.started: list[subprocess.Popen] = []

    def start(self) -> subprocess.Popen:
        command = [sys.executable, str(Path(__file__).with_name("worker.py")), "sweep"]
        settings = [str(self.file), "--out", self.out, "--chunk", "2", "--tile", "2"]
        with self.errors.open("w") as errors:
            process = subprocess.Popen(
                [*command, *settings],
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.started.append(process)
        return process


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def workers(tmp_path: Path, cache: Path) -> Iterator[Workers]:
    found = Workers(tmp_path, cache)
    yield found
    for process in found.started:
        process.kill()
        process.wait()
        process.stdout.close()


def chunks(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("chunk")]


def read_chunks(process: subprocess.Popen, number: int) -> list[str]:
    """Wait for so many chunks and return their lines."""
    return [process.stdout.readline().strip() for _ in range(number)]


def finish(process: subprocess.Popen) -> list[str]:
    """Let a worker end, and return its remaining lines."""
    watchdog = threading.Timer(TIMEOUT, process.kill)
    watchdog.start()
    # Not communicate(), which loses what an earlier readline() has buffered.
    lines = process.stdout.read().splitlines()
    process.wait()
    watchdog.cancel()
    return lines


def assert_complete(workers: Workers) -> None:
    assert config_of(load(workers.file)) == config_of(SWEEP)
    want = sweeps.run(SWEEP, tile=2).load()
    got = sweeps.open(workers.out).load()
    for name in want.variables:
        # The same programs in the same batches: equal to the last bit.
        np.testing.assert_array_equal(got[name].values, want[name].values)


@pytest.mark.more
def test_kills_and_ctrl_c_lose_only_the_chunk_in_flight(
    workers: Workers, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[str] = []
    process = workers.start()
    written += read_chunks(process, 12)
    process.send_signal(signal.SIGKILL)
    written += chunks(finish(process))
    assert process.returncode == -signal.SIGKILL
    process = workers.start()
    written += read_chunks(process, 3)
    process.send_signal(signal.SIGINT)
    written += chunks(finish(process))
    errors = workers.errors.read_text()
    assert process.returncode == 130
    assert "Run the same command again to resume" in errors
    assert "Traceback" not in errors
    assert len(written) < CHUNKS, "the sweep was over before it could be interrupted"
    done = Store.open(workers.out).done().sum()
    # A kill between a chunk's last byte and its line makes it be told of never, not twice.
    assert done - 1 <= len(written) == len(set(written)) <= done
    words = [str(workers.file), "--out", workers.out, "--chunk", "2", "--tile", "2"]
    assert cli.main(["sweep", *words]) == 0
    assert "120 of 120 runs done (60 of 60 chunks): 120 OK" in capsys.readouterr().out
    assert_complete(workers)


# A process for each kill.
@pytest.mark.full("test_kills_and_ctrl_c_lose_only_the_chunk_in_flight")
def test_thirty_kills_at_any_moment_lose_no_chunk() -> None:
    (line,) = kills.report(30)
    found = re.fullmatch(r"30 kills; (\d+) of (\d+) chunks written, .*: yes", line)
    assert found, line
    # A kill between a chunk's last file and its line makes it be told of never.
    assert int(found[2]) - 30 <= int(found[1]) <= int(found[2])
