"""Where a sweep is kept: a zarr v3 group that xarray opens, chunk = unit of work.

A chunk counts once its commit record is there, which is written last and says what the files of the
chunk are. So a killed sweep loses the chunks in flight and nothing else, and nothing that got there
otherwise is taken for a result. What a place contributes, a folder or a bucket, is in `base.Place`;
what the records are in `records`.
"""

import functools
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from zarr.core.metadata import ArrayV3Metadata
from zarr.storage import MemoryStore

from dynsim.decoding import printable
from sweeps.runner.axes import Layout
from sweeps.runner.store import manifest
from sweeps.runner.store.base import (
    CHECKPOINT,
    GROUP,
    LARGEST,
    MARKER,
    RECORDS,
    Check,
    Place,
    Report,
    StoreError,
    Variable,
    held,
    missing,
)
from sweeps.runner.store.contents import Contents, encoded, in_memory
from sweeps.runner.store.local import place
from sweeps.runner.store.manifest import differences, fingerprint, spelt
from sweeps.runner.store.records import (
    ENVIRONMENTS,
    Chunks,
    ChunksOfFormat3,
    Record,
    environment_file,
)
from sweeps.runner.store.records import differences as changes

NEWEST = 256
"""Chunks that are read before a sweep goes on: what a machine that lost its power had not written
down is among those, and the others have been read or will be."""

MOST_SAID = 2**22
"""Bytes of metadata that are read."""


class Store:
    """One sweep at its place: a folder, a bucket, or the memory of this process.

    Attributes:
        name: the place as the user wrote it, for messages.
        address: what `Store.open` finds it by, in another process too; None in memory.
        id: of this store and its copies, and of no other one; None before format 4.
        held: raises `StoreError` where the lock of this process has passed on to somebody else.
        chunks: those that are there.
    """

    def __init__(self, where: Place, found: manifest.Manifest) -> None:
        self.place, self.manifest = where, found
        self.name, self.address = where.name, where.address
        self.id: str | None = found.attributes.get("store")
        self.held: Check = held
        self._environment = environment_file({})
        self._first: Callable[[None], None] | None = lambda report: None
        try:
            kept = MemoryStore(in_memory(found.files), read_only=True)
            self._arrays = {
                name: zarr.open_array(kept, path=name, mode="r", zarr_format=3)
                for name in (*self.names, *found.attributes["config"]["axes"])
            }
            status = self._arrays["status"]
            self.layout = Layout(status.shape, status.chunks)
            sizes = dict(zip(self.dims, status.shape, strict=True))
            axes = [self._arrays[name] for name in found.attributes["config"]["axes"]]
            if {(*_dims(axis), *axis.shape) for axis in axes} != set(sizes.items()):
                raise ValueError("its axes have other values")
            inner = {name: self._arrays[name].ndim - status.ndim for name in self.names}
            kind = Chunks if self.id else ChunksOfFormat3
            self.chunks = kind(where, found, self.layout, inner)
        except StoreError:
            raise
        except Exception as error:
            raise StoreError(f"{self.name}: holds no sweep of dynsim ({error})") from error

    @classmethod
    def open(cls, where: str | Path | Place, report: Report | None = None) -> "Store":
        """Open an existing store.

        Args:
            where: the place, or its address.
            report: called with a line about what lies there that is not the store's; by default
                that is a warning.

        Raises:
            StoreError: when there is none that this version can read, or when what it says about
                itself, or a coordinate, is damaged.
            ValueError: for an address that cannot be one.
        """
        where = place(where)

        def read(keys: Iterable[str]) -> list[bytes | None]:
            return where.several(
                lambda key: where.read(key, MOST_SAID if key.endswith(GROUP) else LARGEST), keys
            )

        try:
            if where.vacant():
                raise StoreError(f"{where.name}: no such sweep")
            found = manifest.verified(where.name, read)
            if store := found.attributes.get("store"):
                where.records = f"{RECORDS}{store}"
                _look(where, report or warnings.warn)
            return cls(where, found)
        except StoreError:
            raise
        except OSError as error:
            raise StoreError(f"{where.name}: cannot be read ({error})") from error

    @property
    def attributes(self) -> dict[str, Any]:
        """Everything that is written down about the sweep."""
        return dict(self.manifest.attributes)

    @property
    def config(self) -> dict[str, Any]:
        """The sweep's configuration as JSON values."""
        stored = self.attributes["config"]
        axes = {name: np.asarray(self._arrays[name]).tolist() for name in stored["axes"]}
        return {**stored, "axes": {name: spelt(values) for name, values in axes.items()}}

    @property
    def fingerprint(self) -> str:
        """The hash of the configuration, whatever the store says that it is."""
        return fingerprint(self.config)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the recorded arrays, `status` last."""
        return tuple(self.attributes["variables"])

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions of the array of runs."""
        return _dims(self._arrays["status"])

    @property
    def variables(self) -> dict[str, Variable]:
        """The recorded arrays, as `create` took them."""
        outer, arrays = len(self.dims), {name: self._arrays[name] for name in self.names}
        return {
            name: Variable(array.shape[outer:], _dims(array)[outer:], array.dtype)
            for name, array in arrays.items()
        }

    def require(self, config: Mapping[str, Any]) -> None:
        """Raise `StoreError`, showing the difference, unless the store is of this sweep."""
        if self.fingerprint != fingerprint(config):
            raise StoreError(
                f"{self.name}: holds another sweep; stored -> asked for:",
                *(f"  {line}" for line in differences(self.config, config)),
                "Choose another folder, or undo the change to resume.",
            )

    def done(self) -> np.ndarray:
        """Which chunks are there, by chunk number."""
        return self.chunks.done()

    def verify(self) -> None:
        """Read all chunks; `StoreError` for a file that is missing or damaged."""
        self.place.several(self.chunks.verify, np.flatnonzero(self.done()).tolist())

    def go_on(
        self,
        process: tuple[int, int],
        environment: Mapping[str, str],
        strict: bool,
        report: Report | None,
    ) -> np.ndarray:
        """See to it that process k of n, which holds the lock, can go on in an environment: read
        what was written last, and take back the records of chunks that have lost a file.

        Returns:
            Which chunks are there, by chunk number.

        Raises:
            StoreError: for a chunk that is damaged, where `strict` forbids to go on, or for a store
                of an older format.
        """
        if self.id is None and (done := self.done()).all():
            return done
        if self.id is None:
            raise StoreError(
                f"{self.name}: was made by an older version of dynsim (format 3), and is read "
                "alone; name another --out, and --reuse this one to take its runs over"
            )
        times, (k, n) = self.chunks.times(), process
        keys = {i: [*own, self.chunks.file(i)] for i, own in self.chunks.keys(times).items()}
        gone = self.place.lacking(key for own in keys.values() for key in own)
        if gone and report:
            report(
                f"{self.name}: {len(gone)} files of complete chunks are missing, such as "
                f"{min(gone)}; these chunks are computed anew"
            )
        for number in [i for i, own in keys.items() if i % n == k and not gone.isdisjoint(own)]:
            del times[number]
            self.place.remove(self.chunks.file(number))
        self.chunks.record.cache_clear()
        newest = sorted(times, key=lambda number: -times[number])[:NEWEST]
        self.place.several(self.chunks.verify, newest)
        done = np.zeros(self.layout.num_chunks, bool)
        done[list(times)] = True
        left = not done[k::n].all()
        self.enter(environment, strict and left, report if left else None)
        return done

    def enter(
        self, environment: Mapping[str, str], strict: bool, report: Report | None = None
    ) -> None:
        """Write chunks as those that were computed in this environment from now on. `StoreError`
        where there are chunks of another one and `strict` forbids that, now or at the first of
        them."""

        def compare(report: Report | None) -> None:
            # By the listing alone nobody would miss one that the store has lost.
            digests = (
                {record.environment for record in self.chunks.all().values()}
                if strict
                else self.chunks.environments()
            )
            made = map(self.chunks.environment, digests)
            others = [lines for each in made if (lines := ", ".join(changes(each, environment)))]
            if others and strict:
                raise StoreError(
                    f"{self.name}: has chunks that were made otherwise, and strict forbids to go "
                    f"on; then -> now: {others[-1]}"
                )
            if others and report:
                report(f"{self.name}: goes on with chunks that were made otherwise: {others[-1]}")

        compare(report)
        self._environment, self._first = environment_file(environment), compare

    def check(self) -> None:
        """Raise `StoreError` where the store has been moved or removed, or the lock of this process
        has passed on."""
        self.place.own()
        self.held()

    def write(
        self, region: tuple[slice, ...], arrays: Mapping[str, np.ndarray], seconds: float = 0.0
    ) -> None:
        """Write one chunk, which took so many seconds. The first process that does is the one that
        did: what comes later is dropped.

        Raises:
            StoreError: when this store is not there any more, or the lock has passed on.
        """
        self.check()
        number = self.layout.number(region)
        keys = dict(zip(self.names, self.chunks.keys([number])[number], strict=True))
        files = {key: encoded(self._arrays[name], arrays[name]) for name, key in keys.items()}
        digests = {key: manifest.sha(value) for key, value in files.items()}
        digest, about = self._environment
        if self._first:
            self._first(None)
            files[f"{ENVIRONMENTS}/{digest}.json"] = about
        codes, counts = np.unique(arrays["status"], return_counts=True)
        status = dict(zip(map(str, codes.tolist()), counts.tolist(), strict=True))
        assert self.id is not None
        statuses = files[keys["status"]]
        record = Record(self.id, number, digests, digest, seconds, status, statuses).sealed()
        if not self.place.commit(number, files, record, self.check):
            # Another one was faster: what is there has to be what its record says.
            self.chunks.verify(number)
        self._first = None

    def select(self, name: str, places: Sequence[np.ndarray]) -> np.ndarray:
        """The cells of a recorded array at places along each dimension of the runs, of the chunks
        that were there at the first call; raises as `dataset`."""
        array = zarr.open_array(self._seen, path=name, mode="r", zarr_format=3)
        return np.asarray(array.oindex[tuple(places)])

    def dataset(self, done: np.ndarray | None = None) -> xr.Dataset:
        """The sweep as a labelled dataset of the chunks that are there by now, read from the
        store when its values are used. Its attributes that are no text or number, such as `config`,
        are JSON.

        Args:
            done: the chunks that are there, where that is known.

        Raises:
            StoreError: when a file is read that is missing or damaged.
        """
        contents = self._contents(done)
        found = xr.open_zarr(contents, consolidated=False, chunks=None, zarr_format=3)
        for own in (manifest.SEAL, "store"):
            found.attrs.pop(own, None)
        # Who goes on reads it from the store: to people its bytes say nothing.
        found = found.drop_vars(CHECKPOINT, errors="ignore")
        # netCDF knows no nested attributes.
        nested = {k: json.dumps(v) for k, v in found.attrs.items() if isinstance(v, dict | list)}
        return found.assign_attrs(nested)

    @functools.cached_property
    def _seen(self) -> Contents:
        return self._contents()

    def _contents(self, done: np.ndarray | None = None) -> Contents:
        """The contents of this moment: who reads them sees no chunk that comes later."""
        there = self.done() if done is None else done

        def chunk(key: str) -> bytes | None:
            if key.partition("/c")[0] not in self.names:
                raise missing(self.name, key)
            return self.chunks.read(key) if there[self.chunks.number(key)] else None

        return Contents(MemoryStore(in_memory(self.manifest.files), read_only=True), chunk)


def _look(where: Place, report: Report) -> None:
    """Raise `StoreError` unless the records at a place are those of its store, which was made to
    its end; report those of others."""

    def used(folder: str) -> bool:
        return any(name.endswith(".json") for name in where.files(folder))

    others = [each for each in where.stores() if each != where.records and used(each)]
    if others and not used(where.records):
        raise StoreError(
            f"{where.name}: {GROUP} is that of another store than the chunks, which {others[0]} "
            "speaks of. Put back the one that belongs there, or choose another folder."
        )
    if where.read(marker := f"{where.records}/{MARKER}") is None:
        again = "The sweep was not made to its end. Run it again, or choose another folder."
        raise missing(where.name, marker, again)
    if others:
        report(printable(f"{where.name}: ignores {others[0]}, chunks of another store"))


def _dims(array: zarr.Array) -> tuple[str, ...]:
    """Names of the axes of an array, which has them all."""
    metadata = array.metadata
    names = metadata.dimension_names if isinstance(metadata, ArrayV3Metadata) else None
    return tuple(name for name in names or () if name is not None)
