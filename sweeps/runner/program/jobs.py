"""Programs of sweeps: traced for the shapes of a job, compiled or loaded in the background, and
kept in memory while they are used."""

import contextlib
import ctypes
import functools
import gc
import math
import os
from collections.abc import Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Jaxpr
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from dynsim.compiling import DRAWN, EFFORTS, TURNS, Options, available, cost, inside
from dynsim.precision import compiled_for, precision
from sweeps.runner import fit, tiles
from sweeps.runner.program import program_cache, traces
from sweeps.runner.store import check_names
from sweeps.systems.training import Call


class Program:
    """The programs `run_tiles` and `draw_tiles` for one shape of arrays. They are traced at
    creation, and compiled or loaded from disk in the background after `start`, so that the programs
    of a sweep over shapes compile in parallel."""

    def __init__(self, job: "Job") -> None:
        self._job = job
        self._cached = program_cache.lookup(job.cache_key, job.turns)
        if self._cached is None:
            draws, (program, _) = self._traced
            jaxpr, of_seed = program.jaxpr.jaxpr, None
            if not job.call.theory.trains and job.mesh.devices.flat[0].platform == "cpu":
                of_seed = cost(_seed_loop(jaxpr) or jaxpr, TURNS)
            shapes = program.out_info
            self.known = program_cache.ProgramInfo(shapes, cost(jaxpr), draws is not None, of_seed)
        else:
            self.known = self._cached.info
        # Recorded weights also have names, which are known only here.
        check_names(("record", self.shapes))
        self._compiled: Future[program_cache.Compiled] | None = None

    @functools.cached_property
    def _traced(self) -> "tuple[TracedProgram | None, TracedProgram]":
        return trace(self._job)

    @property
    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the results."""
        return self.known.shapes

    @property
    def ready(self) -> bool:
        """Whether it need not be compiled: it is cached on disk, or has been started."""
        return bool(self._cached or self._compiled)

    def start(self) -> Future[program_cache.Compiled]:
        """Start to compile unless that has begun. The result is the program, and the one that draws
        for it or None."""
        if self._compiled is None:
            drawing = None
            if self._cached is None and self._traced[0] is not None:
                drawing = COMPILERS.submit(self._compile_traced, self._traced[0], DRAWN)
            # Submitted after the other, for which it waits: that has a thread already.
            self._compiled = COMPILERS.submit(self._compile, drawing)
        return self._compiled

    @property
    def bytes(self) -> int:
        """The memory that the program requires on each device; waits for compilation."""
        return fit.needed(self.start().result()[0])

    @property
    def shared(self) -> fit.SharedBytes:
        """The memory of its arguments that points share, on each device."""
        draws, _ = self._traced
        leaves = jax.tree.leaves(draws.program.out_info if draws else [])
        # Their first axes are devices and seeds.
        of_seed = sum(math.prod(x.shape[2:]) * x.dtype.itemsize for x in leaves)
        return fit.SharedBytes(sum(x.nbytes for x in jax.tree.leaves(self._job.arrays)), of_seed)

    def draw(self, arrays: PyTree, *others: PyTree) -> list[Array]:
        """Return the leaves of the result of `draw_tiles`; [] if the theory draws nothing."""
        drawing = self.start().result()[1]
        return [] if drawing is None else _call(drawing, arrays, *others)

    def __call__(self, arrays: PyTree, numbers: PyTree, *others: PyTree) -> dict[str, Array]:
        """Return the result of `run_tiles`, waiting for compilation. The argument `drawn` is the
        list that `draw` returns."""
        return _call(self.start().result()[0], arrays, tiles.flat(numbers), *others)

    def _compile(
        self, drawing: "Future[tuple[jax.stages.Compiled, bool]] | None"
    ) -> program_cache.Compiled:
        # Threads do not inherit the precision of the thread that starts them.
        with precision(self._job.call.dtype):
            if self._cached and (loaded := program_cache.deserialize(self._cached, self._job.mesh)):
                return loaded
            draws, program = self._traced
            effort = EFFORTS[self.known.effort(self._job.turns)]
            compiled, is_complete = self._compile_traced(program, effort.options)
            drawn = None
            if draws:
                drawn, is_drawn_complete = (
                    drawing.result() if drawing else self._compile_traced(draws, DRAWN)
                )
                is_complete &= is_drawn_complete
        if is_complete:
            jaxprs = [each.program.jaxpr.jaxpr for each in (program, draws) if each]
            operations = {name for jaxpr in jaxprs for name in traces.operations(jaxpr)}
            key, turns = self._job.cache_key, self._job.turns
            program_cache.save(key, self.known, turns, operations, (compiled, drawn))
        return compiled, drawn

    def _compile_traced(
        self, traced: "TracedProgram", options: Options
    ) -> tuple[jax.stages.Compiled, bool]:
        """Compile a program, and return whether it can be serialized."""
        hits = program_cache.num_cache_hits()
        with precision(self._job.call.dtype):
            compiled = traced.compile(self._job.mesh, options)
        return compiled, program_cache.num_cache_hits() == hits


def _call(compiled: jax.stages.Compiled, arrays: PyTree, *others: PyTree) -> Any:
    # Runs that diverge are data, whatever the user's JAX does at NaN.
    with jax.debug_nans(False), jax.debug_infs(False):
        return compiled(jax.tree.leaves(arrays), *others)


COMPILERS = ThreadPoolExecutor(os.cpu_count(), "dynsim-compile")


class Job(NamedTuple):
    """The values that a program is compiled for.

    Attributes:
        arrays: the arrays that the runs share, or others of the same shapes.
        numbers: the numbers of the runs, of any shape.
        tile: seeds and points of the batch that a device works on at once.
        call: what computes a run.
        mesh: the devices.
        state: bytes of the state from which each run resumes; 0 for runs that start from step 0.
        identity: hash of the text of the program of a run, if it contains code that may change.
            Programs traced or compiled for another hash are not reused.
        cache_key: key under which other processes find the program; empty if it is not cached.
        turns: how often the sweep computes the runs of one seed at the points of a tile. It only
            affects how the program is compiled. It is that of the whole sweep, so that each part
            of it, in whichever process and on whichever devices, is computed in the same way.
    """

    arrays: PyTree
    numbers: PyTree
    tile: tuple[int, int]
    call: Call
    mesh: Mesh
    state: int = 0
    identity: str = ""
    cache_key: str = ""
    turns: int = 1


class TracedProgram(NamedTuple):
    """A traced program with its arguments, or with arrays that have their shapes and devices."""

    program: jax.stages.Traced
    arguments: tuple[Any, ...]

    def compile(self, mesh: Mesh, options: Options) -> jax.stages.Compiled:
        """Compile it for these devices, on a CPU with options of the compiler."""
        if mesh.devices.flat[0].platform != "cpu":
            return self.program.lower().compile()
        program = self.program
        if mesh.size > 1:
            program = traces.unbatch_lapack(program, *self.arguments)
        return program.lower().compile(available(options))


def trace(job: Job) -> tuple[TracedProgram | None, TracedProgram]:
    """Trace `draw_tiles`, if the theory draws anything, and `run_tiles` for the shapes of a job and
    the platform of its devices."""
    points = np.zeros((job.mesh.size, job.tile[1]), job.call.dtype)
    seeds = np.zeros((job.mesh.size, job.tile[0]), np.uint32)
    states = None
    if job.state:
        states = np.zeros((job.mesh.size, *job.tile, job.state), np.uint8)
    root, options = np.uint32(0), {"call": job.call, "mesh": job.mesh}
    # Arguments are flat, because the tree structures of modules cannot be serialized.
    leaves, arrays = jax.tree.flatten(job.arrays)
    of_runs = [points] * len(jax.tree.leaves(job.numbers))
    # The structure of drawn data, last, is known once `draw` has been traced.
    shared = [jax.tree.structure(None)]

    def draw(leaves: list[Array], seeds: Array, root: Array) -> list[Array]:
        drawn = tiles.draw_tiles(arrays.unflatten(leaves), seeds, root, **options)
        shared.append(jax.tree.structure(drawn))
        return jax.tree.leaves(drawn)

    def run(
        leaves: list[Array],
        of_runs: list[Array],
        seeds: Array,
        root: Array,
        drawn: list[Array],
        states: Array | None,
    ) -> dict[str, Array]:
        runs = arrays.unflatten(leaves), tiles.unflat(job.numbers, of_runs)
        return tiles.run_tiles(*runs, seeds, root, shared[-1].unflatten(drawn), states, **options)

    draws, drawn = None, []
    anew = traces.without_trace_cache() if job.identity else contextlib.nullcontext()
    with compiled_for(job.mesh.devices.flat[0].platform), anew:
        if job.call.draws:
            draws = TracedProgram(jax.jit(draw).trace(leaves, seeds, root), (leaves, seeds, root))
            sharding = NamedSharding(job.mesh, PartitionSpec("devices"))
            drawn = [
                jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=sharding)
                for each in draws.program.out_info
            ]
        arguments = leaves, of_runs, seeds, root, drawn, states
        return draws, TracedProgram(jax.jit(run).trace(*arguments), arguments)


def _seed_loop(jaxpr: Jaxpr) -> Jaxpr | None:
    """Return the body of the loop over the seeds of a tile, if there is one."""
    for eqn in jaxpr.eqns:
        for inner in inside(eqn):
            if body := inner if eqn.primitive.name == "scan" else _seed_loop(inner):
                return body
    return None


def program(job: Job) -> Program:
    """Return the program for arrays shaped like those of the job, made at the first call."""
    # The classes of the problem, the rule and their parts.
    nodes, classes = [job.call.rest.structure], []
    while nodes:
        node = nodes.pop()
        nodes += node.children()
        if data := node.node_data():
            classes.append(data[0])
    leaves, structure = jax.tree.flatten(job.arrays)
    shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)
    numbers, others = jax.tree.structure(job.numbers), job._replace(arrays=None, numbers=None)
    key = tuple(classes), (shapes, structure, numbers, *others._replace(turns=0))

    # Sweeps with other turns share a program if they need the effort with which it is compiled.
    by_effort = ((effort, PROGRAMS.get((*key, effort))) for effort in EFFORTS)
    same = (each for effort, each in by_effort if each and each.known.effort(job.turns) == effort)
    current = next(same, None) or Program(job)
    # Reinsert it, so that the most recently used program is last.
    key = *key, current.known.effort(job.turns)
    PROGRAMS.pop(key, None)
    PROGRAMS[key] = current

    dropped = []
    if len(PROGRAMS) > MAX_PROGRAMS:
        dropped = list(PROGRAMS)[: MAX_PROGRAMS // 2]
    else:
        # Of classes of the same name, the one that was used last is the current one.
        latest: dict[tuple[str, str], type] = {}
        for key in reversed(PROGRAMS):
            names = [(cls.__module__, cls.__qualname__) for cls in key[0]]
            currents = [latest.setdefault(*pair) for pair in zip(names, key[0], strict=True)]
            if any(new is not old for new, old in zip(currents, key[0], strict=True)):
                dropped.append(key)
        if len(dropped) <= MAX_OUTDATED:
            dropped = []
    if dropped:
        for key in dropped:
            del PROGRAMS[key]
        release()
    return current


def forget() -> None:
    """Drop all compiled programs of this process and free their memory: those of sweeps and all
    others that JAX caches. They are compiled again when needed.

    Example:
        >>> sweeps.forget()
    """
    PROGRAMS.clear()
    release()


def release() -> None:
    """Free the memory of dropped programs, including JAX's caches."""
    jax.clear_caches()
    gc.collect()
    # The C library keeps freed memory unless it is asked to trim it.
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


MAX_PROGRAMS = 64
"""Maximum number of programs in memory: more than a figure needs, few enough for a long session.
Above it, the least recently used half is dropped at once, because that clears JAX's caches."""
MAX_OUTDATED = 8
"""Maximum number of programs of classes that were defined again since, as in a notebook. JAX never
forgets a class, so such programs are found by the names of their classes."""
PROGRAMS: dict[tuple[tuple[type, ...], Hashable, str], Program] = {}
"""The most recently used programs of this process, the latest one last: by the classes and inputs
of their job, and by the effort with which they are compiled."""
