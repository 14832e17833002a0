"""The places that can hold a store, seen as files, and a store that no training has to fill."""

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sweeps import Sweep, experiment
from sweeps.runner.config import create
from sweeps.runner.store import Layout, Variable
from sweeps.runner.store.bucket import Bucket
from sweeps.runner.store.store import Store

SWEEP = Sweep(
    experiment(steps=2, length=8, batch=4),
    {"eta_y": [0.5, 1.0], "seed": [0, 3]},
    record=("entropy", "loss"),
)
"""A sweep of one program, which all files of a worker share."""
AXES = {"eta_y": [0.5, 1.0, 2.0, 4.0, 8.0], "seed": [0, 3, 4]}
EMPTY = Sweep(SWEEP.run, AXES, record=("loss",), times=(0, 2))
LAYOUT = Layout((5, 3), (2, 2))
"""Of 3 x 2 chunks, the last ones of which are smaller."""
VARIABLES = {
    "loss": Variable((2,), ("time",), np.dtype("f4")),
    "turned": Variable((), (), np.dtype("c8")),
    "high": Variable((), (), np.dtype(bool)),
    "first_bad_step": Variable((), (), np.dtype("i4")),
    "status": Variable((), (), np.dtype("i1")),
}
UNKNOWN = {"loss": np.nan, "turned": np.nan, "high": True, "first_bad_step": -1, "status": -1}
"""Values of runs that have not been computed; a bool has no other."""


def values(version: int) -> dict[str, np.ndarray]:
    """Results of all runs, different in each cell and for each version."""
    cell = np.arange(15, dtype="f4").reshape(5, 3) + 100 * version
    return {
        "loss": np.stack([cell, -cell], -1),
        "turned": (cell * 1j).astype("c8"),
        "high": cell % 2 == 0,
        "first_bad_step": cell.astype("i4"),
        "status": (cell % 2).astype("i1"),
    }


def at(region: tuple[slice, ...], version: int) -> dict[str, np.ndarray]:
    return {name: array[region] for name, array in values(version).items()}


def filled(
    out: Any, *chunks: int, version: int = 0, names: Sequence[str] = tuple(VARIABLES)
) -> Store:
    """A new store with some chunks, of all arrays or of some."""
    store = create(out, EMPTY, LAYOUT, {name: VARIABLES[name] for name in names})
    for number in chunks:
        region = LAYOUT.region(number)
        store.write(region, at(region, version))
    return store


class Killed(BaseException):
    """Stands for what ends a process without a word."""


class Folder:
    """A folder, with a name that is a pattern as well."""

    def __init__(self, parent: Path) -> None:
        self.out: Any = parent / "s[1]*"

    def files(self) -> dict[str, bytes]:
        files = [p for p in self.out.rglob("*") if p.is_file() and p.suffix != ".lock"]
        return {str(p.relative_to(self.out)): p.read_bytes() for p in files}

    def put(self, key: str, value: bytes | None) -> None:
        path = self.out / key
        if value is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(value)


class InBucket:
    """A folder of a bucket, by default in the memory of this process."""

    def __init__(self, root: str = "memory://runs") -> None:
        self.out: Any = f"{root}/{uuid.uuid4().hex}/s"
        found = Bucket(self.out)
        self.bucket, self.path = found.bucket, str(found.path)

    def files(self) -> dict[str, bytes]:
        keys = [meta["path"] for batch in self.bucket.list(f"{self.path}/") for meta in batch]
        found = {key: bytes(self.bucket.get(key).bytes()) for key in keys}
        return {key.removeprefix(f"{self.path}/"): value for key, value in found.items()}

    def put(self, key: str, value: bytes | None) -> None:
        if value is None:
            self.bucket.delete(f"{self.path}/{key}")
        else:
            self.bucket.put(f"{self.path}/{key}", value)
