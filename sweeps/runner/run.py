"""Runs a sweep chunk by chunk on all local devices, and resumes stored ones."""

import dataclasses
import json
import math
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
import numpy as np
import xarray as xr
from jax.sharding import Mesh

from dynsim import Status, checks
from dynsim.precision import Device, precision
from sweeps import output
from sweeps.output import programs
from sweeps.runner import labels, tiles
from sweeps.runner.agreement import Agreement
from sweeps.runner.config import config_of
from sweeps.runner.program.identity import Identity
from sweeps.runner.progress import quiet, shown, stoppable
from sweeps.runner.spec import Sweep
from sweeps.runner.store import (
    GROUP,
    MARKER,
    RECORDS,
    Layout,
    Report,
    StoreError,
    Variable,
    check_names,
    manifest,
)
from sweeps.runner.store.arrays import NUMBERS, Array
from sweeps.runner.store.place import Place, place
from sweeps.runner.store.reuse import Reused, completed
from sweeps.runner.store.store import Store
from sweeps.runner.work import Work, layout_of
from sweeps.systems import budget


def run(
    sweep: Sweep,
    out: str | Path | None = None,
    *,
    chunk: int | None = None,
    tile: int | None = None,
    devices: Sequence[Device] | None = None,
    process: tuple[int, int] = (0, 1),
    executor: Executor | None = None,
    reuse: str | Path | Sequence[str | Path] = (),
    report: Callable[[str], None] | None = None,
    strict: bool = False,
    accept_code: str | None = None,
    durable: bool = False,
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
        report: function that is called with lines of text to show.
        strict: raise an error if stored chunks come from other versions or other devices; otherwise
            a few of their runs are computed again and must agree.
        accept_code: name of the code of this process, as printed by the error for stored runs of
            other code. Pass it to resume nevertheless, if you know that both compute the same
            numbers.
        durable: flush each chunk to disk before the next one, so that it survives a power failure.
            A bucket always does this.
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
    # What a sweep has built before may come from code that has changed since.
    sweep = dataclasses.replace(sweep)
    programs.keep()
    sweep.check()
    for name, value in (("chunk", chunk), ("tile", tile)):
        if value is not None:
            checks.integer(name, value, 1)
    _check_arguments(devices, process, reuse, report)
    if not isinstance(sweep.theory, str):
        _check_in_memory(sweep.theory.name, out, reuse)
    where = place(out)
    where.durable |= durable
    if executor is not None:
        _check_executor(where, devices, process)
    stores = [reuse] if isinstance(reuse, str | os.PathLike) else reuse
    sources = [Reused(_opened(each, report), sweep) for each in stores]
    if executor is not None and (begun := [each.store.name for each in sources if each.step]):
        raise ValueError(f"reuse = {begun[0]}: its runs can be continued only without an executor")
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
    environment = environment_of(identity, where, sources, mesh, report)
    with quiet(not progress), precision(sweep.dtype):
        if executor is None:
            layout = store.layout if store else None
            work = Work(sweep, mesh, layout=layout, chunk=chunk, tile=tile, identity=identity)
            if report:
                report(str(work.plan))
        else:
            # Imported on demand: most sweeps have no executor.
            from sweeps.runner import driver

            job = driver.job(identity, where, tile, strict)
        # Locked before anything is created, so that a rejected call leaves nothing behind.
        with where.lock(*process, report) as check:
            if store is not None:
                pass
            elif executor is None:
                store = create(where, sweep, work.plan.layout, work.variables(), report)
            else:
                store = driver.make_store(executor, job, sweep, where, chunk, report)
            store.held = check
            if executor is None:
                store.go_on(process, environment, strict, report)
            else:
                # The devices of the workers are unknown here.
                versions = {n: each for n, each in environment.items() if n in output.PACKAGES}
                store.go_on(process, versions, strict, report)
                store.enter(environment, strict=False)
            alone = process == (0, 1)
            agreement = Agreement(store, identity, mesh, environment, alone=alone, report=report)
            if where.address is not None:
                agreement.check(accept_code)
            done = store.done()
            if executor is None:
                _work_off(store, work, process, sources, done, agreement)
            else:
                driver.work_off(executor, store, job, agreement, sources)
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


def _check_arguments(devices: Any, process: Any, reuse: Any, report: Any) -> None:
    if devices is not None:
        checks.kind("devices", devices, list, tuple)
        if not devices or not all(isinstance(each, jax.Device) for each in devices):
            raise ValueError(f"devices = {devices!r}: must be devices, such as jax.devices()")
    k, n = process if isinstance(process, tuple) and len(process) == 2 else (process, 0)
    if not isinstance(k, int) or not isinstance(n, int) or not 0 <= k < n:
        raise ValueError(f"process = {process!r}: must be two integers (k, n) with 0 <= k < n")
    checks.kind("reuse", reuse, str, os.PathLike, list, tuple)
    if report is not None and not isinstance(report, Callable):
        raise ValueError(f"report = {report!r}: must be a function of a line of text")


def _check_in_memory(theory: str, out: Any, reuse: Any) -> None:
    """Raise `ValueError` if the runs of a theory that the problem does not have are to be stored,
    or copied from a store: only a name identifies a theory there."""
    for name, given in (("out", out), ("reuse", reuse or None)):
        if given is not None:
            raise ValueError(
                f"theory = {theory}: only a theory of the problem can be stored; return it from "
                f"the problem's `theories`, or leave out `{name}`"
            )


def _check_executor(
    where: Place, devices: Sequence[Device] | None, process: tuple[int, int]
) -> None:
    if where.address is None:
        raise ValueError("executor: its workers write to a store; out must say where")
    if process != (0, 1):
        raise ValueError(f"process = {process}: an executor has workers of its own")
    if devices is not None:
        raise ValueError("devices: an executor's workers have their own")


def _work_off(
    store: Store,
    work: Work,
    process: tuple[int, int],
    sources: Sequence[Reused],
    done: np.ndarray,
    agreement: Agreement,
) -> None:
    (k, n), layout = process, store.layout
    regions = [layout.region(i) for i in range(k, layout.num_chunks, n) if not done[i]]
    with (
        stoppable(store.interrupted) as check,
        shown(layout.num_runs, layout.runs_in(done)) as runs,
    ):

        def look(computed: int) -> None:
            check()
            runs.computed(computed, work.compiling)

        for region in work.in_turn(regions):
            began = perf_counter()
            # In-memory results do not outlive the code that computed them.
            kept = store.address is not None
            program = agreement.of(work.sweep.static_values(region)) if kept else ""
            arrays = completed(sources, work, region, store.variables, look)
            try:
                store.write(region, arrays, perf_counter() - began, program)
            except OSError as error:
                raise StoreError(
                    f"{store.name}: a chunk could not be written ({error.strerror}); the chunks "
                    "before it are stored. Make room or repair the folder and run the same command "
                    "to resume."
                ) from error
            codes = arrays["status"]
            runs.stored(codes.size, int((codes != Status.OK).sum()))
            check()


def environment_of(
    identity: Identity,
    where: Place,
    sources: Sequence[Reused],
    mesh: Mesh,
    report: Report | None,
) -> dict[str, str]:
    """Return the environment of this process, with the versions behind the problem and the number
    of programs that agree with those of each source. A store records it for its chunks. Raises
    `StoreError` if no program of a source agrees."""
    if where.address is None and not sources:
        return output.environment()
    found = {**output.environment(), **identity.parts()}
    for source in sources:
        name = source.store.name
        original = Identity(source.original, identity.platform)
        about = source.store, original, mesh, found
        same, others = Agreement(*about, writes=False, report=report).compared()
        if others and not same:
            raise StoreError(
                f"reuse = {name}: its runs were computed by different code", *others[0].why
            )
        if others and report:
            report(f"{name}: {len(others)} programs have changed; their runs are computed again")
        source.others = [each.chosen for each in others]
        found[f"reuse of {name}"] = f"{same} programs are the same, {len(others)} have changed"
    return found


def _opened(source: str | Path, report: Report | None) -> Store:
    try:
        return Store.open(source, report)
    except StoreError as error:
        raise StoreError(f"reuse = {error}") from error


def existing(where: Place, config: dict, report: Report | None = None) -> Store | None:
    """Return the store of this sweep if it exists, or None if one can be created there."""
    if where.vacant():
        where.check_writable()
        return None
    store = Store.open(where, report)
    store.require(config)
    return store


def create(
    where: str | Place,
    sweep: Sweep,
    layout: Layout,
    variables: Mapping[str, Variable],
    report: Report | None = None,
) -> Store:
    """Create an empty store for a sweep, or open one that another process has just created for it.
    Raises `ValueError` for results that do not fit into memory, for invalid or duplicate array
    names, and for non-numeric arrays; `StoreError` if another process has created a store of a
    different sweep there, or a bucket is not writable."""
    where = place(where)
    needed = sum(math.prod(each.shape) * each.dtype.itemsize for each in variables.values())
    stored = where.address is not None
    budget.check_held(layout.num_runs, math.prod(layout.chunk), needed, stored)
    try:
        where.create(files(sweep, layout, variables))
    except FileExistsError:
        Store.open(where, report).require(config_of(sweep))
    return Store.open(where, report)


def files(sweep: Sweep, layout: Layout, variables: Mapping[str, Variable]) -> dict[str, bytes]:
    """Return the files of an empty store; the last one is its `MARKER`."""
    config, coordinates = config_of(sweep), labels.coordinates(sweep)
    inner = (dim for each in variables.values() for dim in each.dims)
    others = [name for name in coordinates if name not in sweep.fields]
    for name, each in variables.items():
        if not NUMBERS.fullmatch(each.dtype.name):
            raise ValueError(
                f"record = {name!r}: has type {each.dtype.name}; must be real, complex, "
                "integer or boolean"
            )
    check_names(("axes", sweep.fields), ("dimensions", [*others, *inner]), ("record", variables))
    made_by = {**output.environment("zarr", "xarray"), "precision": sweep.dtype}
    attributes = {
        "format": manifest.FORMAT,
        # Shared by copies of this store; identifies files of other stores.
        "store": uuid.uuid4().hex,
        # The values of axes are stored as coordinates.
        "config": {**config, "axes": list(config["axes"])},
        "config_hash": manifest.fingerprint(config),
        "environment": made_by,
        "time_unit": "optimiser steps",
        "variables": [*(name for name in variables if name != "status"), "status"],
        "title": config["title"],
    }
    # By xarray's convention: coordinates other than those named like their dimension.
    labelling = [name for name, (its_dims, _) in coordinates.items() if its_dims != (name,)]
    if labelling:
        attributes["coordinates"] = " ".join(labelling)
    names = tuple(dim.name for dim in sweep.dims)
    arrays = {
        name: Array(
            (*names, *v.dims), (*layout.shape, *v.shape), (*layout.chunk, *v.shape), v.dtype
        )
        for name, v in variables.items()
    }
    kept = {GROUP: {"attributes": attributes, "zarr_format": 3, "node_type": "group"}}
    values = {}
    for name, (its_dims, value) in coordinates.items():
        arrays[name] = Array(its_dims, value.shape, value.shape, value.dtype)
        values["/".join((name, "c", *"0" * value.ndim))] = arrays[name].encoded(value)
    for name, array in arrays.items():
        said = labels.about(sweep.system, name, sweep.varied.named.get(name))
        if array.dtype.kind == "U":
            # Text has no unit.
            said.pop("units", None)
        kept[f"{name}/{GROUP}"] = array._replace(attributes=said).metadata()
    sealed = manifest.seal(
        {key: json.dumps(each, indent=2).encode() for key, each in kept.items()} | values
    )
    return {**sealed, f"{RECORDS}{attributes['store']}/{MARKER}": b""}
