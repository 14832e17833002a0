"""Writes results and their provenance; every file is written atomically."""

import contextlib
import csv
import functools
import glob
import hashlib
import importlib.metadata
import io
import json
import math
import os
import platform
import re
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import jax
import numpy as np

from dynsim import precision
from sweeps.output import programs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PACKAGES = ("dynsim", "jax", "jaxlib", "diffrax", "equinox", "optax", "numpy")
"""Packages that affect all numbers."""
OPTIONS = ("jax_threefry_partitionable", "jax_random_seed_offset", "jax_softmax_custom_jvp")
"""Options of JAX that change programs or the random numbers in them."""
ON_ERROR = "EQX_ON_ERROR"
"""Entry of an environment: see `dynsim.precision.ON_ERROR`."""
DECISIVE = (*PACKAGES, "commit", "device", "processor")
"""Entries of an environment that may lower the same code to a different program."""
DPI = 150
"""Resolution of figures, unless the user's style sets another."""
JsonObject = dict[str, Any]
"""A JSON object: its values by name."""
WriteTo = Callable[[BinaryIO], object]
"""Writes a file that is open."""
MOST_READ = 2**28
"""Maximum bytes of a file of results, other than a store, and of the arrays in it."""
ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://?(.*)")
"""Address of a folder in a bucket. The scheme has two letters or more, as one is a drive."""


def versions(*packages: str) -> dict[str, str]:
    """Return versions of `PACKAGES` and of further `packages`."""
    return {name: importlib.metadata.version(name) for name in (*PACKAGES, *packages)}


def environment(*packages: str) -> dict[str, str]:
    """Return `versions`, `OPTIONS` of JAX, `ON_ERROR`, the commit of a clone of dynsim, and the
    device and processor."""
    device = jax.devices()[0]
    entries = versions(*packages) | {name: str(jax.config.values[name]) for name in OPTIONS}
    entries[ON_ERROR] = precision.ON_ERROR
    if commit := _commit():
        entries["commit"] = commit
    entries["device"] = f"{device.platform}: {device.device_kind}"
    entries["processor"] = programs.processor()
    if device.platform in precision.WITHOUT_FLOAT64:
        entries["device of float64"] = f"cpu: the {device.platform} has no float64"
    return entries


@functools.cache
def _commit() -> str | None:
    """Return the commit of this code, and whether files have changed; None outside a clone."""
    clone = Path(__file__).parents[2]
    if not (clone / ".git").exists():
        return None
    command = ["git", "-C", str(clone), "describe", "--always", "--dirty", "--abbrev=12"]
    with contextlib.suppress(OSError):
        described = subprocess.run(command, capture_output=True, text=True, check=False)
        return described.stdout.strip() or None
    return None


def address(out: str | Path) -> str | None:
    """Return `out` as an address in a bucket; None for a folder. `Path` collapses the double slash,
    which is restored here, so that settings of type `Path` can be addresses too."""
    scheme, rest = match.groups() if (match := ADDRESS.match(str(out))) else (None, "")
    return scheme and f"{scheme}://{rest}"


def folder(out: Path) -> Path:
    """Return `out`; for an address in a bucket `out/<name>`, because buckets hold only sweeps."""
    return out if address(out) is None else Path("out") / out.name


def check_directory(out: Path) -> None:
    """Raise `ValueError` if `out` exists and is not a directory."""
    out = folder(out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"out = {out}: exists and is not a folder")


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Context that reads a file of results, which may come from somebody else: raises `ValueError`,
    naming it, for a pipe or a device, a file of more than `MOST_READ` bytes, or one that the
    enclosed code cannot read."""
    try:
        if not path.is_file():
            raise ValueError("must be a file, not a folder, a pipe or a device")
        if path.stat().st_size > MOST_READ:
            raise ValueError(f"is larger than {MOST_READ / 1e6:.0f} MB")
        yield
    except Exception as error:
        # Libraries raise different errors for files of another format.
        raise ValueError(f"{path}: cannot be read ({error or repr(error)})") from error


def as_json(value: object) -> Any:
    """Convert `value`, of dicts, sequences, arrays and numbers, to JSON values. Infinities and NaN
    become None, because JSON lacks them."""
    if isinstance(value, dict):
        return {name: as_json(entry) for name, entry in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [as_json(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_csv(rows: Iterable[Iterable[object]]) -> str:
    """Format rows as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def markdown_table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Format a table as lines of Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return [lines[0], "|---" * len(head) + "|", *lines[1:]]


def aligned(rows: Iterable[Sequence[str]], *widths: int) -> list[str]:
    """Format rows of cells as aligned columns: the first one to the left, the others to the right.
    The last width applies to all remaining columns."""

    lines = []
    for first, *others in rows:
        remaining = (*widths[1:], *[widths[-1]] * len(others))
        cells = (f"{cell:>{width}}" for cell, width in zip(others, remaining, strict=False))
        lines.append(f"{first:<{widths[0]}}" + "".join(cells))
    return lines


def by_path(tree: Any, path: str = "") -> dict[str, np.ndarray]:
    """Return the arrays of nested mappings, datasets and named tuples by path, such as
    "simulation/loss"."""
    tree = tree._asdict() if hasattr(tree, "_asdict") else tree
    if not isinstance(tree, Mapping):
        return {path: np.asarray(tree)}
    parts = (by_path(part, f"{path}/{name}" if path else name) for name, part in tree.items())
    return {name: values for part in parts for name, values in part.items()}


def write(
    out: Path,
    name: str,
    *,
    figure: "Figure | None" = None,
    arrays: Mapping[str, object] | None = None,
    report: object = None,
    text: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write `name`.npz, .json, a figure, and `text` by suffix, to `folder(out)`; return paths.

    The figure is saved in the format of matplotlib's `savefig.format`, and closed. Arrays are those
    of `by_path`: numbers only, so that reading them runs no code. The report is written `as_json`.
    """
    check_directory(out)
    out = folder(out)
    out.mkdir(parents=True, exist_ok=True)
    writers: dict[str, WriteTo] = {}
    if arrays is not None:
        numbers: dict[str, Any] = by_path(arrays)
        writers["npz"] = lambda file: np.savez_compressed(file, **numbers)
    if report is not None:
        writers["json"] = lambda file: file.write(json.dumps(as_json(report), indent=2).encode())
    for suffix, content in (text or {}).items():
        writers[suffix] = lambda file, content=content: file.write(content.encode())
    if figure is not None:
        # Callers with a figure have imported matplotlib; others need not.
        import matplotlib as mpl

        suffix, dpi = mpl.rcParams["savefig.format"], mpl.rcParams["savefig.dpi"]
        # The default of Matplotlib is "figure", which nobody has chosen.
        options: dict[str, Any] = {"dpi": DPI if dpi == "figure" else dpi}
        # Without a date, so that equal figures give equal files.
        if date := {"svg": "Date", "pdf": "CreationDate"}.get(suffix):
            options["metadata"] = {date: None}
        writers[suffix] = lambda file: figure.savefig(file, format=suffix, **options)
    paths = [write_whole(out / f"{name}.{suffix}", save) for suffix, save in writers.items()]
    if figure is not None:
        import matplotlib.pyplot as plt

        plt.close(figure)
    return paths


def write_whole(path: Path, save: WriteTo) -> Path:
    """Write a file through `save`, atomically."""
    with appearing(path) as temporary, temporary.open("wb") as file:
        save(file)
    return path


@contextlib.contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """Yield a temporary path for a file or a folder, which then replaces `path` atomically.
    Leftovers of processes on this machine that were killed are removed."""
    # On a shared file system, process numbers of other machines mean nothing here.
    machine = hashlib.sha256(platform.node().encode()).hexdigest()[:6]
    # A part of the name, so that this one is not too long where that of the file is not.
    prefix = f".{path.name[:48]}-{machine}-"
    temporary = path.with_name(f"{prefix}{os.getpid()}-{uuid.uuid4().hex[:8]}")
    old = path.with_name(f"{temporary.name}.old")
    try:
        yield temporary
        # No system call replaces a folder that has content, so the old one is moved first.
        if path.is_dir():
            os.replace(path, old)
        try:
            os.replace(temporary, path)
        except OSError:
            if old.exists():
                os.replace(old, path)
            raise
        for leftover in path.parent.glob(f"{glob.escape(prefix)}*"):
            owner = leftover.name.removeprefix(prefix).partition("-")[0]
            if leftover == old or (owner.isdecimal() and not _alive(int(owner))):
                _remove(leftover)
    except OSError as error:
        # A full disk does not say which file did not fit.
        if error.filename is None or temporary.name in str(error.filename):
            error.filename = str(path)
        raise
    finally:
        _remove(temporary)


def _alive(process: int) -> bool:
    """Return whether a process exists; always true on Windows, where this cannot be checked."""
    if os.name != "nt":
        # The process of another user exists, but may not be signalled.
        with contextlib.suppress(PermissionError):
            try:
                os.kill(process, 0)
            except (ProcessLookupError, OverflowError):
                return False
    return True


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
