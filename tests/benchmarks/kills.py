"""Kill a running sweep repeatedly, and report lost work and changed numbers."""

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import sweeps
from sweeps.runner.store.store import Store

SWEEP = """
record = ["entropy", "loss"]
axes.eta_y = {logspace = [0.1, 10, 512]}
axes.seed = {range = 8}
run.problem = "yz"
run.steps = 100
run.start = "uniform"
"""
# Prints each write, so that a chunk that is computed twice appears twice.
WORKER = """
import sys
from sweeps import cli
from sweeps.runner.store.store import Store
write = Store.write
def told(store, region, *what):
    write(store, region, *what)
    print("chunk", *(part.start for part in region), flush=True)
Store.write = told
sys.exit(cli.main(sys.argv[1:]))
"""


def report(kills: int = 20) -> Iterator[str]:
    """Kill the sweep with SIGKILL at random moments, resume it, and yield the report."""
    moments = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file, out = folder / "sweep.toml", folder / "killed"
        file.write_text(SWEEP)
        command = [sys.executable, "-c", WORKER, "sweep", str(file), "--chunk", "16"]
        # The programs are compiled once, so that the time goes into kills.
        environment = {
            **os.environ,
            "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        log = folder / "log"
        done = 0
        while done < kills:
            with log.open("a") as lines:
                process = subprocess.Popen(
                    [*command, "--out", str(out)],
                    stdout=lines,
                    stderr=subprocess.DEVNULL,
                    env=environment,
                )
                before = log.read_text().count("\n")
                while log.read_text().count("\n") == before and process.poll() is None:
                    time.sleep(0.01)
                time.sleep(moments.uniform(0, 0.2))
                if process.poll() is not None:
                    raise ValueError("kills: the sweep ended before it could be killed")
                process.kill()
                process.wait()
                done += 1
        with log.open("a") as lines:
            subprocess.run([*command, "--out", str(out)], stdout=lines, check=True, env=environment)
        undisturbed = folder / "undisturbed"
        subprocess.run([*command, "--out", str(undisturbed)], stdout=subprocess.DEVNULL, check=True)
        chunks = [line for line in log.read_text().splitlines() if line.startswith("chunk")]
        total = Store.open(out).layout.num_chunks
        yield (
            f"{done} kills; {len(set(chunks))} of {total} chunks written, "
            f"{len(chunks) - len(set(chunks))} of them twice; arrays identical to an undisturbed "
            f"run: {same(out, undisturbed)}"
        )


def same(one: Path, other: Path) -> str:
    return "yes" if sweeps.open(one).load().equals(sweeps.open(other).load()) else "NO"
