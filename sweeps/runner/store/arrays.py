"""The arrays of a store: their metadata, and their values in chunks in zarr's format.

Chunks are decoded here and not by zarr, so that a store cannot select other codecs. For the small
chunks of sweeps this is also several times faster.
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
"""Compression level, and the bytes of the checksum at the end of a chunk."""
MISSING = -1
"""Status of a run that has not been computed."""
EMPTY = {"i": MISSING, "u": 0}
"""Fill values of integer arrays; boolean arrays use true and all others NaN."""
FILL = {**EMPTY, "b": True, "c": ["NaN", 0.0], "f": "NaN", "U": ""}
"""Fill values in zarr's notation."""
NUMBER_TYPES = re.compile("bool|u?int(8|16|32|64)|float(16|32|64)|complex(64|128)")
MOST_RUNS, MOST_CHUNKS, MOST_BYTES = 2**40, 2**24, 2**31 - 1
"""Maximum cells and chunks of an array, and bytes per chunk (a limit of its compression)."""
ReadChunk = Callable[[tuple[int, ...]], np.ndarray | None]
"""Returns the values of a chunk at an index; None if the chunk does not exist."""
Select = Callable[[Sequence[np.ndarray]], np.ndarray]
"""Returns the values of an array at positions along each of its first axes."""


class Array(NamedTuple):
    """An array of a store: names of its axes, its shape and that of a chunk (cells beyond the array
    are padding), the dtype, and descriptive attributes."""

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
        """The fill value."""
        return EMPTY.get(self.dtype.kind, np.nan)

    def metadata(self) -> dict[str, Any]:
        """Return the array's metadata in zarr's format."""
        kind, width = self.dtype.kind, self.dtype.itemsize
        text = {"name": "fixed_length_utf32", "configuration": {"length_bytes": width}}
        # Single bytes have no order.
        order = {"configuration": {"endian": "little"}} if width > 1 else {}
        return {
            "shape": list(self.shape),
            "data_type": text if kind == "U" else self.dtype.name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(self.chunk)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": FILL[kind],
            # The checksum lets readers without dynsim detect damage too.
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

    def encode(self, values: np.ndarray) -> bytes:
        """Encode values as a chunk, like zarr but in a tenth of the time."""
        chunk = np.full(self.chunk, self.empty, self.dtype)
        chunk[tuple(map(slice, values.shape))] = values
        packed = Zstd(level=LEVEL).encode(chunk.astype(chunk.dtype.newbyteorder("<"), copy=False))
        return packed + checksum(packed)

    def decode(self, chunk: bytes) -> np.ndarray:
        """Decode a chunk; raises `ValueError` if it has the wrong size or is invalid."""
        if decoded_size(chunk) != self.size:
            raise ValueError("its size does not match its array")
        try:
            values = np.frombuffer(Zstd().decode(chunk[:-CHECKSUM]), self.dtype.newbyteorder("<"))
        except RuntimeError as error:
            raise ValueError(str(error)) from None
        return values.reshape(self.chunk).astype(self.dtype, copy=False)

    def assemble(self, files: Mapping[str, bytes], most: int) -> np.ndarray:
        """Decode the whole array from the files of all chunks, each of at most `most` bytes. Raises
        `ValueError` or `LookupError`."""
        if len(files) != self.chunks or self.size > most:
            raise ValueError("its size does not match its array, or is far too large")
        return self.select(
            [np.arange(n) for n in self.shape],
            lambda index: self.decode(files["/".join(("c", *map(str, index)))]),
        )

    def select(
        self, positions: Sequence[np.ndarray], read: ReadChunk, map_chunks: Callable = map
    ) -> np.ndarray:
        """Return the values at positions along each of the first axes; chunks do not divide the
        others. `map_chunks` maps over the chunks, like `map`."""
        inner = self.shape[len(positions) :]
        result = np.full((*map(len, positions), *inner), self.empty, self.dtype)
        # Group the positions along each axis by chunk, so that each chunk is read once: the number
        # of the chunk, their rows in the result, and their offsets in the chunk.
        groups = []
        for along, size in zip(positions, self.chunk, strict=False):
            order = np.argsort(along // size, kind="stable")
            numbers, starts = np.unique(along[order] // size, return_index=True)
            rows = np.split(order, starts[1:])
            chunks = zip(numbers.tolist(), rows, strict=False)
            groups.append([(number, own, along[own] % size) for number, own in chunks])

        def put(parts: Sequence[tuple[int, np.ndarray, np.ndarray]]) -> None:
            if (values := read(tuple(number for number, _, _ in parts))) is not None:
                values = values[np.ix_(*(offsets for _, _, offsets in parts))]
                result[np.ix_(*(rows for _, rows, _ in parts))] = values

        list(map_chunks(put, itertools.product(*groups)))
        return result


class _LazyArray(BackendArray):
    """An array that xarray reads lazily, by positions along each of the first `outer` axes."""

    def __init__(self, array: Array, outer: int, select: Select) -> None:
        self.shape, self.dtype, self.dims = array.shape, array.dtype, array.dims
        self.outer, self.select = outer, select

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        some = indexing.IndexingSupport.OUTER
        return indexing.explicit_indexing_adapter(key, self.shape, some, self._at)

    def _at(self, key: tuple[Any, ...]) -> np.ndarray:
        outer, inner = key[: self.outer], key[self.outer :]
        positions = [
            np.atleast_1d(np.arange(n)[at]) for n, at in zip(self.shape, outer, strict=False)
        ]
        # Axes with a single integer index are dropped.
        rest = [0 if isinstance(at, int | np.integer) else slice(None) for at in outer]
        return xr.Variable(self.dims, self.select(positions))[(*rest, *inner)].to_numpy()


def lazy_variable(array: Array, outer: int, select: Select) -> xr.Variable:
    """Return a variable that xarray reads once, when it is used; see `_LazyArray`."""
    lazy: Any = indexing.LazilyIndexedArray(_LazyArray(array, outer, select))
    cached = indexing.MemoryCachedArray(indexing.CopyOnWriteArray(lazy))
    return xr.Variable(array.dims, cached, array.attributes)


def parse_metadata(metadata: Mapping[str, Any]) -> Array:
    """Parse the metadata of an array; raises an exception of any type if dynsim did not write
    it."""
    kind, dims = metadata["data_type"], tuple(metadata.get("dimension_names", ()))
    shape, chunk = metadata["shape"], metadata["chunk_grid"]["configuration"]["chunk_shape"]
    if isinstance(kind, dict):
        kind = f"U{kind['configuration']['length_bytes'] // 4}"
    elif not NUMBER_TYPES.fullmatch(kind):
        raise ValueError(kind)
    array = Array(dims, tuple(shape), tuple(chunk), np.dtype(kind), metadata["attributes"])
    # All else is as dynsim writes it, so that a store cannot choose a codec. Arrays that are not
    # results, such as axes, get a zero fill value from zarr.
    expected, fill = array.metadata(), metadata["fill_value"]
    valid = (
        metadata == {**expected, "fill_value": fill}
        and fill in (expected["fill_value"], 0, "")
        and len(shape) == len(chunk) == len(dims)
        and all(checks.NAME.fullmatch(dim) for dim in dims)
        and all(type(n) is int for n in (*shape, *chunk))
        and min((0, *shape, *(n - 1 for n in chunk))) >= 0
        and math.prod(shape) <= MOST_RUNS
        and array.chunks <= MOST_CHUNKS
        and array.size <= MOST_BYTES
    )
    if not valid:
        raise ValueError(metadata)
    return array


def decoded_size(chunk: bytes) -> int | None:
    """Return the decoded size that a chunk declares; None without one, unlike dynsim's chunks."""
    if chunk[:4] != b"\x28\xb5\x2f\xfd" or len(chunk) < 6:
        return None
    # RFC 8878, 3.1.1.1: the size field follows a window descriptor and a dictionary id.
    single, width = chunk[4] >> 5 & 1, (0, 2, 4, 8)[chunk[4] >> 6]
    width = width or single
    start = 5 + (1 - single) + (0, 1, 2, 4)[chunk[4] & 3]
    size = int.from_bytes(chunk[start : start + width], "little")
    return (size + 256 if width == 2 else size) if width else None


def checksum(packed: bytes) -> bytes:
    """Return the checksum that follows a chunk, as in zarr's codec `crc32c`."""
    return int(google_crc32c.value(packed)).to_bytes(CHECKSUM, "little")
