"""From what a user gives to the place that it names."""

from pathlib import Path

from sweeps import output
from sweeps.runner.store.base import Place
from sweeps.runner.store.bucket import Bucket
from sweeps.runner.store.local import Folder, Memory


def place(where: str | Path | Place | None) -> Place:
    """The place that is meant: one in a bucket by an address with a scheme, the memory of this
    process by None, and a folder by everything else.

    Raises:
        ValueError: for an address that cannot be one, naming what is allowed.
        StoreError: when what it needs is not installed.
    """
    if isinstance(where, Place):
        return where
    if where is None:
        return Memory()
    address = output.address(where)
    return Folder(Path(where)) if address is None else Bucket(address)
