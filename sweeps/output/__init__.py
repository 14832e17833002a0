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
from typing import TYPE_CHECKING, Any

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
    found = versions(*packages) | {name: str(jax.config.values[name]) for name in OPTIONS}
    found[ON_ERROR] = precision.ON_ERROR
    if commit := _commit():
        found["commit"] = commit
    found["device"] = f"{device.platform}: {device.device_kind}"
    found["processor"] = programs.processor()
    if device.platform in precision.WITHOUT_FLOAT64:
        found["device of float64"] = f"cpu: the {device.platform} has no float64"
    return found


@functools.cache
def _commit() -> str | None:
    """Return the commit of this code, and whether files have changed; None outside a clone."""
    clone = Path(__file__).parents[2]
    if not (clone / ".git").exists():
        return None
    command = ["git", "-C", str(clone), "describe", "--always", "--dirty", "--abbrev=12"]
    with contextlib.suppress(OSError):
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        return found.stdout.strip() or None
    return None


def address(out: str | Path) -> str | None:
    """Return `out` as an address in a bucket; None for a folder. `Path` collapses the double slash,
    which is restored here, so that settings of type `Path` can be addresses too."""
    scheme, rest = match.groups() if (match := ADDRESS.match(str(out))) else (None, "")
    return scheme and f"{scheme}://{rest}"


def folder(out: Path) -> Path:
    """Return the folder for files: `out`, or a folder of the same name in out/ if `out` is an
    address in a bucket, which only stores sweeps."""
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
    # Libraries raise different errors for files of another format.
    except Exception as error:
        raise ValueError(f"{path}: cannot be read ({error or repr(error)})") from error


def as_json(value: Any) -> Any:
    """Convert `value`, of dicts, sequences, arrays and numbers, to JSON values. Numbers that are
    not finite become None, because JSON has none."""
    if isinstance(value, dict):
        return {name: as_json(entry) for name, entry in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [as_json(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_csv(rows: Iterable[Iterable[Any]]) -> str:
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

    def line(first: str, *others: str) -> str:
        left = (*widths[1:], *[widths[-1]] * len(others))
        return f"{first:<{widths[0]}}" + "".join(
            f"{cell:>{width}}" for cell, width in zip(others, left, strict=False)
        )

    return [line(*row) for row in rows]


def named(tree: Any, path: str = "") -> dict[str, np.ndarray]:
    """Return the arrays of nested mappings, datasets and named tuples by path, such as
    "simulation/loss"."""
    tree = tree._asdict() if hasattr(tree, "_asdict") else tree
    if not isinstance(tree, Mapping):
        return {path: np.asarray(tree)}
    parts = (named(part, f"{path}/{name}" if path else name) for name, part in tree.items())
    return {name: values for part in parts for name, values in part.items()}


def write(
    out: Path,
    name: str,
    *,
    figure: "Figure | None" = None,
    arrays: Mapping[str, Any] | None = None,
    report: Any = None,
    text: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write `name`.npz, .json, a figure, and `text` by suffix, to `folder(out)`; return paths.

    The figure is saved in the format of matplotlib's `savefig.format`, and closed. Arrays are those
    that `named` finds; they contain only numbers, so that reading them runs no code. The report is
    written `as_json`.
    """
    check_directory(out)
    out = folder(out)
    out.mkdir(parents=True, exist_ok=True)
    writers: dict[str, Callable[[Any], Any]] = {}
    if arrays is not None:
        kept: dict[str, Any] = named(arrays)
        writers["npz"] = lambda file: np.savez_compressed(file, **kept)
    if report is not None:
        writers["json"] = lambda file: file.write(json.dumps(as_json(report), indent=2).encode())
    for suffix, content in (text or {}).items():
        writers[suffix] = lambda file, content=content: file.write(content.encode())
    if figure is not None:
        # Callers with a figure have imported matplotlib; others need not.
        import matplotlib as mpl

        suffix, dpi = mpl.rcParams["savefig.format"], mpl.rcParams["savefig.dpi"]
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


def write_whole(path: Path, save: Callable[[Any], Any]) -> Path:
    """Write a file through `save`, atomically."""
    with appearing(path) as begun, begun.open("wb") as file:
        save(file)
    return path


@contextlib.contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """Yield a temporary path for a file or a folder, which then replaces `path` atomically.
    Leftovers of processes on this machine that were killed are removed."""
    machine = hashlib.sha256(platform.node().encode()).hexdigest()[:6]
    # A part of the name, so that this one is not too long where that of the file is not.
    mark = f".{path.name[:48]}-{machine}-"
    begun = path.with_name(f"{mark}{os.getpid()}-{uuid.uuid4().hex[:8]}")
    old = path.with_name(f"{begun.name}.old")
    try:
        yield begun
        if path.is_dir():
            os.replace(path, old)
        try:
            os.replace(begun, path)
        except OSError:
            if old.exists():
                os.replace(old, path)
            raise
        for left in path.parent.glob(f"{glob.escape(mark)}*"):
            owner = left.name.removeprefix(mark).partition("-")[0]
            if left == old or (owner.isdecimal() and not _alive(int(owner))):
                _remove(left)
    except OSError as error:
        # A full disk does not say which file did not fit.
        if error.filename is None or begun.name in str(error.filename):
            error.filename = str(path)
        raise
    finally:
        _remove(begun)


def _alive(process: int) -> bool:
    """Return whether a process exists; always true on Windows, where this cannot be checked."""
    if os.name != "nt":
        with contextlib.suppress(PermissionError):
            try:
                os.kill(process, 0)
            except (ProcessLookupError, OverflowError):
                return False
    return True


def _remove(path: Path) -> None:
    """Delete a file or a folder, if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
