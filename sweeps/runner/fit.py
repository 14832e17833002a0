"""Tile sizes that fit on a device: by the memory that the compiled program requires and, at run
time, that the device has left. On a CPU, by the estimated run time."""

import math
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

from dynsim.precision import Device

SHARE = 0.8
"""Share of a device's memory that a program may use; the rest allows for fragmentation."""
MOST_RUNS = 2**16
"""Maximum number of runs per tile; more would not keep a device busier."""
SOON = 5.0
"""Maximum seconds per tile on a CPU, as estimated by `seconds` within a factor of about three. The
first chunk is then stored within about 20 seconds."""
CALL, ENTRY, PRODUCT = 1e-7, 1e-10, 4e-11
"""Core seconds per operation, per entry of its result, and per product that a matrix multiplication
sums. They give the order of magnitude for training of the built-in systems."""


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


def paced(estimate: tuple[float, float], runs: int) -> tuple[int, int]:
    """Return the factor by which to shrink a tile of `runs` runs so that it takes about `SOON`
    seconds, and how many such tiles take `SOON` together. Tiles are not shrunk below the size at
    which call overhead takes as long as the array entries."""
    calls, entries = estimate
    times = 1
    while times < runs and calls + entries / times > SOON and entries / times > calls:
        times *= 2
    return times, max(int(SOON / max(calls + entries / times, CALL)), 1)


def seconds(program: Jaxpr) -> tuple[float, float]:
    """Estimate the core seconds of a program: those independent of array sizes, and those that grow
    with them. A loop of unknown length counts as one iteration. The estimate counts operations and
    measures nothing: tiles affect rounding, so they must not depend on how busy the machine is."""
    calls = entries = 0.0
    for each in program.eqns:
        inner = [
            seconds(found.jaxpr if isinstance(found, ClosedJaxpr) else found)
            for value in each.params.values()
            for found in (value if isinstance(value, tuple | list) else [value])
            if isinstance(found, Jaxpr | ClosedJaxpr)
        ]
        turns = each.params["length"] if each.primitive.name == "scan" else 1
        calls += turns * sum(found[0] for found in inner)
        entries += turns * sum(found[1] for found in inner)
        if inner:
            continue
        size = sum(math.prod(_shape(made)) for made in each.outvars)
        calls += CALL
        entries += size * ENTRY
        if each.primitive.name == "dot_general":
            summed: tuple[int, ...] = each.params["dimension_numbers"][0][0]
            shape = _shape(each.invars[0])
            entries += size * PRODUCT * math.prod(shape[i] for i in summed)
    return calls, entries


def _shape(variable: Any) -> tuple[int, ...]:
    # Effect tokens have no shape.
    return getattr(variable.aval, "shape", ())
