"""Which chunks a store has: those of which a commit record says what they are.

A record is written once, after the files of its chunk, and holds the id of the store, the number of
the chunk, the digests of its files, and what computed it. A file that no record names with its
digest is no data, wherever it comes from. It holds the file of the statuses as well, which every
reader wants: so a chunk in a bucket costs no request more than its arrays.
"""

import base64
import contextlib
import dataclasses
import functools
import json
from collections.abc import Mapping

import numpy as np
import pydantic

from sweeps.runner.store.arrays import Array
from sweeps.runner.store.base import (
    CHANGED,
    LARGEST,
    MARKER,
    Digest,
    Identity,
    Layout,
    Place,
    StoreError,
    damaged,
    missing,
    sealed,
    sha,
    unsealed,
)

ENVIRONMENTS = "status/.made"
"""Folder of the environments that records name, each a file called by its digest."""
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


_RECORD = pydantic.TypeAdapter(Record)
_ENVIRONMENT = pydantic.TypeAdapter(dict[str, str])


class Chunks:
    """The chunks of a store.

    Args:
        place: where they are.
        store: id of the store.
        layout: how they divide the array of runs.
        arrays: those that each has a file of.
    """

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
        the record holds of it, if so asked.

        Raises:
            StoreError: when the file is missing, or is not what the record says.
        """
        key, array, record = self.keys(number)[name], self.arrays[name], self.record(number)
        again = f"Delete {self.file(number)} and run the sweep again to compute its chunk anew."
        inside = record.statuses if name == "status" and not itself else b""
        value = inside or self._read(key, again, 2 * array.size + 2**12)
        if sha(value) != record.files.get(key):
            raise damaged(self.place.name, key, "it is not what its record says", again)
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
        again = f"Delete it and run the sweep again to compute chunk {number} anew."
        value = self._read(key, again)
        try:
            record = _RECORD.validate_json(unsealed(value), strict=True)
        except ValueError:
            raise damaged(self.place.name, key, CHANGED, again) from None
        if (record.store, record.chunk) != (self.store, number):
            why = f"it is that of chunk {record.chunk} of the store {record.store}"
            raise damaged(self.place.name, key, why, again)
        return record


def environment_file(environment: Mapping[str, str]) -> tuple[str, bytes]:
    """Digest and contents of the file of an environment."""
    value = json.dumps(dict(environment), sort_keys=True, indent=2).encode()
    return sha(value), value


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """What differs between two environments, as "jax 0.10.1 -> 0.12.0", of what both know."""
    return [f"{n} {old[n]} -> {new[n]}" for n in old if n in new and old[n] != new[n]]
