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
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

from sweeps.runner.progress import say
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
from sweeps.runner.store.remote.objects import Found, Objects

SECONDS = 60.0
"""Duration of a lease, of this process."""
LONGEST = 600.0
"""Of any lease that is waited for."""
FREE = b'{"dynsim_lease": null}'
"""What a released lease says. It is not deleted: a delete knows no condition, so that of a process
that had been stopped would hit the lease of its successor."""
clock, pause = time.monotonic, time.sleep


class Terms(NamedTuple):
    """Who holds a lease, for how many seconds after each renewal, and by which words."""

    owner: str
    seconds: float
    token: str


class Lease:
    """A lease on the object `key` of a bucket, held by nobody until `take`."""

    def __init__(self, objects: Objects, key: str) -> None:
        self.objects, self.key = objects, key
        self.token = uuid.uuid4().hex
        self.renewals, self.renewed = 0, -SECONDS
        self.held = False
        self.turn = threading.Lock()

    def take(self, report: Report | None = None) -> None:
        """Hold the lease from now on, waiting for as long as it takes to see that a holder is dead;
        a line before goes to `report`, by default to standard error. `StoreError` when the holder
        is alive, or the object is something else."""
        found = self.objects.look(self.key)
        if held := terms(found, self.key):
            line = f"waiting up to {held.seconds:g} s for the lease of {held.owner} to end"
            (report or say)(f"{self.objects.name}: {line}")
            end = clock() + held.seconds
            while clock() < end:
                pause(min(1.0, held.seconds / 20))
                if (now := self.objects.look(self.key)) != found:
                    found = now
                    if changed := terms(now, self.key):
                        raise self._taken(changed.owner)
                    break
        self.renewed = clock()
        self.version = self.objects.swap(self.key, self._words(), found and found.version)
        if self.version is None:
            raise self._taken("which has been faster")
        self.held = True

    def renew(self) -> None:
        """Say that its holder is alive, or find that it is no longer `held`."""
        with self.turn:
            if self.held:
                self.renewals += 1
                # Before the request: whoever watches saw it later than this.
                now = clock()
                self.version = self.objects.swap(self.key, self._words(), self.version)
                self.held, self.renewed = self.version is not None, now

    def check(self) -> None:
        """Raise `StoreError` if the lease is no longer held."""
        if clock() - self.renewed > SECONDS / 2:
            # A renewal is overdue. This process may have been stopped, for longer than its lease.
            self.renew()
        if not self.held:
            raise self._lost()

    def require(self, token: str) -> None:
        """Raise `StoreError` unless the holder is the one of this token, as it was seen a while
        ago at most."""
        if clock() - self.renewed > SECONDS / 6:
            found = terms(self.objects.look(self.key), self.key)
            if found is None or found.token != token:
                raise self._lost()
            self.renewed = clock()

    def release(self) -> None:
        """Let go of the lease, if it is still held."""
        with self.turn:
            if self.held:
                self.objects.swap(self.key, FREE, self.version)
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
        name = self.objects.name
        return StoreError(f"{name}: another process is writing here ({owner}; {self.key})")

    def _lost(self) -> StoreError:
        return StoreError(
            f"{self.objects.name}: this process stood still for longer than its lease, and another "
            "one writes here now; it has what was finished. Nothing is lost."
        )


def terms(found: Found | None, key: str) -> Terms | None:
    """The terms of a lease that is held, None for one that is not; `StoreError` when the object is
    none."""
    try:
        about = found and json.loads(found.value)["dynsim_lease"]
        # Whoever wrote it, nobody waits for much longer than that.
        return about and Terms(
            str(about["owner"]), min(float(about["seconds"]), LONGEST), str(about["token"])
        )
    except (ValueError, LookupError, TypeError):
        raise StoreError(f"{key}: is no lease of dynsim") from None


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
