"""Running a sweep: chunk by chunk, on all local devices, resuming what is there."""

import contextlib
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

import numpy as np
import xarray as xr
from tqdm import tqdm

from dynsim import Status, checks
from dynsim.precision import Device, precision
from sweeps.runner import labels, tiles
from sweeps.runner.spec import Sweep
from sweeps.runner.store.base import Place, StoreError
from sweeps.runner.store.place import place
from sweeps.runner.store.store import Store
from sweeps.runner.work import Work

Handler = Callable[[int, FrameType | None], object] | int | signal.Handlers | None
PREFETCH = 64
"""Number of chunks whose programs are compiled ahead; most chunks share one."""


class Interrupted(Exception):  # noqa: N818  (a wish of the user, no error)
    """The user asked to stop; every chunk that was finished is stored."""


def run(
    sweep: Sweep,
    out: str | Path | None = None,
    *,
    chunk: int | None = None,
    tile: int | None = None,
    devices: Sequence[Device] | None = None,
    process: tuple[int, int] = (0, 1),
    report: Callable[[str], None] | None = None,
) -> xr.Dataset:
    """Run a sweep, or what is left of it, and return its labelled results.

    Args:
        sweep: what to run.
        out: folder of the store, or its address in a bucket as a str, such as s3://bucket/run; a
            sweep found there is resumed. None keeps it in memory.
        chunk: largest number of runs in a chunk, the unit of work and of storage; by default
            chosen from the tile. A store keeps the chunks that it was made with.
        tile: largest number of runs that a device works on at once; by default few on a CPU, and on
            an accelerator as many as its memory holds by the compiled program's own count. Where
            it turns out not to suffice, the tile is halved.
        devices: local devices to use; all by default. Results do not depend on their number. What
            is computed in float64 uses the host's CPU in place of devices without it.
        process: (k, n): this is process k of n that share the store; it takes the chunks k,
            k + n, k + 2 n, ...
        report: called with lines for people.

    Returns:
        A dataset with a dimension for each axis (zipped axes share one), `time` where several
        times are recorded, `status` and `first_bad_step`. Mask by `status` before averaging.

    Raises:
        ValueError: for bad settings, before anything is compiled or written.
        StoreError: when `out` holds something else, is in use, damaged or not writable.
        Interrupted: after Ctrl-C or SIGTERM, with all finished chunks stored.
    """
    sweep.check()
    for name, value in (("chunk", chunk), ("tile", tile)):
        if value is not None:
            checks.integer(name, value, 1)
    where = place(out)
    config = sweep.as_json()
    store = _existing(where, config)
    if store is not None and chunk is not None:
        _require_chunk(store, chunk)
    with precision(sweep.dtype):
        layout = store.layout if store else None
        new = store is None
        mesh = tiles.mesh(devices, sweep.dtype)
        work = Work(sweep, mesh, layout=layout, chunk=chunk, tile=tile, eager=new)
        if report:
            report(str(work.plan))
        if store is None:
            try:
                store = Store.create(
                    where,
                    config,
                    sweep.dims,
                    work.plan.layout,
                    work.variables(),
                    labels.coordinates(sweep),
                    functools.partial(labels.about, sweep.system),
                    sweep.dtype,
                    report,
                )
            except FileExistsError:
                # Another process of this sweep has been faster.
                store = Store.open(where)
                store.require(config)
        with store.lock(*process, report):
            _work_off(store, work, process, store.verify())
    return store.dataset()


def open_sweep(path: str | Path) -> xr.Dataset:
    """The stored sweep at `path`, a folder or an address such as s3://bucket/run, complete or not,
    as a labelled dataset whose values are read when they are used; `StoreError` if there is
    none."""
    return Store.open(path).dataset()


def valid(dataset: xr.Dataset) -> xr.Dataset:
    """The dataset with NaN in place of what runs that did not end well recorded."""
    return dataset.where(dataset["status"] == Status.OK)


def _work_off(store: Store, work: Work, process: tuple[int, int], status: np.ndarray) -> None:
    k, n = process
    done, variables = store.done(status), store.variables
    regions = work.in_order(
        region for i, region in enumerate(store.layout.regions()) if i % n == k and not done[i]
    )
    for region in regions[:: max(len(regions) // PREFETCH, 1)]:
        work.start(region)
    finished = status[status >= 0]
    diverged = int((finished != Status.OK).sum())
    with (
        _stoppable() as check,
        tqdm(
            total=store.layout.num_runs,
            initial=int(finished.size),
            unit="run",
            smoothing=0.1,
            disable=None,
            file=sys.stderr,
        ) as bar,
    ):
        for region in regions:
            arrays = work.compute(region, variables, check)
            try:
                store.write(region, arrays)
            except OSError as error:
                raise StoreError(
                    f"{store.name}: a chunk could not be written ({error}); the chunks before it "
                    "are stored. Make room or mend the place, and run the same command to go on."
                ) from error
            codes = arrays["status"]
            diverged += int((codes != Status.OK).sum())
            bar.set_postfix(diverged=diverged, refresh=False)
            bar.update(codes.size)
            check()


def _existing(where: Place, config: dict) -> Store | None:
    """The store that is there if it is one of this sweep; None where one can be made."""
    if where.vacant():
        return None
    store = Store.open(where)
    store.require(config)
    return store


def _require_chunk(store: Store, chunk: int) -> None:
    have = int(np.prod(store.layout.chunk))
    if have != chunk and have != min(chunk, store.layout.num_runs):
        raise StoreError(
            f"chunk = {chunk}: {store.name} was made with chunks of {have} runs and keeps them; "
            "leave chunk out to resume"
        )


@contextlib.contextmanager
def _stoppable() -> Iterator[Callable[[], None]]:
    """Turn the first Ctrl-C or SIGTERM into an `Interrupted` at the next call of what this
    yields, so that a write in flight is finished; the second one acts at once."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    asked = threading.Event()
    before: dict[int, Handler] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        asked.set()
        signal.signal(number, before[number])

    def check() -> None:
        if asked.is_set():
            raise Interrupted

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, handle)
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
