"""Making the store of a sweep, and chunks of which other sweeps have a part: their runs, the
beginnings of runs, which go on, and runs of its own."""

import json
import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np
from jaxtyping import Bool, Int, UInt8

from sweeps.output import environment
from sweeps.runner import labels
from sweeps.runner.config import config_of
from sweeps.runner.spec import Sweep
from sweeps.runner.store import manifest
from sweeps.runner.store.arrays import MISSING, NUMBERS, Array
from sweeps.runner.store.base import (
    CHECKPOINT,
    GROUP,
    MARKER,
    RECORDS,
    Layout,
    Place,
    Report,
    Variable,
    check_names,
)
from sweeps.runner.store.local import place
from sweeps.runner.store.store import Store
from sweeps.systems import budget


def create(
    where: str | Place,
    sweep: Sweep,
    layout: Layout,
    variables: Mapping[str, Variable],
    report: Report | None = None,
) -> Store:
    """An empty store for a sweep, or the one that another process has made for it meanwhile.

    Args:
        where: the place, or its address.
        sweep: what it will hold.
        layout: how the array of runs is cut into chunks.
        variables: the arrays that the runs record.
        report: as `Store.open` takes it.

    Raises:
        ValueError: for results that do not fit into memory, a name that no array can have, or that
            two have, and an array of what is no number.
        StoreError: when another process has made a store of another sweep there, or a bucket cannot
            be written.
    """
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
    """The files of an empty store, the last of which is its `MARKER`."""
    config, coordinates = config_of(sweep), labels.coordinates(sweep)
    inner = (dim for each in variables.values() for dim in each.dims)
    others = [name for name in coordinates if name not in sweep.fields]
    for name, each in variables.items():
        if not NUMBERS.fullmatch(each.dtype.name):
            raise ValueError(
                f"record = {name!r}: is of type {each.dtype.name}, must be of real, complex or "
                "whole numbers of NumPy, or truth values"
            )
    check_names(("axes", sweep.fields), ("dimensions", [*others, *inner]), ("record", variables))
    made_by = {**environment("zarr", "xarray"), "precision": sweep.dtype}
    attributes = {
        "format": manifest.FORMAT,
        # Of this store and its copies: what belongs to another one is told by it.
        "store": uuid.uuid4().hex,
        # Their values are coordinates.
        "config": {**config, "axes": list(config["axes"])},
        "config_hash": manifest.fingerprint(config),
        "environment": made_by,
        "time_unit": "optimiser steps",
        "variables": [*(name for name in variables if name != "status"), "status"],
        "title": config["title"],
    }
    # By xarray's convention: labels other than the values of a dimension.
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
            # Words have no unit.
            said.pop("units", None)
        kept[f"{name}/{GROUP}"] = array._replace(attributes=said).metadata()
    sealed = manifest.seal(
        {key: json.dumps(each, indent=2).encode() for key, each in kept.items()} | values
    )
    return {**sealed, f"{RECORDS}{attributes['store']}/{MARKER}": b""}


Region = tuple[slice, ...]
Arrays = dict[str, np.ndarray]
Found = tuple[tuple[Int[np.ndarray, " N"], ...], Arrays]
"""What a source has of a region: places in it along each dimension, and arrays of these."""
Compute = Callable[[Region, Mapping[str, Variable]], Arrays]
"""Makes the arrays of a region."""
GoOn = Callable[[Region, Mapping[str, Variable], UInt8[np.ndarray, "*region N"]], Arrays]
"""Makes those of runs that go on from states, given as bytes."""
SourceT = TypeVar("SourceT", bound="Source")


class Source(Protocol):
    """What has runs of a sweep, or their beginnings.

    Attributes:
        step: at which its runs end, and those of the sweep go on; 0 for whole runs.
        early: number of times of the sweep until then, at all of which it has recorded.
        times: the steps after that one at which runs that go on record.
    """

    step: int
    early: int
    times: tuple[int, ...]

    @property
    def state(self) -> int:
        """Bytes of the state in which a run ended."""
        ...

    def read(self, region: Region, variables: Mapping[str, Variable]) -> Found | None:
        """What it has of a region; None where that is nothing."""
        ...


def completed(
    sources: Sequence[SourceT],
    region: Region,
    variables: Mapping[str, Variable],
    compute: Compute,
    later: Callable[[SourceT], GoOn],
) -> Arrays:
    """The arrays of a region, computed but for what the sources have.

    Args:
        sources: stores of other sweeps. Of those that have the beginning of a run, the one that
            has most of it is taken.
        region: in the array of all runs.
        variables: the arrays.
        compute: for runs of which nothing is there.
        later: for runs that go on where those of a source end.
    """
    if not sources:
        return compute(region, variables)
    arrays, missing = gathered([each for each in sources if not each.step], region, variables)

    for source in sorted((s for s in sources if s.step), key=lambda s: -s.step):
        early, late = source.early, len(source.times)
        before = {name: _at_times(each, early) for name, each in variables.items()}
        after = {name: _at_times(each, late) for name, each in variables.items()}
        # Where none of the times was recorded there, no other array is needed.
        asked = before if early else {"status": before["status"]}
        state = Variable((source.state,), ("byte",), np.dtype(np.uint8))
        found, absent = gathered([source], region, {**asked, CHECKPOINT: state})
        for box in boxes(missing & ~absent):
            made = later(source)(_moved(box, region), after, found[CHECKPOINT][box])
            if early:
                made = {
                    name: _joined((found[name][box], early), (made[name], late), each, len(region))
                    for name, each in variables.items()
                }
            _put(arrays, box, made)
        missing &= absent
    for box in boxes(missing):
        _put(arrays, box, compute(_moved(box, region), variables))
    return arrays


def gathered(
    sources: Sequence[Source], region: Region, variables: Mapping[str, Variable]
) -> tuple[Arrays, Bool[np.ndarray, "..."]]:
    """What the sources have of a region, and which of its runs none of them has."""
    shape = tuple(part.stop - part.start for part in region)
    missing = np.ones(shape, bool)
    arrays = {
        name: np.zeros((*shape, *variable.shape), variable.dtype)
        for name, variable in variables.items()
    }
    for source in sources:
        read = source.read(region, variables)
        if read is None:
            continue
        places, found = read
        there = found["status"] != MISSING
        for name, values in found.items():
            old = arrays[name][np.ix_(*places)]
            mask = there.reshape(there.shape + (1,) * (values.ndim - there.ndim))
            arrays[name][np.ix_(*places)] = np.where(mask, values, old)
        missing[np.ix_(*places)] &= ~there
    return arrays, missing


def boxes(missing: Bool[np.ndarray, "..."]) -> Iterator[Region]:
    """Boxes that cover the cells that are missing, each once."""
    if missing.ndim == 0:
        if missing:
            yield ()
        return
    start = 0
    for stop in range(1, len(missing) + 1):
        if stop == len(missing) or (missing[stop] != missing[start]).any():
            for inner in boxes(missing[start]):
                yield (slice(start, stop), *inner)
            start = stop


def _moved(box: Region, region: Region) -> Region:
    """A box in a region, in the array of all runs."""
    both = zip(box, region, strict=True)
    return tuple(slice(b.start + r.start, b.stop + r.start) for b, r in both)


def _put(arrays: Arrays, box: Region, made: Arrays) -> None:
    for name, values in made.items():
        arrays[name][box] = values


def _at_times(variable: Variable, number: int) -> Variable:
    """An array with another number of recorded times; a single one has no axis."""
    if "time" not in variable.dims:
        return variable
    front, dims = ((number,), variable.dims) if number > 1 else ((), variable.dims[1:])
    return Variable((*front, *variable.shape[1:]), dims, variable.dtype)


def _joined(
    before: tuple[np.ndarray, int],
    after: tuple[np.ndarray, int],
    variable: Variable,
    outer: int,
) -> np.ndarray:
    """Values at so many times before and after, along the axis of times behind the `outer` ones."""
    if "time" not in variable.dims:
        return after[0]
    parts = [np.expand_dims(x, outer) if number == 1 else x for x, number in (before, after)]
    return np.concatenate(parts, axis=outer)
