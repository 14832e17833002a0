"""`dynsim sweep`: runs or resumes a sweep, after a plan of its runs, disk space and time."""

import contextlib
import dataclasses
import datetime
import math
import sys
import time
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import xarray as xr

from dynsim.decoding import Count
from dynsim.precision import precision
from sweeps.commands import reading
from sweeps.runner import cluster, progress, tiles
from sweeps.runner.config import config_of, existing
from sweeps.runner.labels import shown, valid, worded
from sweeps.runner.run import run as run_sweep
from sweeps.runner.spec import Sweep, load
from sweeps.runner.store.storage import as_storage
from sweeps.runner.store.store import Store
from sweeps.runner.work import Work
from sweeps.studies.optimum.best import FEWEST_VALUES, at_end, observables, pick_of

MANY = 10**8
"""Number of runs above which to ask for confirmation."""
LARGE = 10**11
"""Bytes on disk above which to ask for confirmation."""
MOST_SEARCHED = 2**24
"""Largest number of values in a sweep for which its best cell is searched."""
SHORT_RUNS = (10, 30)
"""Numbers of steps from which to extrapolate the time of long training."""


class SweepCost(NamedTuple):
    """The cost of a sweep.

    Attributes:
        work: computes the sweep.
        store: its store, if it exists.
        bytes: size on disk before compression.
    """

    work: Work
    store: Store | None
    bytes: int

    @property
    def done(self) -> int:
        """Number of stored runs."""
        return self.store.layout.runs_in(self.store.done()) if self.store else 0


def plan(sweep: Sweep, out: str, chunk: int | None, tile: int | None) -> SweepCost:
    """Plan a sweep: trace its programs, without compiling any on a CPU.

    Raises:
        ValueError: for an invalid sweep, or a different one in `out`.
    """
    sweep.check()
    store = existing(as_storage(out), config_of(sweep))
    with precision(sweep.dtype):
        layout = store.layout if store else None
        mesh = tiles.mesh(None, sweep.dtype)
        work = Work(sweep, mesh, layout=layout, chunk=chunk, tile=tile)
        arrays = work.variables().values()
    size = sum(math.prod(array.shape) * np.dtype(array.dtype).itemsize for array in arrays)
    return SweepCost(work, store, size * work.plan.layout.num_runs)


def confirm(cost: SweepCost, yes: bool) -> None:
    """Ask for confirmation of a very large sweep if the session is interactive.

    Raises:
        ValueError: if the answer is no, or nobody can answer.
    """
    runs = cost.work.plan.layout.num_runs - cost.done
    if yes or (runs < MANY and cost.bytes < LARGE):
        return
    # The question goes to standard error, as the output may be a file.
    what = f"{runs:.3g} runs, up to {cost.bytes / 1e9:.3g} GB on disk"
    if not sys.stdin.isatty():
        raise ValueError(f"{what}: confirm with --yes")
    print(f"{what}. Continue? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ValueError(f"{what}: not started")


def text(cost: SweepCost) -> str:
    """Format the plan, with the time that a chunk takes here, which is measured."""
    work, layout = cost.work, cost.work.plan.layout
    sweep, axes = work.sweep, work.sweep.varied.named.values()
    steps = sweep.first.steps or 0
    is_fixed = ("steps",) not in {a.path for a in axes} and not isinstance(sweep.times, tuple)
    if sweep.method.trains and is_fixed and steps > 2 * SHORT_RUNS[1]:
        # Long training takes a fixed time and one per step: extrapolate from two short runs.
        durations = []
        for number in SHORT_RUNS:
            run = sweep.first.at({"steps": number})
            # Checkpointed runs may end before their schedules.
            resumed = sweep.method.resumes
            short = dataclasses.replace(sweep, run=run, times="end", checkpoint=resumed)
            tile = math.prod(work.tile)
            durations.append(_seconds_per_chunk(Work(short, work.mesh, layout=layout, tile=tile)))
        slope = max(durations[1] - durations[0], 0) / (SHORT_RUNS[1] - SHORT_RUNS[0])
        seconds = durations[0] + slope * (steps - SHORT_RUNS[0])
    else:
        seconds = _seconds_per_chunk(work)
    seconds *= (layout.num_runs - cost.done) / math.prod(layout.chunk)
    took = datetime.timedelta(seconds=max(round(seconds), 1))
    # Rounded first, so that 999 999 bytes become 1 MB.
    size = float(f"{cost.bytes:.3g}")
    unit, name = next((u for u in ((1e9, "GB"), (1e6, "MB")) if size >= u[0]), (1e3, "kB"))
    lines = [
        str(work.plan),
        f"disk space: at most {size / unit:.3g} {name}, before compression",
        f"time: about {took} (h:mm:ss) on this machine, estimated from one chunk; compilation "
        "is not included",
    ]
    if cost.done:
        lines.insert(1, f"{cost.done} of {layout.num_runs} runs are already stored")
    return "\n".join(lines)


def _seconds_per_chunk(work: Work) -> float:
    region = work.plan.layout.region(0)
    with precision(work.sweep.dtype):
        variables = work.variables()
        # The first time it is compiled.
        work.compute(region, variables)
        began = time.perf_counter()
        work.compute(region, variables)
    return time.perf_counter() - began


@dataclasses.dataclass(frozen=True)
class SweepCommand(cluster.Hosts):
    """Run a sweep. To resume an interrupted one, run the same command again.

    Attributes:
        file: TOML file of the sweep, or the name of a built-in sweep, such as fig6.
        out: folder for the results, or an address such as s3://bucket/run; by default runs/NAME,
            with the name of the file.
        set: override settings of the file: run.steps=50 'axes.eta_z=[0.1, 1]' theory=best. KEY=
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
        accept_code: accept runs that other code has computed: the name of the code that you have
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
    """Run `dynsim sweep`; returns the address of the store."""
    sweep = load(config.file, config.set)
    out = config.out or str(Path("runs") / Path(config.file).stem)
    for address in config.reuse:
        try:
            Store.open(address, report=lambda line: None)
        except ValueError as error:
            raise ValueError(f"reuse = {address}: {error}") from None
    cluster.use_all_cores()
    # Before anything uses JAX: planning traces programs.
    process = (0, 1) if config.dry_run else config.connect()
    if config.dry_run or config.dask is None:
        cost = plan(sweep, out, config.chunk, config.tile)
        if config.dry_run:
            print(text(cost))
            return []
        confirm(cost, config.yes)
    if config.dask is None and config.config is not None:
        raise ValueError(f"config = {config.config}: only used by dask = 'slurm' and the like")
    workers = contextlib.nullcontext()
    if config.dask is not None:
        workers = cluster.executor(config.dask, config.config, progress.say)
    with workers as executor:
        dataset = run_sweep(
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
    about = reading.summarise(Store.open(out, report=lambda line: None))
    print(reading.progress(about))
    # Other processes may not have finished their chunks.
    if about["chunks_done"] == about["chunks"]:
        for line in best_cell(dataset):
            print(line)
    return [out]


def best_cell(dataset: xr.Dataset) -> list[str]:
    """Report the cell of a sweep with the best mean over the seeds in one line, and each axis of
    learning rates at whose end it lies in another.

    The list is empty for a sweep without a numerical axis, without a loss or an accuracy, or with
    more than `MOST_SEARCHED` numbers.
    """
    axes = [str(d) for d in dataset["status"].dims if d != "seed" and dataset.sizes[d] > 1]
    _, name = observables(dataset)
    numeric = [axis for axis in axes if not worded(dataset, axis)]
    if name is None or not numeric or dataset[name].size > MOST_SEARCHED:
        return []
    values = at_end(valid(dataset[[name, "status"]]), name)
    # A cell with a diverged seed has no mean.
    seeds = dataset.sizes.get("seed", 1)
    if "seed" in values.dims:
        values = values.mean("seed", skipna=False)
    if not values.notnull().any():
        return []
    pick = values.argmin if pick_of(name) == "lowest" else values.argmax
    at = {str(dim): int(i) for dim, i in pick([*values.dims]).items()}
    cell = values.isel(at)
    along = {str(n): c for n, c in dataset.coords.items() if c.dims and {*c.dims} <= {*axes}}
    where = ", ".join(f"{n} = {shown(cell[n].item())}" for n in along if n != "time")
    mean = f", mean of {seeds} seeds" if seeds > 1 else ""
    lines = [f"best {name} {float(cell):.4g} at {where}{mean}"]
    for axis in axes:
        # Learning rates are recognised by their unit.
        if dataset[axis].attrs.get("units") != "1/step" or dataset.sizes[axis] < FEWEST_VALUES:
            continue
        order = np.argsort(dataset[axis].values)
        for last, end, other in ((0, "lower", "smaller"), (-1, "upper", "larger")):
            if at[axis] == order[last]:
                lines.append(
                    f"the best {axis} lies at the {end} end of its axis "
                    f"({shown(cell[axis].item())}); try {other} ones"
                )
    return lines
