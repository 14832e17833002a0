"""Tile sizes that fit on a device: by the memory that the compiled program requires and, at run
time, that the device has left. On a CPU, by the estimated run time."""

import math
from typing import NamedTuple

import jax

from dynsim.compiling import CALL, Cost
from dynsim.precision import Device

SHARE = 0.8
"""Share of a device's memory that a program may use; the rest allows for fragmentation."""
MOST_RUNS = 2**16
"""Maximum number of runs per tile; more would not keep a device busier."""
SOON = 5.0
"""Maximum seconds per tile on a CPU, as estimated by `dynsim.compiling.cost` within a factor of
about three. The first chunk is then stored within about 20 seconds."""


def memory_of(device: Device) -> int | None:
    """Return the bytes of a device that programs may use; None if unknown."""
    if device.platform == "cpu":
        return None
    return (device.memory_stats() or {}).get("bytes_limit")


def needed(compiled: jax.stages.Compiled) -> int:
    """Return the bytes that a program requires on each device."""
    found = compiled.memory_analysis()
    if found is None:
        return 0
    # The compiler's statistics are per device.
    return int(
        found.temp_size_in_bytes
        + found.argument_size_in_bytes
        + found.output_size_in_bytes
        - found.alias_size_in_bytes
    )


def smaller(tile: tuple[int, int], times: float = 2) -> tuple[int, int]:
    """Return a tile with the number of runs divided by at least `times`. It reduces points first,
    because they share the data of a seed, and keeps at least one run."""
    seeds, points = tile
    halvings = math.ceil(math.log2(times))
    fewer = max(points >> halvings, 1)
    left = halvings - int(math.log2(points // fewer))
    return max(seeds >> left, 1), fewer


class Shared(NamedTuple):
    """Bytes of a program's arguments that do not shrink with its tile: those of all runs, and those
    of each seed, which its points share."""

    by_all: int
    of_seed: int


def fitting(tile: tuple[int, int], needed: int, shared: Shared, most: float) -> tuple[int, int]:
    """Return the largest tile that is expected to need at most `most` bytes, or a single run, if
    the program of `tile` needs `needed` bytes. Each run is expected to need as much as before, so
    that a single measurement is enough."""

    def rest(tile: tuple[int, int]) -> int:
        return shared.by_all + tile[0] * shared.of_seed

    of_run = (needed - rest(tile)) / math.prod(tile)
    while tile != (1, 1) and rest(tile) + math.prod(tile) * of_run > most:
        tile = smaller(tile)
    return tile


def paced(estimate: Cost, runs: int) -> tuple[int, int]:
    """Return the factor by which to shrink a tile of `runs` runs so that it takes about `SOON`
    seconds, and how many such tiles take `SOON` together. Tiles are not shrunk below the size at
    which call overhead takes as long as the array entries."""
    _, calls, entries = estimate
    times = 1
    while times < runs and calls + entries / times > SOON and entries / times > calls:
        times *= 2
    return times, max(int(SOON / max(calls + entries / times, CALL)), 1)
