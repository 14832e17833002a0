"""Where a sweep is kept: a zarr v3 group that xarray opens, chunk = unit of work.

A chunk counts as done once all of its files are there, of which that of `status` is written last;
each file appears whole or not at all. So a killed sweep loses the chunks in flight and nothing
else. What a place contributes, a folder or a bucket, is in `base.Place`; what zarr is given of it
in `contents`.
"""

import contextlib
import functools
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import xarray as xr
import zarr
from zarr.core.metadata import ArrayV3Metadata

from sweeps.runner.axes import Layout
from sweeps.runner.store import history, manifest
from sweeps.runner.store.base import (
    CHECKPOINT,
    Check,
    Place,
    Report,
    StoreError,
    Variable,
)
from sweeps.runner.store.contents import Contents, several, written
from sweeps.runner.store.local import held, place
from sweeps.runner.store.manifest import differences, fingerprint, spelt

NEWEST = 256
"""Chunks that are read before a sweep goes on: what a machine that lost its power had not written
down is among those, and the others have been read or will be."""


class Store:
    """One sweep at its place: a folder, a bucket, or the memory of this process.

    Attributes:
        name: the place as the user wrote it, for messages.
        address: what `Store.open` finds it by, in another process too; None in memory.
        sealed: whether all of it has checksums, as it does since format 3.
        check: raises `StoreError` where a `lock` that is held has passed on to somebody else.
    """

    def __init__(self, where: Place, found: manifest.Manifest) -> None:
        self.place, self.manifest, self.sealed = where, found, found.sealed
        self.name, self.address = where.name, where.address
        self.check: Check = held
        self._arrays: dict[str, zarr.Array] = {}
        try:
            # The number of dimensions of the array of runs is that of `status`.
            self.contents = Contents(where, found, 0)
            status = self._array("status")
            self.layout = Layout(status.shape, status.chunks)
            self.contents.dims = status.ndim
            for name in self.names:
                self._array(name)
        except StoreError:
            raise
        except Exception as error:
            raise StoreError(f"{self.name}: holds no sweep of dynsim ({error})") from error

    @classmethod
    def open(cls, where: str | Path | Place, report: Report | None = None) -> "Store":
        """Open an existing store.

        Args:
            where: the place, or its address.
            report: called with a line about what a store lacks that an older version has made; by
                default that is a warning.

        Raises:
            StoreError: when there is none that this version can read, or when what it says about
                itself, or a coordinate, is damaged.
            ValueError: for an address that cannot be one.
        """
        where = place(where)

        def read(keys: Iterable[str]) -> list[bytes | None]:
            return several(where, where.read, keys)

        try:
            if not where.exists():
                raise StoreError(f"{where.name}: no such sweep")
            found = cls(where, manifest.verified(where.name, read))
        except where.outages as error:
            raise StoreError(f"{where.name}: cannot be reached ({error})") from error
        except OSError as error:
            raise StoreError(f"{where.name}: cannot be read ({error})") from error
        if not found.sealed:
            line = (
                f"{where.name}: made in format {manifest.UNSEALED} by an older version of dynsim: "
                "its results have checksums, its coordinates and metadata have none"
            )
            (report or warnings.warn)(line)
        return found

    @property
    def attributes(self) -> dict[str, Any]:
        """Everything that is written down about the sweep."""
        return dict(self.manifest.attributes)

    @property
    def config(self) -> dict[str, Any]:
        """The sweep's configuration as JSON values."""
        stored = self.attributes["config"]
        if not self.sealed:
            return dict(stored)
        axes = {name: np.asarray(self._array(name)).tolist() for name in stored["axes"]}
        return {**stored, "axes": {name: spelt(values) for name, values in axes.items()}}

    @property
    def fingerprint(self) -> str:
        """The hash of the configuration."""
        # That of an older format was another one.
        return self.attributes["config_hash"] if self.sealed else fingerprint(self.config)

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
        if self.fingerprint != fingerprint(config):
            lines = "\n  ".join(differences(self.config, config))
            raise StoreError(
                f"{self.name}: holds another sweep; stored -> asked for:\n  {lines}\n"
                "Choose another folder, or undo the change to resume."
            )

    def done(self) -> np.ndarray:
        """Which chunks are complete, by chunk number: those of which all files are there."""
        return ~np.isnan(self._written()[0])

    def runs_in(self, done: np.ndarray) -> int:
        """Number of runs in the chunks that are `done`."""
        regions = zip(self.layout.regions(), done, strict=True)
        return sum(
            math.prod(p.stop - p.start for p in region) for region, there in regions if there
        )

    def status(self) -> np.ndarray:
        """Status of every run, `MISSING` where it has not been computed.

        Raises:
            StoreError: as of `dataset`.
        """
        return np.asarray(_array(self._now(), "status"))

    def verify(self, newest: int | None = None) -> None:
        """Read the chunks that are complete, or only so many that were written last.

        Raises:
            StoreError: for one that is damaged, and if all are read for one that lacks a file. Who
                reads the values of a chunk finds that out as well.
        """
        times, lacking = self._written()
        if newest is None:
            self._require_all(lacking)
        self._read_newest(times, newest)

    def go_on(
        self,
        process: tuple[int, int],
        environment: Mapping[str, str],
        strict: bool,
        report: Report | None,
    ) -> np.ndarray:
        """See to it that process k of n can go on in an environment: read what was written last,
        say what is missing, and leave a note of versions that are others than those before.

        Returns:
            Which chunks are complete, by chunk number.

        Raises:
            StoreError: for a chunk that is damaged, or where `strict` forbids to go on.
        """
        times, lacking = self._written()
        self._read_newest(times, NEWEST)
        if lacking and report:
            report(
                f"{self.name}: {len(lacking)} files of complete chunks are missing, such as "
                f"{lacking[0]}; these chunks are computed anew"
            )
        first, done = self.attributes["environment"], ~np.isnan(times)
        history.go_on(self.place, first, done, process, environment, strict, report)
        return done

    @contextlib.contextmanager
    def timed(self, process: tuple[int, int], done: np.ndarray) -> Iterator[None]:
        """Note what the chunks took that process k of n writes meanwhile, beside those `done`."""
        if done.all():
            yield
            return
        began = perf_counter()
        try:
            yield
        finally:
            # Of a disk that is full, or a bucket that is not there, something else is told.
            with contextlib.suppress(OSError, StoreError, *self.place.outages):
                k, n = process
                new = self.done() & ~done & (np.arange(len(done)) % n == k)
                history.leave_spent(self.place, perf_counter() - began, new, process)

    def spent(self) -> tuple[float, int]:
        """Seconds that making chunks took, and of how many of them that is known."""
        seconds, ranges = history.spent(self.place)
        chunks = {number for start, end in ranges for number in range(start, end + 1)}
        return seconds, len(chunks)

    def made(self) -> history.Made:
        """In which environments the chunks were made."""
        return history.made(self.place, self.attributes["environment"], self.layout.num_chunks)

    def write(self, region: tuple[slice, ...], arrays: Mapping[str, np.ndarray]) -> None:
        """Write one chunk, its status last. It needs no lock: chunks written twice are equal."""
        self.check()

        def put(name: str) -> None:
            self._array(name)[region] = arrays[name]

        *others, status = self.names
        several(self.place, put, others)
        put(status)

    def select(self, name: str, places: Sequence[np.ndarray]) -> np.ndarray:
        """The cells of a recorded array at places along each dimension of the runs, of the chunks
        that were complete at the first call; raises as `dataset`."""
        return np.asarray(_array(self._seen, name).oindex[tuple(places)])

    def dataset(self, done: np.ndarray | None = None) -> xr.Dataset:
        """The sweep as a labelled dataset of the chunks that are complete by now, read from the
        store when its values are used. Its attributes that are no text or number, such as `config`,
        are JSON.

        Args:
            done: the chunks that are complete, where that is known.

        Raises:
            StoreError: when a file of a complete chunk is missing. One that is damaged raises it
                when it is read.
        """
        found = xr.open_zarr(self._now(done), consolidated=False, chunks=None, zarr_format=3)
        found.attrs.pop(manifest.SEAL, None)
        # Who goes on reads it from the store: to people its bytes say nothing.
        found = found.drop_vars(CHECKPOINT, errors="ignore")
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

    def _written(self) -> tuple[np.ndarray, list[str]]:
        """As `contents.written`, of all arrays."""
        # Before, a chunk of nothing but NaN or -1 was no file.
        names = self.names if self.sealed else ("status",)
        inner = {name: self._array(name).ndim - len(self.layout.shape) for name in names}
        return written(self.place, inner, [self._key(region) for region in self.layout.regions()])

    def _now(self, done: np.ndarray | None = None) -> Contents:
        """The contents of this moment: who reads them sees no chunk of which a part is missing."""
        if done is None:
            times, lacking = self._written()
            self._require_all(lacking)
            done = ~np.isnan(times)
        regions = zip(self.layout.regions(), done, strict=True)
        complete = frozenset(self._key(region) for region, there in regions if there)
        return Contents(self.place, self.manifest, len(self.layout.shape), complete)

    def _read_newest(self, times: np.ndarray, number: int | None) -> None:
        order = np.argsort(-times)[: np.count_nonzero(~np.isnan(times))]
        regions = [self.layout.region(int(each)) for each in order[:number]]
        chunks = [(name, region) for name in self.names for region in regions]
        several(self.place, lambda chunk: self._read(*chunk), chunks)

    @functools.cached_property
    def _seen(self) -> Contents:
        return self._now()

    def _require_all(self, lacking: list[str]) -> None:
        if lacking:
            raise StoreError(
                f"{manifest.missing(self.name, lacking[0])} Run the sweep again to compute its "
                f"chunk anew{f' ({len(lacking)} files are missing in all)' if lacking[1:] else ''}."
            )

    def _key(self, region: tuple[slice, ...]) -> str:
        """How the files of a chunk are called in all arrays, but for axes of their own."""
        sizes = zip(region, self.layout.chunk, strict=True)
        return "/".join(str(part.start // size) for part, size in sizes)

    def _array(self, name: str) -> zarr.Array:
        # Looked up once: no array changes its shape.
        if name not in self._arrays:
            self._arrays[name] = _array(self.contents, name)
        return self._arrays[name]

    def _read(self, name: str, region: tuple[slice, ...]) -> None:
        try:
            self._array(name)[region]
        except StoreError:
            raise
        except Exception as error:
            key = f"{name}/c/{self._key(region)}"
            raise manifest.damaged(self.name, key, str(error)) from error


def _array(contents: Contents, name: str) -> zarr.Array:
    """An array of a store, of which chunks are written that hold nothing but what stands for no
    value: a chunk that is not there is one that is missing."""
    with zarr.config.set({"array.write_empty_chunks": True}):
        return zarr.open_array(
            contents, path=name, mode="r" if contents.read_only else "r+", zarr_format=3
        )


def _dims(array: zarr.Array) -> tuple[str, ...]:
    """Names of the axes of an array, which has them all since `Store.create`."""
    metadata = array.metadata
    names = metadata.dimension_names if isinstance(metadata, ArrayV3Metadata) else None
    return tuple(name for name in names or () if name is not None)
