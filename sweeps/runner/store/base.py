"""What is kept of a sweep, and what differs from place to place in keeping it: the seam below
`Store`."""

import abc
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zarr

Fill = Callable[[zarr.Group], None]
Report = Callable[[str], None]
Check = Callable[[], None]
MISSING = -1
"""Status of a run that has not been computed."""


class StoreError(ValueError):
    """A store that cannot be used as asked; the message says why and what to do."""


class Variable(NamedTuple):
    """A recorded array: shape and names of the axes behind those of the sweep, and its dtype."""

    shape: tuple[int, ...]
    dims: tuple[str, ...]
    dtype: np.dtype


class Place(abc.ABC):
    """Where a sweep is kept, or can be.

    Attributes:
        name: the place as the user wrote it, for messages.
        address: what another process finds it by; None where no other process can.
        streams: number of chunks that are worth reading or writing at the same time.
        outages: errors that say that the place could not be reached, so nothing of what is in it.
    """

    name: str
    address: str | None
    streams: int = 1
    outages: tuple[type[Exception], ...] = ()

    @abc.abstractmethod
    def exists(self) -> bool:
        """Whether anything is there, a sweep or something else."""

    def vacant(self) -> bool:
        """Whether a sweep can be made there."""
        return not self.exists()

    @abc.abstractmethod
    def create(self, fill: Fill, report: Report | None = None) -> None:
        """Make a group that `fill` fills; it appears whole or not at all.

        Raises:
            FileExistsError: when something has been made there in the meantime.
        """

    @abc.abstractmethod
    def open(self) -> zarr.Group:
        """The group that is there, writable if the place says so."""

    def written(self, array: str) -> dict[str, float] | None:
        """When each chunk of an array was written, in seconds since 1970, by the end of its name,
        such as "3/0"; None where the array itself is as quickly read as that is found out."""
        del array
        return None

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
