"""Time of commands by kind of work, and the programs they compile."""

import functools
import importlib
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.waits import COMMANDS, ROOT, environment, prepare, process

EVENTS = {"jaxpr_trace": "trace", "jaxpr_to_mlir_module": "lower", "backend_compile": "compile"}
KINDS = ("import", "trace", "lower", "compile", "keys", "run", "draw")
"""Kinds of work; loading from disk and linking count as "compile"."""
LONGEST = 12
"""Number of compilations listed."""
PROFILED = ("compare", "explain, own problem")
CODE = "import sys; from tests.benchmarks.waits import kinds; kinds.trace(sys.argv[1])"


def report() -> Iterator[str]:
    """Yield the seconds by kind, in a process with an empty cache and in one with the resulting
    cache. Times of parallel threads are added, so that they may exceed the wall time."""
    yield f"{'seconds':<28}" + "".join(f"{kind:>9}" for kind in (*KINDS, "clock", "CPU"))
    for name in PROFILED:
        with tempfile.TemporaryDirectory() as folder:
            env = environment(ROOT, Path(folder), Path(folder) / "cache")
            prepare(ROOT, Path(folder))
            for label in ("first", "kept"):
                took, said = process(CODE, (name,), env)
                found = json.loads(said.splitlines()[-1])
                cells = *(sum(found[kind]) for kind in KINDS), *took
                yield f"{f'{name}, {label}':<28}" + "".join(f"{each:>9.2f}" for each in cells)
                longest = sorted(found["compile"], reverse=True)[:LONGEST]
                yield f"  {len(found['compile'])} programs, " + " ".join(
                    f"{x:.2f}" for x in longest
                )


class Clock:
    """Seconds by kind. Spans of a kind that contain others in the same thread count once."""

    def __init__(self) -> None:
        self._spans: dict[str, dict[int, list[tuple[float, float]]]] = {kind: {} for kind in KINDS}

    def add(self, kind: str, took: float) -> None:
        found = self._spans[kind].setdefault(threading.get_ident(), [])
        begin = time.perf_counter() - took
        while found and found[-1][0] >= begin:
            found.pop()
        found.append((begin, took))

    def heard(self, event: str, took: float, **_: Any) -> None:
        kind = EVENTS.get(event.rpartition("/")[2].removesuffix("_duration"))
        if kind:
            self.add(kind, took)

    def measure(
        self, kind: str, owner: Any, name: str, before: Callable[..., Any] | None = None
    ) -> None:
        """Measure all further calls of a function of a module or class, without `before`."""
        inner = getattr(owner, name)

        @functools.wraps(inner)
        def outer(*args: Any, **options: Any) -> Any:
            if before:
                before(args[0])
            begin = time.perf_counter()
            found = inner(*args, **options)
            self.add(kind, time.perf_counter() - begin)
            return found

        setattr(owner, name, outer)

    def lengths(self) -> dict[str, list[float]]:
        return {
            kind: [took for found in threads.values() for _, took in found]
            for kind, threads in self._spans.items()
        }


def trace(name: str) -> None:
    """Run a command of `COMMANDS` in this process, and print the length of each span by kind as
    JSON."""
    clock, begin = Clock(), time.perf_counter()
    cli = importlib.import_module("sweeps.cli")
    cli.set_environment()
    program = "sweeps.runner.program"
    jobs = importlib.import_module(f"{program}.jobs")
    program_cache = importlib.import_module(f"{program}.program_cache")
    compares = name == "compare"
    for each in ("diffrax", "sweeps.comparison.command" if compares else "sweeps.runner.run"):
        importlib.import_module(each)
    jax = importlib.import_module("jax")
    if compares:
        clock.measure("draw", importlib.import_module("sweeps.comparison.picture"), "draw")
        clock.measure("draw", importlib.import_module("sweeps.output"), "write")
    clock.add("import", time.perf_counter() - begin)
    jax.monitoring.register_event_duration_secs_listener(clock.heard)
    ready = lambda program: program.start().result()
    for each in ("__call__", "draw"):
        clock.measure("run", jobs.Program, each, ready)
    clock.measure("run", jax, "device_get")
    clock.measure("compile", program_cache, "deserialize")
    for each in ("cache_key", "lookup"):
        clock.measure("keys", program_cache, each)
    sys.argv[1:] = COMMANDS[name]
    cli.main()
    print("\n" + json.dumps(clock.lengths()))
