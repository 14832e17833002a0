"""What is kept of a sweep, and what differs from place to place in keeping it: the seam below
`Store`."""

import abc
import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

Report = Callable[[str], None]
Check = Callable[[], None]
MISSING = -1
"""Status of a run that has not been computed."""
CHECKPOINT = "checkpoint"
"""Array of what runs go on from, where a sweep keeps it."""


class StoreError(ValueError):
    """A store that cannot be used as asked; the message says why and what to do."""


class Variable(NamedTuple):
    """A recorded array: shape and names of the axes behind those of the sweep, and its dtype."""

    shape: tuple[int, ...]
    dims: tuple[str, ...]
    dtype: np.dtype


class Written(NamedTuple):
    """A file: when it was written, in seconds since 1970, and its size in bytes."""

    time: float
    size: int


class Place(abc.ABC):
    """Where a sweep is kept, or can be: files by their names, such as "loss/c/0/0".

    Attributes:
        name: the place as the user wrote it, for messages.
        address: what another process finds it by; None where no other process can.
        streams: number of files that are worth reading or writing at the same time.
        outages: errors that say that the place could not be reached, so nothing of what is in it.
        durable: whether a file that was written outlasts a loss of power.
    """

    name: str
    address: str | None
    streams: int = 1
    outages: tuple[type[Exception], ...] = ()
    durable: bool = False

    @abc.abstractmethod
    def exists(self) -> bool:
        """Whether anything is there, a sweep or something else."""

    def vacant(self) -> bool:
        """Whether a sweep can be made there."""
        return not self.exists()

    @abc.abstractmethod
    def create(self, files: Mapping[str, bytes], report: Report | None = None) -> None:
        """Make a sweep of these files; it appears whole or not at all.

        Raises:
            FileExistsError: when something has been made there in the meantime.
        """

    @abc.abstractmethod
    def read(self, key: str) -> bytes | None:
        """What a file holds, None if there is none."""

    @abc.abstractmethod
    def write(self, key: str, value: bytes) -> None:
        """Write a file, which appears whole or not at all."""

    @abc.abstractmethod
    def written(self, folder: str, names: Sequence[str] | None = None) -> dict[str, Written]:
        """The files in a folder by their names in it, at least those of `names` that are there."""

    @abc.abstractmethod
    def lock(
        self, process: int, processes: int, report: Report | None
    ) -> contextlib.AbstractContextManager[Check]:
        """Be process number `process` of `processes` writers, alone; what this yields raises
        `StoreError` once that has ended.

        Raises:
            StoreError: when another writer is at work, or the place cannot be written.
        """

    @abc.abstractmethod
    def beside(self, suffix: str) -> Path:
        """Where a file about the sweep goes that the user gave no name."""
