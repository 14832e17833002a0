"""Sweeps in buckets of object stores, where writes are atomic and objects cannot be renamed.
Methods are documented in `Storage`.

Objects of a store are put only where none exists. So committed objects stay, however late an
earlier put arrives. Only the holder of the lease may overwrite objects of a chunk without a record,
and only if they have not changed meanwhile.

A sweep begins with its group's zarr.json, which only one creator can put and which has digests of
all other objects of the creation. A process that finds some of them missing and requests the same
sweep puts them, and then the marker.
"""

import contextlib
import datetime
import functools
import json
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, cast

from sweeps.runner.store import (
    GROUP_FILE,
    MARKER,
    MAX_FILE_SIZE,
    RECORDS,
    Report,
    StoreError,
    damaged,
)
from sweeps.runner.store.leases import Lease, StoredObject
from sweeps.runner.store.manifest import SEAL
from sweeps.runner.store.storage import CheckLock, FileInfo, Storage

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutMode, PutResult, UpdateVersion
    from obstore.store import MemoryStore, ObjectStore, RetryConfig

BUCKET_ADDRESS = re.compile(
    r"(?:(s3|gs|az)://([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])|(memory):/)"
    r"((?:/(?!\.\.?(?:/|$))[^/?#%\\\x00-\x1f]+)+)/*"
)
RETRIES: "RetryConfig" = {
    "max_retries": 10,
    "backoff": {
        "init_backoff": datetime.timedelta(milliseconds=100),
        "max_backoff": datetime.timedelta(seconds=15),
        "base": 2,
    },
    "retry_timeout": datetime.timedelta(minutes=3),
}
"""Retries after a server error or a missing response."""
PUT_ATTEMPTS = 5
"""Attempts of a put that the server answers with a conflict although nothing is there."""
MAX_ERROR_LENGTH = 400
"""Maximum characters shown of an obstore error, whose remainder is internal detail."""
EXISTENCE_SECONDS = 1.0
"""Seconds between checks that the store still exists."""
pause = time.sleep


class OutageError(StoreError, OSError):
    """A bucket that cannot be reached, or that responds with an error."""


class Bucket(Storage):
    """A folder in a bucket, with the address scheme://bucket/path or memory://path. All methods
    raise `OutageError` if it cannot be reached, and `StoreError` if the credentials forbid
    access."""

    streams = 16
    durable = True

    def __init__(self, address: str) -> None:
        parts = BUCKET_ADDRESS.fullmatch(address)
        if parts is None:
            raise ValueError(
                f"{address}: must be a folder, or a folder in a bucket: s3://, gs:// or az:// and "
                "BUCKET/PATH, or memory://PATH, with a bucket of lower-case letters, digits and "
                "hyphens and a path without any of ? # % \\; credentials come from the environment"
            )
        self.name = self.address = address
        self.looked, self.path = -EXISTENCE_SECONDS, PurePosixPath(parts[4][1:])
        # Leases are siblings of the store, because zarr warns about foreign objects inside it.
        self.leases = self.path.with_name(f".{self.path.name}.writers")
        try:
            from obstore import exceptions, store
        except ModuleNotFoundError:
            raise StoreError(
                f'{address}: object stores need obstore; pip install "dynsim[cloud]"'
            ) from None
        self.errors = exceptions
        self.conflicts = exceptions.AlreadyExistsError, exceptions.PreconditionError
        kinds = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}
        with self.translated_errors():
            kind = kinds.get(parts[1])
            self.bucket: ObjectStore = kind(parts[2], retry_config=RETRIES) if kind else _memory()

    def vacant(self) -> bool:
        if (group := self.read(GROUP_FILE)) is None:
            return next(self.listed(f"{self.path}/"), None) is None
        try:
            store, _ = _id_and_digests(group)
        except (ValueError, LookupError, TypeError):
            return False
        return self.read(f"{RECORDS}{store}/{MARKER}") is None

    def create(self, files: Mapping[str, bytes]) -> None:
        self.check_conditions()
        *others, marker = (key for key in files if key != GROUP_FILE)
        is_first = self.swap(self._key(GROUP_FILE), files[GROUP_FILE], None) is not None
        if not is_first:
            try:
                store, digests = _id_and_digests(self.read(GROUP_FILE) or b"")
            except (ValueError, LookupError, TypeError):
                raise StoreError(
                    f"{self.name}: holds something other than a sweep of dynsim ({GROUP_FILE})"
                ) from None
            if digests != _id_and_digests(files[GROUP_FILE])[1]:
                raise FileExistsError(f"{self.name}: another process is creating a sweep here")
            # Complete the creation of the same sweep, which may have been interrupted.
            marker = f"{RECORDS}{store}/{MARKER}"

        def put(key: str) -> None:
            if self.swap(self._key(key), files.get(key, b""), None) is None:
                raise StoreError(f"{self.name}: holds something other than a sweep ({key})")

        self.map(put, others)
        put(marker)
        if not is_first:
            raise FileExistsError(f"{self.name}: has been made by another process")

    def read(self, key: str, most: int = MAX_FILE_SIZE) -> bytes | None:
        stored = self.look(self._key(key), most)
        return stored and stored.value

    def files(self, folder: str = "") -> dict[str, FileInfo]:
        start = f"{self.path / folder}/"
        return {
            meta["path"].removeprefix(start): FileInfo(
                meta["last_modified"].timestamp(), meta["size"]
            )
            for meta in self.listed(start)
        }

    def record_folders(self) -> list[str]:
        start, _, prefix = RECORDS.rpartition("/")
        with self.translated_errors():
            paths = self.bucket.list_with_delimiter(f"{self._key(start)}/")["common_prefixes"]
        names = (PurePosixPath(path).name for path in paths)
        return [f"{start}/{name}" for name in names if name.startswith(prefix)]

    def commit(
        self, number: int, files: Mapping[str, bytes], record: bytes, check_lock: CheckLock
    ) -> bool:
        record_key = self._key(f"{self.records}/{number}.json")

        def put(name: str) -> bool:
            key, value = self._key(name), files[name]
            while self.swap(key, value, None) is None:
                # An object without a record is of a writer that died. Only the holder of the lease
                # may replace it, and only this version, as the other one may still commit it.
                left = self.look(key)
                check_lock()
                if self.look(record_key) is not None:
                    return False
                if left and self.swap(key, value, left.version) is not None:
                    break
            return True

        if not all(self.map(put, files)):
            return False
        check_lock()
        return self.swap(record_key, record, None) is not None

    def put(self, key: str, value: bytes) -> bool:
        return self.swap(self._key(key), value, None) is not None

    def remove(self, key: str) -> None:
        with self.translated_errors(), contextlib.suppress(FileNotFoundError):
            self.bucket.delete(self._key(key))

    def check_exists(self) -> None:
        if time.monotonic() - self.looked > EXISTENCE_SECONDS:
            if self.read(f"{self.records}/{MARKER}") is None:
                raise self.moved()
            self.looked = time.monotonic()

    @contextlib.contextmanager
    def lock(self, process: int, processes: int, report: Report | None) -> Iterator[CheckLock]:
        # A lease, which expires by itself when its holder dies.
        group = f"-of-{processes}"
        own = Lease(self, f"{self.leases}/{process}{group}")
        own.take(report)
        with own.keep_alive():
            # Writers that divide the chunks differently would compute the same ones.
            for meta in list(self.listed(f"{self.leases}/")):
                if not meta["path"].endswith(group):
                    other = Lease(self, meta["path"])
                    other.take(report)
                    other.release()
            self.fence = own.token
            yield own.check

    def watch(self, fence: str) -> CheckLock:
        lease = Lease(self, f"{self.leases}/0-of-1")
        return lambda: lease.require(fence)

    def _key(self, key: str) -> str:
        return f"{self.path}/{key}"

    def look(self, key: str, most: int = MAX_FILE_SIZE) -> StoredObject | None:
        """Read the object `key`, limited to `most` bytes; None if it does not exist."""
        with self.translated_errors(), contextlib.suppress(FileNotFoundError):
            response = self.bucket.get(key)
            if response.meta["size"] > most:
                raise damaged(self.name, key, "it is far too large")
            value = bytes(response.bytes())
            # No file of a store begins like this.
            if value.lstrip()[:1] == b"<":
                raise OutageError(
                    f"{self.name}: cannot be reached ({key} returns a web page, as from a proxy "
                    "or a sign-in; check the address and the network)"
                )
            return StoredObject(value, _version(response.meta))
        return None

    def check_conditions(self) -> None:
        """Raise `StoreError` if the server ignores conditions of puts."""
        # An object that no other process uses.
        probe = f".{self.path.name}.probe-{uuid.uuid4().hex}"
        key, mode = str(self.path.with_name(probe)), cast("PutMode", "create")
        try:
            for condition in ("If-None-Match", "If-Match"):
                # After a lost response, a retried first put also fails, but not the second.
                for value, is_met in ((b"1", True), (b"2", False)):
                    with self.translated_errors(), contextlib.suppress(*self.conflicts):
                        content = condition.encode() + value
                        self.bucket.put(key, content, mode=mode, use_multipart=False)
                        if not is_met:
                            raise StoreError(
                                f"{self.name}: the server ignores the condition {condition} of a "
                                "put, so that two writers could overwrite each other; use a bucket "
                                "of another server, or a folder"
                            )
                if stored := self.look(key):
                    mode = stored.version
        finally:
            with self.translated_errors(), contextlib.suppress(FileNotFoundError):
                self.bucket.delete(key)

    def swap(
        self, key: str, value: bytes, version: "UpdateVersion | None"
    ) -> "UpdateVersion | None":
        """Put `value` if no object exists or, with a `version`, if that is unchanged. Returns the
        version put, or None if another object is there. That may have replaced `value` already, if
        several processes change an object without waiting for each other."""
        with self.translated_errors():
            for attempt in range(PUT_ATTEMPTS):
                try:
                    # A single request: conditions do not apply to multipart uploads.
                    mode = version or "create"
                    return _version(self.bucket.put(key, value, mode=mode, use_multipart=False))
                except (self.errors.BaseError, FileNotFoundError) as error:
                    # After a lost response the request is retried and fails because of its own
                    # success. So the content decides: no two processes put the same content.
                    stored = self.look(key)
                    if stored is not None and stored.value == value:
                        return stored.version
                    is_gone = version is not None and isinstance(error, FileNotFoundError)
                    has_changed = (stored and stored.version) != version
                    if has_changed and (is_gone or isinstance(error, self.conflicts)):
                        return None
                    # Servers also respond like this during another request for the key.
                    if not isinstance(error, self.conflicts) or attempt == PUT_ATTEMPTS - 1:
                        raise
                    pause(0.1 * 2**attempt)

    def listed(self, folder: str) -> Iterator["ObjectMeta"]:
        """Yield keys (`path`), times (`last_modified`) and sizes of the objects below a folder."""
        with self.translated_errors():
            for batch in self.bucket.list(folder):
                yield from batch

    @contextlib.contextmanager
    def translated_errors(self) -> Iterator[None]:
        """Convert obstore errors to store errors, except for missing or existing objects."""
        try:
            yield
        except (self.errors.BaseError, FileNotFoundError) as error:
            shown = str(error).splitlines()[0][:MAX_ERROR_LENGTH]
            forbidden = self.errors.PermissionDeniedError, self.errors.UnauthenticatedError
            if isinstance(error, forbidden):
                raise StoreError(
                    f"{self.name}: is read-only, or may not be read, with the credentials of this "
                    f"environment ({shown})"
                ) from error
            raise OutageError(f"{self.name}: cannot be reached ({shown})") from error


def _id_and_digests(group: bytes) -> tuple[str, Any]:
    """Return the id of a store and the digests of its files; other content raises exceptions."""
    attributes = json.loads(group)["attributes"]
    return attributes["store"], attributes[SEAL]["files"]


@functools.cache
def _memory() -> "MemoryStore":
    """Return the single in-memory bucket of this process."""
    from obstore.store import MemoryStore

    return MemoryStore()


def _version(answer: "PutResult | ObjectMeta") -> "UpdateVersion":
    # A store without generations returns None, which it does not accept as input.
    parts = {"e_tag": answer["e_tag"], "version": answer["version"]}
    return cast("UpdateVersion", {name: x for name, x in parts.items() if x is not None})
