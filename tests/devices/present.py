"""Run training and theories on the device of this machine, and compare with the CPU of its host."""

import dataclasses
import functools
import time
from collections.abc import Sequence

import jax
import numpy as np

import sweeps
from dynsim.precision import WITHOUT_FLOAT64, Device, host
from sweeps.runner.spec import Sweep
from tests.devices import programs
from tests.devices.check import line

ALLOWED = {"float32": 1e-3, "float64": 1e-6}
"""Largest difference of two devices over the largest value: in float32, rounding grows over a
training of 100 steps; in float64, solvers with a tolerance of 1e-8 may take different steps."""
TIMES = 4
"""Number of recorded times besides step 0. At the end alone, a loss can be 1e-11 of the first one,
and the devices draw its float32 starting weights with other last bits."""
HEAD = ("theory", "differs by", "cold, device", "cold, host")


def run(systems: Sequence[str] = (), theories: Sequence[str] = ()) -> None:
    """Print a line for each theory as soon as it has run; `ValueError` at the end if one fails or
    differs.

    Args:
        systems: systems to run; all if empty.
        theories: theories to run, by name; all if empty.
    """
    device = jax.devices()[0]
    print(f"{device.device_kind}: {programs.SEEDS} seeds of each theory, against the host")
    print(line(HEAD))
    failed = []
    for case in programs.cases(tuple(systems)):
        if theories and case.theory not in theories:
            continue
        label = f"{case.system} {case.theory}{case.note}"
        if case.sweep.dtype == "float64" and device.platform in WITHOUT_FLOAT64:
            print(f"{label:<40} float64: computed by the host", flush=True)
            continue
        sweep = dataclasses.replace(case.sweep, times=TIMES)
        try:
            found, took = _timed(sweep, device)
            want, on_host = _timed(sweep, host())
        except jax.errors.JaxRuntimeError as error:
            failed.append(label)
            print(f"{label:<40} FAILED: {str(error).splitlines()[0]}", flush=True)
            continue
        error = max(_difference(found[name], want[name]) for name in found)
        good = error <= ALLOWED[case.sweep.dtype]
        print(line((label, f"{error:.1e}", f"{took:.1f} s", f"{on_host:.1f} s")), flush=True)
        if not good:
            failed.append(label)
    if failed:
        raise ValueError(f"does not agree with the host: {', '.join(failed)}")


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
    scale = max(float(np.abs(want[finite]).max(initial=0)), 1e-30)
    return float(np.abs(found[finite] - want[finite]).max(initial=0)) / scale
