"""What the memory of this machine moves, on all devices at once."""

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from sweeps.benchmarks.timing import seconds
from sweeps.runner import tiles

NUMBERS = 2**25
"""float32 numbers of an array for each device, 128 MiB: several times any cache."""
REPEATS = 7


def measured() -> float:
    """Bytes per second of the STREAM triad in place, a = a + s b, which reads two numbers for each
    that it writes: the best of some repetitions."""
    mesh = tiles.mesh()
    devices = PartitionSpec("devices")
    a, b = (
        jax.device_put(np.ones((mesh.size, NUMBERS), np.float32), NamedSharding(mesh, devices))
        for _ in range(2)
    )
    # In place, as the system would have to clear fresh memory first.
    triad = jax.jit(
        jax.shard_map(lambda a, b: a + 0.5 * b, mesh=mesh, in_specs=devices, out_specs=devices),
        donate_argnums=0,
    )

    def update() -> None:
        nonlocal a
        a = jax.block_until_ready(triad(a, b))

    return 3 * b.nbytes / min(seconds(update) for _ in range(REPEATS))
