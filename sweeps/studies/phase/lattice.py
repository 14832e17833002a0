"""A lattice of points, and the cells between them of which each level has twice as many."""

from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np
from jaxtyping import Bool, Float, Int

CORNERS = np.array([(0, 0), (0, 1), (1, 0), (1, 1)])
"""Corners of a cell from its first one, and first corners of its children from its doubled one."""
EDGES = {(-1, 0): (0, 1), (1, 0): (2, 3), (0, -1): (0, 2), (0, 1): (1, 3)}
"""The two corners that a cell shares with the neighbour in that direction."""
Region = Int[np.ndarray, "*P"]
Value = Float[np.ndarray, "*P"]
Measure = Callable[[str, Int[np.ndarray, "P 2"]], tuple[Region, Value]]
"""Region and value at points of the lattice, none of which was measured before, in order. The name
of the batch is that of no other one, and the same when everything is repeated."""
Apart = Callable[[Int[np.ndarray, "N C"], Float[np.ndarray, "N C"]], Bool[np.ndarray, " N"]]
"""Whether the regions and values at the C points of a cell are too different to be of one kind."""


def mixed(region: Int[np.ndarray, "N C"], value: Value | None = None) -> Bool[np.ndarray, " N"]:
    """Whether the regions at the points of a cell are not all the same."""
    del value
    return (region != region[:, :1]).any(axis=1)


class Lattice(NamedTuple):
    """Points at whole numbers, in cells of which each level has twice as many along each side.

    Where their number is no multiple, cells of one level differ in size by one, and those of the
    last level may be empty.

    Attributes:
        last: number of the last point along each side; the first one is 0.
        cells: number of cells of the coarse grid, level 0, along each side.
        levels: number of refinements, after which neighbours are measured.
    """

    last: tuple[int, int]
    cells: tuple[int, int]
    levels: int

    @classmethod
    def of(cls, points: tuple[int, int], most: int) -> Self:
        """The lattice of so many points along each side, whose coarse grid has `most` cells along
        the longer one, or more than half as many, and as many along the other one if it can."""
        # Along a single point lies one empty cell.
        last = (points[0] - 1, points[1] - 1)
        levels = 0
        while -(-max(last) >> levels) > most:
            levels += 1
        coarse = -(-max(last) >> levels)
        return cls(last, (max(min(last[0], coarse), 1), max(min(last[1], coarse), 1)), levels)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of points along each side."""
        return self.last[0] + 1, self.last[1] + 1

    def sides(self, level: int) -> Int[np.ndarray, "2"]:
        """Number of cells along each side."""
        return np.array(self.cells) << level

    def points(self, level: int, corners: Int[np.ndarray, "*N 2"]) -> Int[np.ndarray, "*N 2"]:
        """The points at corners of the cells of a level, which are numbered from 0."""
        return corners * np.array(self.last) // self.sides(level)

    def containing(self, level: int, points: Int[np.ndarray, "N 2"]) -> Int[np.ndarray, "N 2"]:
        """The cell of each point; of several that share it, the last one that is not empty."""
        sides = self.sides(level)
        return np.minimum(((points + 1) * sides - 1) // np.maximum(self.last, 1), sides - 1)


class Level(NamedTuple):
    """The points that one level of refinement measured, and the cells that it cut further.

    Attributes:
        places: (P, 2) in [0, 1], of the points that this level added, in the order of measuring.
        region: (P,) of each.
        value: (P,) of each.
        boundary: (N, 2) the cells that are apart, by their numbers along each side.
        eps: side of a cell over that of the lattice, along the first axis.
    """

    places: Float[np.ndarray, "P 2"]
    region: Region
    value: Value
    boundary: Int[np.ndarray, "N 2"]
    eps: float


class Inferred(NamedTuple):
    """The whole lattice: at points that were not `measured` the `region` is that of the point's
    cell, and the `value` linear between its corners, for drawing."""

    region: Int[np.ndarray, "X Y"]
    value: Float[np.ndarray, "X Y"]
    measured: Bool[np.ndarray, "X Y"]
