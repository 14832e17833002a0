"""Chunks of a sweep of which other sweeps have a part: their runs, the beginnings of runs, which
go on, and runs of its own."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np
from jaxtyping import Bool, Int, UInt8

from sweeps.runner.store.base import CHECKPOINT, MISSING, Variable

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
        state: bytes of the state in which a run ended.
    """

    step: int
    early: int
    times: tuple[int, ...]

    @property
    def state(self) -> int: ...

    def read(self, region: Region, variables: Mapping[str, Variable]) -> Found | None:
        """What it has of a region; None where that is nothing."""
        ...


class Growth(Generic[SourceT]):
    """Computes chunks, but for what the sources have.

    Args:
        sources: stores of other sweeps. Of those that have the beginning of a run, the one that
            has most of it is taken.
        compute: for runs of which nothing is there.
        later: for runs that go on where those of a source end.
    """

    def __init__(
        self, sources: Sequence[SourceT], compute: Compute, later: Callable[[SourceT], GoOn]
    ) -> None:
        self.compute, self.later = compute, functools.cache(later)
        self.whole = [each for each in sources if not each.step]
        self.begun = sorted((s for s in sources if s.step), key=lambda each: -each.step)

    def chunk(self, region: Region, variables: Mapping[str, Variable]) -> Arrays:
        """The arrays of a region."""
        if not (self.whole or self.begun):
            return self.compute(region, variables)
        arrays, missing = gathered(self.whole, region, variables)
        for source in self.begun:
            self._go_on(source, region, variables, arrays, missing)
        for box in boxes(missing):
            _put(arrays, box, self.compute(_moved(box, region), variables))
        return arrays

    def _go_on(
        self,
        source: SourceT,
        region: Region,
        variables: Mapping[str, Variable],
        arrays: Arrays,
        missing: Bool[np.ndarray, "..."],
    ) -> None:
        """Compute the rest of the runs that the source has begun, and mark them as no more
        `missing`."""
        early, late = source.early, len(source.times)
        before = {name: _at_times(each, early) for name, each in variables.items()}
        after = {name: _at_times(each, late) for name, each in variables.items()}
        # Where none of the times was recorded there, no other array is needed.
        asked = before if early else {"status": before["status"]}
        state = Variable((source.state,), ("byte",), np.dtype(np.uint8))
        read = source.read(region, {**asked, CHECKPOINT: state})
        if read is None:
            return
        found = _spread(read, missing.shape)
        begun = missing & (found["status"] != MISSING)
        go_on = self.later(source)
        for box in boxes(begun):
            made = go_on(_moved(box, region), after, found[CHECKPOINT][box])
            if early:
                made = {
                    name: _joined((found[name][box], early), (made[name], late), each, len(region))
                    for name, each in variables.items()
                }
            _put(arrays, box, made)
        missing &= ~begun


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


def _spread(read: Found, shape: tuple[int, ...]) -> Arrays:
    """Arrays over a whole region, `MISSING` where nothing was found."""
    places, found = read
    arrays = {}
    for name, values in found.items():
        empty = MISSING if name == "status" else 0
        arrays[name] = np.full((*shape, *values.shape[len(shape) :]), empty, values.dtype)
        arrays[name][np.ix_(*places)] = values
    return arrays


def _moved(box: Region, region: Region) -> Region:
    """A box in a region, in the array of all runs."""
    both = zip(box, region, strict=True)
    return tuple(slice(b.start + r.start, b.stop + r.start) for b, r in both)


def _put(arrays: Arrays, box: Region, made: Mapping[str, np.ndarray]) -> None:
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
