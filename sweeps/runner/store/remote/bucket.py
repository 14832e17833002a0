"""Sweeps in buckets of object stores, where an object appears whole and nothing can be renamed.
What methods do is said in `Place`.

Each object of a store is put where none is. So what has been committed stays, however late a put
arrives that was sent before. Over what a chunk without a record has left, the holder of the lease
puts its own, if it has not changed since.

A sweep begins with its group's zarr.json, which one creator alone can put, and which says what all
other objects of the creation hold: whoever finds some of them missing and asks for the same sweep
puts them, and then the marker.
"""

import contextlib
import json
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from sweeps.runner.store.base import (
    GROUP,
    LARGEST,
    MARKER,
    RECORDS,
    Check,
    Place,
    Report,
    StoreError,
    Written,
)
from sweeps.runner.store.manifest import SEAL
from sweeps.runner.store.remote.lease import Lease
from sweeps.runner.store.remote.objects import Objects

OFTEN = 1.0
"""Seconds after which a writer looks again whether its store is still there."""


class Bucket(Place):
    """A folder in a bucket, of which `Objects` takes the address."""

    streams = 16
    durable = True

    def __init__(self, address: str) -> None:
        self.objects = Objects(address)
        self.name = self.address = address
        self.seen = -OFTEN
        self.path = PurePosixPath(self.objects.path)
        # Beside the store, because zarr warns of objects in it that are not its own.
        self.writers = self.path.with_name(f".{self.path.name}.writers")

    def vacant(self) -> bool:
        if (found := self.read(GROUP)) is not None:
            with contextlib.suppress(ValueError, LookupError, TypeError):
                marker = f"{RECORDS}{_about(found)['store']}/{MARKER}"
                return self.read(marker) is None
        return next(self.objects.list(f"{self.path}/"), None) is None

    def create(self, files: Mapping[str, bytes]) -> None:
        probe = f".{self.path.name}.probe-{uuid.uuid4().hex}"
        self.objects.check_conditions(str(self.path.with_name(probe)))
        *others, marker = (key for key in files if key != GROUP)
        first = self.objects.swap(self._key(GROUP), files[GROUP], None) is not None
        if not first:
            group = self.read(GROUP)
            try:
                there = _about(group or b"")
            except (ValueError, LookupError, TypeError):
                raise StoreError(
                    f"{self.name}: holds something other than a sweep of dynsim ({GROUP})"
                ) from None
            if there[SEAL]["files"] != _about(files[GROUP])[SEAL]["files"]:
                raise FileExistsError(f"{self.name}: another process makes a sweep here")
            marker = f"{RECORDS}{there['store']}/{MARKER}"

        def put(key: str) -> None:
            if self.objects.swap(self._key(key), files.get(key, b""), None) is None:
                raise StoreError(f"{self.name}: holds something other than a sweep ({key})")

        self.several(put, others)
        put(marker)
        if not first:
            raise FileExistsError(f"{self.name}: has been made by another process")

    def read(self, key: str, most: int = LARGEST) -> bytes | None:
        found = self.objects.look(self._key(key), most)
        return found and found.value

    def files(self, folder: str = "") -> dict[str, Written]:
        start = f"{self.path / folder}/"
        return {
            each["path"].removeprefix(start): Written(
                each["last_modified"].timestamp(), each["size"]
            )
            for each in self.objects.list(start)
        }

    def stores(self) -> list[str]:
        start, _, name = RECORDS.rpartition("/")
        inside = (PurePosixPath(each).name for each in self.objects.folders(self._key(start)))
        return [f"{start}/{each}" for each in inside if each.startswith(name)]

    def commit(self, number: int, files: Mapping[str, bytes], record: bytes, check: Check) -> bool:
        committed = self._key(f"{self.records}/{number}.json")

        def put(key: str) -> bool:
            target, value = self._key(key), files[key]
            while self.objects.swap(target, value, None) is None:
                left = self.objects.look(target)
                check()
                if self.objects.look(committed) is not None:
                    return False
                if left and self.objects.swap(target, value, left.version) is not None:
                    break
            return True

        if not all(self.several(put, files)):
            return False
        check()
        return self.objects.swap(committed, record, None) is not None

    def put(self, key: str, value: bytes) -> bool:
        return self.objects.swap(self._key(key), value, None) is not None

    def remove(self, key: str) -> None:
        self.objects.remove(self._key(key))

    def own(self) -> None:
        if time.monotonic() - self.seen > OFTEN:
            if self.read(f"{self.records}/{MARKER}") is None:
                raise self.gone()
            self.seen = time.monotonic()

    @contextlib.contextmanager
    def lock(self, process: int, processes: int, report: Report | None) -> Iterator[Check]:
        # A lease, which ends by itself when its holder dies.
        share = f"-of-{processes}"
        mine = self._lease(f"{process}{share}")
        mine.take(report)
        with mine.kept():
            for each in list(self.objects.list(f"{self.writers}/")):
                if not each["path"].endswith(share):
                    other = self._lease(PurePosixPath(each["path"]).name)
                    other.take(report)
                    other.release()
            self.fence = mine.token
            yield mine.check

    def watch(self, fence: str) -> Check:
        lease = self._lease("0-of-1")
        return lambda: lease.require(fence)

    def _key(self, key: str) -> str:
        return f"{self.path}/{key}"

    def _lease(self, writer: str) -> Lease:
        return Lease(self.objects, f"{self.writers}/{writer}")


def _about(group: bytes) -> dict:
    """The attributes of a group, such as a store has; an error of any kind for others."""
    found = json.loads(group)["attributes"]
    return {"store": found["store"], SEAL: {"files": found[SEAL]["files"]}}
