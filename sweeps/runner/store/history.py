"""With which versions the chunks of a store were made, and what time that took.

The group says with which it was created. A process that is about to make chunks with others leaves
a note of them and of the chunks that were there before; so who made a chunk is known after a kill
as well: it is the last one to whom it was left. What a process took it says when it ends, so that
nobody knows it of one that was killed.
"""

import hashlib
import itertools
import json
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from sweeps.runner.store.base import Place, Report, StoreError
from sweeps.runner.store.manifest import CHANGED, damaged

FOLDER = "status/.made"
"""Of the notes, in an array, where zarr does not wonder about them."""
SPENT = "status/.spent"
"""Of the notes about time, likewise."""
HARMLESS = {"zarr", "xarray", "precision"}
"""Entries of an environment that decide no numbers, or are those of the configuration as well."""


class Note(NamedTuple):
    """What a process left.

    Attributes:
        environment: its versions and its device, if known.
        process: (k, n): it took the chunks k, k + n, ...
        done: first and last number of each range of chunks that were there before.
    """

    environment: dict[str, str]
    process: tuple[int, int]
    done: list[tuple[int, int]]


class Spent(NamedTuple):
    """What a process, or several, took for chunks.

    Attributes:
        seconds: from the beginning of the first chunk to the end of the last one; summed up over
            processes.
        chunks: first and last number of each range of the chunks made.
    """

    seconds: float
    chunks: list[tuple[int, int]]


class Made(NamedTuple):
    """The environments of a store, and for each chunk the index of that in which it was made, or
    would be said to be made now."""

    environments: list[dict[str, str]]
    by: np.ndarray

    def of(self, chunks: np.ndarray) -> list[dict[str, str]]:
        """The environments of some chunks, given by a mask."""
        return [self.environments[i] for i in np.unique(self.by[chunks])]


def made(place: Place, first: Mapping[str, str], chunks: int) -> Made:
    """Who made which of so many chunks of the store at a place; `first` is the environment in which
    that was created.

    Raises:
        StoreError: for a note that is damaged.
    """
    environments, by = [dict(first)], np.zeros(chunks, int)
    numbers = np.arange(chunks)
    for name in sorted(place.written(FOLDER)):
        environment, process, there = _read(place, f"{FOLDER}/{name}")
        k, n = process
        mine = numbers % n == k
        for start, end in there:
            mine[start : end + 1] = False
        if environment not in environments:
            environments.append(environment)
        by[mine] = environments.index(environment)
    return Made(environments, by)


def go_on(
    place: Place,
    first: Mapping[str, str],
    done: np.ndarray,
    process: tuple[int, int],
    now: Mapping[str, str],
    strict: bool,
    report: Report | None,
) -> None:
    """Say, and leave a note, that the chunks which are not `done` are made in the environment
    `now`, where that is another one.

    Raises:
        StoreError: where it is another one and `strict` forbids that; or for a damaged note.
    """
    before = made(place, first, len(done))
    k, n = process
    left = ~done & (np.arange(len(done)) % n == k)
    if not left.any():
        return
    others = [lines for each in before.of(done) if (lines := ", ".join(differences(each, now)))]
    if others and strict:
        raise StoreError(
            f"{place.name}: has chunks that were made otherwise, and strict forbids to go on; "
            f"then -> now: {others[-1]}"
        )
    if others and report:
        report(f"{place.name}: goes on with chunks that were made otherwise: {others[-1]}")
    if any(differences(each, now) for each in before.of(left)):
        _write(place, FOLDER, Note(dict(now), process, ranges(done)), process)


def leave_spent(place: Place, seconds: float, chunks: np.ndarray, process: tuple[int, int]) -> None:
    """Leave a note of the seconds that the chunks of a mask took, if there are any."""
    if chunks.any():
        _write(place, SPENT, Spent(seconds, ranges(chunks)), process)


def spent(place: Place) -> Spent:
    """All that notes say about time.

    Raises:
        StoreError: for a note that is damaged.
    """
    seconds, chunks = 0.0, []
    for name in sorted(place.written(SPENT)):
        own, ranges = _read(place, f"{SPENT}/{name}")
        seconds += own
        chunks += [(start, end) for start, end in ranges]
    return Spent(seconds, chunks)


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """What decides numbers and differs, as "jax 0.10.1 -> 0.12.0", of what both know."""
    return [
        f"{name} {old[name]} -> {new[name]}"
        for name in old
        if name in new and old[name] != new[name] and name not in HARMLESS
    ]


def ranges(chunks: np.ndarray) -> list[tuple[int, int]]:
    """First and last number of each range of the chunks of a mask."""
    numbers = np.flatnonzero(chunks).tolist()
    grouped = itertools.groupby(enumerate(numbers), lambda each: each[1] - each[0])
    found = ([number for _, number in group] for _, group in grouped)
    return [(group[0], group[-1]) for group in found]


def _write(place: Place, folder: str, note: Note | Spent, process: tuple[int, int]) -> None:
    digest = hashlib.sha256(json.dumps(note).encode()).hexdigest()
    sealed = json.dumps({"note": note, "digest": digest})
    k, n = process
    place.write(f"{folder}/{time.time_ns():020}-{k}-of-{n}.json", sealed.encode())


def _read(place: Place, key: str) -> Any:
    """The note in a file, as JSON values."""
    try:
        said = json.loads(place.read(key) or b"")
        if hashlib.sha256(json.dumps(said["note"]).encode()).hexdigest() != said["digest"]:
            raise ValueError
        return said["note"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise damaged(place.name, key, CHANGED) from None
