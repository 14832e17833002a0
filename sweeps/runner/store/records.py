"""Records of a store: which chunks it has, and the programs that computed them.

A chunk exists once its commit record does. The record is written once, after the files of its
chunk, and holds the id of the store, the number of the chunk, the digests of its files, and the
environment and program. Files that match no record are ignored. The record also contains the file
of the statuses, which every reader needs: a chunk in a bucket then costs one request per array.

The first process that computes runs at a combination of static values registers its program before
it writes a chunk. Later processes must have the same program, or one accepted as equivalent: by
comparing numbers, if versions or devices differ, or by a user.
"""

import base64
import contextlib
import dataclasses
import functools
import json
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Literal, TypeVar

import numpy as np
import pydantic

from sweeps.runner.store import (
    CHANGED,
    MARKER,
    MAX_FILE_SIZE,
    SHORT,
    Digest,
    Layout,
    StoreError,
    StoreId,
    damaged,
    missing,
    sha,
    with_digest,
    without_digest,
)
from sweeps.runner.store.arrays import Array
from sweeps.runner.store.manifest import json_numbers
from sweeps.runner.store.storage import Storage

ENVIRONMENTS = "status/.made"
"""Folder of the environments that records refer to; files are named by digest."""
PROGRAM_RECORDS = "status/.programs"
"""Folder of the programs; files are named by combination of static values."""
CALLS = "calls"
"""Entry of an environment: functions of the user that the program calls while it runs. What they do
is not in its text."""
CACHE_SIZE = 2**16
"""Maximum number of records in the cache."""
MAX_LISTED = 10
"""Maximum number of chunks that an error lists individually."""
Parsed = TypeVar("Parsed")


@dataclasses.dataclass(frozen=True)
class ChunkRecord:
    """The commit record of a chunk.

    Attributes:
        store: id of the store.
        chunk: number of the chunk.
        files: digests of its files, by name.
        environment: digest of the environment that computed it.
        program: hash of the program, determined by the process that computed it.
        seconds: wall time of its computation.
        status: number of runs by status.
        statuses: contents of the file of `status`.
    """

    store: StoreId
    chunk: int
    files: dict[str, Digest]
    environment: Digest
    seconds: float
    status: dict[str, int]
    program: str
    statuses: pydantic.Base64Bytes

    def encode(self) -> bytes:
        """Return the contents of the record's file."""
        statuses = base64.b64encode(self.statuses).decode()
        return with_digest({**dataclasses.asdict(self), "statuses": statuses})


@dataclasses.dataclass(frozen=True)
class ProgramRecord:
    """The program of a combination of static values, or one accepted as equivalent.

    Attributes:
        store: id of the store.
        chosen: the static values, by axis.
        program: hash of the program's text.
        platform: platform it was lowered for, such as "cpu".
        environment: digest of the environment that registered it.
        same_as: hash of the registered program to which this one is equivalent.
        decided: basis of that decision: "numbers", or "accepted" by a user.
        runs: number of stored runs that were recomputed.
        difference: their largest difference, relative to the largest value of an array.
        instead_of: hash of the program that it replaced, whose chunks are removed.
    """

    store: StoreId
    chosen: dict[str, Any]
    program: Digest
    platform: str
    environment: Digest
    same_as: str = ""
    decided: Literal["", "numbers", "accepted"] = ""
    runs: int = 0
    difference: float = 0.0
    instead_of: str = ""

    @property
    def key(self) -> str:
        """Name of the file."""
        return _key(self.chosen, self.program if self.decided else "")


_CHUNK_RECORD = pydantic.TypeAdapter(ChunkRecord)
_PROGRAM_RECORD = pydantic.TypeAdapter(ProgramRecord)
_ENVIRONMENT = pydantic.TypeAdapter(dict[str, str])


class Chunks:
    """The chunks of the store with the id `store`; each has one file per array. `programs` are
    those that may have computed them, and `axes` the values of the axes, with the number of their
    dimension."""

    def __init__(
        self,
        storage: Storage,
        store: StoreId,
        layout: Layout,
        arrays: Mapping[str, Array],
        programs: "Programs",
        axes: Mapping[str, tuple[int, list[Any]]],
    ) -> None:
        self.storage, self.store, self.layout, self.arrays = storage, store, layout, arrays
        self.programs, self.axes = programs, axes
        self.unchecked_record = functools.lru_cache(CACHE_SIZE)(self._unchecked_record)

    def times(self) -> dict[int, float]:
        """Return the commit time of each existing chunk, by number."""
        files, numbers = self.storage.files(self.storage.records), self.layout.num_chunks
        if MARKER not in files:
            # A listing without the marker is not of a store, but would look like an empty one.
            raise missing(self.storage.name, f"{self.storage.records}/{MARKER}")
        return {
            int(number): info.time
            for name, info in files.items()
            if (number := name.removesuffix(".json")).isdecimal()
            # Not for other spellings of a number, such as 01.
            and name == f"{int(number)}.json"
            and int(number) < numbers
        }

    def done(self) -> np.ndarray:
        """Return a mask of the existing chunks, by number."""
        mask = np.zeros(self.layout.num_chunks, bool)
        mask[list(self.times())] = True
        return mask

    def keys(self, number: int) -> dict[str, str]:
        """Return the files of a chunk, by array."""
        stem = "/".join(map(str, np.unravel_index(number, self.layout.counts)))
        outer = len(self.layout.counts)
        # Axes of the results themselves, such as time, are not divided.
        return {
            name: f"{name}/c/{stem}{'/0' * (len(array.shape) - outer)}"
            for name, array in self.arrays.items()
        }

    def file(self, number: int) -> str:
        """Return the name of a chunk's record."""
        return f"{self.storage.records}/{number}.json"

    def read(self, name: str, number: int, itself: bool = False) -> np.ndarray:
        """Read the values of an array in an existing chunk. With `itself`, statuses are read from
        their own file instead of the record. Raises `StoreError` if the file is missing or does not
        match the record."""
        key, array, record = self.keys(number)[name], self.arrays[name], self.record(number)
        remedy = f"Delete {self.file(number)} and run the sweep again to recompute its chunk."
        copy = record.statuses if name == "status" and not itself else b""
        # Values that cannot be compressed take a little more than their size.
        value = copy or self._read(key, remedy, 2 * array.size + 2**12)
        if sha(value) != record.files.get(key):
            raise damaged(self.storage.name, key, "it does not match its record", remedy)
        try:
            return array.decode(value)
        except ValueError as error:
            raise damaged(self.storage.name, key, str(error), remedy) from None

    def verify(self, number: int) -> None:
        """Read all files of a chunk; raises like `read`."""
        for name in self.arrays:
            self.read(name, number, itself=True)

    def record(self, number: int) -> ChunkRecord:
        """Return the record of a chunk; raises `StoreError` if it is damaged, or if the chunk was
        computed by another program than is registered for its runs."""
        record = self.unchecked_record(number)
        self._check_programs([number])
        return record

    def all(self) -> dict[int, ChunkRecord]:
        """Return the records of all chunks; raises like `record`."""
        numbers = np.flatnonzero(self.done()).tolist()
        records = self.storage.map(self.unchecked_record, numbers)
        self._check_programs(numbers)
        return dict(zip(numbers, records, strict=True))

    def remove_replaced(self) -> None:
        """Remove all chunks of programs that were replaced by others."""
        programs = self.programs.all()
        replaced = {each.instead_of for each in programs} - {each.program for each in programs}
        # Chunks of runs in memory have no program.
        replaced.discard("")
        for number in np.flatnonzero(self.done()).tolist() if replaced else ():
            if self.unchecked_record(number).program in replaced:
                self.remove(number)

    def remove(self, number: int) -> None:
        """Remove the record of a chunk, so that the chunk does not count."""
        self.storage.remove(self.file(number))
        self.unchecked_record.cache_clear()

    def environments(self) -> list[str]:
        """Return the digests of all environments that computed chunks."""
        return [name.split(".")[0] for name in sorted(self.storage.files(ENVIRONMENTS))]

    def environment(self, digest: str) -> dict[str, str]:
        """Read an environment; raises `StoreError` if it is damaged or missing."""
        key = f"{ENVIRONMENTS}/{digest}.json"
        value = self._read(key, "Nothing was changed.")
        with contextlib.suppress(ValueError):
            if sha(value) == digest:
                return _ENVIRONMENT.validate_json(value, strict=True)
        raise damaged(self.storage.name, key, CHANGED)

    def _check_programs(self, numbers: Iterable[int]) -> None:
        """Raise `StoreError` for chunks that other programs computed than those that are registered
        for their runs, as if they were copied from a copy of the store."""
        others = []
        for number in numbers:
            region, program = self.layout.region(number), self.unchecked_record(number).program
            values = {n: values[region[dim].start] for n, (dim, values) in self.axes.items()}
            if not self.programs.accept(program, values):
                others.append(number)
        if others:
            files = ", ".join(map(self.file, others[:MAX_LISTED]))
            more = f" and {len(others) - MAX_LISTED} more" * (len(others) > MAX_LISTED)
            raise StoreError(
                f"{self.storage.name}: chunks {', '.join(map(str, others[:MAX_LISTED]))}{more} "
                "were computed by different code from the program that the store has for their "
                f"runs. Delete {files}{more}, and run the sweep again to recompute them."
            )

    def _read(self, key: str, remedy: str, most: int = MAX_FILE_SIZE) -> bytes:
        """Read a file; the `StoreError` for a missing or unreadable one ends with the remedy."""
        try:
            value = self.storage.read(key, most)
        except OSError as error:
            raise StoreError(f"{self.storage.name}: {key} could not be read ({error})") from error
        if value is None:
            raise missing(self.storage.name, key, remedy)
        return value

    def _unchecked_record(self, number: int) -> ChunkRecord:
        key = self.file(number)
        remedy = f"Delete it and run the sweep again to recompute chunk {number}."
        record = _parsed(_CHUNK_RECORD, self.storage, key, self._read(key, remedy), remedy)
        if (record.store, record.chunk) != (self.store, number):
            why = f"it belongs to chunk {record.chunk} of the store {record.store}"
            raise damaged(self.storage.name, key, why, remedy)
        return record


class Programs:
    """The registered programs of the store with the id `store`. Methods that read raise
    `StoreError` for damaged files."""

    def __init__(self, storage: Storage, store: StoreId) -> None:
        self.storage, self.store = storage, store
        # Hashes by axes and their values, as a chunk asks for its program again and again.
        self._hashes: dict[tuple[str, ...], dict[tuple[Hashable, ...], set[str]]] = {}

    def accept(self, program: str, values: Mapping[str, Any]) -> bool:
        """Return whether a program is registered for runs at these `values` of all axes, or none is
        because its file was lost."""

        def registered() -> set[str]:
            by_axes = self._hashes.items()
            return set[str]().union(
                *(by_value.get(_at(axes, values), ()) for axes, by_value in by_axes)
            )

        if program not in registered():
            # Another process may have registered it meanwhile.
            self._hashes = {}
            for each in self.all():
                by_value = self._hashes.setdefault(tuple(each.chosen), {})
                by_value.setdefault(_at(each.chosen, each.chosen), set()).add(each.program)
        return program in (hashes := registered()) or not hashes

    def get(self, chosen: Mapping[str, Any], program: str = "") -> ProgramRecord | None:
        """Return the program of a combination of static values, or the decision about another
        `program`."""
        return self._read(_key(chosen, program))

    def put(self, record: ProgramRecord) -> bool:
        """Register a program or a decision; returns False if one exists already."""
        self._hashes = {}
        return self.storage.put(record.key, with_digest(dataclasses.asdict(record)))

    def keep(self, stored: Iterable[Mapping[str, Any]]) -> None:
        """Remove the programs of all combinations except those with stored chunks."""
        stored_keys, self._hashes = set(map(_key, stored)), {}
        for each in self.all():
            if _key(each.chosen) not in stored_keys:
                self.storage.remove(each.key)

    def all(self) -> list[ProgramRecord]:
        """Return all registered programs and decisions."""
        files = self.storage.files(PROGRAM_RECORDS)
        names = sorted(name for name in files if name.endswith(".json"))
        records = (self._read(f"{PROGRAM_RECORDS}/{name}") for name in names)
        # Another process may remove one meanwhile.
        return [record for record in records if record is not None]

    def _read(self, key: str) -> ProgramRecord | None:
        if (value := self.storage.read(key)) is None:
            return None
        record = _parsed(_PROGRAM_RECORD, self.storage, key, value)
        if (record.store, record.key) != (self.store, key):
            raise damaged(self.storage.name, key, "it belongs to other runs, or to another store")
        return record


def _parsed(
    adapter: pydantic.TypeAdapter[Parsed], storage: Storage, key: str, value: bytes, *remedy: str
) -> Parsed:
    try:
        return adapter.validate_json(without_digest(value), strict=True)
    except ValueError:
        raise damaged(storage.name, key, CHANGED, *remedy) from None


def json_values(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return static values as JSON values."""
    return {name: json_numbers([value])[0] for name, value in chosen.items()}


def _at(names: Iterable[str], values: Mapping[str, Any]) -> tuple[Hashable, ...]:
    return tuple(json_numbers([values[name]])[0] if name in values else None for name in names)


def _key(chosen: Mapping[str, Any], program: str = "") -> str:
    combination = sha(json.dumps(json_values(chosen), sort_keys=True))[:SHORT]
    return f"{PROGRAM_RECORDS}/{combination}{f'-{program[:SHORT]}' if program else ''}.json"


def environment_file(environment: Mapping[str, str]) -> tuple[str, bytes]:
    """Return the digest and contents of an environment's file."""
    value = json.dumps(dict(environment), sort_keys=True, indent=2).encode()
    return sha(value), value


def changed_versions(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return the changes between two environments, as "jax 0.10.1 -> 0.12.0", for shared keys."""
    return [f"{n} {old[n]} -> {new[n]}" for n in old if n in new and old[n] != new[n]]
