"""The arrays of a store: what their metadata say, and their values in chunks as zarr writes them.

Chunks are decoded here and not by zarr, which no store can then make run other codes, and which
takes several times as long for chunks as small as those of sweeps.
"""

import itertools
import math
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import xarray as xr
from numcodecs.zstd import Zstd
from xarray.backends import BackendArray
from xarray.core import indexing

from dynsim import checks

LEVEL, CHECKSUM = 3, 4
"""Of compression; and the bytes of the checksum at the end of a chunk."""
MISSING = -1
"""Status of a run that has not been computed."""
EMPTY = {"i": MISSING, "u": 0}
"""What stands for no value in arrays of integers; NaN does in others, true for a truth value."""
FILL = {**EMPTY, "b": True, "c": ["NaN", 0.0], "f": "NaN", "U": ""}
"""The same as zarr writes it."""
NUMBERS = re.compile("bool|u?int(8|16|32|64)|float(16|32|64)|complex(64|128)")
MOST_RUNS, MOST_CHUNKS, MOST_BYTES = 2**40, 2**24, 2**31 - 1
"""Cells of an array, its chunks, and bytes of one of them, which its compression cannot exceed."""
Index = tuple[int, ...]
Read = Callable[[Index], np.ndarray | None]
"""The values of a chunk, by its place along each axis; None for one that is not there."""
Select = Callable[[Sequence[np.ndarray]], np.ndarray]


class Array(NamedTuple):
    """An array of a store: names of its axes, the shape of all of it and of a chunk, of which what
    lies outside of the array is filled up, the type of its values, and attributes for people."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    dtype: np.dtype
    attributes: Mapping[str, Any] = types.MappingProxyType({})

    @property
    def size(self) -> int:
        """Bytes of a decoded chunk."""
        return math.prod(self.chunk) * self.dtype.itemsize

    @property
    def chunks(self) -> int:
        return math.prod(-(-n // c) for n, c in zip(self.shape, self.chunk, strict=True))

    @property
    def empty(self) -> float:
        """What stands for no value."""
        return EMPTY.get(self.dtype.kind, np.nan)

    def metadata(self) -> dict[str, Any]:
        """What zarr calls the array's metadata."""
        kind, width = self.dtype.kind, self.dtype.itemsize
        words = {"name": "fixed_length_utf32", "configuration": {"length_bytes": width}}
        order = {"configuration": {"endian": "little"}} if width > 1 else {}
        return {
            "shape": list(self.shape),
            "data_type": words if kind == "U" else self.dtype.name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(self.chunk)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": FILL[kind],
            # A checksum for who reads it without dynsim, to whom damage is an error as well.
            "codecs": [
                {"name": "bytes", **order},
                {"name": "zstd", "configuration": {"level": LEVEL, "checksum": False}},
                {"name": "crc32c"},
            ],
            "attributes": dict(self.attributes),
            **({"dimension_names": list(self.dims)} if self.dims else {}),
            "zarr_format": 3,
            "node_type": "array",
            "storage_transformers": [],
        }

    def encoded(self, values: np.ndarray) -> bytes:
        """Values as a chunk: what zarr makes of them, in a tenth of the time."""
        chunk = np.full(self.chunk, self.empty, self.dtype)
        chunk[tuple(map(slice, values.shape))] = values
        packed = Zstd(level=LEVEL).encode(chunk.astype(chunk.dtype.newbyteorder("<"), copy=False))
        return packed + checksum(packed)

    def decoded(self, chunk: bytes) -> np.ndarray:
        """The values of a chunk; `ValueError` for one of another size, or that is none."""
        if unpacked(chunk) != self.size:
            raise ValueError("its size does not match its array")
        try:
            values = np.frombuffer(Zstd().decode(chunk[:-CHECKSUM]), self.dtype.newbyteorder("<"))
        except RuntimeError as error:
            raise ValueError(str(error)) from None
        return values.reshape(self.chunk).astype(self.dtype, copy=False)

    def whole(self, files: Mapping[str, bytes], most: int) -> np.ndarray:
        """All values, by the files of all chunks, each of at most so many bytes; raises as
        `decoded`, or `LookupError`."""
        if len(files) != self.chunks or self.size > most:
            raise ValueError("its size does not match its array, or is far too large")

        def read(index: Index) -> np.ndarray:
            return self.decoded(files["/".join(("c", *map(str, index)))])

        return self.select([np.arange(n) for n in self.shape], read)

    def select(
        self, places: Sequence[np.ndarray], read: Read, several: Callable = map
    ) -> np.ndarray:
        """The values at places along each of the first axes, of chunks that `several` reads as
        `map` does; those along the others are in one chunk."""
        inner = self.shape[len(places) :]
        found = np.full((*map(len, places), *inner), self.empty, self.dtype)

        def put(parts: Sequence[tuple[int, np.ndarray, np.ndarray]]) -> None:
            if (values := read(tuple(at for at, _, _ in parts))) is not None:
                values = values[np.ix_(*(inside for _, _, inside in parts))]
                found[np.ix_(*(rows for _, rows, _ in parts))] = values

        list(several(put, itertools.product(*map(_by_chunk, places, self.chunk))))
        return found


class _Later(BackendArray):
    """What xarray reads when it is used. `select` returns the values at places along each of the
    `outer` first axes."""

    def __init__(self, array: Array, outer: int, select: Select) -> None:
        self.shape, self.dtype, self.dims = array.shape, array.dtype, array.dims
        self.outer, self.select = outer, select

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        some = indexing.IndexingSupport.OUTER
        return indexing.explicit_indexing_adapter(key, self.shape, some, self._at)

    def _at(self, key: tuple[Any, ...]) -> np.ndarray:
        outer, inner = key[: self.outer], key[self.outer :]
        places = [np.atleast_1d(np.arange(n)[at]) for n, at in zip(self.shape, outer, strict=False)]
        # An axis of which one place is asked for is left out.
        left = [0 if isinstance(at, int | np.integer) else slice(None) for at in outer]
        return xr.Variable(self.dims, self.select(places))[(*left, *inner)].to_numpy()


def later(array: Array, outer: int, select: Select) -> xr.Variable:
    """An array of which xarray reads, once, what is used; arguments as of `_Later`."""
    lazy: Any = indexing.LazilyIndexedArray(_Later(array, outer, select))
    kept = indexing.MemoryCachedArray(indexing.CopyOnWriteArray(lazy))
    return xr.Variable(array.dims, kept, array.attributes)


def described(about: Mapping[str, Any]) -> Array:
    """The array of some metadata; an error of any kind for one that dynsim does not write."""
    kind, dims = about["data_type"], tuple(about.get("dimension_names", ()))
    shape, chunk = about["shape"], about["chunk_grid"]["configuration"]["chunk_shape"]
    if isinstance(kind, dict):
        kind = f"U{kind['configuration']['length_bytes'] // 4}"
    elif not NUMBERS.fullmatch(kind):
        raise ValueError(kind)
    array = Array(dims, tuple(shape), tuple(chunk), np.dtype(kind), about["attributes"])
    expected = array.metadata()
    # What nothing is computed from, such as an axis, zarr fills up with zeros.
    fills = expected.pop("fill_value"), 0, ""
    known = (
        about == {**expected, "fill_value": about["fill_value"]}
        and about["fill_value"] in fills
        and len(shape) == len(chunk) == len(dims)
        and all(checks.NAME.fullmatch(dim) for dim in dims)
        and all(type(n) is int for n in (*shape, *chunk))
        and min((0, *shape, *(n - 1 for n in chunk))) >= 0
        and math.prod(shape) <= MOST_RUNS
        and array.chunks <= MOST_CHUNKS
        and array.size <= MOST_BYTES
    )
    if not known:
        raise ValueError(about)
    return array


def unpacked(chunk: bytes) -> int | None:
    """Bytes that a chunk says it has when it is decoded; None where it does not say so, as those
    that dynsim writes do."""
    if chunk[:4] != b"\x28\xb5\x2f\xfd" or len(chunk) < 6:
        return None
    # RFC 8878, 3.1.1.1: the number of bytes of the size, after a window and the id of a dictionary.
    single, width = chunk[4] >> 5 & 1, (0, 2, 4, 8)[chunk[4] >> 6]
    width = width or single
    start = 5 + (1 - single) + (0, 1, 2, 4)[chunk[4] & 3]
    size = int.from_bytes(chunk[start : start + width], "little")
    return (size + 256 if width == 2 else size) if width else None


def checksum(packed: bytes) -> bytes:
    """What follows a chunk, as zarr's codec `crc32c` has it."""
    return int(google_crc32c.value(packed)).to_bytes(CHECKSUM, "little")


def _by_chunk(places: np.ndarray, size: int) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Places along an axis by the chunk in which they are: its number, which of them they are, and
    where in the chunk."""
    order = np.argsort(places // size, kind="stable")
    chunks, starts = np.unique(places[order] // size, return_index=True)
    rows = np.split(order, starts[1:])
    return [(at, own, places[own] % size) for at, own in zip(chunks.tolist(), rows, strict=False)]
