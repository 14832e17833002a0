"""Where sweeps are kept: the errors, names and sizes that all modules here share."""

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
SHORT = 12
"""Letters of the hash of a program or a method in messages and names of files."""
CHANGED = "its checksum does not match"
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
    """How the array of runs is cut into chunks, the units of work and of storage: the number of
    values along each dimension, of all runs and of a chunk. At the far end less may be left."""

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
        """The region of a chunk. They are numbered with the last dimension fastest."""
        at = np.unravel_index(number, self.counts)
        return tuple(
            slice(int(i) * c, min((int(i) + 1) * c, n))
            for i, c, n in zip(at, self.chunk, self.shape, strict=True)
        )

    def number(self, region: Sequence[slice]) -> int:
        """The number of the chunk of a region."""
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
            raise ValueError(f"shape {values.shape[outer:]} does not fit into {self.shape}")
        empty = np.nan if values.dtype.kind in "fc" else 0
        padding = [*(outer * [(0, 0)]), *((0, number) for number in extra)]
        return np.pad(values, padding, constant_values=empty)


def sha(value: bytes | str) -> str:
    """The digest of a file, or of a text."""
    return hashlib.sha256(value.encode() if isinstance(value, str) else value).hexdigest()


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


def damaged(name: str, key: str, why: str, then: str = "Nothing was changed.") -> StoreError:
    """The error for a file of a store that is not what was written."""
    return StoreError(f"{name}: the file {key} is damaged ({why}). {then}")


def missing(name: str, key: str, then: str = "Nothing was changed.") -> StoreError:
    """The error for a file of a store that was written and is not there."""
    return StoreError(f"{name}: the file {key} is missing. {then}")


OF_STORES = ("zarr.json", "time", "status", "first_bad_step", "checkpoint")
"""What a store has, or may have, whatever is recorded."""


def check_names(*named: tuple[str, Iterable[str]]) -> None:
    """Raise `ValueError` for a name that no array can have, and for one name of two things. Names
    come by their setting, which is empty for those of `OF_STORES`."""
    found: dict[str, tuple[str, str]] = {}
    for field, names in named:
        for name in names:
            if field:
                checks.name(field, name)
            before, other = found.setdefault(name.casefold(), (field, name))
            if (before, other) == (field, name):
                continue
            what = {"": "something that every store has", "record": "an array that is recorded"}
            same = f"is also the name of {what.get(before, f'one of the {before}')}"
            if other != name:
                same = f"differs from {other!r} only in case, which some file systems ignore"
            raise ValueError(f"{field} = {name!r}: {same}; one of them needs another name")
