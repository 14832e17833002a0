"""Upper limits of sweeps, checked before anything is allocated or compiled.

The limits are far beyond any real sweep: they catch mistakes, such as a number of values in place
of a last value. Sweeps that are merely large are reported in the plan.
"""

import os

from dynsim.classes.task import SequenceClasses, Task

MOST_PROGRAMS = 2**16
"""Maximum combinations of static values, each of which compiles a program."""
MOST_BYTES = 2**40
"""Maximum bytes of memory of one run."""
INPUTS_OF_RUN = 64
"""Approximate bytes of the inputs of a run in a chunk."""
DEFAULT_MEMORY = 2**36
"""Bytes of memory of a machine that does not report them."""
MOST_STORED = 2**50
"""Maximum bytes of results, counting one number per observable."""
MOST_SECONDS = 3.2e8
"""Ten years, at `SECONDS_PER_STEP`."""
SECONDS_PER_STEP = 1e-8
"""A lower limit for the time of a step on any device, however many runs share it."""
MOST_READ = 2**30
"""Maximum bytes of an array that is read to be shown."""
LARGEST_TABLE = 2**30
"""Maximum bytes of a table P(l|n); computing with it takes more memory."""


def check_size(runs: int, programs: int, numbers: int, steps: int) -> None:
    """Raise `ValueError` for a sweep that is too large to run.

    Args:
        runs: number of runs.
        programs: number of combinations of static axes.
        numbers: recorded numbers per run.
        steps: optimiser steps of a run; 1 if they follow from its numbers.
    """
    stored, seconds = 4 * runs * numbers, SECONDS_PER_STEP * runs * steps
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
        years = f"{seconds / 3.2e7:.3g} years at {SECONDS_PER_STEP:g} s a step"
        raise ValueError(f"steps = {steps}: {runs} runs would take {years}")


def check_results(runs: int, chunk: int, bytes_per_run: int, stored: bool) -> None:
    """Raise `ValueError` if this machine cannot hold the results of a chunk, or of all runs of a
    sweep that is not `stored`."""
    if stored:
        what, size = f"a chunk of {chunk} runs", chunk * (bytes_per_run + INPUTS_OF_RUN)
        advice = "choose a smaller chunk"
    else:
        # Twice the results: the compressed copy and the returned one.
        what, size = f"{runs} runs", runs * 2 * bytes_per_run
        advice = "choose out, a folder to keep them in, or fewer runs"
    available = memory()
    if size > available:
        needs = f"{size / 2**30:.4g} GiB of memory, of {available / 2**30:.4g} GiB"
        raise ValueError(f"axes, record, times: {what} would take {needs}; {advice}")


def check_read(name: str, size: int, most: int = MOST_READ) -> None:
    """Raise `ValueError` if more than `most` bytes of a stored sweep would be read at once: a small
    store may state any number of runs."""
    if size > most:
        raise ValueError(
            f"{name}: {size / 1e9:.3g} GB would be read, at most {most / 1e9:.3g} GB are possible; "
            "choose values of axes with --where NAME=VALUE"
        )


def memory() -> int:
    """Return the memory of this machine in bytes; `DEFAULT_MEMORY` if it does not report that."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return DEFAULT_MEMORY


def check_memory(bytes_per_run: int) -> None:
    """Raise `ValueError` if a run would require more memory than this machine has."""
    # Estimates may be twice too high, and a GiB is possible anywhere.
    if bytes_per_run > min(MOST_BYTES, max(2 * memory(), 2**30)):
        needs = f"{bytes_per_run / 2**30:.4g} GiB of memory, of {memory() / 2**30:.4g} GiB"
        raise ValueError(f"run: would take about {needs}; its sizes are too large")


def is_large(task: Task) -> bool:
    """Return whether a description of a task stands for a table that would be too large."""
    # Sequence classes have their table; a task without `sizes` tells them only by its table.
    if isinstance(task, SequenceClasses) or type(task).sizes is Task.sizes:
        return False
    K, M = task.sizes
    return 8 * K * M > LARGEST_TABLE


def check_table(task: Task) -> None:
    """Raise `ValueError` if the task `is_large`."""
    if is_large(task):
        K, M = task.sizes
        raise ValueError(
            f"K = {K}: its table of K x M = {K} x {M} probabilities would take "
            f"{8 * K * M / 2**30:.1f} GiB, more than {LARGEST_TABLE / 2**30:.0f} GiB, and "
            "training more; without a table, at any K: dynsim explain, and sweeps with theory = "
            "'symmetric' or 'symmetric-descent'"
        )
