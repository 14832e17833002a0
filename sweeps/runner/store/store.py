"""A stored sweep: a zarr v3 group that xarray can open, with one chunk per unit of work.

A chunk counts once its commit record exists, which is written last and identifies the files of the
chunk. So an interrupted sweep loses only the chunks in progress, and no other file is mistaken for
a result. `storage.Storage` abstracts over folders and buckets.
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
    GROUP_FILE,
    MARKER,
    MAX_FILE_SIZE,
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
from sweeps.runner.store.arrays import lazy_variable
from sweeps.runner.store.manifest import differences, fingerprint
from sweeps.runner.store.storage import CheckLock, Storage, as_storage, never_lost

NUM_VERIFIED = 256
"""Number of chunks to verify before a sweep resumes. After a power failure, incompletely written
chunks are among the latest; older ones are verified when they are read."""

MAX_METADATA_SIZE = 2**22
"""Maximum bytes of a metadata file."""


class Store:
    """One stored sweep: in a folder, a bucket, or the memory of this process.

    Attributes:
        name: the location as the user wrote it, for messages.
        address: argument for `Store.open`, in other processes too; None in memory.
        id: identifies this store and its copies.
        attributes: all metadata of the sweep.
        check_lock: raises `StoreError` if another process has taken over the lock.
        chunks: the existing chunks.
        programs: the programs that computed them.
    """

    def __init__(self, storage: Storage, verified: manifest.Manifest) -> None:
        self.storage, self.manifest = storage, verified
        self.name, self.address = storage.name, storage.address
        self.attributes = verified.attributes
        self.id: str = self.attributes["store"]
        self.check_lock: CheckLock = never_lost
        self.programs = records.Programs(storage, self.id)
        self._environment = records.environment_file({})
        self._check_environments: Callable[[], None] | None = lambda: None
        # A digest guarantees that the metadata are as they were written, not that they fit.
        try:
            arrays = {name: verified.arrays[name] for name in self.names}
            status, outer = arrays["status"], len(arrays["status"].shape)
            self.layout = Layout(status.shape, status.chunk)
            axes = {name: verified.arrays[name] for name in self.attributes["config"]["axes"]}
            sizes = set(zip(status.dims, status.shape, strict=True))
            if {(*axis.dims, *axis.shape) for axis in axes.values()} != sizes:
                raise ValueError("its axes have other values")
            for name, array in arrays.items():
                chunk = (*status.chunk, *array.shape[outer:])
                if array.shape[:outer] != status.shape or array.chunk != chunk:
                    raise ValueError(f"{name} has other runs than status")
            of_axes = {
                name: (status.dims.index(axes[name].dims[0]), values.tolist())
                for name, values in verified.coordinates.items()
                if name in axes
            }
            self.chunks = records.Chunks(
                storage, self.id, self.layout, arrays, self.programs, of_axes
            )
        except (LookupError, ValueError) as error:
            raise StoreError(f"{self.name}: is not a sweep of dynsim ({error})") from error

    @classmethod
    def open(cls, where: str | Path | Storage, report: Report | None = None) -> "Store":
        """Open the store at an address. `report` is called with a line about files there that do
        not belong to the store; by default this is a warning. Raises `StoreError` if there is no
        store that this version can read, or if its metadata or a coordinate is damaged;
        `ValueError` for an invalid address."""
        storage = as_storage(where)
        name = storage.name

        def read(keys: Iterable[str]) -> list[bytes | None]:
            return storage.map(
                lambda key: storage.read(
                    key, MAX_METADATA_SIZE if key.endswith(GROUP_FILE) else MAX_FILE_SIZE
                ),
                keys,
            )

        def has_chunks(folder: str) -> bool:
            return any(file.endswith(".json") for file in storage.files(folder))

        try:
            if storage.vacant():
                raise StoreError(f"{name}: no such sweep")
            verified = manifest.read_manifest(name, read)
            storage.records = f"{RECORDS}{verified.attributes['store']}"
            # Files of two stores may lie in one folder, for example after one was copied there.
            others = [
                folder
                for folder in storage.record_folders()
                if folder != storage.records and has_chunks(folder)
            ]
            if others and not has_chunks(storage.records):
                raise StoreError(
                    f"{name}: {GROUP_FILE} belongs to another store than the chunks in {others[0]}"
                    ". Restore the one that belongs there, or choose another folder."
                )
            if storage.read(marker := f"{storage.records}/{MARKER}") is None:
                remedy = (
                    "The sweep was not completely created. Run it again, or choose another folder."
                )
                raise missing(name, marker, remedy)
            if others:
                line = f"{name}: ignores {others[0]}, which has chunks of another store"
                (report or warnings.warn)(printable(line))
            return cls(storage, verified)
        except StoreError:
            raise
        except OSError as error:
            raise StoreError(f"{name}: cannot be read ({error})") from error

    @property
    def config(self) -> dict[str, Any]:
        """The sweep's configuration as JSON values."""
        stored = self.attributes["config"]
        axes = {name: self.manifest.coordinates[name].tolist() for name in stored["axes"]}
        as_json = {name: manifest.json_numbers(values) for name, values in axes.items()}
        return {**stored, "axes": as_json}

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
        """The recorded arrays, as passed to `create`."""
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
        chunks = self.chunks.all()
        self.storage.map(self.chunks.verify, chunks)
        # The listing alone would not reveal a lost environment file.
        named = {record.environment for record in chunks.values()}
        self.storage.map(self.chunks.environment, named.union(self.chunks.environments()))
        self.programs.all()

    def prepare_to_resume(
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
            self.chunks.remove_replaced()
        times = self.chunks.times()
        keys = {i: [*self.chunks.keys(i).values(), self.chunks.file(i)] for i in times}
        files = self.storage.files()
        # After a power failure a file may be empty.
        lost = {
            key for own in keys.values() for key in own if key not in files or not files[key].size
        }
        if lost and report:
            report(
                f"{self.name}: {len(lost)} files of complete chunks are missing, such as "
                f"{min(lost)}; these chunks are recomputed"
            )
        for number in [i for i, own in keys.items() if not lost.isdisjoint(own)]:
            del times[number]
            # Those of other processes are theirs to remove.
            if number % n == k:
                self.chunks.remove(number)
        self.chunks.unchecked_record.cache_clear()
        newest = sorted(times, key=lambda number: -times[number])[:NUM_VERIFIED]
        self.storage.map(self.chunks.verify, newest)
        is_incomplete = any(number not in times for number in range(k, self.layout.num_chunks, n))
        self.set_environment(
            environment, strict and is_incomplete, report if is_incomplete else None
        )

    def set_environment(
        self, environment: Mapping[str, str], strict: bool, report: Report | None = None
    ) -> None:
        """Attribute the following chunks to this environment. If `strict`, raises `StoreError` if
        there are chunks of another environment, at once or when the first chunk is written."""

        def check(report: Report | None = None) -> None:
            # The listing alone would not reveal a lost environment file.
            digests = (
                {record.environment for record in self.chunks.all().values()}
                if strict
                else self.chunks.environments()
            )
            stored = map(self.chunks.environment, digests)
            lines = (", ".join(records.changed_versions(each, environment)) for each in stored)
            others = list(filter(None, lines))
            if others and strict:
                raise StoreError(
                    f"{self.name}: has chunks from another environment, and strict forbids "
                    f"resuming; then -> now: {others[-1]}"
                )
            if others and report:
                report(f"{self.name}: resumes with chunks from another environment: {others[-1]}")

        check(report)
        self._environment, self._check_environments = records.environment_file(environment), check

    def check(self) -> None:
        """Raise `StoreError` if the store was moved or removed, or another process has the lock."""
        self.storage.check_exists()
        self.check_lock()

    def register_environment(self) -> str:
        """Return the digest of this process's environment and write its file on the first call.
        Raises `StoreError` like `write`."""
        digest, content = self._environment
        if self._check_environments:
            self.check()
            # Another process may have stored chunks since the environment was set.
            self._check_environments()
            self.storage.put(f"{records.ENVIRONMENTS}/{digest}.json", content)
            self._check_environments = None
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
        keys = self.chunks.keys(number)
        files = {key: self.chunks.arrays[name].encode(arrays[name]) for name, key in keys.items()}
        codes, counts = np.unique(arrays["status"], return_counts=True)
        record = records.ChunkRecord(
            self.id,
            number,
            files={key: sha(value) for key, value in files.items()},
            environment=self.register_environment(),
            seconds=seconds,
            status=dict(zip(map(str, codes.tolist()), counts.tolist(), strict=True)),
            program=program,
            statuses=files[keys["status"]],
        )
        if not self.storage.commit(number, files, record.encode(), self.check):
            # Another process was faster: its files must match its record.
            self.chunks.verify(number)

    def select(
        self, name: str, positions: Sequence[np.ndarray], done: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the values of a recorded array at positions along each dimension of the runs, from
        the `done` chunks, by default those that exist at the first call. Raises like `dataset`."""
        done = self._done_at_first if done is None else done

        def read(index: tuple[int, ...]) -> np.ndarray | None:
            number = int(np.ravel_multi_index(index, self.layout.counts))
            return self.chunks.read(name, number) if done[number] else None

        return self.chunks.arrays[name].select(positions, read, self.storage.map)

    @functools.cached_property
    def _done_at_first(self) -> np.ndarray:
        return self.done()

    def dataset(self, done: np.ndarray | None = None) -> xr.Dataset:
        """Return a labelled dataset of the existing chunks, or of `done` ones if they are known.
        Values are read from the store when they are used, which raises `StoreError` for a missing
        or damaged file. Structured attributes, such as `config`, are JSON."""
        done = self.done() if done is None else done
        arrays, coordinates = self.manifest.arrays, self.manifest.coordinates
        dataset = xr.Dataset(
            coords={
                name: xr.Variable(arrays[name].dims, values.copy(), arrays[name].attributes)
                for name, values in coordinates.items()
            }
        )
        for name, array in self.chunks.arrays.items():
            # Checkpoints are opaque bytes, read from the store when a sweep resumes.
            if name != CHECKPOINT:
                select = functools.partial(self.select, name, done=done)
                dataset[name] = lazy_variable(array, len(self.dims), select)
        # netCDF has no nested attributes.
        return dataset.assign_attrs(
            {
                key: json.dumps(value) if isinstance(value, dict | list) else value
                for key, value in self.attributes.items()
                if key not in ("store", "coordinates")
            }
        )
