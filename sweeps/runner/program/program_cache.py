"""Caches compiled programs of the command line on disk. A later process need not trace and lower
them, which would take longer than the runs of a small job.

The key of a program covers everything that determines it: its static arguments, in which names
stand for the numbers that are arguments of the program, the shapes of its arrays, the options of
JAX, the devices, and the size and modification time of the source files it is traced from. A
program has a file for each effort with which it was compiled (`dynsim.compiling`), as the number of
runs decides which of them a sweep uses. Only the command line caches programs, and only for
problems of this project: a Python session may have replaced functions, which no file would show.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.util
import io
import os
import pickle
import pkgutil
import threading
from collections import Counter
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.experimental import serialize_executable
from jax.sharding import Mesh

from dynsim.compiling import EFFORTS, FULL, Cost
from sweeps import cache
from sweeps.language import derived
from sweeps.language.describe import name_of
from sweeps.output import programs
from sweeps.runner.program import traces

TRACED_PACKAGES = (*derived.PACKAGES, "diffrax", "equinox", "lineax", "optax", "jax")
"""Packages whose code is traced into programs. Their files are compared; other packages are
compared only by version."""
VERSIONS = ("jaxlib", "numpy")
VARIABLES = ("XLA_FLAGS", "EQX_ON_ERROR")
"""Environment variables that programs depend on."""
CACHE_HIT = "/jax/compilation_cache/cache_hits"
"""Event that JAX records when it reads a program from its own cache instead of compiling it."""
MAX_FILES = 500
"""Maximum number of cached programs, of 0.1 to 1 MB each; the least recently used are removed
first."""
Compiled = tuple[jax.stages.Compiled, jax.stages.Compiled | None]
"""A program, and the one that draws for it, if there is one."""


class ProgramInfo(NamedTuple):
    """Properties of a program that are read before it runs.

    Attributes:
        shapes: shapes of its results.
        cost: its estimated cost.
        draws: whether it needs the arrays that a second program draws.
        of_seed: estimated cost of the runs of a seed, of which it computes one or several; None for
            programs that are always compiled for speed.
    """

    shapes: dict[str, jax.ShapeDtypeStruct]
    cost: Cost
    draws: bool
    of_seed: Cost | None = None

    def effort(self, turns: int) -> str:
        """Return the effort with which to compile it (`dynsim.compiling`), for a sweep that
        computes the runs of a seed so many times."""
        return FULL if self.of_seed is None else self.of_seed.effort(turns)


def cache_key(mesh: Mesh, *static: object) -> str:
    """Return the key of a program that is determined by these `static` values and by no code of
    other packages. It is empty where programs are not cached: if a value contains something that
    has no name in other processes, such as a closure, and on accelerators, where this is
    untested."""
    device = mesh.devices.flat[0]
    if not programs.TRACED or device.platform != "cpu":
        return ""
    code, changed = _code()
    # A file may have been imported before it was changed.
    if changed > programs.TRACED[-1].began * 1e9:
        return ""
    devices = [(each.device_kind, each.id) for each in mesh.devices.flat]
    options = sorted(jax.config.values.items(), key=str), *map(os.environ.get, VARIABLES)
    try:
        values = _plain(static)
    except LookupError:
        return ""
    text = repr((values, devices, device.client.platform_version, options, code))
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: object) -> Hashable:
    """Return a value as nested tuples whose `repr` is the same in other processes, and different
    for different values. Raises `LookupError` for objects without such a form."""
    match value:
        case None | bool() | int() | float() | str() | bytes() | np.generic() | np.dtype():
            return type(value).__name__, str(value)
        case np.ndarray() | jax.Array():
            array = np.asarray(value)
            return array.shape, str(array.dtype), hashlib.sha256(array.tobytes()).hexdigest()
        case tuple() | list():
            return name_of(type(value)), *map(_plain, value)
        case Mapping():
            return name_of(type(value)), *((_plain(n), _plain(x)) for n, x in value.items())
        case jax.tree_util.PyTreeDef():
            # Its own `repr` leaves out the static fields of modules.
            return _plain(value.unflatten(range(value.num_leaves)))
        case functools.partial():
            return "partial", *map(_plain, (value.func, value.args, value.keywords))
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = (field.name for field in dataclasses.fields(value))
            return name_of(type(value)), *((n, _plain(getattr(value, n, None))) for n in fields)
    # Functions and classes: the name is enough if it leads back to them.
    try:
        if pkgutil.resolve_name(name := name_of(value)) is value:
            return name
    except (AttributeError, ImportError, ValueError) as error:
        raise LookupError(f"{value!r} has no name") from error
    raise LookupError(f"{value!r} is not what its name says")


@functools.cache
def _code() -> tuple[str, int]:
    """Return a hash of the sources of `TRACED_PACKAGES` and of `VERSIONS`, and the latest
    change."""
    files: list[tuple[str, int, int]] = []
    for package in TRACED_PACKAGES:
        spec = importlib.util.find_spec(package)
        for root in (spec and spec.submodule_search_locations) or ():
            files += sorted(derived.sources(root))
    code = files, [importlib.metadata.version(each) for each in VERSIONS]
    return hashlib.sha256(repr(code).encode()).hexdigest(), max(changed for *_, changed in files)


class CachedProgram(NamedTuple):
    """A cached program: its properties, and the bytes that `deserialize` reads."""

    info: ProgramInfo
    content: bytes


def lookup(key: str, turns: int) -> CachedProgram | None:
    """Return the cached program of a key, compiled for so many `turns` (see `ProgramInfo.effort`);
    None if there is none."""
    for effort in EFFORTS if key else ():
        # A damaged or foreign file counts as missing.
        with contextlib.suppress(Exception):
            path = _file(key, effort)
            file = io.BytesIO(cache.read(path))
            fields, uses_lapack = pickle.load(file)
            info = ProgramInfo(*fields)
            # The cost of a program, which decides on the effort, is only known from its file.
            if info.effort(turns) == effort:
                os.utime(path)
                if uses_lapack:
                    _initialise_lapack()
                return CachedProgram(info, file.read())
    return None


def _file(key: str, effort: str) -> Path:
    return programs.TRACED[-1].folder / f"{key}-{effort}"


@functools.cache
def _initialise_lapack() -> None:
    # JAX does so when it lowers a program that calls LAPACK, which imports SciPy. A loaded program
    # that runs before that would crash the process.
    matrix = jax.ShapeDtypeStruct((1, 1), "float32")
    jax.jit(jax.lax.linalg.lu).trace(matrix).lower()


def deserialize(program: CachedProgram, mesh: Mesh) -> Compiled | None:
    """Load a program, and the one that draws for it; None if either is unreadable."""
    devices = tuple(mesh.devices.flat)
    with contextlib.suppress(Exception):
        compiled, drawing = (
            each
            and serialize_executable.deserialize_and_load(
                *each, backend=devices[0].client, execution_devices=devices
            )
            for each in pickle.loads(program.content)
        )
        return compiled, drawing
    return None


def save(key: str, info: ProgramInfo, turns: int, operations: set[str], compiled: Compiled) -> None:
    """Cache a program of these operations, compiled for so many `turns`. One that calls back into
    Python is not cached: it cannot be serialized."""
    if not key:
        return
    # Without the file, another process compiles again.
    with contextlib.suppress(Exception):
        path = _file(key, info.effort(turns))
        serialized = [each and serialize_executable.serialize(each) for each in compiled]
        head = tuple(info), bool(operations & traces.LAPACK)
        cache.write(path, pickle.dumps(head) + pickle.dumps(serialized))
        by_age = sorted(path.parent.iterdir(), key=lambda path: path.stat().st_mtime)
        for old in by_age[:-MAX_FILES]:
            old.unlink(missing_ok=True)


def num_cache_hits() -> int:
    """Return the number of programs that this thread has read from JAX's own cache. The compiler
    cannot serialize such a program completely: it would lack functions when loaded and run."""
    return _hits_by_thread()[threading.get_ident()]


@functools.cache
def _hits_by_thread() -> Counter[int]:
    hits: Counter[int] = Counter()

    def count(event: str, **_: object) -> None:
        if event == CACHE_HIT:
            hits[threading.get_ident()] += 1

    jax.monitoring.register_event_listener(count)
    return hits
