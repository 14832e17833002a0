"""What a sweep may ask for at most, told before anything is allocated or compiled.

The bounds lie far beyond what anybody can run: they tell slips, such as a number of values in place
of a last value. What is merely large is said by the plan of a run.
"""

import os

from dynsim.classes.task import SequenceClasses, Task

MOST_RUNS = 2**40
MOST_PROGRAMS = 2**16
"""Combinations of values of static axes: each compiles a program of its own."""
MOST_BYTES = 2**40
"""Of memory, for one run in flight."""
OF_RUN = 64
"""Bytes of what a run of a chunk is computed from, about."""
USUAL = 2**36
"""Bytes of memory of a machine."""
MOST_STORED = 2**50
"""Bytes that are recorded, each observable taken for one number."""
MOST_SECONDS = 3.2e8
"""Ten years, at `SECONDS` a step."""
SECONDS = 1e-8
"""Less than a step of a run takes on any device, however many run at once."""
LARGEST_TABLE = 2**30
"""Bytes of the table P(l|n) up to which one is made; what is computed with it takes more."""


def check_runs(runs: int, programs: int, numbers: int, steps: int) -> None:
    """Raise `ValueError` for what nobody can run.

    Args:
        runs: their number.
        programs: number of combinations of static axes.
        numbers: recorded by a run.
        steps: optimiser steps of a run, 1 where they follow from its numbers.
    """
    stored, seconds = 4 * runs * numbers, SECONDS * runs * steps
    if runs > MOST_RUNS:
        raise ValueError(f"axes: give {runs} runs; at most {MOST_RUNS} are possible")
    if programs > MOST_PROGRAMS:
        raise ValueError(
            f"axes: {programs} combinations of values change shapes, and compile a program each; "
            f"at most {MOST_PROGRAMS} are possible"
        )
    if stored > MOST_STORED:
        raise ValueError(
            f"axes, record, times: {runs} runs would record {stored / 2**40:.3g} TiB, at most "
            f"{MOST_STORED / 2**40:g} TiB are possible"
        )
    if seconds > MOST_SECONDS:
        years = f"{seconds / 3.2e7:.3g} years at {SECONDS:g} s a step"
        raise ValueError(f"steps = {steps}: {runs} runs would take {years}")


def check_held(runs: int, chunk: int, bytes_per_run: int, stored: bool) -> None:
    """Raise `ValueError` where this machine cannot hold the results of a chunk, or of all runs of a
    sweep that is not `stored`, which are there twice: compressed, and as they are returned."""
    what, at_once, needed = f"{runs} runs", runs, 2 * bytes_per_run
    then = "choose out, a folder to keep them in, or fewer runs"
    if stored:
        what, at_once, needed = f"a chunk of {chunk} runs", chunk, bytes_per_run + OF_RUN
        then = "choose a smaller chunk"
    if at_once * needed > (there := memory()):
        needs = f"{at_once * needed / 2**30:.4g} GiB of memory, of {there / 2**30:.4g} GiB"
        raise ValueError(f"axes, record, times: {what} would take {needs}; {then}")


def memory() -> int:
    """Bytes of memory of this machine; `USUAL` where it does not say so."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return USUAL


def check_memory(bytes_per_run: int) -> None:
    """Raise `ValueError` where a run in flight would take memory that nobody has."""
    if bytes_per_run > MOST_BYTES:
        needs = f"{bytes_per_run / 2**30:.4g} GiB of memory, more than {MOST_BYTES / 2**30:g} GiB"
        raise ValueError(f"run: would take {needs}; its sizes are too large")


def is_large(task: Task) -> bool:
    """Whether the table of the task is still to be made, and too large to be."""
    if isinstance(task, SequenceClasses) or type(task).sizes is Task.sizes:
        return False
    K, M = task.sizes
    return 8 * K * M > LARGEST_TABLE


def check_table(task: Task) -> None:
    """Raise `ValueError` where `is_large` says so."""
    if is_large(task):
        K, M = task.sizes
        raise ValueError(
            f"K = {K}: its table of K x M = {K} x {M} probabilities would take "
            f"{8 * K * M / 2**30:.1f} GiB, more than {LARGEST_TABLE / 2**30:.0f} GiB, and "
            "training more; without a table, at any K: dynsim explain, and sweeps with engine = "
            "'symmetric' or 'symmetric-descent'"
        )
