"""Sizes: how many runs are stored together, a chunk, and computed together on a device, a tile.

A tile fits into the memory of a device: first by an estimate, then by what the compiled program
requires and, at run time, by what the device has left. On a CPU the estimated run time limits it.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from dynsim.compiling import CALL, Cost
from dynsim.precision import Device
from odes.theory import AnyTheory
from sweeps.language.axes import Dimension
from sweeps.runner.progress import count
from sweeps.runner.store import Layout

SHARE = 0.8
"""Share of a device's memory that a program may use; the rest allows for fragmentation."""
MAX_TILE_RUNS = 2**16
"""Maximum number of runs per tile; more would not keep a device busier."""
TILE_SECONDS = 5.0
"""Maximum seconds per tile on a CPU, as estimated by `dynsim.compiling.cost` within a factor of
about three. The first chunk is then stored within about 20 seconds."""
CHUNK_TILES = 8
"""Default maximum of tiles per chunk: enough to keep several devices busy between writes."""
FEW_CHUNKS = 32
"""Number of chunks of smaller sweeps, if each still fills a tile; interruption loses one."""
MAX_CHUNKS = 2048
"""Maximum number of chunks; with more, file handling would dominate the run time."""


class Plan(NamedTuple):
    """How a sweep runs: its chunks, the seeds and points that a device computes at once, the number
    of local devices, and the memory of a tile (an estimate on a CPU)."""

    layout: Layout
    tile: tuple[int, int]
    devices: int
    bytes_per_device: int

    def __str__(self) -> str:
        chunk = "x".join(map(str, self.layout.chunk))
        runs = count(self.layout.num_runs, "run")
        chunks = count(self.layout.num_chunks, "chunk")
        on = "the device" if self.devices == 1 else f"each of {self.devices} devices"
        return (
            f"{runs} in {chunks} of {chunk}, each stored when it is complete; "
            f"{self.tile[0]}x{self.tile[1]} runs (seeds x points) at once on {on}, which takes "
            f"about {self.bytes_per_device / 2**20:.1f} MiB"
        )


def memory_of(device: Device) -> int | None:
    """Return the bytes of a device that programs may use; None if unknown."""
    if device.platform == "cpu":
        return None
    return (device.memory_stats() or {}).get("bytes_limit")


def needed(compiled: jax.stages.Compiled) -> int:
    """Return the bytes that a program requires on each device."""
    memory = compiled.memory_analysis()
    if memory is None:
        return 0
    # The compiler's statistics are per device. Aliased outputs reuse the memory of arguments.
    return int(
        memory.temp_size_in_bytes
        + memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
    )


def default_tile(memory: int, theory: AnyTheory, device: Device) -> int:
    """Return the number of runs per tile before any program has been measured. `memory` is an
    estimate of bytes per run.

    On a CPU small tiles stay in the cache. An accelerator needs many runs to be busy; if they
    exceed its memory, the measured needs shrink the tile later (`largest_fitting`).
    """
    if device.platform == "cpu":
        return theory.at_once
    available = memory_of(device)
    fits = MAX_TILE_RUNS if available is None else max(available // memory, 1)
    return 2 ** (min(fits, MAX_TILE_RUNS).bit_length() - 1)


def tile_shape(num_seeds: int, num_points: int, size: int) -> tuple[int, int]:
    """Return the seeds and points of a tile of at most `size` runs, for a grid of `num_seeds` times
    `num_points`. They are powers of two, so that grids of almost any size share a program."""

    def power_of_two(limit: int, number: int) -> int:
        return 2 ** min((number - 1).bit_length(), limit.bit_length() - 1)

    points = power_of_two(size, num_points)
    return power_of_two(max(size // points, 1), num_seeds), points


def smaller(tile: tuple[int, int], factor: float = 2) -> tuple[int, int]:
    """Return a tile with the number of runs divided by at least `factor`. It reduces points first,
    because they share the data of a seed, and keeps at least one run."""
    seeds, points = tile
    halvings = math.ceil(math.log2(factor))
    fewer_points = max(points >> halvings, 1)
    halvings -= int(math.log2(points // fewer_points))
    return max(seeds >> halvings, 1), fewer_points


class SharedBytes(NamedTuple):
    """Bytes of a program's arguments that do not shrink with its tile: those of all runs, and those
    of each seed, which its points share."""

    by_all: int
    of_seed: int


def largest_fitting(
    tile: tuple[int, int], needed: int, shared: SharedBytes, available: float
) -> tuple[int, int]:
    """Return the largest tile that is expected to fit into `available` bytes, or a single run, if
    the program of `tile` needs `needed` bytes."""

    def shared_bytes(tile: tuple[int, int]) -> int:
        return shared.by_all + tile[0] * shared.of_seed

    # A run is expected to need as much in any tile, so that a single measurement is enough.
    per_run = (needed - shared_bytes(tile)) / math.prod(tile)
    while tile != (1, 1) and shared_bytes(tile) + math.prod(tile) * per_run > available:
        tile = smaller(tile)
    return tile


def shrink_for_seconds(estimate: Cost, runs: int) -> tuple[int, int]:
    """Return the factor by which to shrink a tile of `runs` runs so that it takes about
    `TILE_SECONDS`, and how many such tiles take that long together."""
    _, calls, entries = estimate
    factor = 1
    # Only the seconds of array entries shrink. Once call overhead exceeds them, nothing is gained.
    while factor < runs and calls + entries / factor > TILE_SECONDS and entries / factor > calls:
        factor *= 2
    return factor, max(int(TILE_SECONDS / max(calls + entries / factor, CALL)), 1)


def divide(
    dims: Sequence[Dimension],
    mesh: Mesh,
    layout: Layout | None,
    chunk: int | None,
    chunk_tiles: int,
    size: int,
    *,
    adaptive: bool,
) -> tuple[Layout, tuple[int, int], Mesh]:
    """Divide the array of runs into chunks, and these into tiles of at most `size` runs.

    Args:
        dims: dimensions of the array.
        mesh: the devices.
        layout: the chunks, if they are known.
        chunk: largest number of runs in a chunk otherwise; chosen if it is None.
        chunk_tiles: largest number of tiles in a chosen chunk.
        size: largest number of runs in a tile.
        adaptive: whether runs are solved in adaptive steps.

    Returns:
        The chunks, the seeds and points of a tile, and the devices that have work.
    """
    if layout is None:
        total = math.prod(dim.size for dim in dims)
        # Store a small sweep's first runs soon, but limit the number of chunks of a large one.
        few = max(total // (FEW_CHUNKS * size), mesh.size)
        if adaptive:
            # Runs of a chunk are sorted by stiffness; small chunks take a third longer.
            few = chunk_tiles
        layout = layout_of(
            dims, chunk or max(size * min(few, chunk_tiles), -(-total // MAX_CHUNKS))
        )
    extent = dict(zip((dim.name for dim in dims), layout.chunk, strict=True))
    num_seeds, num_points = extent.pop("seed", 1), math.prod(extent.values())
    seeds, points = tile_shape(num_seeds, num_points, size)
    if num_points == 1 and mesh.devices.flat[0].platform == "cpu":
        # Seeds of a tile run in sequence on a CPU: fewer per tile keep more devices busy. Grids
        # keep their tile, so that a change of their size compiles nothing.
        share = -(-num_seeds // mesh.size)
        seeds = min(seeds, 2 ** (share - 1).bit_length())
        mesh = Mesh(mesh.devices.flat[: -(-num_seeds // seeds)], mesh.axis_names)
    return layout, (seeds, points), mesh


def layout_of(dims: Sequence[Dimension], size: int) -> Layout:
    """Cut the array of runs into chunks of at most `size` runs.

    Chunks do not extend along static dimensions. Of the others, the last is filled first and seeds
    last, because runs that share their data belong together.
    """
    chunk = {dim.name: 1 for dim in dims}
    order = [dim for dim in reversed(dims) if not dim.static]
    order.sort(key=lambda dim: dim.name == "seed")
    room = max(size, 1)
    for dim in order:
        chunk[dim.name] = min(dim.size, room)
        room //= chunk[dim.name]
    return Layout(tuple(dim.size for dim in dims), tuple(chunk[dim.name] for dim in dims))
