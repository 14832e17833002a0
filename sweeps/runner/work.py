"""Computes the chunks of a sweep: divides runs into batches and assembles their arrays."""

import functools
import itertools
import math
import os
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, PyTree, UInt8

from dynsim.precision import precision
from dynsim.training.steps import Checkpoint
from sweeps.language.axes import Dimension
from sweeps.output import programs
from sweeps.runner import fit, labels, progress, tiles
from sweeps.runner.program import jobs, kept
from sweeps.runner.program.identity import Identity
from sweeps.runner.spec import Sweep
from sweeps.runner.store import CHECKPOINT, Layout, Variable
from sweeps.systems.training import names_of_numbers

CHUNK_TILES = 8
"""Default maximum of tiles per chunk: enough to keep several devices busy between writes."""
FEW_CHUNKS = 32
"""Number of chunks of smaller sweeps, if each still fills a tile; interruption loses one."""
MAX_CHUNKS = 2048
"""Maximum number of chunks; with more, file handling would dominate the run time."""

AHEAD = min(os.cpu_count() or 1, 8)
"""Number of programs that are compiled ahead while another one runs."""


class Plan(NamedTuple):
    """How a sweep runs: its chunks, the seeds and points that a device computes at once, the number
    of local devices, and the memory of a tile (an estimate on a CPU)."""

    layout: Layout
    tile: tuple[int, int]
    devices: int
    bytes_per_device: int

    def __str__(self) -> str:
        chunk = "x".join(map(str, self.layout.chunk))
        runs = progress.count(self.layout.num_runs, "run")
        chunks = progress.count(self.layout.num_chunks, "chunk")
        on = "the device" if self.devices == 1 else f"each of {self.devices} devices"
        return (
            f"{runs} in {chunks} of {chunk}, each stored when it is complete; "
            f"{self.tile[0]}x{self.tile[1]} runs (seeds x points) at once on {on}, which takes "
            f"about {self.bytes_per_device / 2**20:.1f} MiB"
        )


class Work:
    """Computes any chunk of a sweep on the devices of a mesh."""

    def __init__(
        self,
        sweep: Sweep,
        mesh: Mesh,
        *,
        layout: Layout | None = None,
        chunk: int | None = None,
        tile: int | None = None,
        chunk_tiles: int = CHUNK_TILES,
        begin: int = 0,
        state: int = 0,
        nudge: float = 0.0,
        identity: Identity | None = None,
    ) -> None:
        """`chunk_tiles`: maximum of tiles per chunk, unless `chunk` is given. `begin`: step at
        which all runs resume, from states of `state` bytes. `nudge`: relative change of all traced
        numbers, which measures how rounding grows. `identity`: that of the sweep, if already
        known."""
        self.sweep, self.begin, self.state = sweep, begin, state
        self.nudge = nudge
        self.identity = identity or Identity(sweep, mesh.devices.flat[0].platform)
        self.program = functools.lru_cache(maxsize=16)(self._program)
        self._drawn: tuple[Hashable, list[Array]] = (None, [])
        self._ready, self._programs = set[tuple[int, ...]](), 0
        memory = max(map(self._estimate, self.sweep.some_slices()))
        size = tile or tiles.default_tile(memory, sweep.method, mesh.devices.flat[0])
        cut = functools.partial(self._cut, mesh, layout, chunk)
        cut(chunk_tiles, size)
        if tile is None:
            smaller, turns = self._paced()
            size = max(math.prod(self.tile) // smaller, 1) if smaller > 1 else size
            chunk_tiles = min(chunk_tiles, turns * mesh.size)
        layout = cut(chunk_tiles, size)
        self.program.cache_clear()
        memory *= math.prod(self.tile)
        available = fit.memory_of(mesh.devices.flat[0])
        if available is not None and tile is None:
            memory = self._fit(available)
        self.plan = Plan(layout, self.tile, self.mesh.size, memory)

    def _cut(
        self, mesh: Mesh, layout: Layout | None, chunk: int | None, chunk_tiles: int, size: int
    ) -> Layout:
        """Return the given layout or choose one; set the devices and the tile of at most `size`
        runs."""
        if layout is None:
            total = math.prod(dim.size for dim in self.sweep.dims)
            # Store a small sweep's first runs soon, but limit the number of chunks of a large one.
            few = max(total // (FEW_CHUNKS * size), mesh.size)
            if self.sweep.method.adaptive:
                # Runs of a chunk are sorted by stiffness; small chunks take a third longer.
                few = chunk_tiles
            size_of_chunk = chunk or max(size * min(few, chunk_tiles), -(-total // MAX_CHUNKS))
            layout = layout_of(self.sweep.dims, size_of_chunk)
        extent = dict(zip((dim.name for dim in self.sweep.dims), layout.chunk, strict=True))
        num_seeds, num_points = extent.pop("seed", 1), math.prod(extent.values())
        seeds, points = tiles.tile_shape(num_seeds, num_points, size)
        self.mesh = mesh
        if num_points == 1 and mesh.devices.flat[0].platform == "cpu":
            # Seeds of a tile run in sequence on a CPU: fewer per tile keep more devices busy. Grids
            # keep their tile, so that a change of their size compiles nothing.
            share = -(-num_seeds // mesh.size)
            seeds = min(seeds, 2 ** (share - 1).bit_length())
            self.mesh = Mesh(mesh.devices.flat[: -(-num_seeds // seeds)], mesh.axis_names)
        self.tile = seeds, points
        return layout

    def _paced(self) -> tuple[int, int]:
        """Return `fit.paced` for the program with the most steps; on a CPU only."""
        if self.mesh.devices.flat[0].platform != "cpu":
            return 1, CHUNK_TILES
        sweep = self.sweep
        longest = max(sweep.some_slices(), key=lambda chosen: sweep.plane(chosen).steps or 0)
        return fit.paced(self.program(_hashable(longest))[1].known.cost, math.prod(self.tile))

    def compute(
        self,
        region: tuple[slice, ...],
        variables: Mapping[str, Variable],
        check: Callable[[int], None] = lambda computed: None,
        states: UInt8[np.ndarray, "*region N"] | None = None,
    ) -> dict[str, np.ndarray]:
        """Compute the arrays of one chunk; their first axes are those of the region. `check` is
        called with the number of computed runs, before each batch and while it is computed, and may
        raise to abandon the chunk."""
        times = 2
        while True:
            try:
                return self._compute(region, variables, check, states)
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error) or self.tile == (1, 1):
                    raise
            self._shrink(fit.smaller(self.tile, times))
            warnings.warn(
                f"a device ran out of memory; from here on it computes {self.tile[0]}x"
                f"{self.tile[1]} runs (seeds x points) at once, a factor of {times} fewer",
                stacklevel=2,
            )
            # Each tile compiles for a minute: 65536 runs become one in five steps, not in sixteen.
            times *= times

    def _compute(
        self,
        region: tuple[slice, ...],
        variables: Mapping[str, Variable],
        check: Callable[[int], None],
        states: UInt8[np.ndarray, "*region N"] | None,
    ) -> dict[str, np.ndarray]:
        chosen, seeds = self._region(region)
        arrays, program = self.program(_hashable(chosen))
        numbers, points = self._numbers(chosen, region)
        order = np.arange(points)
        if self.sweep.method.adaptive:
            stiffness = np.broadcast_to(self.sweep.system.stiffness(numbers), order.shape)
            order = np.argsort(stiffness, kind="stable")
        rows = None if states is None else self._by_seed(states, len(seeds))
        found: dict[str, np.ndarray] = {}
        computed = 0
        for block in self._rounds(len(seeds), order):
            checked = functools.partial(check, computed)
            checked()
            if not (compiled := program.start()).done():
                progress.wait(compiled.result, checked, "compiling")
            # Repeated runs, which pad a batch, count once.
            computed += sum(len({*s.tolist()}) * len({*p.tolist()}) for s, p in block)
            chosen_seeds = np.stack([seeds[s] for s, _ in block]).astype(np.uint32)
            result = program(
                arrays,
                jax.tree.map(lambda x, b=block: x[np.stack([p for _, p in b])], numbers),
                chosen_seeds,
                np.uint32(self.sweep.root),
                self._shared(_hashable(chosen), chosen_seeds),
                None if rows is None else np.stack([rows[np.ix_(s, p)] for s, p in block]),
            )
            pending: list[Any] = [*result.values()]
            if not all(each.is_ready() for each in pending):
                progress.wait(functools.partial(jax.block_until_ready, pending), checked)
            for name, array in jax.device_get(result).items():
                if name not in found:
                    shape = (len(seeds), len(order), *array.shape[3:])
                    found[name] = np.empty(shape, array.dtype)
                for (s, p), part in zip(block, array, strict=True):
                    # Repeated indices, which pad a batch, refer to the same run.
                    found[name][np.ix_(s, p)] = part
        shape = tuple(part.stop - part.start for part in region)
        return {name: self._place(found[name], shape, v) for name, v in variables.items()}

    def going_on(self, rest: Sweep, begin: int, state: int) -> "Work":
        """Return the `Work` for the `rest` of the runs, from step `begin` and byte states."""
        tile = math.prod(self.tile)
        return Work(rest, self.mesh, layout=self.plan.layout, tile=tile, begin=begin, state=state)

    def in_turn(self, regions: Iterable[tuple[slice, ...]]) -> Iterator[tuple[slice, ...]]:
        """Sort regions by program, and then by seed if the seed's shared data is drawn separately,
        so that it is drawn once. The next programs are compiled meanwhile."""

        def program(region: tuple[slice, ...]) -> list[int]:
            found = zip(self.sweep.dims, region, strict=True)
            return [part.start for dim, part in found if dim.static]

        def order(region: tuple[slice, ...]) -> tuple[list[int], list[int]]:
            found = zip(self.sweep.dims, region, strict=True)
            seeds = [part.start for dim, part in found if draws and dim.name == "seed"]
            return program(region), seeds

        first = _hashable(next(self.sweep.slices()))
        draws = self.identity.entering(first).call.draws
        groups = [
            list(group) for _, group in itertools.groupby(sorted(regions, key=order), program)
        ]
        self._programs = len(groups)
        for i, group in enumerate(groups):
            for later in groups[i : i + 1 + AHEAD]:
                # The compiled program itself is not kept: there may be thousands.
                ready = functools.partial(self._ready.add, tuple(program(later[0])))
                self.start(later[0]).add_done_callback(lambda _, ready=ready: ready())
            yield from group

    def variables(self) -> dict[str, Variable]:
        """Return the arrays that the runs record, with the largest shape if shapes differ."""
        slices = self.sweep.some_slices()
        found = self._shapes(slices[0])
        # Scalar observables have the same shape for every task, so not all programs need to be
        # traced here; they are compiled when needed.
        front = self._front(slices[0])
        if not all(inner in ((), front) for inner, _ in found.values()):
            for name, (inner, dtype) in itertools.chain(*(self._shapes(s).items() for s in slices)):
                found[name] = tuple(np.maximum(inner, found[name][0]).tolist()), dtype
        for name, (inner, _) in found.items():
            if 0 in inner:
                raise ValueError(f"record = {name!r}: is empty, of shape {inner}")
        longest = max(map(self._front, slices))
        found = {
            n: ((*longest, *inner[len(longest) :]), d) if inner and n != CHECKPOINT else (inner, d)
            for n, (inner, d) in found.items()
        }
        return {
            name: Variable(inner, labels.inner_dims(self.sweep, name, len(inner)), dtype)
            for name, (inner, dtype) in found.items()
        }

    @property
    def compiling(self) -> str:
        """How many of the programs of `in_turn` are compiled, as text; empty if all are."""
        ready = len(self._ready)
        number = progress.count(self._programs, "program")
        return f"{ready} of {number} compiled" if ready < self._programs else ""

    def start(self, region: tuple[slice, ...]) -> Future[Any]:
        """Start to compile the program of a chunk."""
        return self._of(region).start()

    def first(self) -> jobs.Program:
        """Return the program of the first chunk."""
        return self._of(self.plan.layout.region(0))

    def _of(self, region: tuple[slice, ...]) -> jobs.Program:
        chosen, _ = self._region(region)
        return self.program(_hashable(chosen))[1]

    def _shapes(self, chosen: Mapping[str, float]) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Return shape (without the sweep's axes) and dtype of each array of its program."""
        made = self.program(_hashable(chosen))[1].shapes
        return {name: (each.shape[3:], each.dtype) for name, each in made.items()}

    def _front(self, chosen: Mapping[str, float]) -> tuple[int, ...]:
        """Return the axis of the recorded times; () for a single time."""
        times = self.sweep.plane(chosen).steps_recorded(self.sweep.times)
        number = times if isinstance(times, int) else len(times)
        return (number,) if number > 1 else ()

    def _fit(self, available: int) -> int:
        """Shrink the tile so that the largest program fits into `available` bytes; return its
        bytes. However much too large the tile is, two programs are compiled: an accelerator tries
        variants of its kernels meanwhile, which takes up to a minute for each."""
        largest = _hashable(max(self.sweep.some_slices(), key=self._estimate))

        def needed() -> int:
            programs = [self.program(largest)[1]]
            (found,) = [x.bytes for x in progress.each(programs, "program", lambda _: "compiling")]
            return found

        first, most = needed(), fit.SHARE * available
        if first <= most or self.tile == (1, 1):
            return first
        shared = self.program(largest)[1].shared
        self._shrink(fit.fitting(self.tile, first, shared, most))
        return needed()

    def _estimate(self, chosen: Mapping[str, float]) -> int:
        """Estimate the bytes per run before a program is compiled."""
        return self.identity.entering(_hashable(chosen)).bytes_per_run

    def _shrink(self, tile: tuple[int, int]) -> None:
        self.tile = tile
        self.program.cache_clear()
        self._drawn = (None, [])

    def _program(self, chosen: tuple[tuple[str, float], ...]) -> tuple[PyTree, jobs.Program]:
        runs = self.identity.entering(chosen)
        arrays, call = runs.arrays, runs.call
        if self.begin:
            call = call._replace(checkpoint=Checkpoint(self.begin))
        made = arrays, runs.numbers, self.tile, call, self.mesh, self.state
        sizes = {dim.name: dim.size for dim in self.sweep.dims if not dim.static}
        turns = sizes.pop("seed", 1) * -(-math.prod(sizes.values()) // self.tile[1])
        if self.identity.outside:
            outside = self.identity.text(chosen).digest
            return arrays, jobs.program(jobs.Job(*made, outside, turns=turns))
        # The problem may have another theory of the same name.
        key = ""
        if isinstance(self.sweep.theory, str):
            # Theories have no text that other processes know; their names do.
            named = self.sweep.system.name, self.sweep.theory, call._replace(theory=None)
            shapes = [(x.shape, str(x.dtype)) for x in jax.tree.leaves(arrays)]
            names = names_of_numbers(runs.numbers)
            key = kept.key_of(self.mesh, *named, shapes, names, self.tile, self.state)
        return arrays, jobs.program(jobs.Job(*made, kept=key, turns=turns))

    def _shared(self, chosen: tuple[tuple[str, float], ...], seeds: np.ndarray) -> list[Array]:
        """Return the drawn data of these seeds, cached until other seeds are requested."""
        arrays, program = self.program(chosen)
        if not program.known.draws:
            return []
        wanted = (chosen, seeds.tobytes())
        if self._drawn[0] != wanted:
            # Free the old arrays before new ones are allocated.
            self._drawn = (None, [])
            self._drawn = (wanted, program.draw(arrays, seeds, np.uint32(self.sweep.root)))
        return self._drawn[1]

    def _region(self, region: tuple[slice, ...]) -> tuple[dict[str, float], np.ndarray]:
        """Return a region's static values, and its seeds."""
        seeds = np.array([self.sweep.first.seed])
        for dim, part in zip(self.sweep.dims, region, strict=True):
            if dim.name == "seed":
                seeds = np.array(dim.axes["seed"][part])
        return self.sweep.static_values(region), seeds

    def _numbers(
        self, chosen: Mapping[str, float], region: tuple[slice, ...]
    ) -> tuple[PyTree[Float[np.ndarray, " P"]], int]:
        """Return the numbers of all P points of a chunk, the last dimension fastest, and P."""
        traced = [
            (dim.size, part)
            for dim, part in zip(self.sweep.dims, region, strict=True)
            if not dim.static and dim.name != "seed"
        ]
        shape, within = tuple(size for size, _ in traced), tuple(part for _, part in traced)

        def along(value: Any) -> np.ndarray:
            each = np.asarray(np.broadcast_to(value, shape)[within], self.sweep.dtype)
            return each.ravel() * (1 + self.nudge)

        numbers = jax.tree.map(along, self.identity.entering(_hashable(chosen)).numbers)
        return numbers, math.prod(part.stop - part.start for part in within)

    def _rounds(
        self, num_seeds: int, order: np.ndarray
    ) -> Iterator[list[tuple[np.ndarray, np.ndarray]]]:
        """Yield batches of one tile per device as indices of seeds and points, padded by
        repetition."""
        per_tile = self.tile
        tile_list = [
            (s, p)
            for s in _blocks(np.arange(num_seeds), per_tile[0])
            for p in _blocks(order, per_tile[1])
        ]
        for start in range(0, len(tile_list), self.mesh.size):
            block = tile_list[start : start + self.mesh.size]
            yield block + [block[-1]] * (self.mesh.size - len(block))

    def _place(self, values: np.ndarray, shape: tuple[int, ...], variable: Variable) -> np.ndarray:
        """Reshape (S, P, ...) values to the region, padded to the shape of the variable."""
        try:
            values = variable.padded(values)
        except ValueError:
            raise ValueError(
                f"record: an array of {values.shape[2:]} is larger than those at the ends of all "
                f"axes, {variable.shape}, for which there is room; sweep fewer combinations"
            ) from None
        names = [dim.name for dim in self.sweep.dims]
        if "seed" not in names:
            return values.reshape(*shape, *variable.shape)
        at = names.index("seed")
        others = shape[:at] + shape[at + 1 :]
        return np.moveaxis(values.reshape(shape[at], *others, *variable.shape), 0, at)

    def _by_seed(self, values: np.ndarray, seeds: int) -> np.ndarray:
        """Reshape values from the region's shape to (S, P, N): the inverse of `_place`."""
        names = [dim.name for dim in self.sweep.dims]
        if "seed" in names:
            values = np.moveaxis(values, names.index("seed"), 0)
        return values.reshape(seeds, -1, values.shape[-1])


def begin(sweeps: Iterable[Sweep]) -> None:
    """Trace the programs of several sweeps, so that errors in equations are raised before any sweep
    runs. Each starts to compile while the next is traced. Prints which they are."""
    programs.keep()
    wanted = list(sweeps)
    number, missing = progress.count(len(wanted), "program"), 0
    progress.say(f"{number}: {', '.join(each.theory_name for each in wanted)}")
    for sweep in progress.each(wanted, "program", lambda each: each.theory_name):
        with precision(sweep.dtype):
            work = Work(sweep, tiles.mesh(dtype=sweep.dtype))
            work.variables()
        missing += not work.first().ready
        work.first().start()
    if missing:
        progress.say(f"compiling {missing} of {number}")


def layout_of(dims: Sequence[Dimension], size: int) -> Layout:
    """Cut the array of runs into chunks of at most `size` runs.

    Chunks do not extend along static dimensions. Of the others, the last is filled first and seeds
    last, because runs that share their data belong together.
    """
    chunk = {dim.name: 1 for dim in dims}
    order = [dim for dim in reversed(dims) if not dim.static]
    order.sort(key=lambda dim: dim.name == "seed")
    left = max(size, 1)
    for dim in order:
        chunk[dim.name] = min(dim.size, left)
        left //= chunk[dim.name]
    return Layout(tuple(dim.size for dim in dims), tuple(chunk[dim.name] for dim in dims))


def _hashable(chosen: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple(chosen.items())


def _blocks(indices: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(indices), size):
        block = indices[start : start + size]
        yield np.pad(block, (0, size - len(block)), mode="edge")
