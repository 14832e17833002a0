"""What fits on a device: tiles by what the compiled program says that it needs, and by what the
device says when it runs."""

import math

import jax

from dynsim.precision import Device

SHARE = 0.8
"""Share of a device's memory that a program may take; the rest is for fragments and for others."""
MOST_RUNS = 2**16
"""Runs that a device works on at once at most; more keep none busier."""


def memory_of(device: Device) -> int | None:
    """Bytes that programs may use of a device; None where it does not tell."""
    if device.platform == "cpu":
        return None
    return (device.memory_stats() or {}).get("bytes_limit")


def needed(compiled: jax.stages.Compiled) -> int:
    """Bytes that a program takes on each device while it runs."""
    found = compiled.memory_analysis()
    if found is None:
        return 0
    # The compiler's statistics are of one device.
    return int(
        found.temp_size_in_bytes
        + found.argument_size_in_bytes
        + found.output_size_in_bytes
        - found.alias_size_in_bytes
    )


def smaller(tile: tuple[int, int], times: float = 2) -> tuple[int, int]:
    """A tile of the number of runs over `times`, or less: points first, which share the data of a
    seed, and never less than one run."""
    seeds, points = tile
    halvings = math.ceil(math.log2(times))
    fewer = max(points >> halvings, 1)
    left = halvings - int(math.log2(points // fewer))
    return max(seeds >> left, 1), fewer


def exhausted(error: Exception) -> bool:
    """Whether it says that the memory of a device did not suffice."""
    return "RESOURCE_EXHAUSTED" in str(error)
