"""Sweeps in processes of their own: killed, interrupted, shared between two; nothing is lost."""

import re
import signal
from pathlib import Path

import numpy as np
import pytest

import sweeps
from sweeps import cli
from sweeps.runner.spec import load
from sweeps.runner.store.store import Store
from tests.benchmarks import kills
from tests.sweeps.runner.processes import started

TOML = """
record = ["loss", "entropy"]
axes = {eta_y = {linspace = [0.1, 4, 40]}, seed = {range = 3}}
run = {problem = "yz", steps = 5, length = 8, batch = 4, momentum = 0.9}
"""


@pytest.mark.more
def test_kills_and_ctrl_c_lose_only_the_chunk_in_flight(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "s.toml", tmp_path / "s"
    file.write_text(TOML)
    words = ["sweep", str(file), "--out", str(out), "--chunk", "2", "--tile", "2"]
    variables = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_NUM_CPU_DEVICES": "1",
    }
    written: list[str] = []

    def ended(number: signal.Signals, after: int) -> tuple[int, str]:
        """How a worker ends by a signal after so many chunks, all of which are `written`."""
        with started(tmp_path, "-c", kills.WORKER, *words, **variables) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            # Not communicate(), which loses what an earlier readline() has buffered.
            lines = [process.stdout.readline().strip() for _ in range(after)]
            process.send_signal(number)
            lines += process.stdout.read().splitlines()
            written.extend(line for line in lines if line.startswith("chunk"))
            return process.wait(), process.stderr.read()

    code, _ = ended(signal.SIGKILL, after=12)
    assert code == -signal.SIGKILL
    code, errors = ended(signal.SIGINT, after=3)
    assert code == 130
    assert "Run the same command again to resume" in errors
    assert "Traceback" not in errors
    assert len(written) < 60, "the sweep was over before it could be interrupted"
    done = Store.open(out).done().sum()
    # A kill between a chunk's last byte and its line makes it be told of never, not twice.
    assert done - 1 <= len(written) == len(set(written)) <= done
    assert cli.main(words) == 0
    assert "120 of 120 runs done (60 of 60 chunks): 120 OK" in capsys.readouterr().out
    want, got = sweeps.run(load(file), tile=2).load(), sweeps.open(out).load()
    for name in want.variables:
        # The same programs in the same batches: equal to the last bit.
        np.testing.assert_array_equal(got[name].values, want[name].values)


# A process for each kill.
@pytest.mark.full("test_kills_and_ctrl_c_lose_only_the_chunk_in_flight")
def test_thirty_kills_at_any_moment_lose_no_chunk() -> None:
    (line,) = kills.report(30)
    found = re.fullmatch(r"30 kills; (\d+) of (\d+) chunks written, .*: yes", line)
    assert found, line
    # A kill between a chunk's last file and its line makes it be told of never.
    assert int(found[2]) - 30 <= int(found[1]) <= int(found[2])
