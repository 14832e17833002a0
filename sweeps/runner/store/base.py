"""Where a sweep is kept, and what differs from place to place in keeping it: the seam below
`Store`."""

import abc
import contextlib
import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, NamedTuple

import numpy as np
import pydantic

from dynsim import checks
from sweeps.lines import printable

Report = Callable[[str], None]
Check = Callable[[], None]
Digest = Annotated[str, pydantic.Field(pattern=r"^[0-9a-f]{64}$")]
Identity = Annotated[str, pydantic.Field(pattern=r"^[0-9a-f]{32}$")]
CHECKPOINT = "checkpoint"
"""Array of what runs go on from, where a sweep keeps it."""
PARTS = "parts"
"""In a configuration, what the labels of an axis stand for, where they stand for parts of a run."""
GROUP = "zarr.json"
"""The file of a store that says what it is."""
RECORDS = "status/.chunks-"
"""Beginning of the folder of the commit records, which ends with the id of the store; in an array,
where zarr does not wonder about it."""
MARKER = "made"
"""Empty file in that folder, the last one that the creation of a store writes."""
CHANGED = "it is not what its checksum says"
"""Why a file is called damaged."""
SEALED = re.compile(rb'\{"digest": "([0-9a-f]{64})", "record": (.*)\}')
LARGEST = 2**27
"""Bytes of the largest file that is read where nothing says how large it should be."""


class StoreError(ValueError):
    """A store that cannot be used as requested; the message says why and what to do. Text read from
    a store cannot break a line of the message.

    Example:
        >>> try:
        ...     sweeps.open("no/such/sweep")
        ... except sweeps.StoreError as error:
        ...     print("not opened")
        ...
        not opened
    """

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(map(printable, lines)))


@dataclasses.dataclass(frozen=True)
class Layout:
    """How the array of runs is cut into chunks, the units of work and of storage.

    Attributes:
        shape: number of values along each dimension.
        chunk: number of values of a chunk along each dimension; at the far end less may be left.
    """

    shape: tuple[int, ...]
    chunk: tuple[int, ...]

    @property
    def num_runs(self) -> int:
        """Number of runs."""
        return math.prod(self.shape)

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of chunks along each dimension."""
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunk, strict=True))

    @property
    def num_chunks(self) -> int:
        """Number of chunks."""
        return math.prod(self.counts)

    def regions(self) -> Iterator[tuple[slice, ...]]:
        """The region of each chunk, chunk 0 first, the last dimension fastest."""
        return map(self.region, range(self.num_chunks))

    def region(self, number: int) -> tuple[slice, ...]:
        """The region of one chunk, by its place among `regions`."""
        at = np.unravel_index(number, self.counts)
        return tuple(
            slice(int(i) * c, min((int(i) + 1) * c, n))
            for i, c, n in zip(at, self.chunk, self.shape, strict=True)
        )

    def number(self, region: Sequence[slice]) -> int:
        """The place of a region among `regions`."""
        index = [part.start // size for part, size in zip(region, self.chunk, strict=True)]
        return int(np.ravel_multi_index(index, self.counts))

    def runs_in(self, done: np.ndarray) -> int:
        """Number of runs in the chunks that are `done`, by their numbers."""
        regions = map(self.region, np.flatnonzero(done).tolist())
        return sum(math.prod(part.stop - part.start for part in region) for region in regions)


class Variable(NamedTuple):
    """A recorded array: shape and names of the axes behind those of the sweep, and its dtype."""

    shape: tuple[int, ...]
    dims: tuple[str, ...]
    dtype: np.dtype

    def padded(self, values: np.ndarray) -> np.ndarray:
        """Values whose last axes are filled up to those of the variable with NaN, or with 0 where
        there is none; `ValueError` where they are longer."""
        outer = values.ndim - len(self.shape)
        extra = [want - got for got, want in zip(values.shape[outer:], self.shape, strict=True)]
        if not any(extra):
            return values
        if min(extra) < 0:
            raise ValueError(f"an array of {values.shape[outer:]} in the room of {self.shape}")
        empty = np.nan if values.dtype.kind in "fc" else 0
        padding = [*(outer * [(0, 0)]), *((0, number) for number in extra)]
        return np.pad(values, padding, constant_values=empty)


class Written(NamedTuple):
    """When a file was written, in seconds since 1970, and its number of bytes."""

    time: float
    size: int


class Place(abc.ABC):
    """Where a sweep is kept, or can be: files by their names, such as "loss/c/0/0".

    Attributes:
        name: the place as the user wrote it, for messages.
        address: what another process finds it by; None where no other process can.
        records: folder of the commit records of the store that was opened there.
        fence: the words by which a worker knows that the driver still holds the lock, if it can.
        streams: number of files that are worth reading or writing at the same time.
        durable: whether a file that was written outlasts a loss of power.
    """

    name: str
    address: str | None
    records: str = ""
    fence: str = ""
    streams: int = 1
    durable: bool = False

    @abc.abstractmethod
    def vacant(self) -> bool:
        """Whether a sweep can be made there, because nothing is there but what a creation left
        that was not ended."""

    def check_writable(self) -> None:
        """Raise `StoreError` for a place where nothing can ever be written."""
        return

    @abc.abstractmethod
    def create(self, files: Mapping[str, bytes]) -> None:
        """Make a sweep of these files, of which the last one is its `MARKER`. `FileExistsError`
        when something has been made there in the meantime."""

    @abc.abstractmethod
    def read(self, key: str, most: int = LARGEST) -> bytes | None:
        """What a file holds, None if there is none; `StoreError` for one of more bytes."""

    @abc.abstractmethod
    def files(self, folder: str = "") -> dict[str, Written]:
        """The files in a folder, and in those below, by their names behind that of the folder."""

    @abc.abstractmethod
    def stores(self) -> list[str]:
        """The folders of commit records that are there."""

    @abc.abstractmethod
    def commit(self, number: int, files: Mapping[str, bytes], record: bytes, check: Check) -> bool:
        """Write the files of chunk `number` and then its record, `number`.json in `records`; False
        if there is a record already. `check` raises `StoreError` where this process may not."""

    @abc.abstractmethod
    def put(self, key: str, value: bytes) -> bool:
        """Write a file beside the chunks; False if it is there already."""

    @abc.abstractmethod
    def remove(self, key: str) -> None:
        """Delete a file."""

    def own(self) -> None:
        """Raise `StoreError` unless the store that was opened there is still there."""
        return

    @abc.abstractmethod
    def lock(
        self, process: int, processes: int, report: Report | None
    ) -> contextlib.AbstractContextManager[Check]:
        """Be process number `process` of `processes` writers, alone; what this yields raises
        `StoreError` once that has ended.

        Raises:
            StoreError: when another writer is at work, or the place cannot be written.
        """

    def watch(self, fence: str) -> Check:
        """What raises `StoreError` once the driver that has this `fence` holds no lock."""
        del fence
        return held

    def several(self, act: Callable[[Any], Any], each: Iterable[Any]) -> list[Any]:
        """What `act` makes of each, several at a time where there are streams for them."""
        if self.streams == 1:
            return list(map(act, each))
        with ThreadPoolExecutor(self.streams) as pool:
            return list(pool.map(act, each))

    def gone(self) -> StoreError:
        """The error for a store that is not there any more."""
        return StoreError(
            f"{self.name}: has been moved or removed while this process wrote to it ({self.records}"
            " is gone). What was finished is where the store is now; run the sweep again there."
        )


def sha(value: bytes) -> str:
    """The digest of a file."""
    return hashlib.sha256(value).hexdigest()


def sealed(about: Mapping[str, Any]) -> bytes:
    """What a file says, with a digest of itself."""
    value = json.dumps(about).encode()
    return b'{"digest": "%s", "record": %s}' % (sha(value).encode(), value)


def unsealed(value: bytes) -> bytes:
    """What such a file says, as JSON; `ValueError` where that is not what its digest says."""
    found = SEALED.fullmatch(value)
    if not found or sha(found[2]).encode() != found[1]:
        raise ValueError(CHANGED)
    return found[2]


def held() -> None:
    """The check of a lock that nobody can take away."""


def damaged(name: str, key: str, why: str, then: str = "Nothing was changed.") -> StoreError:
    """The error for a file of a store that is not what was written."""
    return StoreError(f"{name}: the file {key} is damaged ({why}). {then}")


def missing(name: str, key: str, then: str = "Nothing was changed.") -> StoreError:
    """The error for a file of a store that was written and is not there."""
    return StoreError(f"{name}: the file {key} is missing. {then}")


OF_STORES = ("zarr.json", "time", "status", "first_bad_step", "checkpoint")
"""What a store has, or may have, whatever is recorded."""


def check_names(*named: tuple[str, Iterable[str]]) -> None:
    """Raise `ValueError` for a name that no array can have, and for one name of two things.

    Args:
        *named: names by the setting that they come from; empty for those of `OF_STORES`.
    """
    found: dict[str, tuple[str, str]] = {}
    for field, names in named:
        for name in names:
            if field:
                checks.name(field, name)
            before, other = found.setdefault(name.casefold(), (field, name))
            if (before, other) == (field, name):
                continue
            what = {"": "something that every store has", "record": "an array that is recorded"}
            same = f"is the name of {what.get(before, f'one of the {before}')} as well"
            if other != name:
                same = f"differs from {other!r} by its case alone, which not every file system sees"
            raise ValueError(f"{field} = {name!r}: {same}; one of them needs another name")
