"""Compile training and the theories for an accelerator, and print a line about each of them."""

import math
import time
from collections.abc import Sequence

import jax

from dynsim.precision import WITHOUT_FLOAT64, precision
from sweeps import output
from sweeps.runner import fit
from sweeps.runner.program import jobs
from tests.devices import hlo, programs
from tests.devices.target import TARGETS, Target

BEGIN = 50
"""Step from which runs resume, for theories that can resume."""
HEAD = (
    "theory",
    "compiled in",
    "bytes/run",
    "estimate",
    "kernels",
    "conditionals",
    "open",
    "calls",
)


def run(name: str, systems: Sequence[str] = (), theories: Sequence[str] = ()) -> None:
    """Print a line for each theory as soon as it is compiled; `ValueError` at the end if one fails.

    Args:
        name: name of the accelerator.
        systems: systems to compile; all if empty.
        theories: theories to compile, by name; all if empty.
    """
    # Otherwise JAX starts the devices whose compilers are installed.
    jax.config.update("jax_platforms", "cpu")
    target = TARGETS[name]()
    platform = target.mesh.devices.flat[0].platform
    print(f"{name}: {programs.SEEDS} seeds x {programs.POINTS} points")
    print(line(HEAD))
    failed = []
    for case in programs.cases(tuple(systems)):
        label = f"{case.system} {case.theory}{case.note}"
        if theories and case.theory not in theories:
            continue
        if case.sweep.dtype == "float64" and platform in WITHOUT_FLOAT64:
            print(f"{label:<40} float64: computed by the host", flush=True)
            continue
        for begin in (0, BEGIN) if case.sweep.method.resumes else (0,):
            part = f"{label}, from step {begin}" if begin else label
            try:
                print(line((part, *_checked(case, target, begin))), flush=True)
            except (jax.errors.JaxRuntimeError, TypeError) as error:
                # A compiler without a device rejects programs that call the host.
                calls = "calls the host" if "host_callbacks" in str(error) else str(error)
                failed.append(part)
                print(f"{part:<40} FAILED: {calls.splitlines()[0]}", flush=True)
    if failed:
        raise ValueError(f"does not compile for {name}: {', '.join(failed)}")


def _checked(case: programs.Case, target: Target, begin: int) -> tuple[str, ...]:
    with precision(case.sweep.dtype):
        job = programs.job(case, target.mesh)
        if begin:
            job = programs.going_on(job, begin)
        draws, (traced, _) = jobs.trace(job)
        began = time.perf_counter()
        if draws is not None:
            target.compile(draws.program)
        compiled = target.compile(traced)
    took = time.perf_counter() - began
    runs = math.prod(job.tile)
    estimate = case.sweep.runs({}).bytes_per_run
    try:
        found = hlo.read(compiled.as_text() or "")
    except jax.errors.JaxRuntimeError:
        # JAX cannot read the output of a compiler newer than itself.
        about = ("?",) * 4
    else:
        step = ("-",) * 3 if found.step is None else tuple(map(str, found.step))
        about = (*step, str(found.callbacks))
    return f"{took:.1f} s", f"{fit.needed(compiled) / runs:.0f}", f"{estimate}", *about


def line(columns: tuple[str, ...]) -> str:
    """Return a line of the table."""
    return output.aligned([columns], 40, 14)[0]
