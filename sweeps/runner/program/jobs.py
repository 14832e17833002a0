"""Programs of sweeps: traced for the shapes of a job, compiled or loaded in the background, and
kept in memory while they are used."""

import contextlib
import ctypes
import functools
import gc
import math
import os
from collections.abc import Sequence
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
from sweeps.runner.program import kept, traces
from sweeps.runner.store import check_names
from sweeps.systems.training import Call


class Program:
    """The programs `run_tiles` and `draw_tiles` for one shape of arrays. They are traced at
    creation, and compiled or loaded from disk in the background after `start`, so that the programs
    of a sweep over shapes compile in parallel."""

    def __init__(self, job: "Job") -> None:
        self._job = job
        self._kept = kept.find(job.kept, job.turns)
        if self._kept is None:
            draws, (program, _) = self._traced
            jaxpr, of_seed = program.jaxpr.jaxpr, None
            if not job.call.theory.trains and job.mesh.devices.flat[0].platform == "cpu":
                of_seed = cost(_of_seed(jaxpr) or jaxpr, TURNS)
            self.known = kept.Known(program.out_info, cost(jaxpr), draws is not None, of_seed)
        else:
            self.known = self._kept.known
        # Recorded weights also have names, which are known only here.
        check_names(("record", self.shapes))
        self._compiled: Future[Sequence[Any]] | None = None

    @functools.cached_property
    def _traced(self) -> "tuple[Traced | None, Traced]":
        return trace(self._job)

    @property
    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the results."""
        return self.known.shapes

    @property
    def ready(self) -> bool:
        """Whether it need not be compiled: it is kept on disk, or has been started."""
        return bool(self._kept or self._compiled)

    def start(self) -> Future[Sequence[Any]]:
        """Start to compile unless that has begun. The result is the program, and the one that draws
        for it or None."""
        if self._compiled is None:
            drawing = None
            if self._kept is None and self._traced[0] is not None:
                drawing = COMPILERS.submit(self._made, self._traced[0], DRAWN)
            # After the other, for which it waits.
            self._compiled = COMPILERS.submit(self._compile, drawing)
        return self._compiled

    @property
    def bytes(self) -> int:
        """The memory that the program requires on each device; waits for compilation."""
        return fit.needed(self.start().result()[0])

    @property
    def shared(self) -> fit.Shared:
        """The memory of its arguments that points share, on each device."""
        draws, _ = self._traced
        drawn = draws.program.out_info if draws else []
        each = sum(math.prod(x.shape[2:]) * x.dtype.itemsize for x in jax.tree.leaves(drawn))
        return fit.Shared(sum(x.nbytes for x in jax.tree.leaves(self._job.arrays)), each)

    def draw(self, arrays: PyTree, *others: PyTree) -> list[Array]:
        """Return the leaves of the result of `draw_tiles`; [] if the theory draws nothing."""
        drawing = self.start().result()[1]
        return [] if drawing is None else _called(drawing, arrays, *others)

    def __call__(self, arrays: PyTree, numbers: PyTree, *others: PyTree) -> dict[str, Array]:
        """Return the result of `run_tiles`, waiting for compilation. The argument `drawn` is the
        list that `draw` returns."""
        return _called(self.start().result()[0], arrays, tiles.flat(numbers), *others)

    def _compile(self, drawing: "Future[tuple[Any, bool]] | None") -> Sequence[Any]:
        # Threads do not inherit the precision of the thread that starts them.
        with precision(self._job.call.dtype):
            if self._kept and (found := kept.load(self._kept, self._job.mesh)):
                return found
            draws, program = self._traced
            effort = EFFORTS[self.known.effort(self._job.turns)]
            made, whole = self._made(program, effort.options)
            drawn = None
            if draws:
                drawn, also = drawing.result() if drawing else self._made(draws, DRAWN)
                whole &= also
        if whole:
            traced = [each.program.jaxpr.jaxpr for each in (program, draws) if each]
            used = {name for each in traced for name in traces.operations(each)}
            kept.save(self._job.kept, self.known, self._job.turns, used, made, drawn)
        return made, drawn

    def _made(self, traced: "Traced", options: Options) -> tuple[Any, bool]:
        """Compile a program, and return whether it can be serialized."""
        read = kept.number_read()
        with precision(self._job.call.dtype):
            made = traced.compiled(self._job.mesh, options)
        return made, kept.number_read() == read


def _called(compiled: Any, arrays: PyTree, *others: PyTree) -> Any:
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
        kept: key under which other processes find the program; empty if it is not kept.
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
    kept: str = ""
    turns: int = 1


class Traced(NamedTuple):
    """A traced program with its arguments, or with arrays that have their shapes and devices."""

    program: jax.stages.Traced
    arguments: tuple[Any, ...]

    def compiled(self, mesh: Mesh, options: Options) -> jax.stages.Compiled:
        """Compile it for these devices, on a CPU with options of the compiler."""
        if mesh.devices.flat[0].platform != "cpu":
            return self.program.lower().compile()
        several = mesh.size > 1
        found = traces.unbatched(self.program, *self.arguments) if several else self.program
        return found.lower().compile(available(options))


def trace(job: Job) -> tuple[Traced | None, Traced]:
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
    shared = [jax.tree.structure(None)]

    def draw(leaves: list[Array], seeds: Array, root: Array) -> list[Array]:
        found = tiles.draw_tiles(arrays.unflatten(leaves), seeds, root, **options)
        shared.append(jax.tree.structure(found))
        return jax.tree.leaves(found)

    def run(
        leaves: list[Array],
        of_runs: list[Array],
        seeds: Array,
        root: Array,
        drawn: Any,
        states: Any,
    ) -> dict[str, Array]:
        runs = arrays.unflatten(leaves), tiles.unflat(job.numbers, of_runs)
        return tiles.run_tiles(*runs, seeds, root, shared[-1].unflatten(drawn), states, **options)

    draws, drawn = None, []
    anew = traces.anew() if job.identity else contextlib.nullcontext()
    with compiled_for(job.mesh.devices.flat[0].platform), anew:
        if job.call.draws:
            draws = Traced(jax.jit(draw).trace(leaves, seeds, root), (leaves, seeds, root))
            placed = NamedSharding(job.mesh, PartitionSpec("devices"))
            drawn = [
                jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=placed)
                for each in draws.program.out_info
            ]
        arguments = leaves, of_runs, seeds, root, drawn, states
        return draws, Traced(jax.jit(run).trace(*arguments), arguments)


def program(job: Job) -> Program:
    """Return the program for arrays shaped like those of the job, made at the first call."""
    leaves, structure = jax.tree.flatten(job.arrays)
    shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)
    like = structure, jax.tree.structure(job.numbers)
    key = (_classes(job.call), shapes, *like, *job._replace(arrays=None, numbers=None, turns=0))
    every = ((effort, PROGRAMS.get((key, effort))) for effort in EFFORTS)
    same = (each for effort, each in every if each and each.known.effort(job.turns) == effort)
    made = next(same, None) or Program(job)
    # Reinsert it, so that the most recently used program is last.
    key = key, made.known.effort(job.turns)
    PROGRAMS.pop(key, None)
    PROGRAMS[key] = made
    dropped = list(PROGRAMS)[: MOST_PROGRAMS // 2] if len(PROGRAMS) > MOST_PROGRAMS else _gone()
    if dropped:
        for old in dropped:
            del PROGRAMS[old]
        release()
    return made


def _classes(call: Call) -> tuple[type, ...]:
    """Return the classes of the problem, the rule and their parts."""
    left, found = [call.rest.structure], []
    while left:
        structure = left.pop()
        left += structure.children()
        if node := structure.node_data():
            found.append(node[0])
    return tuple(found)


def _gone() -> list[Any]:
    """Return the keys of programs whose classes were replaced by others of the same name, once they
    are more than `MOST_GONE`."""
    current: dict[tuple[str, str], type] = {}

    def replaced(cls: type) -> bool:
        # The class that was used last is the current one.
        return current.setdefault((cls.__module__, cls.__qualname__), cls) is not cls

    found = [key for key in reversed(PROGRAMS) if any([*map(replaced, key[0][0])])]
    return found if len(found) > MOST_GONE else []


def _of_seed(program: Jaxpr) -> Jaxpr | None:
    """Return the body of the loop over the seeds of a tile, if there is one."""
    for each in program.eqns:
        for found in inside(each):
            if body := found if each.primitive.name == "scan" else _of_seed(found):
                return body
    return None


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
    # The C library keeps freed memory unless it is told to trim it.
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


MOST_PROGRAMS = 64
"""Maximum number of programs in memory: more than a figure needs, few enough for a long session.
Above it, the least recently used half is dropped at once, because that clears JAX's caches."""
MOST_GONE = 8
"""Maximum number of programs of classes that were defined again since, as in a notebook. JAX never
forgets a class, so such programs are found by the names of their classes."""
PROGRAMS: dict[Any, Program] = {}
"""The most recently used programs of this process, the latest one last."""
