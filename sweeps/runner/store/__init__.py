"""Stores of sweeps: the errors, names and sizes that all modules of this package share."""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import pydantic

from dynsim import checks
from sweeps.lines import printable

Report = Callable[[str], None]
Digest = Annotated[str, pydantic.Field(pattern=r"^[0-9a-f]{64}$")]
StoreId = Annotated[str, pydantic.Field(pattern=r"^[0-9a-f]{32}$")]
CHECKPOINT = "checkpoint"
"""Name of the array of states from which runs resume, if a sweep keeps them."""
PARTS = "parts"
"""Key of a configuration: the settings behind the labels of an axis that varies parts of a run."""
GROUP_FILE = "zarr.json"
"""Metadata file of a store's group."""
RECORDS = "status/.chunks-"
"""Prefix of the folder of commit records, followed by the id of the store. It lies inside an array,
where zarr does not warn about it."""
MARKER = "made"
"""Empty file in that folder, written last when a store is created."""
SHORT = 12
"""Number of hash digits in messages and file names."""
CHANGED = "its checksum does not match"
"""Reason in errors about damaged files."""
WITH_DIGEST = re.compile(rb'\{"digest": "([0-9a-f]{64})", "record": (.*)\}')
MAX_FILE_SIZE = 2**27
"""Default limit for the size of a file to read, in bytes."""
RESERVED_NAMES = ("zarr.json", "time", "status", "first_bad_step", "checkpoint")
"""Names that any store may contain, whatever is recorded."""


class StoreError(ValueError):
    """A store that cannot be used as requested. The message gives the reason and a remedy. Text
    read from a store cannot break a line of the message.

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
    """Division of the array of runs into chunks, the units of work and of storage: the number of
    values along each dimension, in total and per chunk. The last chunk of a dimension may be
    smaller."""

    shape: tuple[int, ...]
    chunk: tuple[int, ...]

    @property
    def num_runs(self) -> int:
        return math.prod(self.shape)

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of chunks along each dimension."""
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunk, strict=True))

    @property
    def num_chunks(self) -> int:
        return math.prod(self.counts)

    def region(self, number: int) -> tuple[slice, ...]:
        """Return the region of a chunk. In the numbering the last dimension varies fastest."""
        at = np.unravel_index(number, self.counts)
        return tuple(
            slice(int(i) * c, min((int(i) + 1) * c, n))
            for i, c, n in zip(at, self.chunk, self.shape, strict=True)
        )

    def number(self, region: Sequence[slice]) -> int:
        """Return the number of the chunk at a region."""
        index = [part.start // size for part, size in zip(region, self.chunk, strict=True)]
        return int(np.ravel_multi_index(index, self.counts))

    def runs_in(self, done: np.ndarray) -> int:
        """Return the number of runs in the `done` chunks, a mask over chunk numbers."""
        regions = map(self.region, np.flatnonzero(done).tolist())
        return sum(math.prod(part.stop - part.start for part in region) for region in regions)


class Variable(NamedTuple):
    """A recorded array: shape and names of its axes after those of the sweep, and its dtype."""

    shape: tuple[int, ...]
    dims: tuple[str, ...]
    dtype: np.dtype

    def padded(self, values: np.ndarray) -> np.ndarray:
        """Pad the last axes to the shape of the variable, with NaN or, in types without it, with 0.
        Raises `ValueError` if they are longer."""
        outer = values.ndim - len(self.shape)
        # Records of other settings, such as a shorter sequence, may have fewer entries.
        extra = [new - old for old, new in zip(values.shape[outer:], self.shape, strict=True)]
        if not any(extra):
            return values
        if min(extra) < 0:
            raise ValueError(f"shape {values.shape[outer:]} does not fit into {self.shape}")
        empty = np.nan if values.dtype.kind in "fc" else 0
        padding = [*(outer * [(0, 0)]), *((0, number) for number in extra)]
        return np.pad(values, padding, constant_values=empty)


def sha(value: bytes | str) -> str:
    """Return the SHA-256 digest of a file's contents or of a text."""
    return hashlib.sha256(value.encode() if isinstance(value, str) else value).hexdigest()


def with_digest(record: Mapping[str, Any]) -> bytes:
    """Return a record as JSON, with a digest of itself."""
    value = json.dumps(record).encode()
    return b'{"digest": "%s", "record": %s}' % (sha(value).encode(), value)


def without_digest(value: bytes) -> bytes:
    """Return the JSON of a record; raises `ValueError` if it does not match its digest."""
    parts = WITH_DIGEST.fullmatch(value)
    if not parts or sha(parts[2]).encode() != parts[1]:
        raise ValueError(CHANGED)
    return parts[2]


def damaged(name: str, key: str, why: str, remedy: str = "Nothing was changed.") -> StoreError:
    """Return the error for a file of a store whose content has changed."""
    return StoreError(f"{name}: the file {key} is damaged ({why}). {remedy}")


def missing(name: str, key: str, remedy: str = "Nothing was changed.") -> StoreError:
    """Return the error for a file of a store that is missing."""
    return StoreError(f"{name}: the file {key} is missing. {remedy}")


def check_names(*groups: tuple[str, Iterable[str]]) -> None:
    """Raise `ValueError` for an invalid array name, or for one name used twice. Names are grouped
    by setting; the setting of `RESERVED_NAMES` is ""."""
    used: dict[str, tuple[str, str]] = {}
    for field, names in groups:
        for name in names:
            if field:
                checks.name(field, name)
            # Arrays are folders, whose names some file systems compare without case.
            other_field, other = used.setdefault(name.casefold(), (field, name))
            if (other_field, other) == (field, name):
                continue
            owners = {"": "something that every store has", "record": "an array that is recorded"}
            why = f"is also the name of {owners.get(other_field, f'one of the {other_field}')}"
            if other != name:
                why = f"differs from {other!r} only in case, which some file systems ignore"
            raise ValueError(f"{field} = {name!r}: {why}; one of them needs another name")
