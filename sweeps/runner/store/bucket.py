"""Sweeps in buckets of object stores, where an object appears whole and nothing can be renamed.
What methods do is said in `Place`.

Each object of a store is put where none is. So what has been committed stays, however late a put
arrives that was sent before. Over what a chunk without a record has left, the holder of the lease
puts its own, if it has not changed since.

A sweep begins with its group's zarr.json, which one creator alone can put, and which says what all
other objects of the creation hold: whoever finds some of them missing and asks for the same sweep
puts them, and then the marker.

A lease is an object that its holder, and nobody else, writes anew three times in its duration. Who
finds one watches it by a clock of its own: when it has not changed for its duration its holder is
dead, or has been stopped and will find its lease gone. No two clocks are ever compared.
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
"""How often a request is sent again that was answered with a server's error, or not at all."""
TRIES = 5
"""How often a put is tried that the server answers with a conflict though nothing is there."""
MOST_SHOWN = 400
"""Characters of an error of obstore that are shown; it goes on with its inner workings."""
SECONDS = 60.0
"""Duration of a lease, of this process."""
LONGEST = 600.0
"""Of any lease that is waited for."""
FREE = b'{"dynsim_lease": null}'
"""What a released lease says. It is not deleted: a delete knows no condition, so that of a process
that had been stopped would hit the lease of its successor."""
OFTEN = 1.0
"""Seconds after which a writer looks again whether its store is still there."""
clock, pause = time.monotonic, time.sleep


class OutageError(StoreError, OSError):
    """A bucket that cannot be reached, or that answers with an error."""


class StoredObject(NamedTuple):
    """An object: what it holds, and what a conditional put knows it by."""

    value: bytes
    version: "UpdateVersion"


class Terms(NamedTuple):
    """Who holds a lease, for how many seconds after each renewal, and by which words."""

    owner: str
    seconds: float
    token: str


class Lease:
    """A lease on the object `key` of a bucket, held by nobody until `take`."""

    def __init__(self, bucket: "Bucket", key: str) -> None:
        self.bucket, self.key = bucket, key
        self.token = uuid.uuid4().hex
        self.renewals, self.renewed = 0, -SECONDS
        self.held = False
        self.turn = threading.Lock()

    def take(self, report: Report | None = None) -> None:
        """Hold the lease, waiting for as long as it takes to see that a holder is dead;
        `StoreError` when it is alive, or the object is something else."""
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
                # Before the request: whoever watches saw it later than this.
                now = clock()
                self.version = self.bucket.swap(self.key, self._words(), self.version)
                self.held, self.renewed = self.version is not None, now

    def check(self) -> None:
        """Raise `StoreError` unless the lease is held."""
        if clock() - self.renewed > SECONDS / 2:
            # A renewal is overdue. This process may have been stopped, for longer than its lease.
            self.renew()
        if not self.held:
            raise self._lost()

    def require(self, token: str) -> None:
        """Raise `StoreError` unless the holder was the one of this token a while ago at most."""
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
        """Renew the lease while the block runs, and release it."""
        over = threading.Event()

        def keep() -> None:
            while self.held and not over.wait(SECONDS / 3):
                # An outage, maybe a short one; `check` asks again in time.
                with contextlib.suppress(OSError):
                    self.renew()

        thread = threading.Thread(target=keep, daemon=True, name=f"lease of {self.key}")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            # What cannot be released ends by itself, and hides no error of the block.
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
    """The terms of a lease that is held; `StoreError` when the object is none."""
    try:
        about = found and json.loads(found.value)["dynsim_lease"]
        # Whoever wrote it, nobody waits for much longer than that.
        return about and Terms(
            str(about["owner"]), min(float(about["seconds"]), LONGEST), str(about["token"])
        )
    except (ValueError, LookupError, TypeError):
        raise StoreError(f"{key}: is not a lease of dynsim") from None


class Bucket(Place):
    """A folder in a bucket by its address, scheme://bucket/path, or memory://path. All methods
    raise `OutageError` when it cannot be reached, and `StoreError` when credentials forbid it."""

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
        # Beside the store, because zarr warns of objects in it that are not its own.
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
        # A lease, which ends by itself when its holder dies.
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
        """The object `key` of at most so many bytes, None if there is none."""
        with self.reached(), contextlib.suppress(FileNotFoundError):
            got = self.bucket.get(key)
            if got.meta["size"] > most:
                raise damaged(self.name, key, "it is far too large")
            value = bytes(got.bytes())
            # Nothing of a store begins like that.
            if value.lstrip()[:1] == b"<":
                raise OutageError(
                    f"{self.name}: cannot be reached ({key} returns a web page, as from a proxy "
                    "or a sign-in; check the address and the network)"
                )
            return StoredObject(value, _version(got.meta))
        return None

    def delete(self, key: str) -> None:
        """Delete the object `key`, if there is one."""
        with self.reached(), contextlib.suppress(FileNotFoundError):
            self.bucket.delete(key)

    def check_conditions(self, key: str) -> None:
        """Raise `StoreError` where a put does not obey its condition, seen by an object `key` of
        this caller alone, which is removed again."""
        version: Any = "create"
        try:
            for condition in ("If-None-Match", "If-Match"):
                # An answer that was lost makes a first put be refused as well, but not the second.
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
        """Put `value` where nothing is yet, or where `version` still is if that is given. Returns
        the version put; None where something else is there. That may have come after `value`, where
        several processes change an object in turn without waiting for each other."""
        with self.reached():
            for wait in range(TRIES):
                try:
                    # One request, which the conditions of several parts would not be.
                    mode = version or "create"
                    return _version(self.bucket.put(key, value, mode=mode, use_multipart=False))
                except (self.errors.BaseError, FileNotFoundError) as error:
                    # An answer that was lost makes the request be sent again, and fail by its own
                    # success. So what is there decides: no two processes put the same words.
                    found = self.look(key)
                    if found is not None and found.value == value:
                        return found.version
                    gone = version is not None and isinstance(error, FileNotFoundError)
                    changed = (found and found.version) != version
                    if changed and (gone or isinstance(error, self.lost)):
                        return None
                    # Servers answer so as well while another request for the key is under way.
                    if not isinstance(error, self.lost) or wait == TRIES - 1:
                        raise
                    pause(0.1 * 2**wait)

    def listed(self, folder: str) -> Iterator["ObjectMeta"]:
        """Keys (`path`), times (`last_modified`) and sizes of the objects below a folder."""
        with self.reached():
            for batch in self.bucket.list(folder):
                yield from batch

    @contextlib.contextmanager
    def reached(self) -> Iterator[None]:
        """Turn errors of obstore, but not what is or is not there, into those of the store."""
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
    """The attributes of a group, such as a store has; an error of any kind for others."""
    found = json.loads(group)["attributes"]
    return {"store": found["store"], SEAL: {"files": found[SEAL]["files"]}}


@functools.cache
def _memory() -> Any:
    """The one bucket of this process's memory."""
    from obstore.store import MemoryStore

    return MemoryStore()


def _version(answer: Any) -> "UpdateVersion":
    # A store that knows no generations says None, which it does not take back.
    kept: Any = {name: answer[name] for name in ("e_tag", "version") if answer[name] is not None}
    return kept


def _shown(error: Exception) -> str:
    return str(error).splitlines()[0][:MOST_SHOWN]
