"""Compiled programs, which JAX keeps from one process to the next in the user's cache folder.

Most of what a small job takes is compilation. What is kept belongs to these versions of JAX and to
a processor with these instructions: in a home that unlike machines share, each has its own folder.
"""

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import filelock
import jax
import platformdirs

LARGEST = 2**30
"""Bytes that are kept; what was not used for longest goes first."""
QUICKEST = 0.2
"""Seconds of compilation from which a program is kept."""
LOUD = (0, 12)
"""Before this version JAX prints a page of errors for each program that it loads on a CPU, about
instructions that no processor has. Programs are kept there if C++ is told to be silent."""
SILENT = "3"
"""The TF_CPP_MIN_LOG_LEVEL of C++ that says fatal errors alone."""


def keep() -> Path | None:
    """Keep compiled programs from now on, unless the user has told JAX where to, or not to.

    Returns:
        The folder; None where programs are not kept.
    """
    options = jax.config.values
    if not options["jax_enable_compilation_cache"]:
        return None
    if chosen := options["jax_compilation_cache_dir"]:
        return Path(chosen)
    if jax.__version_info__ < LOUD and os.environ.get("TF_CPP_MIN_LOG_LEVEL") != SILENT:
        return None
    folder = _folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder / ".lockfile", timeout=10):
            _sweep(folder)
    except (OSError, filelock.Timeout):
        # A home that cannot be written, or no home.
        return None
    jax.config.update("jax_compilation_cache_max_size", LARGEST)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", QUICKEST)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    return folder


@contextlib.contextmanager
def keeping_traced(began: float) -> Iterator[None]:
    """A context in which compiled programs are kept, and those of sweeps in such a way that they
    need not be traced again (`sweeps.runner.kept`), unless the user has told JAX otherwise. This
    process `began` to import modules at that time."""
    if keep() == _folder():
        with contextlib.suppress(OSError):
            (_folder() / "sweeps").mkdir(exist_ok=True)
            TRACED.append(Traced(_folder() / "sweeps", began))
    try:
        yield
    finally:
        TRACED.clear()


class Traced(NamedTuple):
    """Programs that need not be traced: their folder, and when the process that keeps them began,
    in seconds as of `time.time`."""

    folder: Path
    began: float


TRACED: list[Traced] = []
"""Those of this process, if it keeps them."""


def _folder() -> Path:
    return platformdirs.user_cache_path("dynsim") / f"compiled-{_kind()}"


def _sweep(folder: Path) -> None:
    """Remove what a killed process has begun to write: JAX, whose lock this is, writes a program
    first and then when it was used."""
    for program in folder.glob("*-cache"):
        with contextlib.suppress(FileNotFoundError):
            if not program.with_name(program.name.removesuffix("cache") + "atime").exists():
                program.unlink()


def _kind() -> str:
    """What programs depend on that JAX does not compare: its version, and the processor."""
    about = [f"{each} {importlib.metadata.version(each)}" for each in ("jax", "jaxlib")]
    return hashlib.sha256("\n".join([*about, processor()]).encode()).hexdigest()[:16]


def processor() -> str:
    """What tells this kind of processor from others: its machine, and a hash of its
    instructions."""
    told = " ".join(_instructions())
    return f"{platform.machine()} {hashlib.sha256(told.encode()).hexdigest()[:8]}"


def _instructions() -> Iterable[str]:
    """What tells this kind of processor from others of its machine."""
    with contextlib.suppress(OSError):
        found = re.search(r"^(?:flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
        if found:
            return sorted(found[1].split())
    return [platform.processor()]
