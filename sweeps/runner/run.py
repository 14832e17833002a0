"""Runs a sweep chunk by chunk on all local devices, and resumes stored ones."""

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import jax
import numpy as np
import xarray as xr
from jax.sharding import Mesh

from dynsim import Status, checks
from dynsim.precision import Device, precision
from sweeps import output
from sweeps.output import programs
from sweeps.runner import tiles
from sweeps.runner.agreement import ProgramCheck
from sweeps.runner.config import config_of, create, existing
from sweeps.runner.fit import layout_of
from sweeps.runner.program.identity import Identity
from sweeps.runner.progress import progress_bar, quiet, stoppable
from sweeps.runner.spec import Sweep
from sweeps.runner.store import Report, StoreError
from sweeps.runner.store.reuse import ReusableRuns, copy_or_compute
from sweeps.runner.store.storage import Storage, as_storage
from sweeps.runner.store.store import Store
from sweeps.runner.work import Work


def run(
    sweep: Sweep,
    out: str | Path | None = None,
    *,
    # How runs are grouped.
    chunk: int | None = None,
    tile: int | None = None,
    # Where they are computed.
    devices: Sequence[Device] | None = None,
    process: tuple[int, int] = (0, 1),
    executor: Executor | None = None,
    # Which stored runs count, and how they are written.
    reuse: str | Path | Sequence[str | Path] = (),
    strict: bool = False,
    accept_code: str | None = None,
    durable: bool = False,
    # What is printed meanwhile.
    report: Callable[[str], None] | None = None,
    progress: bool = True,
) -> xr.Dataset:
    """Run a sweep, or its missing part, and return the labelled results.

    Args:
        sweep: what to run.
        out: folder of the store, or its address in a bucket as a str, such as s3://bucket/run; a
            sweep found there is resumed. None keeps the results in memory.
        chunk: largest number of runs in a chunk. A chunk is computed and then stored as a whole, so
            an interruption loses at most one. By default it is a few tiles; with slow runs on a
            CPU, small enough that the first is stored within about 20 seconds, or after a single
            run. A store keeps the chunk size with which it was created.
        tile: largest number of runs that a device computes at once; by default few on a CPU, and on
            an accelerator as many as its memory holds, according to the compiled program. If memory
            still runs out, the tile is halved.
        devices: local devices to use; all by default. Results do not depend on their number.
            Computations in float64 use the host's CPU in place of devices without float64.
        process: (k, n): this is process k of n that share the store; it computes the chunks k, k +
            n, k + 2 n, ...
        executor: executor whose workers compute and write the chunks, each on its own devices: any
            of `concurrent.futures` that starts processes without forking, or one of another package
            (Dask's `client.get_executor()`, loky). It is not shut down.
        reuse: one or more stores of other sweeps, complete or not. Runs that this sweep shares with
            them are copied: use it to add seeds, values of an axis, or another axis. Runs of fewer
            steps resume from their checkpoints, if those were kept. The stores are only read.
        strict: raise an error if stored chunks come from other versions or other devices; otherwise
            a few of their runs are computed again and must agree.
        accept_code: name of the code of this process, as printed by the error for stored runs of
            other code. Pass it to resume nevertheless, if you know that both compute the same
            numbers.
        durable: flush each chunk to disk before the next one, so that it survives a power failure.
            A bucket always does this.
        report: function that is called with lines of text to show.
        progress: show progress: a bar in a terminal or a notebook, elsewhere a line per minute.

    Returns:
        A dataset with a dimension for each axis (zipped axes share one), `time` where several
        times are recorded, `status` and `first_bad_step`. Mask by `status` before averaging.

    Raises:
        ValueError: for bad settings, and for a problem that draws the same numbers from every key,
            before anything is compiled or written.
        StoreError: if `out` contains something else or runs of other code, is in use, damaged or
            not writable, or if the executor breaks.
        ChunksFailed: if the executor's workers failed at some chunks; all others are stored.
        Interrupted: after Ctrl-C, SIGTERM or SIGHUP, with all finished chunks stored.

    Example:
        >>> run = sweeps.Experiment(DeepLinear(), dynsim.sgd(0.1), steps=20)
        >>> sweep = sweeps.Sweep(run, {"eta": [0.1, 0.2], "seed": range(3)}, record=["loss"])
        >>> sweeps.run(sweep, progress=False).loss.mean("seed").shape
        (2,)
    """
    checks.kind("sweep", sweep, Sweep)
    # A sweep caches what it has built, perhaps by code that has changed since.
    sweep = dataclasses.replace(sweep)
    programs.keep()

    sweep.check()
    for name, value in (("chunk", chunk), ("tile", tile)):
        if value is not None:
            checks.integer(name, value, 1)
    _check_resources(out, devices, process, executor)
    checks.kind("reuse", reuse, str, os.PathLike, list, tuple)
    if not isinstance(sweep.theory, str):
        # In a store only its name identifies a theory.
        for name, path in (("out", out), ("reuse", reuse or None)):
            if path is not None:
                raise ValueError(
                    f"theory = {sweep.theory.name}: only a theory of the problem can be stored; "
                    f"return it from the problem's `theories`, or leave out `{name}`"
                )
    if report is not None and not isinstance(report, Callable):
        raise ValueError(f"report = {report!r}: must be a function of a line of text")

    where = as_storage(out)
    where.durable |= durable
    sources = _open_sources(sweep, reuse, executor, report)
    store = existing(where, config_of(sweep), report)
    if store is not None and chunk is not None and store.layout != layout_of(sweep.dims, chunk):
        raise StoreError(
            f"chunk = {chunk}: {store.name} was made with chunks of "
            f"{math.prod(store.layout.chunk)} runs and keeps them; leave chunk out to resume"
        )
    mesh = tiles.mesh(devices, sweep.dtype)
    identity = Identity(sweep, mesh.devices.flat[0].platform)
    if store is None:
        identity.check()
        if accept_code is not None:
            raise ValueError(f"accept_code = {accept_code!r}: no run is stored yet; leave it out")

    # A store records the environment of its chunks: it explains why later programs differ.
    environment = output.environment()
    if where.address is not None or sources:
        environment |= identity.parts()
    for source in sources:
        compared = _compare_programs(source, identity, mesh, environment, report)
        environment[f"reuse of {source.store.name}"] = compared
    with quiet(not progress), precision(sweep.dtype):
        if executor is None:
            layout = store.layout if store else None
            work = Work(sweep, mesh, layout=layout, chunk=chunk, tile=tile, identity=identity)
            if report:
                report(str(work.plan))
            resources, common = _Devices(work, process), environment
        else:
            # Imported on demand: most sweeps have no executor.
            from sweeps.runner import driver

            job = driver.job_of(identity, where, tile, strict)
            resources = driver.Workers(executor, job, sweep, chunk)
            # The devices of the workers are unknown here.
            common = {name: environment[name] for name in environment if name in output.PACKAGES}
        # Locked before anything is created, so that a rejected call leaves nothing behind.
        with where.lock(*process, report) as check:
            if store is None:
                store = resources.create_store(where, report)
            store.check_lock = check
            store.prepare_to_resume(process, common, strict, report)
            if executor is not None:
                store.set_environment(environment, strict=False)
            alone = process == (0, 1)
            program_check = ProgramCheck(
                store, identity, mesh, environment, alone=alone, report=report
            )
            if where.address is not None:
                program_check.check(accept_code)
            done = store.done()
            resources.compute(store, done, program_check, sources)
    # Other processes continue meanwhile, unless there is nothing left to do.
    return store.dataset(done if done.all() else None)


def open_sweep(path: str | Path, report: Report | None = None) -> xr.Dataset:
    """Open the stored sweep at `path`, a folder or an address (s3://bucket/run), even if
    incomplete.

    Args:
        path: where it is.
        report: called with a line about files there that do not belong to the sweep; by default
            this is a warning.

    Returns:
        A labelled dataset of the complete chunks. Values are read when they are used.

    Raises:
        ValueError: for an invalid `path`.
        StoreError: if there is no sweep, or one of its files is missing or damaged. A damaged chunk
            raises it when it is read.

    Example:
        >>> run = sweeps.Experiment(DeepLinear(), dynsim.sgd(0.1), steps=20)
        >>> sweep = sweeps.Sweep(run, {"eta": [0.1, 0.2]})
        >>> stored = sweeps.run(sweep, "runs/modes", progress=False)
        >>> sweeps.open("runs/modes").equals(stored)
        True
    """
    checks.kind("path", path, str, os.PathLike)
    return Store.open(path, report).dataset()


class _Devices(NamedTuple):
    """The devices of this process, k of n, which computes the chunks k, k + n, k + 2 n, ..."""

    work: Work
    process: tuple[int, int]

    def create_store(self, where: Storage, report: Report | None) -> Store:
        work = self.work
        return create(where, work.sweep, work.plan.layout, work.variables(), report)

    def compute(
        self,
        store: Store,
        done: np.ndarray,
        program_check: ProgramCheck,
        sources: Sequence[ReusableRuns],
    ) -> None:
        """Compute the chunks of this process that are not `done`, copying from the sources."""
        (k, n), layout = self.process, store.layout
        regions = [layout.region(i) for i in range(k, layout.num_chunks, n) if not done[i]]
        with (
            stoppable(store.interrupted) as check,
            progress_bar(layout.num_runs, layout.runs_in(done)) as bar,
        ):

            def check_computed(computed: int) -> None:
                check()
                bar.computed(computed, self.work.compiling)

            for region in self.work.schedule(regions):
                began = perf_counter()
                program = ""
                # In-memory results do not outlive the code that computed them.
                if store.address is not None:
                    program = program_check.program(self.work.sweep.static_values(region))
                arrays = copy_or_compute(
                    sources, self.work, region, store.variables, check_computed
                )
                try:
                    store.write(region, arrays, perf_counter() - began, program)
                except OSError as error:
                    raise StoreError(
                        f"{store.name}: a chunk could not be written ({error.strerror}); the "
                        "chunks before it are stored. Make room or repair the folder and run the "
                        "same command to resume."
                    ) from error
                codes = arrays["status"]
                bar.stored(codes.size, int((codes != Status.OK).sum()))
                check()


def _check_resources(
    out: str | Path | None,
    devices: Sequence[Device] | None,
    process: tuple[int, int],
    executor: Executor | None,
) -> None:
    if devices is not None:
        checks.kind("devices", devices, list, tuple)
        if not devices or not all(isinstance(device, jax.Device) for device in devices):
            raise ValueError(f"devices = {devices!r}: must be devices, such as jax.devices()")
    k, n = process if isinstance(process, tuple) and len(process) == 2 else (process, 0)
    if not isinstance(k, int) or not isinstance(n, int) or not 0 <= k < n:
        raise ValueError(f"process = {process!r}: must be two integers (k, n) with 0 <= k < n")
    if executor is None:
        return
    if out is None:
        raise ValueError("executor: its workers write to a store; out must say where")
    if process != (0, 1):
        raise ValueError(f"process = {process}: an executor has workers of its own")
    if devices is not None:
        raise ValueError("devices: an executor's workers have their own")


def _open_sources(
    sweep: Sweep,
    reuse: str | Path | Sequence[str | Path],
    executor: Executor | None,
    report: Report | None,
) -> list[ReusableRuns]:
    sources = []
    for path in [reuse] if isinstance(reuse, str | os.PathLike) else reuse:
        try:
            store = Store.open(path, report)
        except StoreError as error:
            raise StoreError(f"reuse = {error}") from error
        source = ReusableRuns(store, sweep)
        # Workers receive the number of a chunk, not the states from which its runs resume.
        if source.step and executor is not None:
            raise ValueError(
                f"reuse = {store.name}: its runs can be continued only without an executor"
            )
        sources.append(source)
    return sources


def _compare_programs(
    source: ReusableRuns,
    identity: Identity,
    mesh: Mesh,
    environment: Mapping[str, str],
    report: Report | None,
) -> str:
    """Find the runs of a source whose programs have changed, which are computed again. Returns how
    many programs have; raises `StoreError` if all have."""
    original = Identity(source.original, identity.platform)
    program_check = ProgramCheck(
        source.store, original, mesh, environment, writes=False, report=report
    )
    same, others = program_check.compare_all()
    name = source.store.name
    if others and not same:
        raise StoreError(
            f"reuse = {name}: its runs were computed by different code", *others[0].why
        )
    if others and report:
        report(f"{name}: {len(others)} programs have changed; their runs are computed again")
    source.other_programs = [other.chosen for other in others]
    return f"{same} programs are the same, {len(others)} have changed"
