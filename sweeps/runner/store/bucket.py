"""Sweeps in buckets of object stores, where writes are atomic and objects cannot be renamed.
Methods are documented in `Place`.

Objects of a store are put only where none exists. So committed objects stay, however late an
earlier put arrives. Only the holder of the lease may overwrite objects of a chunk without a record,
and only if they have not changed meanwhile.

A sweep begins with its group's zarr.json, which only one creator can put and which has digests of
all other objects of the creation. A process that finds some of them missing and requests the same
sweep puts them, and then the marker.

A lease is an object that only its holder rewrites, three times per duration. Another process
watches it with its own monotonic clock: if the object has not changed for its duration, the holder
is dead, or has been paused and will find its lease lost. Clocks of different machines are never
compared.
"""

import contextlib
import datetime
import functools
import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from sweeps.runner.progress import say
from sweeps.runner.store import GROUP, LARGEST, MARKER, RECORDS, Report, StoreError, damaged
from sweeps.runner.store.manifest import SEAL
from sweeps.runner.store.place import Check, Place, Written

if TYPE_CHECKING:
    from obstore import ObjectMeta, UpdateVersion
    from obstore.store import RetryConfig

ADDRESS = re.compile(
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
TRIES = 5
"""Attempts of a put that the server answers with a conflict although nothing is there."""
MOST_SHOWN = 400
"""Maximum characters shown of an obstore error, whose remainder is internal detail."""
SECONDS = 60.0
"""Duration of this process's leases."""
LONGEST = 600.0
"""Maximum duration of any lease to wait for."""
FREE = b'{"dynsim_lease": null}'
"""Content of a released lease. It is not deleted, because deletes are unconditional: a process that
had been paused could delete its successor's lease."""
OFTEN = 1.0
"""Seconds between checks that the store still exists."""
clock, pause = time.monotonic, time.sleep


class OutageError(StoreError, OSError):
    """A bucket that cannot be reached, or that responds with an error."""


class StoredObject(NamedTuple):
    """An object's content, and its version for conditional puts."""

    value: bytes
    version: "UpdateVersion"


class Terms(NamedTuple):
    """The holder of a lease, its duration in seconds after each renewal, and its token."""

    owner: str
    seconds: float
    token: str


class Lease:
    """A lease on the object `key` of a bucket; not held until `take`."""

    def __init__(self, bucket: "Bucket", key: str) -> None:
        self.bucket, self.key = bucket, key
        self.token = uuid.uuid4().hex
        self.renewals, self.renewed = 0, -SECONDS
        self.held = False
        self.turn = threading.Lock()

    def take(self, report: Report | None = None) -> None:
        """Acquire the lease, waiting until an earlier holder proves dead. Raises `StoreError` if
        that is alive, or the object is something else."""
        found = self.bucket.look(self.key)
        if held := terms(found, self.key):
            line = f"waiting up to {held.seconds:g} s for the lease of {held.owner} to expire"
            (report or say)(f"{self.bucket.name}: {line}")
            end = clock() + held.seconds
            while clock() < end:
                pause(min(1.0, held.seconds / 20))
                if (now := self.bucket.look(self.key)) != found:
                    found = now
                    if changed := terms(now, self.key):
                        raise self._taken(changed.owner)
                    break
        self.renewed = clock()
        self.version = self.bucket.swap(self.key, self._words(), found and found.version)
        if self.version is None:
            raise self._taken("which was faster")
        self.held = True

    def renew(self) -> None:
        with self.turn:
            if self.held:
                self.renewals += 1
                # Before the request, so the lease never seems to last longer here than to others.
                now = clock()
                self.version = self.bucket.swap(self.key, self._words(), self.version)
                self.held, self.renewed = self.version is not None, now

    def check(self) -> None:
        """Raise `StoreError` unless the lease is held."""
        if clock() - self.renewed > SECONDS / 2:
            # A renewal is overdue: this process may have been paused for longer than its lease.
            self.renew()
        if not self.held:
            raise self._lost()

    def require(self, token: str) -> None:
        """Raise `StoreError` unless this token's holder had the lease at the last recent look."""
        if clock() - self.renewed > SECONDS / 6:
            found = terms(self.bucket.look(self.key), self.key)
            if found is None or found.token != token:
                raise self._lost()
            self.renewed = clock()

    def release(self) -> None:
        with self.turn:
            if self.held:
                self.bucket.swap(self.key, FREE, self.version)
                self.held = False

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Renew the lease while the block runs, then release it."""
        over = threading.Event()

        def keep() -> None:
            while self.held and not over.wait(SECONDS / 3):
                # This may be a short outage; `check` tries again in time.
                with contextlib.suppress(OSError):
                    self.renew()

        thread = threading.Thread(target=keep, daemon=True, name=f"lease of {self.key}")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            # An unreleased lease expires by itself; this must not hide an error of the block.
            with contextlib.suppress(OSError):
                self.release()

    def _words(self) -> bytes:
        owner = f"{socket.gethostname()}:{os.getpid()}"
        about = {**Terms(owner, SECONDS, self.token)._asdict(), "renewals": self.renewals}
        return json.dumps({"dynsim_lease": about}).encode()

    def _taken(self, owner: str) -> StoreError:
        name = self.bucket.name
        return StoreError(f"{name}: another process is writing here ({owner}; {self.key})")

    def _lost(self) -> StoreError:
        return StoreError(
            f"{self.bucket.name}: this process was paused for longer than its lease, and another "
            "one writes here instead, from the finished chunks on. Nothing is lost."
        )


def terms(found: StoredObject | None, key: str) -> Terms | None:
    """Return the terms of a held lease, None if free; `StoreError` if the object is no lease."""
    try:
        about = found and json.loads(found.value)["dynsim_lease"]
        # Limits the wait, whoever wrote the object.
        return about and Terms(
            str(about["owner"]), min(float(about["seconds"]), LONGEST), str(about["token"])
        )
    except (ValueError, LookupError, TypeError):
        raise StoreError(f"{key}: is not a lease of dynsim") from None


class Bucket(Place):
    """A folder in a bucket, with the address scheme://bucket/path or memory://path. All methods
    raise `OutageError` if it cannot be reached, and `StoreError` if the credentials forbid
    access."""

    streams = 16
    durable = True

    def __init__(self, address: str) -> None:
        found = ADDRESS.fullmatch(address)
        if found is None:
            raise ValueError(
                f"{address}: must be a folder, or a folder in a bucket: s3://, gs:// or az:// and "
                "BUCKET/PATH, or memory://PATH, with a bucket of lower-case letters, digits and "
                "hyphens and a path without any of ? # % \\; credentials come from the environment"
            )
        self.name = self.address = address
        self.seen, self.path = -OFTEN, PurePosixPath(found[4][1:])
        # Beside the store, because zarr warns about foreign objects inside it.
        self.writers = self.path.with_name(f".{self.path.name}.writers")
        try:
            from obstore import exceptions, store
        except ModuleNotFoundError:
            raise StoreError(
                f'{address}: object stores need obstore; pip install "dynsim[cloud]"'
            ) from None
        self.errors = exceptions
        self.lost = exceptions.AlreadyExistsError, exceptions.PreconditionError
        kinds = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}
        with self.reached():
            scheme = kinds.get(found[1])
            self.bucket: Any = scheme(found[2], retry_config=RETRIES) if scheme else _memory()

    def vacant(self) -> bool:
        if (found := self.read(GROUP)) is not None:
            with contextlib.suppress(ValueError, LookupError, TypeError):
                marker = f"{RECORDS}{_about(found)['store']}/{MARKER}"
                return self.read(marker) is None
        return next(self.listed(f"{self.path}/"), None) is None

    def create(self, files: Mapping[str, bytes]) -> None:
        probe = f".{self.path.name}.probe-{uuid.uuid4().hex}"
        self.check_conditions(str(self.path.with_name(probe)))
        *others, marker = (key for key in files if key != GROUP)
        first = self.swap(self._key(GROUP), files[GROUP], None) is not None
        if not first:
            group = self.read(GROUP)
            try:
                there = _about(group or b"")
            except (ValueError, LookupError, TypeError):
                raise StoreError(
                    f"{self.name}: holds something other than a sweep of dynsim ({GROUP})"
                ) from None
            if there[SEAL]["files"] != _about(files[GROUP])[SEAL]["files"]:
                raise FileExistsError(f"{self.name}: another process is creating a sweep here")
            marker = f"{RECORDS}{there['store']}/{MARKER}"

        def put(key: str) -> None:
            if self.swap(self._key(key), files.get(key, b""), None) is None:
                raise StoreError(f"{self.name}: holds something other than a sweep ({key})")

        self.several(put, others)
        put(marker)
        if not first:
            raise FileExistsError(f"{self.name}: has been made by another process")

    def read(self, key: str, most: int = LARGEST) -> bytes | None:
        found = self.look(self._key(key), most)
        return found and found.value

    def files(self, folder: str = "") -> dict[str, Written]:
        start = f"{self.path / folder}/"
        return {
            each["path"].removeprefix(start): Written(
                each["last_modified"].timestamp(), each["size"]
            )
            for each in self.listed(start)
        }

    def stores(self) -> list[str]:
        start, _, name = RECORDS.rpartition("/")
        with self.reached():
            found = self.bucket.list_with_delimiter(f"{self._key(start)}/")["common_prefixes"]
        inside = (PurePosixPath(each).name for each in found)
        return [f"{start}/{each}" for each in inside if each.startswith(name)]

    def commit(self, number: int, files: Mapping[str, bytes], record: bytes, check: Check) -> bool:
        committed = self._key(f"{self.records}/{number}.json")

        def put(key: str) -> bool:
            target, value = self._key(key), files[key]
            while self.swap(target, value, None) is None:
                left = self.look(target)
                check()
                if self.look(committed) is not None:
                    return False
                if left and self.swap(target, value, left.version) is not None:
                    break
            return True

        if not all(self.several(put, files)):
            return False
        check()
        return self.swap(committed, record, None) is not None

    def put(self, key: str, value: bytes) -> bool:
        return self.swap(self._key(key), value, None) is not None

    def remove(self, key: str) -> None:
        self.delete(self._key(key))

    def own(self) -> None:
        if time.monotonic() - self.seen > OFTEN:
            if self.read(f"{self.records}/{MARKER}") is None:
                raise self.gone()
            self.seen = time.monotonic()

    @contextlib.contextmanager
    def lock(self, process: int, processes: int, report: Report | None) -> Iterator[Check]:
        # A lease, which expires by itself when its holder dies.
        share = f"-of-{processes}"
        mine = self._lease(f"{process}{share}")
        mine.take(report)
        with mine.kept():
            for each in list(self.listed(f"{self.writers}/")):
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
        return Lease(self, f"{self.writers}/{writer}")

    def look(self, key: str, most: int = LARGEST) -> StoredObject | None:
        """Read the object `key`, limited to `most` bytes; None if it does not exist."""
        with self.reached(), contextlib.suppress(FileNotFoundError):
            got = self.bucket.get(key)
            if got.meta["size"] > most:
                raise damaged(self.name, key, "it is far too large")
            value = bytes(got.bytes())
            # No file of a store begins like this.
            if value.lstrip()[:1] == b"<":
                raise OutageError(
                    f"{self.name}: cannot be reached ({key} returns a web page, as from a proxy "
                    "or a sign-in; check the address and the network)"
                )
            return StoredObject(value, _version(got.meta))
        return None

    def delete(self, key: str) -> None:
        """Delete the object `key`, if it exists."""
        with self.reached(), contextlib.suppress(FileNotFoundError):
            self.bucket.delete(key)

    def check_conditions(self, key: str) -> None:
        """Raise `StoreError` if the server ignores conditions of puts. It tests them with an object
        `key` that only this caller uses, and deletes it."""
        version: Any = "create"
        try:
            for condition in ("If-None-Match", "If-Match"):
                # After a lost response, a retried first put also fails, but not the second.
                for value, obeys in ((b"1", True), (b"2", False)):
                    with self.reached(), contextlib.suppress(*self.lost):
                        content = condition.encode() + value
                        self.bucket.put(key, content, mode=version, use_multipart=False)
                        if not obeys:
                            raise StoreError(
                                f"{self.name}: the server ignores the condition {condition} of a "
                                "put, so that two writers could overwrite each other; use a bucket "
                                "of another server, or a folder"
                            )
                if (found := self.look(key)) is not None:
                    version = found.version
        finally:
            self.delete(key)

    def swap(self, key: str, value: bytes, version: "UpdateVersion | None") -> Any:
        """Put `value` if no object exists or, if `version` is given, if that is unchanged. Returns
        the version put, or None if another object is there. That may have replaced `value` already,
        if several processes change an object without waiting for each other."""
        with self.reached():
            for wait in range(TRIES):
                try:
                    # A single request: conditions do not apply to multipart uploads.
                    mode = version or "create"
                    return _version(self.bucket.put(key, value, mode=mode, use_multipart=False))
                except (self.errors.BaseError, FileNotFoundError) as error:
                    # After a lost response the request is retried and fails because of its own
                    # success. So the content decides: no two processes put the same content.
                    found = self.look(key)
                    if found is not None and found.value == value:
                        return found.version
                    gone = version is not None and isinstance(error, FileNotFoundError)
                    changed = (found and found.version) != version
                    if changed and (gone or isinstance(error, self.lost)):
                        return None
                    # Servers also respond like this during another request for the key.
                    if not isinstance(error, self.lost) or wait == TRIES - 1:
                        raise
                    pause(0.1 * 2**wait)

    def listed(self, folder: str) -> Iterator["ObjectMeta"]:
        """Yield keys (`path`), times (`last_modified`) and sizes of the objects below a folder."""
        with self.reached():
            for batch in self.bucket.list(folder):
                yield from batch

    @contextlib.contextmanager
    def reached(self) -> Iterator[None]:
        """Convert obstore errors to store errors, except for missing or existing objects."""
        try:
            yield
        except (self.errors.PermissionDeniedError, self.errors.UnauthenticatedError) as error:
            raise StoreError(
                f"{self.name}: is read-only, or may not be read, with the credentials of this "
                f"environment ({_shown(error)})"
            ) from error
        except (self.errors.BaseError, FileNotFoundError) as error:
            raise OutageError(f"{self.name}: cannot be reached ({_shown(error)})") from error


def _about(group: bytes) -> dict:
    """Return the attributes of a store's group; raises various exceptions for other content."""
    found = json.loads(group)["attributes"]
    return {"store": found["store"], SEAL: {"files": found[SEAL]["files"]}}


@functools.cache
def _memory() -> Any:
    """Return the single in-memory bucket of this process."""
    from obstore.store import MemoryStore

    return MemoryStore()


def _version(answer: Any) -> "UpdateVersion":
    # A store without generations returns None, which it does not accept as input.
    kept: Any = {name: answer[name] for name in ("e_tag", "version") if answer[name] is not None}
    return kept


def _shown(error: Exception) -> str:
    return str(error).splitlines()[0][:MOST_SHOWN]
