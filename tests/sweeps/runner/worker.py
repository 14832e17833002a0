"""A process of its own that runs a sweep for test_resume.py: prints a line per stored chunk."""

import sys

from sweeps import cli
from sweeps.runner.store import leases
from sweeps.runner.store.store import Store

write = Store.write


def write_and_tell(store: Store, region: tuple, arrays: dict, *rest: object) -> None:
    write(store, region, arrays, *rest)
    print("chunk", *(part.start for part in region), flush=True)


if __name__ == "__main__":
    Store.write = write_and_tell
    # A bucket's next writer waits for as long after a kill.
    leases.DURATION = 0.3
    sys.exit(cli.main(sys.argv[1:]))
