"""Sweeps in buckets of object stores, where an object appears whole and nothing can be renamed.

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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from sweeps.runner.store.base import (
    GROUP,
    LARGEST,
    MARKER,
    RECORDS,
    Check,
    Place,
    Report,
    StoreError,
)
from sweeps.runner.store.manifest import SEAL
from sweeps.runner.store.remote.lease import FREE, Lease
from sweeps.runner.store.remote.objects import Objects

OFTEN = 1.0
"""Seconds after which a writer looks again whether its store is still there."""


class Bucket(Place):
    """A folder in a bucket.

    Args:
        address: scheme://bucket/path, or memory://path for one in the memory of this process.

    Raises:
        ValueError: for an address that cannot be one.
        StoreError: when obstore is not installed or knows of something that is missing.
    """

    streams = 16
    outages = (OSError,)
    durable = True

    def __init__(self, address: str) -> None:
        self.name = self.address = address
        self.seen = -OFTEN
        try:
            with self._reached():
                self.objects = Objects(address)
        except ModuleNotFoundError:
            raise StoreError(
                f'{address}: object stores need obstore; pip install "dynsim[cloud]"'
            ) from None
        self.path = PurePosixPath(self.objects.path)

    def exists(self) -> bool:
        """Whether any object is there."""
        with self._reached():
            there = self.read(GROUP) or next(self.objects.list(f"{self.path}/"), None)
        return there is not None

    def vacant(self) -> bool:
        """Whether none is, or only those of a creation that was not ended."""
        with self._reached(), contextlib.suppress(ValueError, LookupError, TypeError):
            if (found := self.read(GROUP)) is not None:
                return self.read(f"{RECORDS}{_about(found)['store']}/{MARKER}") is None
        return not self.exists()

    def create(self, files: Mapping[str, bytes]) -> None:
        """Put the group, the other files, and then the marker; or those that are missing of the
        same creation.

        Raises:
            FileExistsError: when another process has made one, or has begun to.
            StoreError: when the bucket cannot be written, or holds something else.
        """
        marker = next(key for key in files if key.endswith(f"/{MARKER}"))
        others = [key for key in files if key not in (GROUP, marker)]
        with self._reached():
            first = self.objects.swap(self._key(GROUP), files[GROUP], None) is not None
            if not first:
                there = _about(self.read(GROUP) or b"{}")
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
        """What an object holds."""
        found = self.objects.look(self._key(key), most)
        return found and found.value

    def files(self, folder: str) -> dict[str, float]:
        """By what the bucket says about its objects, a thousand of which are one request."""
        start = self._key(f"{folder}/")
        with self._reached():
            found = list(self.objects.list(start))
        return {m["path"].removeprefix(start): m["last_modified"].timestamp() for m in found}

    def stores(self) -> list[str]:
        """Prefixes of that name."""
        start, _, name = RECORDS.rpartition("/")
        with self._reached():
            found = self.objects.folders(self._key(start))
        inside = (PurePosixPath(each).name for each in found)
        return [f"{start}/{each}" for each in inside if each.startswith(name)]

    def lacking(self, keys: Iterable[str]) -> set[str]:
        """By a list of all objects."""
        with self._reached():
            sizes = {each["path"]: each["size"] for each in self.objects.list(f"{self.path}/")}
        return {key for key in keys if not sizes.get(self._key(key))}

    def commit(self, number: int, files: Mapping[str, bytes], record: bytes, check: Check) -> bool:
        """Put the files where none are, and over those that no record speaks of; then the record,
        where none is."""
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

    def remove(self, key: str) -> None:
        """Delete it."""
        with self._reached():
            self.objects.remove(self._key(key))

    def own(self) -> None:
        """By the marker, now and then."""
        if time.monotonic() - self.seen > OFTEN:
            if self.read(f"{self.records}/{MARKER}") is None:
                raise self.gone()
            self.seen = time.monotonic()

    @contextlib.contextmanager
    def lock(self, process: int, processes: int, report: Report | None) -> Iterator[Check]:
        """Be a writer by a lease, which ends by itself when this process dies."""
        share = f"-of-{processes}"
        mine = self._lease(f"{process}{share}")
        with self._reached():
            try:
                mine.take(report)
            except PermissionError as error:
                raise StoreError(
                    f"{self.name}: is read-only, so the sweep cannot go on here ({error})"
                ) from None
        with mine.kept():
            with self._reached():
                for each in list(self.objects.list(f"{self._writers()}/")):
                    if not each["path"].endswith(share):
                        other = self._lease(PurePosixPath(each["path"]).name)
                        other.take(report)
                        other.end(FREE)
            self.fence = mine.token
            yield mine.check

    def watch(self, fence: str) -> Check:
        """By a look at the lease of the driver."""
        lease = self._lease("0-of-1")
        return lambda: lease.require(fence)

    def beside(self, suffix: str) -> Path:
        """A file in the current folder."""
        return Path(self.path.name).with_suffix(suffix)

    def _key(self, key: str) -> str:
        return f"{self.path}/{key}"

    def _writers(self) -> PurePosixPath:
        # Beside the store, because zarr warns of objects in it that are not its own.
        return self.path.with_name(f".{self.path.name}.writers")

    def _lease(self, writer: str) -> Lease:
        return Lease(self.objects, f"{self._writers()}/{writer}", self.name)

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        """Turn errors of the bucket, but not what is or is not in it, into those of the store."""
        try:
            yield
        except PermissionError as error:
            raise StoreError(
                f"{self.name}: may not be read or written with the credentials of this "
                f"environment ({error})"
            ) from error
        except (FileExistsError, FileNotFoundError):
            raise
        except OSError as error:
            raise StoreError(f"{self.name}: cannot be reached ({error})") from error


def _about(group: bytes) -> dict:
    """The attributes of a group."""
    return json.loads(group)["attributes"]
