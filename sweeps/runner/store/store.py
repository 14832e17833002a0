"""Where a sweep is kept: a zarr v3 group that xarray opens, chunk = unit of work.

A chunk counts as done once its `status` is there, which is written last; each chunk file
appears whole or not at all. So a killed sweep loses the chunks in flight and nothing else.
"""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import numpy as np
import xarray as xr
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.core.metadata import ArrayV3Metadata
from zarr.storage import MemoryStore

from sweeps.output import environment
from sweeps.runner.axes import Dimension, Layout
from sweeps.runner.store.identity import differences, fingerprint

FORMAT = 2
"""Number of the way in which stores are written: 2 since a store names its system."""
MISSING = -1
"""Status of a run that has not been computed."""


class StoreError(ValueError):
    """A store that cannot be used as asked; the message says why and what to do."""


class Variable(NamedTuple):
    """A recorded array: shape and names of the axes behind those of the sweep, and its dtype."""

    shape: tuple[int, ...]
    dims: tuple[str, ...]
    dtype: np.dtype


class Store:
    """One sweep on disk, or in memory when `path` is None."""

    def __init__(self, group: zarr.Group, layout: Layout, path: Path | None) -> None:
        self.group = group
        self.layout = layout
        self.path = path

    @classmethod
    def create(
        cls,
        path: Path | None,
        config: Mapping[str, Any],
        dims: Sequence[Dimension],
        layout: Layout,
        variables: Mapping[str, Variable],
        coordinates: Mapping[str, tuple[tuple[str, ...], np.ndarray]],
        about: Callable[[str], dict[str, Any]],
        dtype: str,
    ) -> "Store":
        """Make an empty store; `about` gives the attributes of an array by name. On disk it
        appears whole, under its final name, or not at all."""
        attributes = {
            "format": FORMAT,
            "config": dict(config),
            "config_hash": fingerprint(config),
            "environment": {**environment("zarr", "xarray"), "precision": dtype},
            "time_unit": "optimiser steps",
            "variables": [*(name for name in variables if name != "status"), "status"],
            "title": config["title"],
        }
        # By xarray's convention: labels other than the values of a dimension.
        labels = [name for name, (its_dims, _) in coordinates.items() if its_dims != (name,)]
        if labels:
            attributes["coordinates"] = " ".join(labels)
        names = tuple(dim.name for dim in dims)

        def fill(group: zarr.Group) -> None:
            group.attrs.update(attributes)
            for name, (its_dims, values) in coordinates.items():
                group.create_array(
                    name, data=values, dimension_names=its_dims, attributes=about(name)
                )
            for name, variable in variables.items():
                group.create_array(
                    name,
                    shape=(*layout.shape, *variable.shape),
                    chunks=(*layout.chunk, *variable.shape),
                    dtype=variable.dtype,
                    fill_value=MISSING if np.dtype(variable.dtype).kind == "i" else np.nan,
                    dimension_names=(*names, *variable.dims),
                    # A checksum, so that a damaged file is an error and never a number.
                    compressors=(ZstdCodec(level=3), Crc32cCodec()),
                    attributes=about(name),
                )

        if path is None:
            group = zarr.create_group(MemoryStore())
            fill(group)
            return cls(group, layout, None)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}-"))
        try:
            fill(zarr.create_group(temporary))
            temporary.chmod(0o755)
            os.replace(temporary, path)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise FileExistsError(f"{path}: has been made by another process") from None
            raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> "Store":
        """Open an existing store; `StoreError` if there is none that this version can read."""
        if not path.exists():
            raise StoreError(f"{path}: no such sweep")
        try:
            group = zarr.open_group(path, mode="r+" if os.access(path, os.W_OK) else "r")
            version, status = group.attrs["format"], _array(group, "status")
        except (FileNotFoundError, KeyError, NotADirectoryError, ValueError):
            raise StoreError(f"{path}: holds something other than a sweep of dynsim") from None
        if version != FORMAT:
            raise StoreError(
                f"{path}: written in format {version} by another version of dynsim; this one reads "
                f"format {FORMAT}. Choose another folder, or run that version to read it."
            )
        return cls(group, Layout(status.shape, status.chunks), path)

    @property
    def address(self) -> str | None:
        """From which `Store.open` opens it again, in any process; None for one in memory."""
        return None if self.path is None else str(self.path.resolve())

    @property
    def config(self) -> dict[str, Any]:
        """The sweep's configuration as JSON values."""
        return dict(self.attributes["config"])

    @property
    def attributes(self) -> dict[str, Any]:
        """Everything that is written down about the sweep."""
        return dict(self.group.attrs)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the recorded arrays, `status` last."""
        return tuple(self.attributes["variables"])

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions of the array of runs."""
        return _dims(_array(self.group, "status"))

    @property
    def variables(self) -> dict[str, Variable]:
        """The recorded arrays, as `create` took them."""
        outer = len(self.dims)
        return {
            name: Variable(array.shape[outer:], _dims(array)[outer:], array.dtype)
            for name, array in ((name, _array(self.group, name)) for name in self.names)
        }

    def require(self, config: Mapping[str, Any]) -> None:
        """Raise `StoreError`, showing the difference, unless the store is of this sweep."""
        if self.group.attrs["config_hash"] != fingerprint(config):
            lines = "\n  ".join(differences(self.config, config))
            raise StoreError(
                f"{self.path}: holds another sweep; stored -> asked for:\n  {lines}\n"
                "Choose another folder, or undo the change to resume."
            )

    def done(self) -> np.ndarray:
        """Which chunks are complete, by chunk number."""
        status = self.status()
        return np.array([bool((status[r] != MISSING).all()) for r in self.layout.regions()])

    def status(self) -> np.ndarray:
        """Status of every run, `MISSING` where it has not been computed."""
        try:
            return np.asarray(_array(self.group, "status")[...])
        except Exception:
            for region in self.layout.regions():
                self._read("status", region)
            raise

    def verify(self) -> None:
        """Read every chunk that counts as done; `StoreError` for one that is damaged."""
        complete = self.done()
        for name in self.names:
            for region, done in zip(self.layout.regions(), complete, strict=True):
                if done:
                    self._read(name, region)

    def write(self, region: tuple[slice, ...], arrays: Mapping[str, np.ndarray]) -> None:
        """Write one chunk, its status last."""
        for name in self.names:
            _array(self.group, name)[region] = arrays[name]

    def dataset(self) -> xr.Dataset:
        """The sweep as a labelled dataset, read from the store when its values are used."""
        return xr.open_zarr(self.group.store, consolidated=False, chunks=None)

    @contextlib.contextmanager
    def lock(self, process: int = 0, processes: int = 1) -> Iterator[None]:
        """Be the only writer, or the only process number `process` of `processes` writers.

        The lock is the operating system's, so that a killed process holds none.

        Raises:
            StoreError: when another writer is at work, or the store cannot be written.
        """
        if self.path is None:
            yield
            return
        if not os.access(self.path, os.W_OK):
            raise StoreError(f"{self.path}: is read-only, so the sweep cannot go on here")
        # Beside the store, because zarr warns of files in it that are not its own.
        prefix = f".{self.path.name}.writer"
        mine = self.path.parent / f"{prefix}-{process}-of-{processes}.lock"
        try:
            with filelock.FileLock(mine, timeout=0):
                for other in self.path.parent.glob(f"{prefix}-*.lock"):
                    if not other.name.endswith(f"-of-{processes}.lock"):
                        with filelock.FileLock(other, timeout=0):
                            pass
                _clean(self.path)
                yield
        except filelock.Timeout as error:
            raise StoreError(
                f"{self.path}: another process is writing here ({Path(error.lock_file).name})"
            ) from None

    def _read(self, name: str, region: tuple[slice, ...]) -> np.ndarray:
        try:
            return np.asarray(_array(self.group, name)[region])
        except Exception as error:
            at = "/".join(
                str(part.start // size)
                for part, size in zip(region, self.layout.chunk, strict=True)
            )
            inner = "/0" * (_array(self.group, name).ndim - len(region))
            raise StoreError(
                f"{self.path}: the file {name}/c/{at}{inner} is damaged ({error}). Nothing was "
                f"changed. Delete it and status/c/{at}, and run the sweep again to compute that "
                "chunk anew."
            ) from error


def _array(group: zarr.Group, name: str) -> zarr.Array:
    """An array of a group; `ValueError` for a group of that name."""
    found = group[name]
    if not isinstance(found, zarr.Array):
        raise ValueError(f"{name}: must be an array, is {found!r}")
    return found


def _dims(array: zarr.Array) -> tuple[str, ...]:
    """Names of the axes of an array, which has them all since `Store.create`."""
    metadata = array.metadata
    names = metadata.dimension_names if isinstance(metadata, ArrayV3Metadata) else None
    return tuple(name for name in names or () if name is not None)


def _clean(path: Path) -> None:
    """Remove what killed writers left behind; the lock says that none is at work."""
    for rubbish in path.rglob("*.partial"):
        rubbish.unlink(missing_ok=True)
