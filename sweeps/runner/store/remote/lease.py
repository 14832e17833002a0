"""Leases: locks for places that have none, which end by themselves when their holder dies.

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
from collections.abc import Iterator
from typing import NamedTuple

from sweeps.runner.progress import say
from sweeps.runner.store.base import Report, StoreError
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
