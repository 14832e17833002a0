"""A stored sweep: a zarr v3 group that xarray can open, with one chunk per unit of work.

A chunk counts once its commit record exists, which is written last and identifies the files of the
chunk. So an interrupted sweep loses only the chunks in progress, and no other file is mistaken for
a result. `place.Place` abstracts over folders and buckets.
"""

import functools
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from sweeps.lines import printable
from sweeps.runner.progress import RESUME, Interrupted
from sweeps.runner.store import (
    CHECKPOINT,
    GROUP,
    LARGEST,
    MARKER,
    RECORDS,
    Layout,
    Report,
    StoreError,
    Variable,
    manifest,
    missing,
    records,
    sha,
)
from sweeps.runner.store.arrays import later
from sweeps.runner.store.manifest import differences, fingerprint
from sweeps.runner.store.place import Check, Place, held, place

NEWEST = 256
"""Number of chunks to verify before a sweep resumes. After a power failure, incompletely written
chunks are among the latest; older ones are verified when they are read."""

MOST_SAID = 2**22
"""Maximum bytes of a metadata file."""


class Store:
    """One stored sweep: in a folder, a bucket, or the memory of this process.

    Attributes:
        name: the place as the user wrote it, for messages.
        address: argument for `Store.open`, in other processes too; None in memory.
        id: identifies this store and its copies.
        attributes: all metadata of the sweep.
        held: raises `StoreError` if another process has taken over the lock.
        chunks: the existing chunks.
        programs: the programs that computed them.
    """

    def __init__(self, where: Place, found: manifest.Manifest) -> None:
        self.place, self.manifest = where, found
        self.name, self.address = where.name, where.address
        self.attributes = found.attributes
        self.id: str = self.attributes["store"]
        self.held: Check = held
        self.programs = records.Programs(where, self.id)
        self._environment = records.environment_file({})
        self._first: Callable[[None], None] | None = lambda report: None
        try:
            arrays = {name: found.arrays[name] for name in self.names}
            status, outer = arrays["status"], len(arrays["status"].shape)
            self.layout = Layout(status.shape, status.chunk)
            axes = [found.arrays[name] for name in self.attributes["config"]["axes"]]
            sizes = set(zip(status.dims, status.shape, strict=True))
            if {(*axis.dims, *axis.shape) for axis in axes} != sizes:
                raise ValueError("its axes have other values")
            for name, array in arrays.items():
                cut = (*status.chunk, *array.shape[outer:])
                if array.shape[:outer] != status.shape or array.chunk != cut:
                    raise ValueError(f"{name} has other runs than status")
            of_axes = {
                name: (status.dims.index(found.arrays[name].dims[0]), values.tolist())
                for name, values in found.coordinates.items()
                if name in self.attributes["config"]["axes"]
            }
            own = where, self.id, self.layout, arrays, self.programs, of_axes
            self.chunks = records.Chunks(*own)
        except (LookupError, ValueError) as error:
            raise StoreError(f"{self.name}: is not a sweep of dynsim ({error})") from error

    @classmethod
    def open(cls, where: str | Path | Place, report: Report | None = None) -> "Store":
        """Open the store at a place or an address. `report` is called with a line about files there
        that do not belong to the store; by default this is a warning. Raises `StoreError` if there
        is no store that this version can read, or if its metadata or a coordinate is damaged;
        `ValueError` for an invalid address."""
        where = place(where)

        def read(keys: Iterable[str]) -> list[bytes | None]:
            return where.several(
                lambda key: where.read(key, MOST_SAID if key.endswith(GROUP) else LARGEST), keys
            )

        try:
            if where.vacant():
                raise StoreError(f"{where.name}: no such sweep")
            found = manifest.verified(where.name, read)
            where.records = f"{RECORDS}{found.attributes['store']}"
            _look(where, report or warnings.warn)
            return cls(where, found)
        except StoreError:
            raise
        except OSError as error:
            raise StoreError(f"{where.name}: cannot be read ({error})") from error

    @property
    def config(self) -> dict[str, Any]:
        """The sweep's configuration as JSON values."""
        stored = self.attributes["config"]
        axes = {name: self.manifest.coordinates[name].tolist() for name in stored["axes"]}
        spelt = {name: manifest.spelt(values) for name, values in axes.items()}
        return {**stored, "axes": spelt}

    @property
    def fingerprint(self) -> str:
        """The hash of the configuration, computed from its contents."""
        return fingerprint(self.config)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the recorded arrays, `status` last."""
        return tuple(self.attributes["variables"])

    @property
    def dims(self) -> tuple[str, ...]:
        return self.manifest.arrays["status"].dims

    @property
    def variables(self) -> dict[str, Variable]:
        """The recorded arrays, as given to `create`."""
        outer = len(self.dims)
        return {
            name: Variable(array.shape[outer:], array.dims[outer:], array.dtype)
            for name, array in self.chunks.arrays.items()
        }

    def require(self, config: Mapping[str, Any]) -> None:
        """Raise `StoreError`, showing the difference, unless the store contains this sweep."""
        if self.fingerprint != fingerprint(config):
            raise StoreError(
                f"{self.name}: contains a different sweep; stored -> requested:",
                *(f"  {line}" for line in differences(self.config, config)),
                "Choose another folder, or undo the change to resume.",
            )

    def done(self) -> np.ndarray:
        """Return a mask of the existing chunks, by number."""
        return self.chunks.done()

    def interrupted(self) -> Interrupted:
        """Return the exception to raise when the user stops the sweep."""
        if self.address is None:
            return Interrupted("stopped: a sweep without `out` keeps nothing.")
        stored, total = self.layout.runs_in(self.done()), self.layout.num_runs
        return Interrupted(f"stopped: {stored} of {total} runs are stored in {self.name}.", RESUME)

    def verify(self) -> None:
        """Read every file that was not read when the store was opened: all chunks with their
        records, the environments and the programs. Raises `StoreError` for one that is missing or
        damaged."""
        there = self.chunks.all()
        self.place.several(self.chunks.verify, there)
        named = {record.environment for record in there.values()}
        self.place.several(self.chunks.environment, named.union(self.chunks.environments()))
        self.programs.all()

    def go_on(
        self,
        process: tuple[int, int],
        environment: Mapping[str, str],
        strict: bool,
        report: Report | None,
    ) -> None:
        """Prepare process k of n, which holds the lock, to resume in an environment: verify the
        latest chunks, and remove the records of chunks with missing files. Raises `StoreError` for
        a damaged chunk, for one of another program, or if `strict` forbids resuming."""
        k, n = process
        if n == 1:
            # A worker with other code may have stored a chunk after it was detected.
            self.chunks.take_back()
        times = self.chunks.times()
        keys = {i: [*self.chunks.keys(i).values(), self.chunks.file(i)] for i in times}
        there = self.place.files()
        gone = {
            key for own in keys.values() for key in own if key not in there or not there[key].size
        }
        if gone and report:
            report(
                f"{self.name}: {len(gone)} files of complete chunks are missing, such as "
                f"{min(gone)}; these chunks are recomputed"
            )
        for number in [i for i, own in keys.items() if not gone.isdisjoint(own)]:
            del times[number]
            # Those of other processes are theirs to remove.
            if number % n == k:
                self.chunks.remove(number)
        self.chunks.any.cache_clear()
        newest = sorted(times, key=lambda number: -times[number])[:NEWEST]
        self.place.several(self.chunks.verify, newest)
        left = any(number not in times for number in range(k, self.layout.num_chunks, n))
        self.enter(environment, strict and left, report if left else None)

    def enter(
        self, environment: Mapping[str, str], strict: bool, report: Report | None = None
    ) -> None:
        """Attribute the following chunks to this environment. If `strict`, raises `StoreError` if
        there are chunks of another environment, at once or when the first chunk is written."""

        def compare(report: Report | None) -> None:
            # The listing alone would not reveal a lost environment file.
            digests = (
                {record.environment for record in self.chunks.all().values()}
                if strict
                else self.chunks.environments()
            )
            made = map(self.chunks.environment, digests)
            lines = (", ".join(records.differences(each, environment)) for each in made)
            others = list(filter(None, lines))
            if others and strict:
                raise StoreError(
                    f"{self.name}: has chunks from another environment, and strict forbids "
                    f"resuming; then -> now: {others[-1]}"
                )
            if others and report:
                report(f"{self.name}: resumes with chunks from another environment: {others[-1]}")

        compare(report)
        self._environment, self._first = records.environment_file(environment), compare

    def check(self) -> None:
        """Raise `StoreError` if the store was moved or removed, or another process has the lock."""
        self.place.own()
        self.held()

    def noted(self) -> str:
        """Return the digest of this process's environment and write its file on the first call.
        Raises `StoreError` like `write`."""
        digest, about = self._environment
        if self._first:
            self.check()
            self._first(None)
            self.place.put(f"{records.ENVIRONMENTS}/{digest}.json", about)
            self._first = None
        return digest

    def write(
        self,
        region: tuple[slice, ...],
        arrays: Mapping[str, np.ndarray],
        seconds: float = 0.0,
        program: str = "",
    ) -> None:
        """Write one chunk, with its wall time in seconds and its program. Only the first write of a
        chunk counts; later ones are dropped. Raises `StoreError` if this store does not exist, or
        another process has the lock."""
        self.check()
        number = self.layout.number(region)
        keys, known = self.chunks.keys(number), self.chunks.arrays
        files = {key: known[name].encoded(arrays[name]) for name, key in keys.items()}
        digests = {key: sha(value) for key, value in files.items()}
        digest = self.noted()
        codes, counts = np.unique(arrays["status"], return_counts=True)
        status = dict(zip(map(str, codes.tolist()), counts.tolist(), strict=True))
        statuses = files[keys["status"]]
        about = digests, digest, seconds, status, program, statuses
        record = records.Record(self.id, number, *about).sealed()
        if not self.place.commit(number, files, record, self.check):
            # Another process was faster: its files must match its record.
            self.chunks.verify(number)

    def select(
        self, name: str, places: Sequence[np.ndarray], there: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the values of a recorded array at places along each dimension of the runs, from
        the chunks in `there`, by default those found at the first call. Raises like `dataset`."""
        there = self._seen if there is None else there

        def read(index: tuple[int, ...]) -> np.ndarray | None:
            number = int(np.ravel_multi_index(index, self.layout.counts))
            return self.chunks.read(name, number) if there[number] else None

        return self.chunks.arrays[name].select(places, read, self.place.several)

    def dataset(self, done: np.ndarray | None = None) -> xr.Dataset:
        """Return a labelled dataset of the existing chunks, or of `done` ones if they are known.
        Values are read from the store when they are used, which raises `StoreError` for a missing
        or damaged file. Structured attributes, such as `config`, are JSON."""
        there = self.done() if done is None else done
        known, coordinates = self.manifest.arrays, self.manifest.coordinates
        found = xr.Dataset(
            coords={
                name: xr.Variable(known[name].dims, values.copy(), known[name].attributes)
                for name, values in coordinates.items()
            }
        )
        for name, array in self.chunks.arrays.items():
            # Checkpoints are opaque bytes, read from the store when a sweep resumes.
            if name != CHECKPOINT:
                select = functools.partial(self.select, name, there=there)
                found[name] = later(array, len(self.dims), select)
        # netCDF has no nested attributes.
        return found.assign_attrs(
            {
                key: json.dumps(value) if isinstance(value, dict | list) else value
                for key, value in self.attributes.items()
                if key not in ("store", "coordinates")
            }
        )

    @functools.cached_property
    def _seen(self) -> np.ndarray:
        return self.done()


def _look(where: Place, report: Report) -> None:
    """Raise `StoreError` unless the records at a place belong to its store and its creation was
    completed; report records of other stores."""

    def used(folder: str) -> bool:
        return any(name.endswith(".json") for name in where.files(folder))

    others = [each for each in where.stores() if each != where.records and used(each)]
    if others and not used(where.records):
        raise StoreError(
            f"{where.name}: {GROUP} belongs to another store than the chunks in {others[0]}"
            ". Restore the one that belongs there, or choose another folder."
        )
    if where.read(marker := f"{where.records}/{MARKER}") is None:
        again = "The sweep was not completely created. Run it again, or choose another folder."
        raise missing(where.name, marker, again)
    if others:
        report(printable(f"{where.name}: ignores {others[0]}, which has chunks of another store"))
