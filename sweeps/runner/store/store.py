"""Where a sweep is kept: a zarr v3 group that xarray opens, chunk = unit of work.

A chunk counts as done once its `status` is there, which is written last; each chunk file
appears whole or not at all. So a killed sweep loses the chunks in flight and nothing else.
What a place contributes, a folder or a bucket, is in `base.Place`.
"""

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.core.metadata import ArrayV3Metadata

from sweeps.output import environment
from sweeps.runner.axes import Dimension, Layout
from sweeps.runner.store.base import MISSING, Check, Place, Report, StoreError, Variable
from sweeps.runner.store.identity import differences, fingerprint
from sweeps.runner.store.local import held, place

FORMAT = 2
"""Number of the way in which stores are written: 2 since a store names its system."""

NEWEST = 256
"""Chunks that are read before a sweep goes on: what a machine that lost its power had not written
down is among those, and the others have been read or will be."""


class Store:
    """One sweep at its place: a folder, a bucket, or the memory of this process.

    Attributes:
        name: the place as the user wrote it, for messages.
        address: what `Store.open` finds it by, in another process too; None in memory.
        check: raises `StoreError` where a `lock` that is held has passed on to somebody else.
    """

    def __init__(self, group: zarr.Group, layout: Layout, where: Place) -> None:
        self.group = group
        self.layout = layout
        self.place = where
        self.name, self.address = where.name, where.address
        self.check: Check = held
        self._arrays: dict[str, zarr.Array] = {}

    @classmethod
    def create(
        cls,
        where: str | Path | Place | None,
        config: Mapping[str, Any],
        dims: Sequence[Dimension],
        layout: Layout,
        variables: Mapping[str, Variable],
        coordinates: Mapping[str, tuple[tuple[str, ...], np.ndarray]],
        about: Callable[[str], dict[str, Any]],
        dtype: str,
        report: Report | None = None,
    ) -> "Store":
        """Make an empty store; `about` gives the attributes of an array by name. It appears
        whole or not at all.

        Raises:
            FileExistsError: when another process has made one there in the meantime.
            StoreError: when a bucket cannot be written.
        """
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

        where = place(where)
        where.create(fill, report)
        return cls.open(where)

    @classmethod
    def open(cls, where: str | Path | Place) -> "Store":
        """Open an existing store; `StoreError` if there is none that this version can read, and
        `ValueError` for an address that cannot be one."""
        where = place(where)
        if not where.exists():
            raise StoreError(f"{where.name}: no such sweep")
        try:
            group = where.open()
            version, status = group.attrs["format"], _array(group, "status")
        except (
            FileExistsError,
            FileNotFoundError,
            KeyError,
            NotADirectoryError,
            ValueError,
        ) as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError(
                f"{where.name}: holds something other than a sweep of dynsim"
            ) from None
        except where.outages as error:
            raise StoreError(f"{where.name}: cannot be reached ({error})") from error
        if version != FORMAT:
            raise StoreError(
                f"{where.name}: written in format {version} by another version of dynsim; this one "
                f"reads format {FORMAT}. Choose another folder, or run that version to read it."
            )
        return cls(group, Layout(status.shape, status.chunks), where)

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
        return _dims(self._array("status"))

    @property
    def variables(self) -> dict[str, Variable]:
        """The recorded arrays, as `create` took them."""
        outer = len(self.dims)
        return {
            name: Variable(array.shape[outer:], _dims(array)[outer:], array.dtype)
            for name, array in ((name, self._array(name)) for name in self.names)
        }

    def require(self, config: Mapping[str, Any]) -> None:
        """Raise `StoreError`, showing the difference, unless the store is of this sweep."""
        if self.group.attrs["config_hash"] != fingerprint(config):
            lines = "\n  ".join(differences(self.config, config))
            raise StoreError(
                f"{self.name}: holds another sweep; stored -> asked for:\n  {lines}\n"
                "Choose another folder, or undo the change to resume."
            )

    def done(self) -> np.ndarray:
        """Which chunks are complete, by chunk number: those whose status is there."""
        return ~np.isnan(self._written())

    def runs_in(self, done: np.ndarray) -> int:
        """Number of runs in the chunks that are `done`."""
        regions = zip(self.layout.regions(), done, strict=True)
        return sum(
            math.prod(p.stop - p.start for p in region) for region, there in regions if there
        )

    def status(self) -> np.ndarray:
        """Status of every run, `MISSING` where it has not been computed."""
        try:
            return np.asarray(self._array("status")[...])
        except Exception:
            for region in self.layout.regions():
                self._read("status", region)
            raise

    def verify(self, newest: int | None = None) -> None:
        """Read the chunks that are complete, or only so many that were written last; `StoreError`
        for one that is damaged. Whoever reads the values of a chunk finds that out as well."""
        written = self._written()
        order = np.argsort(-written)[: np.count_nonzero(~np.isnan(written))]
        regions = [self.layout.region(int(number)) for number in order[:newest]]
        self._each(self._read, [(name, region) for name in self.names for region in regions])

    def write(self, region: tuple[slice, ...], arrays: Mapping[str, np.ndarray]) -> None:
        """Write one chunk, its status last. It needs no lock: chunks written twice are equal."""
        self.check()

        def put(name: str) -> None:
            self._array(name)[region] = arrays[name]

        *others, status = self.names
        self._each(put, [(name,) for name in others])
        put(status)

    def select(self, name: str, places: Sequence[np.ndarray]) -> np.ndarray:
        """The cells of a recorded array at places along each dimension of the runs."""
        try:
            return np.asarray(self._array(name).oindex[tuple(places)])
        except Exception:
            # Says which file is damaged, if one is.
            self.verify()
            raise

    def dataset(self) -> xr.Dataset:
        """The sweep as a labelled dataset, read from the store when its values are used. Its
        attributes that are no text or number, such as `config`, are JSON."""
        inside = self.group.path or None
        found = xr.open_zarr(self.group.store, group=inside, consolidated=False, chunks=None)
        # netCDF knows no nested attributes.
        nested = {k: json.dumps(v) for k, v in found.attrs.items() if isinstance(v, dict | list)}
        return found.assign_attrs(nested)

    @contextlib.contextmanager
    def lock(
        self, process: int = 0, processes: int = 1, report: Report | None = None
    ) -> Iterator[None]:
        """Be the only writer, or the only process number `process` of `processes` writers.

        A killed process holds no lock: the operating system's ends with it, and a bucket's lease
        ends by itself, for which this waits after a line to `report`, or to standard error.

        Raises:
            StoreError: when another writer is at work, or the store cannot be written.
        """
        with self.place.lock(process, processes, report) as check:
            before, self.check = self.check, check
            try:
                yield
            finally:
                self.check = before

    def _written(self) -> np.ndarray:
        """When each chunk was completed, in seconds since 1970, by chunk number; NaN where it is
        not complete."""
        found = self.place.written("status")
        if found is None:
            status = self.status()
            missing = [bool((status[r] == MISSING).any()) for r in self.layout.regions()]
            return np.where(missing, np.nan, 0.0)
        return np.array([found.get(self._key(r), np.nan) for r in self.layout.regions()])

    def _key(self, region: tuple[slice, ...]) -> str:
        """How the files of a chunk are called in all arrays, but for axes of their own."""
        sizes = zip(region, self.layout.chunk, strict=True)
        return "/".join(str(part.start // size) for part, size in sizes)

    def _each(self, act: Callable[..., object], chunks: Sequence[tuple]) -> None:
        """Do something to chunks, several at a time where the place has streams for them."""

        def one(chunk: tuple) -> None:
            # Without the result: kept until all are done, they would be the whole store.
            act(*chunk)

        if self.place.streams == 1:
            for chunk in chunks:
                one(chunk)
            return
        with ThreadPoolExecutor(self.place.streams) as pool:
            for _ in pool.map(one, chunks):
                pass

    def _array(self, name: str) -> zarr.Array:
        # Looked up once, because a bucket is asked each time, and no array changes its shape.
        if name not in self._arrays:
            self._arrays[name] = _array(self.group, name)
        return self._arrays[name]

    def _read(self, name: str, region: tuple[slice, ...]) -> np.ndarray:
        try:
            return np.asarray(self._array(name)[region])
        except self.place.outages as error:
            raise StoreError(f"{self.name}: {name} could not be read ({error})") from error
        except Exception as error:
            at = self._key(region)
            inner = "/0" * (self._array(name).ndim - len(region))
            raise StoreError(
                f"{self.name}: the file {name}/c/{at}{inner} is damaged ({error}). Nothing was "
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
