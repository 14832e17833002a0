"""`dynsim check`: verify a stored sweep."""

import dataclasses
from typing import ClassVar

from sweeps.lines import printable
from sweeps.runner.progress import say
from sweeps.runner.store.store import Store


@dataclasses.dataclass(frozen=True)
class Check:
    """Verify every checksum of a stored sweep. An error names the first damaged file.

    Attributes:
        path: folder of the sweep, or its address in a bucket.
    """

    POSITIONAL: ClassVar = ("path",)

    path: str


def run(config: Check) -> None:
    """Run `dynsim check`."""
    store = Store.open(config.path, say)
    store.verify()
    done = int(store.done().sum())
    print(printable(f"{store.name}: {done} of {store.layout.num_chunks} chunks, all whole"))
