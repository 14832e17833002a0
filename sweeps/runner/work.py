"""Computes the chunks of a sweep: divides runs into batches and assembles their arrays."""

import functools
import itertools
import math
import os
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PyTree, UInt8

from dynsim.precision import precision
from dynsim.training.checkpoint import Checkpoint
from sweeps.output import programs
from sweeps.runner import fit, labels, progress, tiles
from sweeps.runner.program import jobs, program_cache
from sweeps.runner.program.identity import Identity
from sweeps.runner.spec import Sweep
from sweeps.runner.store import CHECKPOINT, Layout, Variable
from sweeps.systems.training import names_of_numbers

AHEAD = min(os.cpu_count() or 1, 8)
"""Number of programs that are compiled ahead while another one runs."""
IndexT = TypeVar("IndexT")
StaticValues = tuple[tuple[str, Any], ...]
"""Values of static axes by name, hashable: one program computes all runs that share them."""


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
        chunk_tiles: int = fit.CHUNK_TILES,
        begin: int = 0,
        state: int = 0,
        nudge: float = 0.0,
        identity: Identity | None = None,
    ) -> None:
        """`chunk_tiles`: maximum of tiles per chunk, unless `chunk` is set. `begin`: step at which
        all runs resume, from states of `state` bytes. `nudge`: relative change of all traced
        numbers, which measures how rounding grows. `identity`: that of the sweep, if already
        known."""
        self.sweep, self.begin, self.state = sweep, begin, state
        self.nudge = nudge
        device = mesh.devices.flat[0]
        self.identity = identity or Identity(sweep, device.platform)
        self.program = functools.lru_cache(maxsize=16)(self._program)
        self._drawn: tuple[Hashable, list[Array]] = (None, [])
        self._ready, self._programs = set[tuple[int, ...]](), 0
        names = [dim.name for dim in sweep.dims]
        self._seed_axis = names.index("seed") if "seed" in names else None

        def estimate(chosen: Mapping[str, Any]) -> int:
            return self.identity.entering(_hashable(chosen)).bytes_per_run

        slices = sweep.some_slices()
        memory = max(map(estimate, slices))
        size = tile or fit.default_tile(memory, sweep.method, device)
        divide = functools.partial(
            fit.divide, sweep.dims, mesh, layout, chunk, adaptive=sweep.method.adaptive
        )
        if tile is None and device.platform == "cpu":
            # Time limits a tile on a CPU. The program of a first size gives the cost of a run.
            _, self.tile, self.mesh = divide(chunk_tiles, size)
            longest = max(slices, key=lambda chosen: sweep.plane(chosen).steps or 0)
            _, program = self.program(_hashable(longest))
            runs = math.prod(self.tile)
            factor, tiles_at_once = fit.shrink_for_seconds(program.known.cost, runs)
            if factor > 1:
                size = max(runs // factor, 1)
            chunk_tiles = min(chunk_tiles, tiles_at_once * mesh.size)
            self.program.cache_clear()
        layout, self.tile, self.mesh = divide(chunk_tiles, size)
        memory *= math.prod(self.tile)
        if tile is None and (available := fit.memory_of(device)) is not None:
            # Memory limits a tile elsewhere. The largest program tells how much a tile needs.
            largest = _hashable(max(slices, key=estimate))

            def measure() -> int:
                program = self.program(largest)[1]
                return sum(
                    p.bytes for p in progress.track([program], "program", lambda _: "compiling")
                )

            memory, most = measure(), fit.SHARE * available
            if memory > most and self.tile != (1, 1):
                # However much too large the tile is, two programs are compiled: an accelerator
                # tries variants of its kernels meanwhile, which takes up to a minute for each.
                shared = self.program(largest)[1].shared
                self._shrink(fit.largest_fitting(self.tile, memory, shared, most))
                memory = measure()
        self.plan = fit.Plan(layout, self.tile, self.mesh.size, memory)

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
        factor = 2
        while True:
            try:
                return self._compute(region, variables, check, states)
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error) or self.tile == (1, 1):
                    raise
            self._shrink(fit.smaller(self.tile, factor))
            warnings.warn(
                f"a device ran out of memory; from here on it computes {self.tile[0]}x"
                f"{self.tile[1]} runs (seeds x points) at once, a factor of {factor} fewer",
                stacklevel=2,
            )
            # Each tile compiles for a minute: 65536 runs become one in five steps, not in sixteen.
            factor *= factor

    def _compute(
        self,
        region: tuple[slice, ...],
        variables: Mapping[str, Variable],
        check: Callable[[int], None],
        states: UInt8[np.ndarray, "*region N"] | None,
    ) -> dict[str, np.ndarray]:
        chosen = _hashable(self.sweep.static_values(region))
        arrays, program = self.program(chosen)
        axis = self._seed_axis
        if axis is None:
            seeds = np.array([self.sweep.first.seed])
        else:
            seeds = np.array(self.sweep.dims[axis].axes["seed"][region[axis]])
        numbers, num_points = self._numbers(chosen, region)
        order = np.arange(num_points)
        if self.sweep.method.adaptive:
            # A tile takes as long as its stiffest run, so runs of similar stiffness share one.
            stiffness = np.broadcast_to(self.sweep.system.stiffness(numbers), order.shape)
            order = np.argsort(stiffness, kind="stable")
        if states is not None:
            # From the shape of the region to (S, P, N), seeds first.
            states = states if axis is None else np.moveaxis(states, axis, 0)
            states = states.reshape(len(seeds), -1, states.shape[-1])
        # A tile is a pair of indices: those of its seeds and of its points.
        every_tile = [
            (s, p)
            for s in _batches(range(len(seeds)), self.tile[0])
            for p in _batches(order.tolist(), self.tile[1])
        ]
        results: dict[str, np.ndarray] = {}
        computed, root = 0, np.uint32(self.sweep.root)
        for batch in _batches(every_tile, self.mesh.size):
            check_computed = functools.partial(check, computed)
            check_computed()
            if not (compiled := program.start()).done():
                progress.wait(compiled.result, check_computed, "compiling")
            # Runs that pad a tile count once.
            computed += sum(len({*s}) * len({*p}) for s, p in batch)
            batch_seeds = np.stack([seeds[s] for s, _ in batch]).astype(np.uint32)
            batch_points = np.array([p for _, p in batch])
            drawn_for = chosen, batch_seeds.tobytes()
            if program.known.draws and self._drawn[0] != drawn_for:
                # Free the old arrays before new ones are allocated.
                self._drawn = (None, [])
                self._drawn = (drawn_for, program.draw(arrays, batch_seeds, root))
            result = program(
                arrays,
                jax.tree.map(lambda x, i=batch_points: x[i], numbers),
                batch_seeds,
                root,
                self._drawn[1] if program.known.draws else [],
                None if states is None else np.stack([states[np.ix_(s, p)] for s, p in batch]),
            )
            # Small tiles are often done by now; then no thread is started. JAX types no `is_ready`.
            pending: list[Any] = [*result.values()]
            if not all(array.is_ready() for array in pending):
                progress.wait(functools.partial(jax.block_until_ready, pending), check_computed)
            for name, values in jax.device_get(result).items():
                if name not in results:
                    shape = (len(seeds), num_points, *values.shape[3:])
                    results[name] = np.empty(shape, values.dtype)
                for (s, p), of_tile in zip(batch, values, strict=True):
                    # Repeated indices, which pad a batch, refer to the same run.
                    results[name][np.ix_(s, p)] = of_tile
        # From (S, P, ...) to the shape of the region.
        shape = [part.stop - part.start for part in region]
        if axis is not None:
            del shape[axis]
        chunk = {}
        for name, variable in variables.items():
            try:
                values = variable.padded(results[name])
            except ValueError:
                raise ValueError(
                    f"record: an array of {results[name].shape[2:]} is larger than those at the "
                    f"ends of all axes, {variable.shape}, for which there is room; sweep fewer "
                    "combinations"
                ) from None
            values = values.reshape(len(seeds), *shape, *variable.shape)
            chunk[name] = values[0] if axis is None else np.moveaxis(values, 0, axis)
        return chunk

    def schedule(self, regions: Iterable[tuple[slice, ...]]) -> Iterator[tuple[slice, ...]]:
        """Sort regions by program, and then by seed if the seed's shared data is drawn separately,
        so that it is drawn once. The next programs are compiled meanwhile."""
        draws = self.identity.entering(_hashable(next(self.sweep.slices()))).call.draws
        seed_axis = self._seed_axis if draws else None

        def program(region: tuple[slice, ...]) -> tuple[int, ...]:
            parts = zip(self.sweep.dims, region, strict=True)
            return tuple(part.start for dim, part in parts if dim.static)

        def order(region: tuple[slice, ...]) -> tuple[tuple[int, ...], int]:
            return program(region), 0 if seed_axis is None else region[seed_axis].start

        by_program = itertools.groupby(sorted(regions, key=order), program)
        groups = [(key, list(group)) for key, group in by_program]
        self._programs = len(groups)
        for i, (_, group) in enumerate(groups):
            for key, later in groups[i : i + 1 + AHEAD]:
                # The compiled program itself is not kept: there may be thousands.
                ready = functools.partial(self._ready.add, key)
                self.start(later[0]).add_done_callback(lambda _, ready=ready: ready())
            yield from group

    @property
    def compiling(self) -> str:
        """How many of the programs of `schedule` are compiled, as text; empty if all are."""
        ready = len(self._ready)
        number = progress.count(self._programs, "program")
        return f"{ready} of {number} compiled" if ready < self._programs else ""

    def start(self, region: tuple[slice, ...]) -> Future[Any]:
        """Start to compile the program of a chunk."""
        return self._program_of(region).start()

    def first(self) -> jobs.Program:
        """Return the program of the first chunk."""
        return self._program_of(self.plan.layout.region(0))

    def _program_of(self, region: tuple[slice, ...]) -> jobs.Program:
        return self.program(_hashable(self.sweep.static_values(region)))[1]

    def variables(self) -> dict[str, Variable]:
        """Return the arrays that the runs record, with the largest shape if shapes differ."""
        slices = self.sweep.some_slices()
        shapes = self._shapes(slices[0])
        times = self._times(slices[0])
        # Scalar observables have the same shape for every task, so not all programs need to be
        # traced here; they are compiled when needed.
        if not all(shape in ((), times) for shape, _ in shapes.values()):
            for chosen in slices:
                for name, (shape, dtype) in self._shapes(chosen).items():
                    shapes[name] = tuple(np.maximum(shape, shapes[name][0]).tolist()), dtype
        most_times = max(map(self._times, slices))
        variables = {}
        for name, (shape, dtype) in shapes.items():
            if 0 in shape:
                raise ValueError(f"record = {name!r}: is empty, of shape {shape}")
            if shape and name != CHECKPOINT:
                # Programs that were not traced may record at more times.
                shape = (*most_times, *shape[len(most_times) :])
            variables[name] = Variable(
                shape, labels.inner_dims(self.sweep, name, len(shape)), dtype
            )
        return variables

    def _shapes(self, chosen: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Return shape (without the sweep's axes) and dtype of each array of its program."""
        shapes = self.program(_hashable(chosen))[1].shapes
        return {name: (array.shape[3:], array.dtype) for name, array in shapes.items()}

    def _times(self, chosen: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the shape of the recorded times; () for a single time."""
        times = self.sweep.plane(chosen).steps_recorded(self.sweep.times)
        number = times if isinstance(times, int) else len(times)
        return (number,) if number > 1 else ()

    def _shrink(self, tile: tuple[int, int]) -> None:
        self.tile = tile
        self.program.cache_clear()
        self._drawn = (None, [])

    def _program(self, chosen: StaticValues) -> tuple[PyTree, jobs.Program]:
        runs = self.identity.entering(chosen)
        arrays, call = runs.arrays, runs.call
        if self.begin:
            call = call._replace(checkpoint=Checkpoint(self.begin))
        job = jobs.Job(arrays, runs.numbers, self.tile, call, self.mesh, self.state)
        sizes = {dim.name: dim.size for dim in self.sweep.dims if not dim.static}
        turns = sizes.pop("seed", 1) * -(-math.prod(sizes.values()) // self.tile[1])
        if self.identity.outside:
            outside = self.identity.text(chosen).digest
            return arrays, jobs.program(job._replace(identity=outside, turns=turns))
        key = ""
        # Theories have no text that other processes know; their names do. A theory that is passed
        # as an object may have the name of another one.
        if isinstance(self.sweep.theory, str):
            named = self.sweep.system.name, self.sweep.theory, call._replace(theory=None)
            shapes = [(x.shape, str(x.dtype)) for x in jax.tree.leaves(arrays)]
            names = names_of_numbers(runs.numbers)
            key = program_cache.cache_key(self.mesh, *named, shapes, names, self.tile, self.state)
        return arrays, jobs.program(job._replace(cache_key=key, turns=turns))

    def _numbers(
        self, chosen: StaticValues, region: tuple[slice, ...]
    ) -> tuple[PyTree[Float[np.ndarray, " P"]], int]:
        """Return the numbers of all P points of a chunk, the last dimension fastest, and P."""
        traced = [
            (dim.size, part)
            for dim, part in zip(self.sweep.dims, region, strict=True)
            if not dim.static and dim.name != "seed"
        ]
        sizes, parts = tuple(size for size, _ in traced), tuple(part for _, part in traced)

        def at_points(value: ArrayLike) -> np.ndarray:
            points = np.asarray(np.broadcast_to(value, sizes)[parts], self.sweep.dtype)
            return points.ravel() * (1 + self.nudge)

        numbers = jax.tree.map(at_points, self.identity.entering(chosen).numbers)
        return numbers, math.prod(part.stop - part.start for part in parts)


def compile_first(sweeps: Iterable[Sweep]) -> None:
    """Trace the programs of several sweeps, so that errors in equations are raised before any sweep
    runs. Each starts to compile while the next is traced. Prints which they are."""
    programs.keep()
    sweeps = list(sweeps)
    number, missing = progress.count(len(sweeps), "program"), 0
    progress.say(f"{number}: {', '.join(sweep.theory_name for sweep in sweeps)}")
    for sweep in progress.track(sweeps, "program", lambda sweep: sweep.theory_name):
        with precision(sweep.dtype):
            work = Work(sweep, tiles.mesh(dtype=sweep.dtype))
            work.variables()
        missing += not work.first().ready
        work.first().start()
    if missing:
        progress.say(f"compiling {missing} of {number}")


def _hashable(chosen: Mapping[str, Any]) -> StaticValues:
    return tuple(chosen.items())


def _batches(items: Sequence[IndexT], size: int) -> Iterator[list[IndexT]]:
    """Cut a sequence into lists of equal length, the last one padded with its last item."""
    for start in range(0, len(items), size):
        batch = [*items[start : start + size]]
        yield batch + batch[-1:] * (size - len(batch))
