"""Sequence classes in files: a NumPy archive, or a table in text form."""

import csv
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any, ClassVar

import equinox as eqx
import numpy as np

from dynsim import checks
from dynsim.classes.task import FIELDS, SequenceClasses, Task, sequence_classes

SUFFIXES = (".npz", ".csv")
MAX_BYTES = 2**31
"""Largest total size of an archive's arrays in bytes: a small archive can claim any size."""


def save_task(path: str | Path, task: SequenceClasses) -> None:
    """Write a task to an `.npz` file, atomically. `TaskFile` reads it back.

    Raises:
        ValueError: for a path that does not end in .npz, or anything but a task.

    Example:
        >>> dynsim.save_task("task.npz", dynsim.Overlapping(3, 0.1).build())
    """
    checks.kind("path", path, str, os.PathLike)
    path = Path(path)
    if path.suffix != ".npz":
        raise ValueError(f"path = {path}: must end in .npz")
    if not isinstance(task, SequenceClasses):
        raise ValueError(f"task = {task!r}: must be a SequenceClasses")
    # A file of another name, then a rename: a reader sees the old file or the whole new one.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            arrays: dict[str, Any] = {name: np.asarray(getattr(task, name)) for name in FIELDS}
            np.savez_compressed(file, **arrays)
        # `mkstemp` makes files that only their owner can read.
        Path(temporary).chmod(0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _archive(path: Path) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(path) as archive:
        claimed = sum(entry.file_size for entry in archive.infolist())
    if claimed > MAX_BYTES:
        raise ValueError(f"claims {claimed} bytes of arrays, at most {MAX_BYTES} are read")
    # A pickle could run any code.
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in FIELDS if name in archive}


def _table(path: Path) -> dict[str, np.ndarray]:
    # The byte-order mark of spreadsheets would become part of the first name.
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        rows = [(reader.line_num, row) for row in reader if row]
    if len(rows) < 2:
        raise ValueError("must have a line of names and one line per class")
    names = [name.strip() for name in rows[0][1]]
    # Spreadsheets of many languages separate columns by semicolons.
    for other in (";", "\t"):
        if len(names) == 1 and other in names[0]:
            raise ValueError(f"line 1 is separated by {other!r}; must be separated by ','")
    repeated = [name for name in names if name and names.count(name) > 1]
    if repeated:
        raise ValueError(f"line 1 names two columns {repeated[0]!r}; each needs a name of its own")
    for number, row in rows:
        if len(row) != len(names):
            raise ValueError(f"line {number} has {len(row)} columns, the first {len(names)}")
    values = np.zeros((len(rows) - 1, len(names)))
    for i, (number, row) in enumerate(rows[1:]):
        for j, (name, entry) in enumerate(zip(names, row, strict=True)):
            try:
                values[i, j] = float(entry)
            except ValueError:
                where = f"line {number}, column {name!r}"
                raise ValueError(f"{where}: {entry!r} must be a number") from None
    # Columns without one of the names are tokens, in the order of their ids.
    columns = {name: i for i, name in enumerate(names) if name in FIELDS[1:]}
    tokens = [i for i in range(len(names)) if i not in columns.values()]
    return {"probs": values[:, tokens], **{name: values[:, i] for name, i in columns.items()}}


class TaskFile(Task):
    """A task in a file, which is read when its classes are built.

    Attributes:
        path: an .npz file with arrays probs (K, M), query (K,) and optionally next_token (K,) and
            prior (K,); or a .csv file with one row per class and columns of these names, where all
            other columns are tokens, in the order of their ids.

    Raises:
        ValueError: if the file is missing or cannot be read, lacks an array or column, or contains
            an invalid table.

    Example:
        >>> dynsim.save_task("task.npz", dynsim.SynSmall().build())
        >>> dynsim.TaskFile("task.npz").sizes
        (2, 34)
    """

    ENDINGS: ClassVar = (
        "path",
        SUFFIXES,
        "dynsim.classes.estimate_classes makes classes of a text",
    )

    path: str | Path = eqx.field(static=True)

    def build(self) -> SequenceClasses:
        checks.kind("path", self.path, str, os.PathLike)
        path = Path(self.path)
        if path.suffix not in SUFFIXES:
            raise ValueError(f"task file {path}: must end in {' or '.join(SUFFIXES)}")
        if not os.path.exists(path):
            raise ValueError(f"task file {path}: no such file")
        if not os.path.isfile(path):
            raise ValueError(f"task file {path}: must be a file")
        read = _table if path.suffix == ".csv" else _archive
        try:
            arrays = read(path)
        # NumPy and zipfile may raise anything for a damaged file.
        except Exception as error:
            what = "table" if path.suffix == ".csv" else ".npz archive"
            raise ValueError(f"task file {path}: not a readable {what} ({error})") from None
        missing = [name for name in ("probs", "query") if name not in arrays]
        if missing:
            raise ValueError(f"task file {path}: lacks the array {', '.join(missing)}")
        try:
            return sequence_classes(**arrays)
        except ValueError as error:
            raise ValueError(f"task file {path}: {error}") from None

    def contents(self) -> dict[str, str]:
        return self.build().contents()
