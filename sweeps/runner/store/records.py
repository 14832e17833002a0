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
import re
from collections.abc import Iterable, Mapping

import numpy as np
import pydantic

from sweeps.runner.axes import Layout
from sweeps.runner.store.base import Place, StoreError, damaged, missing
from sweeps.runner.store.contents import CHECKSUM, checksum
from sweeps.runner.store.manifest import CHANGED, Digest, Identity, Manifest, sha, unpacked

ENVIRONMENTS = "status/.made"
"""Folder of the environments that records name, each a file called by its digest."""
SEALED = re.compile(rb'\{"digest": "([0-9a-f]{64})", "record": (.*)\}')
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
        seconds: that it took.
        status: how many of its runs ended with each status.
        statuses: what the file of `status` holds; empty in older stores.
    """

    store: Identity
    chunk: int
    files: dict[str, Digest]
    environment: Digest
    seconds: float
    status: dict[str, int]
    statuses: pydantic.Base64Bytes = b""

    def sealed(self) -> bytes:
        """The record as a file, with a digest of itself."""
        statuses = base64.b64encode(self.statuses).decode()
        about = json.dumps({**dataclasses.asdict(self), "statuses": statuses}).encode()
        return b'{"digest": "%s", "record": %s}' % (sha(about).encode(), about)


_RECORD = pydantic.TypeAdapter(Record)
_ENVIRONMENT = pydantic.TypeAdapter(dict[str, str])


class Chunks:
    """The chunks of a store.

    Args:
        place: where they are.
        found: the manifest of the store.
        layout: how they divide the array of runs.
        inner: number of axes that each array has behind those of the runs.
    """

    def __init__(
        self, place: Place, found: Manifest, layout: Layout, inner: Mapping[str, int]
    ) -> None:
        self.place, self.layout, self.inner, self.sizes = place, layout, inner, found.sizes
        self.store = found.attributes.get("store")
        self.record = functools.lru_cache(KEPT)(self._record)

    def times(self) -> dict[int, float]:
        """When each chunk that is there was committed, by its number."""
        found = self.place.files(self.place.records)
        numbers = {name.removesuffix(".json"): time for name, time in found.items()}
        end = self.layout.num_chunks
        return {
            int(number): time
            for number, time in numbers.items()
            if number.isdecimal() and f"{int(number)}.json" in found and int(number) < end
        }

    def done(self) -> np.ndarray:
        """Which chunks are there, by their numbers."""
        found = np.zeros(self.layout.num_chunks, bool)
        found[list(self.times())] = True
        return found

    def keys(self, numbers: Iterable[int]) -> dict[int, list[str]]:
        """The files of chunks by their numbers."""
        numbers = list(numbers)
        places = np.stack(np.unravel_index(np.array(numbers, int), self.layout.counts), axis=1)
        own = {name: "/0" * axes for name, axes in self.inner.items()}
        stems = ["/".join(map(str, index)) for index in places.tolist()]
        return {
            number: [f"{name}/c/{stem}{inner}" for name, inner in own.items()]
            for number, stem in zip(numbers, stems, strict=True)
        }

    def file(self, number: int) -> str:
        """The file of a record."""
        return f"{self.place.records}/{number}.json"

    def number(self, key: str) -> int:
        """The chunk that a file belongs to, by its name."""
        index = key.partition("/c/")[2].split("/")[: len(self.layout.counts)]
        return int(np.ravel_multi_index([int(i) for i in index], self.layout.counts))

    def read(self, key: str, itself: bool = False) -> bytes:
        """A file of a chunk that is there; `itself`, and not what the record holds of it, if so
        asked.

        Raises:
            StoreError: when it is missing, or is not what the record says.
        """
        size, again = self.sizes[key.partition("/c/")[0]], ""
        if self.store:
            again = f"Delete {self.file(self.number(key))} and run the sweep again to compute its "
            again += "chunk anew."
        inside = b""
        if self.store and key.startswith("status/") and not itself:
            inside = self.record(self.number(key)).statuses
        try:
            value = inside or self.place.read(key, 2 * size + 2**12)
        except OSError as error:
            raise StoreError(f"{self.place.name}: {key} could not be read ({error})") from error
        if value is None:
            raise missing(self.place.name, key, again)
        wrong = self._checked(key, value)
        if wrong or unpacked(value) != size:
            why = wrong or "it has another size than its array says"
            raise damaged(self.place.name, key, why, again)
        return value

    def verify(self, number: int) -> None:
        """Read a chunk; raises as `read`."""
        for key in self.keys([number])[number]:
            self.read(key, itself=True)

    def all(self) -> dict[int, Record]:
        """The records of all chunks; `StoreError` for one that is damaged."""
        numbers = np.flatnonzero(self.done()).tolist()
        return dict(zip(numbers, self.place.several(self.record, numbers), strict=True))

    def environments(self) -> list[str]:
        """Digests of the environments that chunks were computed in."""
        return [name.split(".")[0] for name in sorted(self.place.files(ENVIRONMENTS))]

    def environment(self, digest: str) -> dict[str, str]:
        """An environment; `StoreError` if it is damaged or missing."""
        key = f"{ENVIRONMENTS}/{digest}.json"
        if (value := self.place.read(key)) is None:
            raise missing(self.place.name, key)
        with contextlib.suppress(ValueError):
            if sha(value) == digest:
                return _ENVIRONMENT.validate_json(value, strict=True)
        raise damaged(self.place.name, key, CHANGED)

    def _record(self, number: int) -> Record:
        key = self.file(number)
        again = f"Delete it and run the sweep again to compute chunk {number} anew."
        value = self.place.read(key)
        if value is None:
            raise missing(self.place.name, key, again)
        try:
            sealed = SEALED.fullmatch(value)
            if not sealed or sha(sealed[2]).encode() != sealed[1]:
                raise ValueError
            record = _RECORD.validate_json(sealed[2], strict=True)
        except ValueError:
            raise damaged(self.place.name, key, CHANGED, again) from None
        if (record.store, record.chunk) != (self.store, number):
            why = f"it is that of chunk {record.chunk} of the store {record.store}"
            raise damaged(self.place.name, key, why, again)
        return record

    def _checked(self, key: str, value: bytes) -> str:
        """What is wrong with a file, if anything is."""
        if sha(value) != self.record(self.number(key)).files.get(key):
            return "it is not what its record says"
        return ""


class ChunksOfFormat3(Chunks):
    """Those of a store without records: a chunk is there if its status is."""

    def times(self) -> dict[int, float]:
        """When the status of each was written."""
        index = "/".join(r"[0-9]{1,9}" for _ in self.layout.counts)
        found = {}
        for name, time in self.place.files("status/c").items():
            # A name that lies outside of the array is no chunk of it.
            with contextlib.suppress(ValueError):
                if re.fullmatch(index, name):
                    found[self.number(f"status/c/{name}")] = time
        return found

    def all(self) -> dict[int, Record]:
        """There are none."""
        return {}

    def _checked(self, key: str, value: bytes) -> str:
        return "" if value[-CHECKSUM:] == checksum(value[:-CHECKSUM]) else CHANGED


def environment_file(environment: Mapping[str, str]) -> tuple[str, bytes]:
    """Digest and contents of the file of an environment."""
    value = json.dumps(dict(environment), sort_keys=True, indent=2).encode()
    return sha(value), value


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """What differs between two environments, as "jax 0.10.1 -> 0.12.0", of what both know."""
    return [f"{n} {old[n]} -> {new[n]}" for n in old if n in new and old[n] != new[n]]
