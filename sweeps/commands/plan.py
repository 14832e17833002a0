"""What a sweep will take, before it starts: runs, disk and time."""

import dataclasses
import datetime
import math
import sys
import time
from typing import NamedTuple

import numpy as np

from dynsim.precision import precision
from sweeps.runner import tiles
from sweeps.runner.config import config_of
from sweeps.runner.run import existing
from sweeps.runner.spec import Sweep
from sweeps.runner.store.place import place
from sweeps.runner.store.store import Store
from sweeps.runner.work import Work

MANY = 10**8
"""Runs from which on a person is asked."""
LARGE = 10**11
"""Bytes on the disk from which on a person is asked."""
FEW = (10, 30)
"""Steps of the runs by which long training is timed."""


class Plan(NamedTuple):
    """What a sweep will take.

    Attributes:
        work: what computes it.
        store: what there is of it.
        bytes: on the disk, before compression.
    """

    work: Work
    store: Store | None
    bytes: int

    @property
    def done(self) -> int:
        """Number of runs that are there."""
        return self.store.layout.runs_in(self.store.done()) if self.store else 0


def plan(sweep: Sweep, out: str, chunk: int | None, tile: int | None) -> Plan:
    """Plan a sweep, tracing its programs and compiling none on a CPU.

    Raises:
        ValueError: for a bad sweep, or another one in `out`.
    """
    sweep.check()
    where = place(out)
    store = existing(where, config_of(sweep))
    with precision(sweep.dtype):
        layout = store.layout if store else None
        mesh = tiles.mesh(None, sweep.dtype)
        work = Work(sweep, mesh, layout=layout, chunk=chunk, tile=tile)
        arrays = work.variables().values()
    size = sum(math.prod(each.shape) * np.dtype(each.dtype).itemsize for each in arrays)
    return Plan(work, store, size * work.plan.layout.num_runs)


def confirm(found: Plan, yes: bool) -> None:
    """Ask before a sweep that is very large, where somebody can answer.

    Raises:
        ValueError: when the answer is no, or nobody is there to give it.
    """
    runs = found.work.plan.layout.num_runs - found.done
    if yes or (runs < MANY and found.bytes < LARGE):
        return
    what = f"{runs:.3g} runs, up to {found.bytes / 1e9:.3g} GB on the disk"
    if not sys.stdin.isatty():
        raise ValueError(f"{what}: needs --yes")
    print(f"{what}. Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ValueError(f"{what}: not started")


def text(found: Plan) -> str:
    """The plan as lines for people, with the time that it takes here, which is measured."""
    layout, seconds = found.work.plan.layout, _seconds(found.work)
    left = layout.num_runs - found.done
    seconds *= left / math.prod(layout.chunk)
    took = datetime.timedelta(seconds=max(round(seconds), 1))
    lines = [
        str(found.work.plan),
        f"on the disk: at most {_size(found.bytes)}, before compression",
        f"time: about {took} (h:mm:ss) on this machine, by a chunk that was timed; compilation "
        "comes on top",
    ]
    if found.done:
        lines.insert(1, f"{found.done} of {layout.num_runs} runs are stored already")
    return "\n".join(lines)


def _seconds(work: Work) -> float:
    """What a chunk takes: measured, of long training by runs of few steps."""
    sweep = work.sweep
    steps, paths = sweep.first.steps or 0, {axis.path for axis in sweep.varied.named.values()}
    fixed = ("steps",) not in paths and not isinstance(sweep.times, tuple)
    if not (sweep.rules.trains and fixed and steps > 2 * FEW[1]):
        return _timed(work)
    took = []
    for number in FEW:
        shorter = sweep.first.at({"steps": number})
        # Runs that can be resumed may end before their schedules do.
        resumed = sweep.rules.goes_on
        short = dataclasses.replace(sweep, run=shorter, times="end", checkpoint=resumed)
        tile = math.prod(work.tile)
        took.append(_timed(Work(short, work.mesh, layout=work.plan.layout, tile=tile)))
    slope = max(took[1] - took[0], 0) / (FEW[1] - FEW[0])
    return took[0] + slope * (steps - FEW[0])


def _timed(work: Work) -> float:
    """Seconds that the first chunk takes, once it is compiled."""
    region = work.plan.layout.region(0)
    with precision(work.sweep.dtype):
        variables = work.variables()
        work.compute(region, variables)
        began = time.perf_counter()
        work.compute(region, variables)
    return time.perf_counter() - began


def _size(number: int) -> str:
    unit, name = next((u for u in ((10**9, "GB"), (10**6, "MB")) if number >= u[0]), (10**3, "kB"))
    return f"{number / unit:.3g} {name}"
