"""Leases, by which a single process writes to a bucket.

A lease is an object that only its holder rewrites, three times per duration. Another process
watches it with its own monotonic clock: if the object has not changed for its duration, the holder
is dead, or has been paused and will find its lease lost. Clocks of different machines are never
compared.
"""

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sweeps.runner.progress import say
from sweeps.runner.store import Report, StoreError

if TYPE_CHECKING:
    from obstore import UpdateVersion

DURATION = 60.0
"""Duration of this process's leases in seconds."""
MAX_DURATION = 600.0
"""Maximum duration of any lease to wait for, whoever wrote it."""
RELEASED = b'{"dynsim_lease": null}'
"""Content of a released lease. It is not deleted, because deletes are unconditional: a process that
had been paused could delete its successor's lease."""
clock, pause = time.monotonic, time.sleep


class StoredObject(NamedTuple):
    """An object's content, and its version for conditional puts."""

    value: bytes
    version: "UpdateVersion"


class ConditionalPuts(Protocol):
    """A bucket with conditional puts, as in `Bucket`."""

    name: str

    def look(self, key: str) -> StoredObject | None: ...

    def swap(
        self, key: str, value: bytes, version: "UpdateVersion | None"
    ) -> "UpdateVersion | None": ...


class Terms(NamedTuple):
    """The holder of a lease, its duration in seconds after each renewal, its token, and how often
    it was renewed."""

    owner: str
    seconds: float
    token: str
    renewals: int = 0

    @classmethod
    def of(cls, lease: StoredObject | None, key: str) -> "Terms | None":
        """Return the terms of a lease, None if it is free; `StoreError` if the object is none."""
        try:
            terms = lease and json.loads(lease.value)["dynsim_lease"]
            return terms and cls(
                str(terms["owner"]),
                min(float(terms["seconds"]), MAX_DURATION),
                str(terms["token"]),
            )
        except (ValueError, LookupError, TypeError):
            raise StoreError(f"{key}: is not a lease of dynsim") from None


class Lease:
    """A lease on the object `key` of a bucket; `version` is None while it is not held."""

    def __init__(self, bucket: ConditionalPuts, key: str) -> None:
        self.bucket, self.key = bucket, key
        self.token = uuid.uuid4().hex
        self.version: UpdateVersion | None = None
        self.renewals, self.renewed = 0, -DURATION
        self.turn = threading.Lock()

    def take(self, report: Report | None = None) -> None:
        """Acquire the lease, waiting until an earlier holder proves dead. Raises `StoreError` if
        that is alive, or the object is something else."""
        earlier = current = self.bucket.look(self.key)
        if holder := Terms.of(earlier, self.key):
            line = f"waiting up to {holder.seconds:g} s for the lease of {holder.owner} to expire"
            (report or say)(f"{self.bucket.name}: {line}")
            end = clock() + holder.seconds
            while current == earlier and clock() < end:
                pause(min(1.0, holder.seconds / 20))
                current = self.bucket.look(self.key)
            # Whoever changed the lease renewed it, unless it was released.
            if current != earlier and (holder := Terms.of(current, self.key)):
                raise self._taken(holder.owner)
        # Fails if another process that waited has been faster.
        self.renewed = clock()
        self.version = self.bucket.swap(self.key, self._content(), current and current.version)
        if self.version is None:
            raise self._taken("which was faster")

    def renew(self) -> None:
        with self.turn:
            if self.version is not None:
                self.renewals += 1
                # Before the request, so the lease never seems to last longer here than to others.
                now = clock()
                self.version = self.bucket.swap(self.key, self._content(), self.version)
                self.renewed = now

    def check(self) -> None:
        """Raise `StoreError` unless the lease is held."""
        if clock() - self.renewed > DURATION / 2:
            # A renewal is overdue: this process may have been paused for longer than its lease.
            self.renew()
        if self.version is None:
            raise self._lost()

    def require(self, token: str) -> None:
        """Raise `StoreError` unless this token's holder had the lease at the last recent look."""
        if clock() - self.renewed > DURATION / 6:
            holder = Terms.of(self.bucket.look(self.key), self.key)
            if holder is None or holder.token != token:
                raise self._lost()
            self.renewed = clock()

    def release(self) -> None:
        with self.turn:
            if self.version is not None:
                self.bucket.swap(self.key, RELEASED, self.version)
                self.version = None

    @contextlib.contextmanager
    def keep_alive(self) -> Iterator[None]:
        """Renew the lease while the block runs, then release it."""
        over = threading.Event()

        def renew() -> None:
            while self.version is not None and not over.wait(DURATION / 3):
                # This may be a short outage; `check` tries again in time.
                with contextlib.suppress(OSError):
                    self.renew()

        thread = threading.Thread(target=renew, daemon=True, name=f"lease of {self.key}")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            # An unreleased lease expires by itself; this must not hide an error of the block.
            with contextlib.suppress(OSError):
                self.release()

    def _content(self) -> bytes:
        owner = f"{socket.gethostname()}:{os.getpid()}"
        terms = Terms(owner, DURATION, self.token, self.renewals)
        return json.dumps({"dynsim_lease": terms._asdict()}).encode()

    def _taken(self, owner: str) -> StoreError:
        name = self.bucket.name
        return StoreError(f"{name}: another process is writing here ({owner}; {self.key})")

    def _lost(self) -> StoreError:
        return StoreError(
            f"{self.bucket.name}: this process was paused for longer than its lease, and another "
            "one writes here instead, from the finished chunks on. Nothing is lost."
        )
