"""A place as zarr sees it: verified metadata, and chunks that are there whole or not at all."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import google_crc32c
import numpy as np
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype

from sweeps.runner.store.base import Place, StoreError, Written
from sweeps.runner.store.manifest import CHANGED, Manifest, damaged, missing

CHECKSUM = 4
"""Bytes of a checksum, the last ones of a chunk."""


class Contents(Store):
    """What a place holds, for zarr, which finds an error that names the file in place of a file
    that is damaged.

    Args:
        place: where the files are.
        manifest: what was verified of them.
        dims: number of dimensions of the array of runs.
        complete: the chunks, by the beginnings of their names such as "3/0", that are there, and
            that is all there is: who reads while others write sees no half of a chunk. None for
            whatever is there at the time.
    """

    def __init__(
        self, place: Place, manifest: Manifest, dims: int, complete: frozenset[str] | None = None
    ) -> None:
        super().__init__(read_only=complete is not None)
        self.place, self.manifest, self.dims, self.complete = place, manifest, dims, complete
        self._is_open = True

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    @property
    def supports_writes(self) -> bool:
        """As `Store.supports_writes`."""
        return True

    @property
    def supports_deletes(self) -> bool:
        """As `Store.supports_deletes`."""
        return False

    @property
    def supports_listing(self) -> bool:
        """As `Store.supports_listing`."""
        return True

    def chunk(self, key: str) -> bytes | None:
        """A chunk of results, or of coordinates of a store that is not sealed; None if it is not
        there.

        Raises:
            StoreError: when it is damaged, or is not there though it belongs to a complete chunk.
        """
        array, _, inside = key.partition("/c/")
        recorded = array in self.manifest.attributes["variables"]
        if not recorded and self.manifest.sealed:
            return None
        of = "/".join(inside.split("/")[: self.dims])
        if recorded and self.complete is not None and of not in self.complete:
            return None
        try:
            value = self.place.read(key)
        except self.place.outages as error:
            raise StoreError(f"{self.place.name}: {key} could not be read ({error})") from error
        if not recorded:
            return value
        if value is None and self.complete is not None and self.manifest.sealed:
            again = "Run the sweep again to compute its chunk anew."
            raise StoreError(f"{missing(self.place.name, key)} {again}")
        if value is not None and not whole(value):
            raise StoreError(
                f"{damaged(self.place.name, key, CHANGED)} Delete it and status/c/{of}, and run "
                "the sweep again to compute that chunk anew."
            )
        return value

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """As `Store.get`, of whole files: nothing that dynsim writes is read in parts."""
        assert byte_range is None
        value = self.manifest.files.get(key)
        if value is None and not key.endswith(".json"):
            value = await asyncio.to_thread(self.chunk, key)
        return None if value is None else prototype.buffer.from_bytes(value)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """As `Store.get_partial_values`."""
        return [await self.get(key, prototype, part) for key, part in key_ranges]

    async def exists(self, key: str) -> bool:
        """As `Store.exists`."""
        return key in self.manifest.files or await asyncio.to_thread(self.chunk, key) is not None

    async def set(self, key: str, value: Buffer) -> None:
        """As `Store.set`."""
        self._check_writable()
        await asyncio.to_thread(self.place.write, key, value.to_bytes())

    async def delete(self, key: str) -> None:
        """Nothing is deleted."""
        raise NotImplementedError(key)

    async def list(self) -> AsyncIterator[str]:
        """As `Store.list`, of what was verified."""
        for key in self.manifest.files:
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """As `Store.list_prefix`."""
        async for key in self.list():
            if key.startswith(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """As `Store.list_dir`: what else lies in the folder is not the store's."""
        start = f"{prefix.rstrip('/')}/" if prefix else ""
        inside = (key[len(start) :] for key in self.manifest.files if key.startswith(start))
        for name in dict.fromkeys(key.split("/")[0] for key in inside):
            yield name


def whole(chunk: bytes) -> bool:
    """Whether a chunk has the checksum at its end that it should have."""
    value: Any = google_crc32c.value(chunk[:-CHECKSUM])
    return len(chunk) > CHECKSUM and chunk[-CHECKSUM:] == int(value).to_bytes(CHECKSUM, "little")


def written(
    place: Place, inner: Mapping[str, int], chunks: Sequence[str]
) -> tuple[np.ndarray, list[str]]:
    """Which chunks are complete.

    Args:
        place: where they are.
        inner: number of axes that each recorded array has behind those of the sweep; `status` is
            one of them.
        chunks: the beginnings of their names.

    Returns:
        When each was completed, in seconds since 1970, NaN where it is not; and the files that are
        not there, or are empty, of chunks that have a status.
    """
    # The status first: who completes a chunk meanwhile has written its other files by then.
    status = place.written("status/c", chunks)
    others = [name for name in inner if name != "status"]

    def look(name: str) -> dict[str, Written]:
        own = "/0" * inner[name]
        return place.written(f"{name}/c", [chunk + own for chunk in chunks if chunk in status])

    listed = several(place, look, others)
    times, lacking = np.full(len(chunks), np.nan), []
    for number, chunk in enumerate(chunks):
        if (its := status.get(chunk)) is None:
            continue
        gone = [] if its.size else [f"status/c/{chunk}"]
        for name, files in zip(others, listed, strict=True):
            key = chunk + "/0" * inner[name]
            if key not in files or not files[key].size:
                gone.append(f"{name}/c/{key}")
        lacking += gone
        if not gone:
            times[number] = its.time
    return times, lacking


def several(place: Place, act: Callable[[Any], Any], each: Iterable[Any]) -> list[Any]:
    """What `act` makes of each, several at a time where the place has streams for them."""
    if place.streams == 1:
        return [act(one) for one in each]
    with ThreadPoolExecutor(place.streams) as pool:
        return list(pool.map(act, each))
