"""Compile training and the theories for an accelerator, or run them on the device of this machine,
and print a line about each of them as soon as it is done."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np

import sweeps
from dynsim.precision import WITHOUT_FLOAT64, Device, host, precision
from sweeps import output
from sweeps.runner import fit
from sweeps.runner.program import jobs
from sweeps.runner.spec import Sweep
from tests.devices import hlo, programs
from tests.devices.target import TARGETS, Target

BEGIN = 50
"""Step from which runs resume, for theories that can resume."""
ALLOWED = {"float32": 1e-3, "float64": 1e-6}
"""Largest difference of two devices over the largest value: in float32, rounding grows over a
training of 100 steps; in float64, solvers with a tolerance of 1e-8 may take different steps."""
TIMES = 4
"""Number of recorded times besides step 0. At the end alone, a loss can be 1e-11 of the first one,
and the devices draw its float32 starting weights with other last bits."""
COMPILED = ("compiled in", "bytes/run", "estimate", "kernels", "conditionals", "open", "calls")
RAN = ("differs by", "of", "scale", "cold, device", "cold, host")
Errors = (jax.errors.JaxRuntimeError, TypeError)


def compiled(name: str, systems: Sequence[str] = (), theories: Sequence[str] = ()) -> None:
    """Compile for the accelerator called `name`; `ValueError` at the end if one case fails.

    Args:
        name: name of the accelerator.
        systems: systems to compile; all if empty.
        theories: theories to compile, by name; all if empty.
    """
    # Otherwise JAX starts the devices whose compilers are installed.
    jax.config.update("jax_platforms", "cpu")
    target = TARGETS[name]()
    print(f"{name}: {programs.SEEDS} seeds x {programs.POINTS} points")

    def tasks(case: programs.Case) -> Iterator[tuple[str, Callable[[], tuple[str, ...]]]]:
        for begin in (0, BEGIN) if case.sweep.method.resumes else (0,):
            at = f", from step {begin}" if begin else ""
            yield at, functools.partial(_compiled, case, target, begin)

    platform = target.mesh.devices.flat[0].platform
    _each(tasks, COMPILED, platform, systems, theories, f"does not compile for {name}")


def present(systems: Sequence[str] = (), theories: Sequence[str] = ()) -> None:
    """Run on this machine's device and on its host; `ValueError` at the end if one case fails or
    differs."""
    device = jax.devices()[0]
    print(f"{device.device_kind}: {programs.SEEDS} seeds of each theory, against the host")
    tasks = lambda case: iter([("", functools.partial(compared, case, device))])
    _each(tasks, RAN, device.platform, systems, theories, "does not agree with the host")


def _each(
    tasks: Callable[[programs.Case], Iterator[tuple[str, Callable[[], tuple[str, ...]]]]],
    head: tuple[str, ...],
    platform: str,
    systems: Sequence[str],
    theories: Sequence[str],
    wrong: str,
) -> None:
    """Print the row of each task; a row with FAILED in it is an error."""
    print(line("theory", *head))
    failed = []
    for case in programs.cases(tuple(systems)):
        if theories and case.theory not in theories:
            continue
        if case.sweep.dtype == "float64" and platform in WITHOUT_FLOAT64:
            print(f"{case.label:<40} float64: computed by the host", flush=True)
            continue
        for note, work in tasks(case):
            columns = row(work)
            failed += [case.label + note] * ("FAILED" in columns)
            print(line(case.label + note, *columns), flush=True)
    if failed:
        raise ValueError(f"{wrong}: {', '.join(failed)}")


def row(work: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
    """Return the columns of a task, or FAILED and why."""
    try:
        return work()
    except Errors as error:
        # A compiler without a device rejects programs that call the host.
        calls = "host_callbacks" in str(error)
        return "FAILED", "calls the host" if calls else str(error).splitlines()[0]


def line(*columns: str) -> str:
    return output.aligned([columns], 40, 14)[0]


def _compiled(case: programs.Case, target: Target, begin: int) -> tuple[str, ...]:
    with precision(case.sweep.dtype):
        job = programs.job(case, target.mesh)
        if begin:
            job = programs.going_on(job, begin)
        draws, (traced, _) = jobs.trace(job)
        began = time.perf_counter()
        if draws is not None:
            target.compile(draws.program)
        program = target.compile(traced)
    took = time.perf_counter() - began
    estimate = case.sweep.runs({}).bytes_per_run
    try:
        found = hlo.read(program.as_text() or "")
    except jax.errors.JaxRuntimeError:
        # JAX cannot read the output of a compiler newer than itself.
        about = ("?",) * 4
    else:
        step = ("-",) * 3 if found.step is None else tuple(map(str, found.step))
        about = (*step, str(found.callbacks))
        # The limits are those of a GPU.
        most = math.inf if target.platforms is None else case.most_kernels
        if found.callbacks or (found.step and found.step.kernels > most):
            about = (*about, "FAILED")
    each = fit.needed(program) / math.prod(job.tile)
    return f"{took:.1f} s", f"{each:.0f}", f"{estimate}", *about


def compared(case: programs.Case, device: Device) -> tuple[str, ...]:
    sweep = dataclasses.replace(case.sweep, times=TIMES)
    (found, took), (want, on_host) = _timed(sweep, device), _timed(sweep, host())
    errors = {name: _difference(found[name], want[name]) for name in found}
    worst = max(errors, key=errors.__getitem__)
    columns = f"{errors[worst]:.1e}", worst, f"{_scale(want[worst]):.1e}"
    columns = (*columns, f"{took:.1f} s", f"{on_host:.1f} s")
    return columns if errors[worst] <= ALLOWED[sweep.dtype] else (*columns, "FAILED")


def _timed(sweep: Sweep, device: Device) -> tuple[dict[str, np.ndarray], float]:
    began = time.perf_counter()
    found = sweeps.run(sweep, devices=[device], progress=False)
    took = time.perf_counter() - began
    numbers = {str(name): each.values for name, each in found.data_vars.items()}
    return {k: v for k, v in numbers.items() if v.dtype.kind in "fiu"}, took


def _difference(found: np.ndarray, want: np.ndarray) -> float:
    finite = np.isfinite(want)
    same = functools.partial(np.array_equal, equal_nan=True)
    if found.shape != want.shape or not same(found[~finite], want[~finite]):
        return float("inf")
    return float(np.abs(found[finite] - want[finite]).max(initial=0)) / _scale(want)


def _scale(want: np.ndarray) -> float:
    """Return the largest finite value; that of a loss is mostly the first one."""
    return max(float(np.abs(want[np.isfinite(want)]).max(initial=0)), 1e-30)
