"""Which chunks a store has, and by which programs they were computed.

A chunk is there when a commit record says what it is. The record is written once, after the files
of its chunk, and holds the id of the store, the number of the chunk, the digests of its files, and
what computed it. A file that no record names with its digest is no data, wherever it comes from. It
holds the file of the statuses as well, which every reader wants: so a chunk in a bucket costs no
request more than its arrays.

The first process that computes runs at a combination of static values registers its program, before
any chunk of them. Whoever comes later has the same program, or one that was decided to be the same:
by numbers, where versions or devices are others, or because a user accepted it.
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
"""Folder of the environments that records name, each a file called by its digest."""
PROGRAMS = "status/.programs"
"""Folder of the programs, each a file called by its combination of static values."""
KEPT = 2**16
"""Records that are remembered."""


@dataclasses.dataclass(frozen=True)
class Record:
    """What is committed of a chunk.

    Attributes:
        store: id of the store.
        chunk: number of the chunk.
        files: their digests by name.
        environment: digest of the environment that computed it.
        program: hash of the program that computed it, found out by the process that did.
        seconds: that it took.
        status: how many of its runs ended with each status.
        statuses: what the file of `status` holds.
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
        """The record as a file, with a digest of itself."""
        statuses = base64.b64encode(self.statuses).decode()
        return sealed({**dataclasses.asdict(self), "statuses": statuses})


@dataclasses.dataclass(frozen=True)
class Registered:
    """The program of a combination of static values, or one that is the same.

    Attributes:
        store: id of the store.
        chosen: the values, by axis.
        program: hash of its text.
        platform: for which it was lowered, such as "cpu".
        environment: digest of the environment that registered it.
        same_as: for another program than the registered one, the hash of that.
        decided: how that was found: by "numbers", or "accepted" by a user.
        runs: number of stored runs that were computed again.
        difference: the largest one that was found, relative to the largest value of an array.
        instead_of: hash of the program that it replaced, of which no chunk is to be kept.
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
        """The file that says so."""
        return _key(self.chosen, self.program if self.decided else "")


_RECORD, _REGISTERED = pydantic.TypeAdapter(Record), pydantic.TypeAdapter(Registered)
_ENVIRONMENT = pydantic.TypeAdapter(dict[str, str])


class Chunks:
    """The chunks of the store with the id `store`, each of which has a file of every array."""

    def __init__(
        self, place: Place, store: Identity, layout: Layout, arrays: Mapping[str, Array]
    ) -> None:
        self.place, self.store, self.layout, self.arrays = place, store, layout, arrays
        self.record = functools.lru_cache(KEPT)(self._record)

    def times(self) -> dict[int, float]:
        """When each chunk that is there was committed, by its number."""
        found, numbers = self.place.files(self.place.records), self.layout.num_chunks
        if MARKER not in found:
            # A listing that is not that of a store, which would seem to be empty.
            raise missing(self.place.name, f"{self.place.records}/{MARKER}")
        return {
            int(number): each.time
            for name, each in found.items()
            if (number := name.removesuffix(".json")).isdecimal()
            and name == f"{int(number)}.json"
            and int(number) < numbers
        }

    def done(self) -> np.ndarray:
        """Which chunks are there, by their numbers."""
        found = np.zeros(self.layout.num_chunks, bool)
        found[list(self.times())] = True
        return found

    def keys(self, number: int) -> dict[str, str]:
        """The files of a chunk by their arrays."""
        stem = "/".join(map(str, np.unravel_index(number, self.layout.counts)))
        outer = len(self.layout.counts)
        return {
            name: f"{name}/c/{stem}{'/0' * (len(array.shape) - outer)}"
            for name, array in self.arrays.items()
        }

    def file(self, number: int) -> str:
        """The file of a record."""
        return f"{self.place.records}/{number}.json"

    def read(self, name: str, number: int, itself: bool = False) -> np.ndarray:
        """The values of an array in a chunk that is there; of its file `itself`, and not of what
        the record holds of it, if so asked. `StoreError` when the file is missing, or is not what
        the record says."""
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
        """Read a chunk; raises as `read`."""
        for name in self.arrays:
            self.read(name, number, itself=True)

    def all(self) -> dict[int, Record]:
        """The records of all chunks; `StoreError` for one that is damaged."""
        numbers = np.flatnonzero(self.done()).tolist()
        return dict(zip(numbers, self.place.several(self.record, numbers), strict=True))

    def remove(self, number: int) -> None:
        """Take a chunk back: it counts no more."""
        self.place.remove(self.file(number))
        self.record.cache_clear()

    def environments(self) -> list[str]:
        """Digests of the environments that chunks were computed in."""
        return [name.split(".")[0] for name in sorted(self.place.files(ENVIRONMENTS))]

    def environment(self, digest: str) -> dict[str, str]:
        """An environment; `StoreError` if it is damaged or missing."""
        key = f"{ENVIRONMENTS}/{digest}.json"
        value = self._read(key, "Nothing was changed.")
        with contextlib.suppress(ValueError):
            if sha(value) == digest:
                return _ENVIRONMENT.validate_json(value, strict=True)
        raise damaged(self.place.name, key, CHANGED)

    def _read(self, key: str, then: str, most: int = LARGEST) -> bytes:
        """A file; `StoreError`, which says what to do then, if it is missing or cannot be read."""
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
    """The registered programs of the store with the id `store` at a place. All methods that read
    raise `StoreError` for a file that is damaged."""

    def __init__(self, place: Place, store: Identity) -> None:
        self.place, self.store = place, store

    def get(self, chosen: Mapping[str, Any], program: str = "") -> Registered | None:
        """The program of a combination of static values, or what was decided of another
        `program`."""
        return self._read(_key(chosen, program))

    def put(self, known: Registered) -> bool:
        """Register a program, or a decision; False where there is one already."""
        return self.place.put(known.key, sealed(dataclasses.asdict(known)))

    def keep(self, stored: Iterable[Mapping[str, Any]]) -> None:
        """Forget the programs of all combinations but those of which there are chunks."""
        kept = set(map(_key, stored))
        for each in self.all():
            if _key(each.chosen) not in kept:
                self.place.remove(each.key)

    def all(self) -> list[Registered]:
        """Everything that is registered."""
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
    """What a file with a digest of itself says."""
    try:
        return kind.validate_json(unsealed(value), strict=True)
    except ValueError:
        raise damaged(place.name, key, CHANGED, *then) from None


def plain(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Static values as JSON has them."""
    return {name: spelt([value])[0] for name, value in chosen.items()}


def _key(chosen: Mapping[str, Any], program: str = "") -> str:
    combination = sha(json.dumps(plain(chosen), sort_keys=True))[:SHORT]
    return f"{PROGRAMS}/{combination}{f'-{program[:SHORT]}' if program else ''}.json"


def environment_file(environment: Mapping[str, str]) -> tuple[str, bytes]:
    """Digest and contents of the file of an environment."""
    value = json.dumps(dict(environment), sort_keys=True, indent=2).encode()
    return sha(value), value


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """What differs between two environments, as "jax 0.10.1 -> 0.12.0", of what both know."""
    return [f"{n} {old[n]} -> {new[n]}" for n in old if n in new and old[n] != new[n]]
