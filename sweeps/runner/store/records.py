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
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
import pydantic

from sweeps.runner.store import (
    CHANGED,
    LARGEST,
    MARKER,
    SHORT,
    Digest,
    Identity,
    Layout,
    StoreError,
    damaged,
    missing,
    sealed,
    sha,
    unsealed,
)
from sweeps.runner.store.arrays import Array
from sweeps.runner.store.manifest import spelt
from sweeps.runner.store.place import Place

ENVIRONMENTS = "status/.made"
"""Folder of the environments that records refer to; files are named by digest."""
PROGRAMS = "status/.programs"
"""Folder of the programs; files are named by combination of static values."""
CALLS = "calls"
"""Entry of an environment: functions of the user that the program calls while it runs. What they do
is not in its text."""
KEPT = 2**16
"""Maximum number of records in the cache."""
MOST_NAMED = 10
"""Maximum number of chunks that an error lists individually."""


@dataclasses.dataclass(frozen=True)
class Record:
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

    store: Identity
    chunk: int
    files: dict[str, Digest]
    environment: Digest
    seconds: float
    status: dict[str, int]
    program: str
    statuses: pydantic.Base64Bytes

    def sealed(self) -> bytes:
        """Serialize the record with a digest of itself."""
        statuses = base64.b64encode(self.statuses).decode()
        return sealed({**dataclasses.asdict(self), "statuses": statuses})


@dataclasses.dataclass(frozen=True)
class Registered:
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
        difference: largest difference found, relative to the largest value of an array.
        instead_of: hash of the program that it replaced, whose chunks are removed.
    """

    store: Identity
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


_RECORD, _REGISTERED = pydantic.TypeAdapter(Record), pydantic.TypeAdapter(Registered)
_ENVIRONMENT = pydantic.TypeAdapter(dict[str, str])


class Chunks:
    """The chunks of the store with the id `store`; each has one file per array. `programs` are
    those that may have computed them, and `axes` the values of the axes, with the number of their
    dimension."""

    def __init__(
        self,
        place: Place,
        store: Identity,
        layout: Layout,
        arrays: Mapping[str, Array],
        programs: "Programs",
        axes: Mapping[str, tuple[int, np.ndarray]],
    ) -> None:
        self.place, self.store, self.layout, self.arrays = place, store, layout, arrays
        self.programs, self.axes = programs, axes
        self.any = functools.lru_cache(KEPT)(self._record)

    def times(self) -> dict[int, float]:
        """Return the commit time of each existing chunk, by number."""
        found, numbers = self.place.files(self.place.records), self.layout.num_chunks
        if MARKER not in found:
            # A listing without the marker is not of a store, but would look like an empty one.
            raise missing(self.place.name, f"{self.place.records}/{MARKER}")
        return {
            int(number): each.time
            for name, each in found.items()
            if (number := name.removesuffix(".json")).isdecimal()
            and name == f"{int(number)}.json"
            and int(number) < numbers
        }

    def done(self) -> np.ndarray:
        """Return a mask of the existing chunks, by number."""
        found = np.zeros(self.layout.num_chunks, bool)
        found[list(self.times())] = True
        return found

    def keys(self, number: int) -> dict[str, str]:
        """Return the files of a chunk, by array."""
        stem = "/".join(map(str, np.unravel_index(number, self.layout.counts)))
        outer = len(self.layout.counts)
        return {
            name: f"{name}/c/{stem}{'/0' * (len(array.shape) - outer)}"
            for name, array in self.arrays.items()
        }

    def file(self, number: int) -> str:
        """Return the name of a chunk's record."""
        return f"{self.place.records}/{number}.json"

    def read(self, name: str, number: int, itself: bool = False) -> np.ndarray:
        """Read the values of an array in an existing chunk. With `itself`, statuses are read from
        their own file instead of the record. Raises `StoreError` if the file is missing or does not
        match the record."""
        key, array, record = self.keys(number)[name], self.arrays[name], self.record(number)
        again = f"Delete {self.file(number)} and run the sweep again to recompute its chunk."
        inside = record.statuses if name == "status" and not itself else b""
        value = inside or self._read(key, again, 2 * array.size + 2**12)
        if sha(value) != record.files.get(key):
            raise damaged(self.place.name, key, "it does not match its record", again)
        try:
            return array.decoded(value)
        except ValueError as error:
            raise damaged(self.place.name, key, str(error), again) from None

    def verify(self, number: int) -> None:
        """Read all files of a chunk; raises like `read`."""
        for name in self.arrays:
            self.read(name, number, itself=True)

    def record(self, number: int) -> Record:
        """Return the record of a chunk; raises `StoreError` if it is damaged, or if the chunk was
        computed by another program than is registered for its runs."""
        record = self.any(number)
        self._check([number])
        return record

    def all(self) -> dict[int, Record]:
        """Return the records of all chunks; raises like `record`."""
        numbers = np.flatnonzero(self.done()).tolist()
        found = dict(zip(numbers, self.place.several(self.any, numbers), strict=True))
        self._check(numbers)
        return found

    def take_back(self) -> None:
        """Remove all chunks of programs that were replaced by others."""
        programs = self.programs.all()
        gone = {each.instead_of for each in programs} - {each.program for each in programs} - {""}
        for number in np.flatnonzero(self.done()).tolist() if gone else ():
            if self.any(number).program in gone:
                self.remove(number)

    def remove(self, number: int) -> None:
        """Remove the record of a chunk, so that the chunk does not count."""
        self.place.remove(self.file(number))
        self.any.cache_clear()

    def _check(self, numbers: Iterable[int]) -> None:
        """Raise `StoreError` for chunks that other programs computed than those that are registered
        for their runs, as if they were copied from a copy of the store."""
        others = []
        for number in numbers:
            region, program = self.layout.region(number), self.any(number).program
            chosen = {n: values[region[dim].start] for n, (dim, values) in self.axes.items()}
            if not self.programs.accept(program, chosen):
                others.append(number)
        if others:
            files = ", ".join(map(self.file, others[:MOST_NAMED]))
            more = f" and {len(others) - MOST_NAMED} more" * (len(others) > MOST_NAMED)
            raise StoreError(
                f"{self.place.name}: chunks {', '.join(map(str, others[:MOST_NAMED]))}{more} were "
                "computed by different code from the program that the store has for their runs. "
                f"Delete {files}{more}, and run the sweep again to recompute them."
            )

    def environments(self) -> list[str]:
        """Return the digests of all environments that computed chunks."""
        return [name.split(".")[0] for name in sorted(self.place.files(ENVIRONMENTS))]

    def environment(self, digest: str) -> dict[str, str]:
        """Read an environment; raises `StoreError` if it is damaged or missing."""
        key = f"{ENVIRONMENTS}/{digest}.json"
        value = self._read(key, "Nothing was changed.")
        with contextlib.suppress(ValueError):
            if sha(value) == digest:
                return _ENVIRONMENT.validate_json(value, strict=True)
        raise damaged(self.place.name, key, CHANGED)

    def _read(self, key: str, then: str, most: int = LARGEST) -> bytes:
        """Read a file; the `StoreError` for a missing or unreadable one ends with `then`."""
        try:
            value = self.place.read(key, most)
        except OSError as error:
            raise StoreError(f"{self.place.name}: {key} could not be read ({error})") from error
        if value is None:
            raise missing(self.place.name, key, then)
        return value

    def _record(self, number: int) -> Record:
        key = self.file(number)
        again = f"Delete it and run the sweep again to recompute chunk {number}."
        record = _opened(_RECORD, self.place, key, self._read(key, again), again)
        if (record.store, record.chunk) != (self.store, number):
            why = f"it belongs to chunk {record.chunk} of the store {record.store}"
            raise damaged(self.place.name, key, why, again)
        return record


class Programs:
    """The registered programs of the store with the id `store`. Methods that read raise
    `StoreError` for damaged files."""

    def __init__(self, place: Place, store: Identity) -> None:
        self.place, self.store = place, store
        self._known: dict[tuple[str, ...], dict[tuple[Any, ...], set[str]]] = {}

    def accept(self, program: str, values: Mapping[str, Any]) -> bool:
        """Return whether a program is registered for runs at these `values` of all axes, or none is
        because its file was lost."""

        def registered() -> set[str]:
            found = set[str]()
            for names, known in self._known.items():
                found |= known.get(_at(names, values), set())
            return found

        if program not in registered():
            # Another process may have registered it meanwhile.
            self._known = {}
            for each in self.all():
                names = tuple(each.chosen)
                known = self._known.setdefault(names, {})
                known.setdefault(_at(names, each.chosen), set()).add(each.program)
        return program in (found := registered()) or not found

    def get(self, chosen: Mapping[str, Any], program: str = "") -> Registered | None:
        """Return the program of a combination of static values, or the decision about another
        `program`."""
        return self._read(_key(chosen, program))

    def put(self, known: Registered) -> bool:
        """Register a program or a decision; returns False if one exists already."""
        self._known = {}
        return self.place.put(known.key, sealed(dataclasses.asdict(known)))

    def keep(self, stored: Iterable[Mapping[str, Any]]) -> None:
        """Remove the programs of all combinations except those with stored chunks."""
        kept, self._known = set(map(_key, stored)), {}
        for each in self.all():
            if _key(each.chosen) not in kept:
                self.place.remove(each.key)

    def all(self) -> list[Registered]:
        """Return all registered programs and decisions."""
        names = sorted(name for name in self.place.files(PROGRAMS) if name.endswith(".json"))
        found = (self._read(f"{PROGRAMS}/{name}") for name in names)
        return [each for each in found if each is not None]

    def _read(self, key: str) -> Registered | None:
        if (value := self.place.read(key)) is None:
            return None
        known = _opened(_REGISTERED, self.place, key, value)
        if (known.store, known.key) != (self.store, key):
            raise damaged(self.place.name, key, "it belongs to other runs, or to another store")
        return known


def _opened(kind: pydantic.TypeAdapter, place: Place, key: str, value: bytes, *then: str) -> Any:
    """Parse a sealed file; raises `StoreError` if it is damaged."""
    try:
        return kind.validate_json(unsealed(value), strict=True)
    except ValueError:
        raise damaged(place.name, key, CHANGED, *then) from None


def plain(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return static values as JSON values."""
    return {name: spelt([value])[0] for name, value in chosen.items()}


def _at(names: Iterable[str], values: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(spelt([values[name]])[0] if name in values else None for name in names)


def _key(chosen: Mapping[str, Any], program: str = "") -> str:
    combination = sha(json.dumps(plain(chosen), sort_keys=True))[:SHORT]
    return f"{PROGRAMS}/{combination}{f'-{program[:SHORT]}' if program else ''}.json"


def environment_file(environment: Mapping[str, str]) -> tuple[str, bytes]:
    """Return the digest and contents of an environment's file."""
    value = json.dumps(dict(environment), sort_keys=True, indent=2).encode()
    return sha(value), value


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return the changes between two environments, as "jax 0.10.1 -> 0.12.0", for shared keys."""
    return [f"{n} {old[n]} -> {new[n]}" for n in old if n in new and old[n] != new[n]]
