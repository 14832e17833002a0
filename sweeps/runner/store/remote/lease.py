"""Leases: locks for places that have none, which end by themselves when their holder dies.

A lease is an object that its holder, and nobody else, writes anew three times in its duration. Who
finds one watches it by a clock of its own: when it has not changed for its duration its holder is
dead, or has been stopped and will find its lease gone. No two clocks are ever compared.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from typing import NamedTuple

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
    """Who holds a lease, and for how many seconds after each renewal."""

    owner: str
    seconds: float
    token: str


class Lease:
    """A lease on an object, held by nobody until `take`.

    Args:
        objects: the bucket.
        key: the object.
        name: of what it is a lease, for messages.
    """

    def __init__(self, objects: Objects, key: str, name: str) -> None:
        self.objects, self.key, self.name = objects, key, name
        self.token = uuid.uuid4().hex
        self.renewals, self.renewed = 0, -SECONDS
        self.held = False
        self.turn = threading.Lock()

    def take(self, report: Report | None = None) -> None:
        """Hold the lease from now on, waiting for as long as it takes to see that a holder is dead.

        Args:
            report: called with a line before the wait; by default it goes to standard error.

        Raises:
            StoreError: when the holder is alive, or the object is something else.
        """
        found = self.objects.look(self.key)
        if (held := terms(found, self.key)) is not None:
            later = self._watch(found, held, report)
            changed = terms(later, self.key) if later != found else None
            if changed is not None:
                raise self._taken(changed.owner)
            found = later
        self.renewed = clock()
        self.version = self.objects.swap(self.key, self._words(), found and found.version)
        if self.version is None:
            raise self._taken("which has been faster")
        self.held = True

    def renew(self) -> None:
        """Say that its holder is alive, or find that it is no longer `held`."""
        with self.turn:
            if not self.held:
                return
            self.renewals += 1
            # Before the request: whoever watches saw it later than this.
            now = clock()
            version = self.objects.swap(self.key, self._words(), self.version)
            if version is None:
                self.held = False
            else:
                self.version, self.renewed = version, now

    def check(self) -> None:
        """Raise `StoreError` if the lease is no longer held."""
        if clock() - self.renewed > SECONDS / 2:
            # A renewal is overdue. This process may have been stopped, for longer than its lease.
            self.renew()
        if not self.held:
            raise self._lost()

    def require(self, token: str) -> None:
        """Raise `StoreError` unless the holder is the one of this token. It is looked for now and
        then: what it protects from comes later than that by its nature."""
        if clock() - self.renewed > SECONDS / 6:
            found = terms(self.objects.look(self.key), self.key)
            if found is None or found.token != token:
                raise self._lost()
            self.renewed = clock()

    def end(self, value: bytes) -> bool:
        """Put `value` in the place of the lease if it is still held, and say whether it was."""
        with self.turn:
            if not self.held:
                return False
            ended = self.objects.swap(self.key, value, self.version) is not None
            self.held = False
            return ended

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Renew the lease while the block runs, and release it."""
        over = threading.Event()

        def keep() -> None:
            while self.held and not over.wait(SECONDS / 3):
                # An outage, maybe a short one; `check` asks again in time.
                with contextlib.suppress(OSError):
                    self.renew()

        thread = threading.Thread(target=keep, daemon=True, name=f"lease of {self.name}")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            # What cannot be released ends by itself, and hides no error of the block.
            with contextlib.suppress(OSError):
                self.end(FREE)

    def _watch(self, found: Found | None, held: Terms, report: Report | None) -> Found | None:
        """What is there once `found` has changed, or has not for as long as its lease lasts."""
        (report or _say)(
            f"{self.name}: waiting up to {held.seconds:g} s for the lease of {held.owner} to end"
        )
        end = clock() + held.seconds
        while clock() < end:
            pause(min(1.0, held.seconds / 20))
            now = self.objects.look(self.key)
            if now != found:
                return now
        return found

    def _words(self) -> bytes:
        about = {
            "owner": f"{socket.gethostname()}:{os.getpid()}",
            "seconds": SECONDS,
            "token": self.token,
            "renewals": self.renewals,
        }
        return json.dumps({"dynsim_lease": about}).encode()

    def _taken(self, owner: str) -> StoreError:
        return StoreError(f"{self.name}: another process is writing here ({owner}; {self.key})")

    def _lost(self) -> StoreError:
        return StoreError(
            f"{self.name}: this process stood still for longer than its lease, and another one "
            "writes here now; it has what was finished. Nothing is lost."
        )


def terms(found: Found | None, key: str) -> Terms | None:
    """The terms of a lease that is held, None for one that is not.

    Raises:
        StoreError: when the object is none.
    """
    if found is None:
        return None
    try:
        about = json.loads(found.value)["dynsim_lease"]
        if about is None:
            return None
        # Whoever wrote it, nobody waits for much longer than that.
        seconds = min(float(about["seconds"]), LONGEST)
        return Terms(str(about["owner"]), seconds, str(about["token"]))
    except (ValueError, LookupError, TypeError):
        raise StoreError(f"{key}: is no lease of dynsim") from None


def _say(line: str) -> None:
    print(line, file=sys.stderr)
