"""Writing results, and what they were made with: every file appears whole or not at all."""

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

from dynsim.precision import WITHOUT_FLOAT64
from sweeps.output import programs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PACKAGES = ("dynsim", "jax", "jaxlib", "diffrax", "equinox", "optax", "numpy")
"""Packages on which all numbers depend."""
DECISIVE = (*PACKAGES, "commit", "device", "processor")
"""What of an environment may lower the same code to another program."""
DPI = 150
"""Of pictures, unless the user's style has another."""
ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://?(.*)")
"""Of a folder in a bucket; a drive has one letter."""


def versions(*packages: str) -> dict[str, str]:
    """Versions of `PACKAGES` and of further `packages`."""
    return {name: importlib.metadata.version(name) for name in (*PACKAGES, *packages)}


def environment(*packages: str) -> dict[str, str]:
    """`versions`, the commit of a clone of dynsim, and the device and processor of this process."""
    device = jax.devices()[0]
    found = versions(*packages)
    if commit := _commit():
        found["commit"] = commit
    found["device"] = f"{device.platform}: {device.device_kind}"
    found["processor"] = programs.processor()
    if device.platform in WITHOUT_FLOAT64:
        found["device of float64"] = f"cpu: the {device.platform} has no float64"
    return found


@functools.cache
def _commit() -> str | None:
    """The commit that this code is of, and whether it was changed since; None out of a clone."""
    clone = Path(__file__).parents[2]
    if not (clone / ".git").exists():
        return None
    command = ["git", "-C", str(clone), "describe", "--always", "--dirty", "--abbrev=12"]
    with contextlib.suppress(OSError):
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        return found.stdout.strip() or None
    return None


def address(out: str | Path) -> str | None:
    """The address in a bucket that `out` is, None for a folder. A `Path` drops a slash of it, which
    comes back here, so that settings that are paths can be addresses too."""
    scheme, rest = match.groups() if (match := ADDRESS.match(str(out))) else (None, "")
    return scheme and f"{scheme}://{rest}"


def folder(out: Path) -> Path:
    """Where files go: to `out`, or for an address in a bucket, which keeps sweeps alone, to the
    folder of that name in out/."""
    return out if address(out) is None else Path("out") / out.name


def check_directory(out: Path) -> None:
    """Raise `ValueError` if `out` exists and is not a directory."""
    out = folder(out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"out = {out}: exists and is not a folder")


def as_json(value: Any) -> Any:
    """`value`, of dicts, sequences, arrays and numbers, as JSON values; what is not finite becomes
    None, because JSON has no name for it."""
    if isinstance(value, dict):
        return {name: as_json(entry) for name, entry in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [as_json(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_csv(rows: Iterable[Iterable[Any]]) -> str:
    """Rows as the text of a CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def markdown_table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """The lines of a table in Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return [lines[0], "|---" * len(head) + "|", *lines[1:]]


def aligned(rows: Iterable[Sequence[str]], *widths: int) -> list[str]:
    """Rows of cells as lines of columns: the first one to the left, the others to the right. The
    last width is that of all columns that are left."""

    def line(first: str, *others: str) -> str:
        left = (*widths[1:], *[widths[-1]] * len(others))
        return f"{first:<{widths[0]}}" + "".join(
            f"{cell:>{width}}" for cell, width in zip(others, left, strict=False)
        )

    return [line(*row) for row in rows]


def named(tree: Any, path: str = "") -> dict[str, np.ndarray]:
    """The arrays of nested mappings, datasets and named tuples by the path to each, such as
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
    """Write `name`.npz, .json, a picture and `text` by suffix below `folder(out)`; returns paths.

    The picture has the format that matplotlib's `savefig.format` says, and is closed. Arrays are
    those that `named` finds, of numbers only, so that reading them runs no code; the report is
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
        # Who drew it has imported matplotlib; who only writes numbers need not.
        import matplotlib as mpl

        suffix, dpi = mpl.rcParams["savefig.format"], mpl.rcParams["savefig.dpi"]
        options: dict[str, Any] = {"dpi": DPI if dpi == "figure" else dpi}
        # The same picture is the same file.
        if date := {"svg": "Date", "pdf": "CreationDate"}.get(suffix):
            options["metadata"] = {date: None}
        writers[suffix] = lambda file: figure.savefig(file, format=suffix, **options)
    paths = [write_whole(out / f"{name}.{suffix}", save) for suffix, save in writers.items()]
    if figure is not None:
        import matplotlib.pyplot as plt

        plt.close(figure)
    return paths


def write_whole(path: Path, save: Callable[[Any], Any]) -> Path:
    """Write a file through `save`; it appears complete or not at all."""
    with appearing(path) as begun, begun.open("wb") as file:
        save(file)
    return path


@contextlib.contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """Where to write a file or a folder, which then takes the place of `path`, whole. What killed
    processes of this machine have left of earlier attempts is removed."""
    machine = hashlib.sha256(platform.node().encode()).hexdigest()[:6]
    mark = f".{path.name}-{machine}-"
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
    finally:
        _remove(begun)


def _alive(process: int) -> bool:
    """Whether there is a process of this number; on Windows, where nobody can ask, always."""
    if os.name != "nt":
        with contextlib.suppress(PermissionError):
            try:
                os.kill(process, 0)
            except (ProcessLookupError, OverflowError):
                return False
    return True


def _remove(path: Path) -> None:
    """Delete a file or a folder, if there is one."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
