"""`dynsim sweep`: run a sweep, or the rest of it."""

import contextlib
import dataclasses
from concurrent.futures import Executor
from pathlib import Path
from typing import ClassVar

from dynsim.decoding import Count
from sweeps.commands import info, plan
from sweeps.runner import cluster, progress
from sweeps.runner.run import run as run_sweep
from sweeps.runner.spec import load
from sweeps.runner.store.store import Store
from sweeps.studies.optimum.best import best_cell


@dataclasses.dataclass(frozen=True)
class SweepCommand(cluster.Hosts):
    """Run a sweep. To resume an interrupted one, run the same command again.

    Attributes:
        file: TOML file of the sweep, or the name of a built-in sweep, such as fig6.
        out: folder for the results, or an address such as s3://bucket/run; by default runs/NAME,
            with the name of the file.
        set: override settings of the file: run.steps=50 'axes.eta_z=[0.1, 1]' engine=best. KEY=
            removes KEY from the file; run={...} and axes={...} change the keys that they name.
        chunk: number of runs in a chunk. A chunk is computed and then stored as a whole, so an
            interruption loses at most one; by default few enough to store the first within about
            20 s, if single runs are shorter.
        tile: number of runs that a device computes at once; by default chosen from an estimate of
            memory.
        dask: compute on Dask workers: the address of a scheduler (tcp://HOST:8786), local:4 for
            four workers on this machine, or slurm, pbs, ... for a batch system.
        config: TOML file that describes the jobs of the batch system, see docs/howto/clusters.md.
        reuse: stored sweeps from which to copy runs with the same settings: to add seeds or values
            of an axis to a finished sweep, or steps to one with checkpoint = true.
        dry_run: report runs, disk space and estimated time without running; one chunk is timed.
        yes: do not ask for confirmation above 1e8 runs or 100 GB.
        strict: do not resume if stored chunks were made by other versions or on other devices.
        accept_code: resume runs that other code has computed: the name of the code that you have
            now, as the error prints it.
        durable: flush each chunk to disk, so that it survives a power failure, before starting the
            next.
        distributed, coordinator, processes, process, patience: other processes that work on the
            same sweep, see docs/howto/sweeps.md.
    """

    POSITIONAL: ClassVar = ("file",)

    file: str
    out: str | None = None
    set: tuple[str, ...] = ()
    chunk: Count | None = None
    tile: Count | None = None
    dask: cluster.Where | None = None
    config: Path | None = None
    reuse: tuple[str, ...] = ()
    dry_run: bool = False
    yes: bool = False
    strict: bool = False
    accept_code: str | None = None
    durable: bool = False


def run(config: SweepCommand) -> list[str]:
    """Run `dynsim sweep`; returns where it is kept."""
    sweep = load(config.file, config.set)
    out = config.out or str(Path("runs") / Path(config.file).stem)
    for each in config.reuse:
        _check_store("reuse", each)
    cluster.use_all_cores()
    # Before anything of JAX is touched, of which planning traces programs.
    process = (0, 1) if config.dry_run else config.connect()
    if config.dry_run or config.dask is None:
        found = plan.plan(sweep, out, config.chunk, config.tile)
        if config.dry_run:
            print(plan.text(found))
            return []
        plan.confirm(found, config.yes)
    with _workers(config) as executor:
        found = run_sweep(
            sweep,
            out,
            chunk=config.chunk,
            tile=config.tile,
            process=process,
            executor=executor,
            reuse=config.reuse,
            report=progress.say,
            strict=config.strict,
            accept_code=config.accept_code,
            durable=config.durable,
        )
    about = info.describe(Store.open(out, report=lambda line: None))
    print(info.progress(about))
    # Other processes may have chunks of it left.
    if about["chunks_done"] == about["chunks"]:
        for line in best_cell(found):
            print(line)
    return [out]


def _workers(config: SweepCommand) -> contextlib.AbstractContextManager[Executor | None]:
    if config.dask is None:
        if config.config is not None:
            raise ValueError(f"config = {config.config}: read by dask = 'slurm' and the like alone")
        return contextlib.nullcontext()
    return cluster.executor(config.dask, config.config, progress.say)


def _check_store(field: str, place: str) -> None:
    """Raise `ValueError`, naming the field, where a stored sweep should be and none is."""
    try:
        Store.open(place, report=lambda line: None)
    except ValueError as error:
        raise ValueError(f"{field} = {place}: {error}") from None
