"""How the array of the runs of a sweep is cut into chunks."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from sweeps.language.axes import Dimension


@dataclasses.dataclass(frozen=True)
class Layout:
    """How the array of runs is cut into chunks, the units of work and of storage.

    Attributes:
        shape: number of values along each dimension.
        chunk: number of values of a chunk along each dimension; at the far end less may be left.
    """

    shape: tuple[int, ...]
    chunk: tuple[int, ...]

    @property
    def num_runs(self) -> int:
        """Number of runs."""
        return math.prod(self.shape)

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of chunks along each dimension."""
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunk, strict=True))

    @property
    def num_chunks(self) -> int:
        """Number of chunks."""
        return math.prod(self.counts)

    def regions(self) -> Iterator[tuple[slice, ...]]:
        """The region of each chunk, chunk 0 first, the last dimension fastest."""
        return map(self._at, itertools.product(*map(range, self.counts)))

    def region(self, number: int) -> tuple[slice, ...]:
        """The region of one chunk, by its place among `regions`."""
        return self._at(tuple(int(i) for i in np.unravel_index(number, self.counts)))

    def number(self, region: Sequence[slice]) -> int:
        """The place of a region among `regions`."""
        index = [part.start // size for part, size in zip(region, self.chunk, strict=True)]
        return int(np.ravel_multi_index(index, self.counts))

    def runs_in(self, done: np.ndarray) -> int:
        """Number of runs in the chunks that are `done`, by their numbers."""
        regions = map(self.region, np.flatnonzero(done).tolist())
        return sum(math.prod(part.stop - part.start for part in region) for region in regions)

    def _at(self, index: tuple[int, ...]) -> tuple[slice, ...]:
        return tuple(
            slice(i * c, min((i + 1) * c, n))
            for i, c, n in zip(index, self.chunk, self.shape, strict=True)
        )


def layout(dims: Sequence[Dimension], size: int) -> Layout:
    """Cut the array of runs into chunks of at most `size` runs.

    A chunk extends along no static dimension. Of the others it fills the last one first, and
    seeds after all others: runs that share their data belong together.
    """
    chunk = {dim.name: 1 for dim in dims}
    order = [dim for dim in reversed(dims) if not dim.static]
    order.sort(key=lambda dim: dim.name == "seed")
    left = max(size, 1)
    for dim in order:
        chunk[dim.name] = min(dim.size, left)
        left //= chunk[dim.name]
    return Layout(tuple(dim.size for dim in dims), tuple(chunk[dim.name] for dim in dims))
