"""A store as zarr reads it: verified metadata, and chunks that are there whole or not at all."""

import asyncio
import contextlib
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import google_crc32c
import numpy as np
import zarr
from numcodecs.zstd import Zstd
from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, cpu
from zarr.storage import MemoryStore, WrapperStore

LEVEL, CHECKSUM = 3, 4
"""Of compression; and the bytes of the checksum at the end of a chunk."""
Chunk = Callable[[str], bytes | None]
"""What a file of a chunk holds, by its name; None for one that is not there."""


class Contents(WrapperStore[MemoryStore]):
    """What zarr is given to read: what else lies in the folder is not the store's.

    Args:
        store: the verified files.
        chunk: reads those of chunks, or raises `StoreError` for one that is damaged.
    """

    def __init__(self, store: MemoryStore, chunk: Chunk = lambda key: None) -> None:
        super().__init__(store)
        self.chunk = chunk

    def _with_store(self, store: MemoryStore) -> "Contents":
        return Contents(store, self.chunk)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """As `Store.get`, of whole files: nothing that dynsim writes is read in parts."""
        found = await super().get(key, prototype)
        if found is not None or key.endswith(".json"):
            return found
        value = await asyncio.to_thread(self.chunk, key)
        return None if value is None else prototype.buffer.from_bytes(value)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """As `Store.list_dir`, in the order of the files."""
        start = f"{prefix.rstrip('/')}/" if prefix else ""
        inside = [key[len(start) :] async for key in self.list_prefix(start)]
        for name in dict.fromkeys(key.split("/")[0] for key in inside):
            yield name


@contextlib.contextmanager
def with_words() -> Iterator[None]:
    """A context in which zarr writes words without a warning: their type is in its format, where it
    is called unstable."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The data type .* does not have a Zarr V3", FutureWarning)
        yield


def in_memory(files: Mapping[str, bytes]) -> dict[str, Buffer]:
    """Files as zarr keeps them in memory."""
    return {key: cpu.Buffer.from_bytes(value) for key, value in files.items()}


def encoded(array: zarr.Array, values: np.ndarray) -> bytes:
    """Values as a chunk of an array: what zarr makes of them, in a tenth of the time."""
    chunk = np.full(array.chunks, array.fill_value, array.dtype)
    chunk[tuple(map(slice, values.shape))] = values
    packed = Zstd(level=LEVEL).encode(chunk.astype(chunk.dtype.newbyteorder("<"), copy=False))
    return packed + checksum(packed)


def checksum(packed: bytes) -> bytes:
    """What follows a chunk, as zarr's codec `crc32c` has it."""
    return int(google_crc32c.value(packed)).to_bytes(CHECKSUM, "little")
