"""What the device of this machine computes correctly, and how fast, in parts and within minutes.

A part prints each result as soon as it has it. All parts run in a second process. One that takes
longer than its budget ends that process, which prints where each of its threads waits, and another
process goes on with the next part. No part finds programs that an earlier call has compiled.
"""

import contextlib
import faulthandler
import importlib
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from sweeps import cli

MINUTES = 6.0
"""Time of all parts together."""
BUDGETS = {
    "start": 45,
    "map": 90,
    "fig6": 75,
    "training": 30,
    "flows": 30,
    "mlp": 30,
    "svd": 45,
    "differing": 75,
    "checks": 60,
    "peak": 20,
    "descent": 20,
    "others": 360,
}
"""Seconds of each part in `MINUTES`. They come in this order; the last, which take more time
together, only if the first leave some."""
IMPORT = 60
"""Seconds for the imports of a process in `MINUTES`."""
PATIENCE = 10
"""Seconds in which a process has to end itself at the end of all time before it is killed."""
BEGUN = "begun"
"""File with the number of parts that have begun."""


def measure(
    names: Sequence[str] = (),
    small: bool = False,
    minutes: float = MINUTES,
    module: str = "tests.devices.parts",
) -> None:
    """Run parts and print their lines.

    Args:
        names: parts to run; all if empty.
        small: use sizes for a CPU.
        minutes: time of all parts together, in proportion to which each part has time.
        module: what has the parts and prepares a process for them.
    """
    began, total = time.time(), 60 * minutes
    longer = minutes / MINUTES
    wanted = {name: t * longer for name, t in BUDGETS.items() if name in (names or BUDGETS)}
    with tempfile.TemporaryDirectory() as folder:
        begun = Path(folder) / BEGUN
        begun.write_text("0")
        while (number := int(begun.read_text())) < len(wanted):
            left = began + total - time.time()
            if left <= 0:
                print(f"no time left: {', '.join([*wanted][number:])}", flush=True)
                break
            given = wanted, folder, began + total, IMPORT * longer, small, module
            code = f"from tests.devices import measure; measure.work{given!r}"
            command = [sys.executable, "-c", code]
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(command, timeout=left + PATIENCE, check=False)
    print(f"{time.time() - began:.0f} s in all", flush=True)


def work(
    parts: dict[str, float], folder: str, until: float, imports: float, small: bool, module: str
) -> None:
    """Run the `parts` that have not begun, in order, each for its seconds; imports have theirs."""
    begun = Path(folder) / BEGUN
    number = int(begun.read_text())
    # Before libraries are imported that read this environment.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = f"{folder}/{number}"
    cli.set_environment()
    for name, seconds in [*parts.items()][number:]:
        if (left := until - time.time()) <= 0:
            break
        number += 1
        # If this process ends here, the next one begins with the next part.
        begun.write_text(f"{number}")
        try:
            faulthandler.dump_traceback_later(min(imports, left), exit=True)
            began = time.perf_counter()
            found = importlib.import_module(module)
            found.prepare()
            if (took := time.perf_counter() - began) > 0.1:
                print(f"imported in {took:.1f} s", flush=True)
            if (budget := min(seconds, until - time.time())) <= 0:
                break
            print(f"{name}, at most {budget:.0f} s", flush=True)
            faulthandler.dump_traceback_later(budget, exit=True)
            began = time.perf_counter()
            for line in found.PARTS[name](small):
                print(f"  {line}", flush=True)
            print(f"  {time.perf_counter() - began:.1f} s", flush=True)
        except Exception:
            traceback.print_exc()
    faulthandler.cancel_dump_traceback_later()
    # Do not wait for threads that still compile.
    os._exit(0)
