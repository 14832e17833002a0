"""Names of the systems, without importing any: the command line reads them before JAX."""

import functools
import importlib.metadata

BUILT_IN = {
    "yz": "sweeps.systems.yz:SYSTEM",
    "qkv": "sweeps.systems.qkv:SYSTEM",
    "two_stage": "sweeps.systems.two_stage:SYSTEM",
    "transformer": "sweeps.systems.transformer:SYSTEM",
    "linear_icl": "sweeps.systems.linear_icl:SYSTEM",
    "sparse_attention": "sweeps.systems.sparse_attention:SYSTEM",
    "joma": "sweeps.systems.joma:SYSTEM",
}
"""Where the systems of this project are; a system is imported when it is asked for."""
GROUP = "dynsim.systems"
"""Entry points by which other packages register a `System`, under its name."""


@functools.cache
def names() -> tuple[str, ...]:
    """Names of all systems, those of this project first, then those that other packages have."""
    points = importlib.metadata.entry_points(group=GROUP)
    return tuple(dict.fromkeys((*BUILT_IN, *(point.name for point in points))))
