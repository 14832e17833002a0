"""Memory bandwidth of all devices of this machine together."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from sweeps.runner import tiles
from tests.benchmarks.timing import seconds

ROWS, COLUMNS = 2**13, 2**12
"""Shape of the float32 array of each device, 128 MiB: several times the size of any cache."""
REPEATS = 15


class Bandwidth(NamedTuple):
    """Bytes per second, the best of several repetitions.

    Attributes:
        read: for a product of a matrix and a vector, which reads each number once.
        triad: for the STREAM triad in place, a = a + s b, which reads two numbers and writes one.
    """

    read: float
    triad: float


def measured() -> Bandwidth:
    """Measure the bandwidth of all local devices together."""
    mesh = tiles.mesh()
    devices = PartitionSpec("devices")
    ones = np.ones((mesh.size, ROWS, COLUMNS), np.float32)
    a, b = (jax.device_put(ones, NamedSharding(mesh, devices)) for _ in range(2))

    def everywhere(work: Callable[..., Array]) -> Callable[..., Array]:
        return jax.shard_map(work, mesh=mesh, in_specs=devices, out_specs=devices)

    product = jax.jit(everywhere(lambda a: a @ jnp.ones(COLUMNS, a.dtype)))
    # In place, because the operating system would have to clear fresh memory first.
    triad = jax.jit(everywhere(lambda a, b: a + 0.5 * b), donate_argnums=0)

    def read() -> None:
        jax.block_until_ready(product(b))

    def update() -> None:
        nonlocal a
        a = jax.block_until_ready(triad(a, b))

    return Bandwidth(
        *(
            moved * b.nbytes / min(seconds(work) for _ in range(REPEATS))
            for moved, work in ((1, read), (3, update))
        )
    )
