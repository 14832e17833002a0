"""What fits on a device: tiles by what the compiled program says that it needs, and by what the
device says when it runs. On a CPU, tiles by how long they take."""

import math
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

from dynsim.precision import Device

SHARE = 0.8
"""Share of a device's memory that a program may take; the rest is for fragments and for others."""
MOST_RUNS = 2**16
"""Runs that a device works on at once at most; more keep none busier."""
SOON = 5.0
"""Seconds that a tile takes at most on a CPU, by the estimate of `seconds`, which is right within a
factor of about three: the first chunk is then stored within about 20 seconds."""
CALL, ENTRY, PRODUCT = 1e-7, 1e-10, 4e-11
"""Seconds of a core for an operation, for an entry of its result, and for each product that a
matrix multiplication sums in one: the order of what training of the built-in systems takes."""


def memory_of(device: Device) -> int | None:
    """Bytes that programs may use of a device; None where it does not tell."""
    if device.platform == "cpu":
        return None
    return (device.memory_stats() or {}).get("bytes_limit")


def needed(compiled: jax.stages.Compiled) -> int:
    """Bytes that a program takes on each device."""
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


def paced(estimate: tuple[float, float], runs: int) -> tuple[int, int]:
    """How many times smaller than its `runs` a tile that takes these `seconds` should be to take
    `SOON`, and how many of those then take that together. Smaller tiles than those in which calls
    take as long as entries would save nothing."""
    calls, entries = estimate
    times = 1
    while times < runs and calls + entries / times > SOON and entries / times > calls:
        times *= 2
    return times, max(int(SOON / max(calls + entries / times, CALL)), 1)


def seconds(program: Jaxpr) -> tuple[float, float]:
    """Seconds that a core takes for a program, about: those that do not depend on the sizes of its
    arrays, and those that do. Of loops whose length is not known, one turn counts. It is counted
    and not measured, because tiles decide how numbers are rounded: they must not depend on what
    else a machine does."""
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
    # Tokens, which order effects, have none.
    return getattr(variable.aval, "shape", ())
