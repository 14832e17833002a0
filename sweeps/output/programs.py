"""Compiled programs, which JAX caches on disk in the user's cache folder.

Small jobs spend most of their time on compilation. Cached programs depend on the versions of JAX
and the instruction set of the processor, so each combination has its own folder in a shared home.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import filelock
import jax

from sweeps import cache

MOST_BYTES = 2**28
"""Maximum bytes of the cache; the least recently used programs are removed first. All are read
when a process starts."""
QUICKEST = 0.1
"""Minimum seconds of compilation for a program to be cached."""
LOUD = (0, 12)
"""Before this version, JAX prints long spurious errors about processor instructions for each
program that it loads on a CPU. There, programs are cached only if C++ output is suppressed."""
SILENT = "3"
"""Value of TF_CPP_MIN_LOG_LEVEL for fatal errors only."""


def keep() -> Path | None:
    """Cache compiled programs, unless the user has configured or disabled JAX's cache.

    Returns:
        The folder; None if programs are not cached.
    """
    options = jax.config.values
    if not options["jax_enable_compilation_cache"]:
        return None
    # The folder of the user.
    if chosen := options["jax_compilation_cache_dir"]:
        return Path(chosen)
    if jax.__version_info__ < LOUD and os.environ.get("TF_CPP_MIN_LOG_LEVEL") != SILENT:
        return None
    if (folder := cache.folder(_folder_name())) is None:
        return None
    try:
        # The lock with which JAX writes, and removes what was used least.
        with filelock.FileLock(folder / ".lockfile", timeout=10):
            _remove_damaged(folder)
    except (OSError, filelock.Timeout):
        return None
    jax.config.update("jax_compilation_cache_max_size", MOST_BYTES)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", QUICKEST)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    return folder


@contextlib.contextmanager
def keeping_traced(began: float) -> Iterator[None]:
    """Context in which compiled programs are cached, and those of sweeps are also stored so that
    they need not be traced again (`sweeps.runner.program.program_cache`), unless the user has
    configured JAX otherwise. `began` is the time at which this process started to import
    modules."""
    compiled, name = keep(), _folder_name()
    is_ours = compiled is not None and compiled == cache.folder(name)
    if is_ours and (folder := cache.folder(name, "sweeps")):
        TRACED.append(Traced(folder, began))
    try:
        yield
    finally:
        TRACED.clear()


class Traced(NamedTuple):
    """The cache of programs that need not be traced: its folder, and the start of this process, in
    seconds as in `time.time`."""

    folder: Path
    began: float


TRACED: list[Traced] = []
"""The cache of this process, if it has one."""


def _folder_name() -> str:
    """Return a name with what programs depend on but JAX does not compare: its version, and the
    processor."""
    about = [f"{name} {importlib.metadata.version(name)}" for name in ("jax", "jaxlib")]
    digest = hashlib.sha256("\n".join([*about, processor()]).encode()).hexdigest()
    return f"compiled-{digest[:16]}"


def _remove_damaged(folder: Path) -> None:
    """Remove incomplete files of killed processes, and programs that have changed since the first
    process after the one that wrote them. JAX compresses programs without a checksum where zstd is
    installed, and writes each before its access time."""
    record = folder / "digests"
    known, valid = {}, {}
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(cache.read(record))
    for program in folder.glob("*-cache"):
        # Another process may remove a program that was just listed.
        with contextlib.suppress(FileNotFoundError):
            digest = hashlib.sha256(program.read_bytes()).hexdigest()
            # JAX writes this file after the program.
            complete = program.with_name(program.name.removesuffix("cache") + "atime").exists()
            if complete and known.get(program.name, digest) == digest:
                valid[program.name] = digest
            else:
                program.unlink()
    if valid != known:
        cache.write(record, json.dumps(valid).encode())


def processor() -> str:
    """Return an identifier of the processor type: its machine, and a hash of its instructions."""
    instructions = [platform.processor()]
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text()
        if flags := re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.M):
            instructions = sorted(flags[1].split())
    digest = hashlib.sha256(" ".join(instructions).encode()).hexdigest()
    return f"{platform.machine()} {digest[:8]}"
