"""Adaptive refinement of a lattice: points are measured densely only where the results change.

A coarse grid is measured first. A cell whose corners differ is cut into four, level by level. A
rough boundary leaves the cells of the coarse level, so at each level it is also followed into
neighbouring cells; otherwise a curve of dimension 1.5 would be measured as one of dimension 1.

The coarse grid misses features that fit between its points. `guard` therefore draws random points
among those that were only inferred, measures them, and refines where they contradict their cells.
The last draw bounds the share of points that are still wrong.
"""

from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import betaincinv

CORNERS = np.array([(0, 0), (0, 1), (1, 0), (1, 1)])
"""Offsets of a cell's corners from its first corner."""
EDGES = {(-1, 0): (0, 1), (1, 0): (2, 3), (0, -1): (0, 2), (0, 1): (1, 3)}
"""The two corners, by index, that a cell shares with its neighbour in each direction."""
Codes = Int[np.ndarray, "*P"]
Value = Float[np.ndarray, "*P"]
Measure = Callable[[str, Int[np.ndarray, "P 2"]], tuple[Codes, Value]]
Apart = Callable[[Int[np.ndarray, "N C"], Float[np.ndarray, "N C"]], Bool[np.ndarray, " N"]]


def mixed(region: Int[np.ndarray, "N C"], value: Value | None = None) -> Bool[np.ndarray, " N"]:
    """Return whether the regions at the points of a cell differ."""
    del value
    return (region != region[:, :1]).any(axis=1)


class Lattice(NamedTuple):
    """Points with integer coordinates, in cells whose number per side doubles at each level.

    Where the numbers do not divide, cells of one level differ in size by one, and cells of the last
    level may be empty.

    Attributes:
        last: index of the last point along each side, counted from 0.
        cells: number of cells of the coarse grid, level 0, along each side.
        levels: number of refinements down to adjacent points.

    Example:
        >>> sweeps.diagrams.Lattice((64, 64), (16, 16), 2).shape
        (65, 65)
    """

    last: tuple[int, int]
    cells: tuple[int, int]
    levels: int

    @classmethod
    def of(cls, points: tuple[int, int], most: int) -> Self:
        """Return the lattice of `points` along each side. Its coarse grid has up to `most` cells
        along the longer side (more than half as many if refined) and as many along the other if
        it can."""
        # A side of a single point has one empty cell.
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
        """Number of cells of a level along each side."""
        return np.array(self.cells) << level

    def points(self, level: int, corners: Int[np.ndarray, "*N 2"]) -> Int[np.ndarray, "*N 2"]:
        """Return the points at corners of the cells of a level, both by index."""
        return corners * np.array(self.last) // self.sides(level)

    def containing(self, level: int, points: Int[np.ndarray, "N 2"]) -> Int[np.ndarray, "N 2"]:
        """Return the cell of each point; of several that share it, the last non-empty one."""
        sides = self.sides(level)
        return np.minimum(((points + 1) * sides - 1) // np.maximum(self.last, 1), sides - 1)


class Level(NamedTuple):
    """The points that one level of refinement measured, and the cells that it cut further.

    Attributes:
        places: (P, 2) coordinates in [0, 1] of the points of this level, in order of measurement.
        region: (P,) region of each point.
        value: (P,) value of each point.
        boundary: (N, 2) indices of the cells to cut.
        eps: side of a cell relative to that of the lattice, along the first axis.
    """

    places: Float[np.ndarray, "P 2"]
    region: Codes
    value: Value
    boundary: Int[np.ndarray, "N 2"]
    eps: float


class Inferred(NamedTuple):
    """The whole lattice. Where it was not `measured`, `region` is that of the point's cell, and
    `value` is interpolated between the cell's corners, for drawing."""

    region: Int[np.ndarray, "X Y"]
    value: Float[np.ndarray, "X Y"]
    measured: Bool[np.ndarray, "X Y"]


ERROR_RATE = 0.05
"""Largest probability that the bound of `guard` is too small."""
ROUNDS = 8
"""Largest number of draws; if the boundary fills the plane, they would never end."""
NO_POINTS = np.empty((0, 2), np.int64)
SCALES, FEWEST_BOXES = 3, 4
"""Number of box sizes, each twice the one before, used to fit a dimension; and the smallest number
of boxes along a side."""
POINTS_PER_BATCH = 2**18
"""Number of points inferred at once."""
PER_CELL = 4
"""Points added by a cut cell: its centre and the midpoints of four edges, about two of which it
shares with neighbours on the boundary."""


class Refinement:
    """A lattice that is measured where its regions change, which construction does.

    Args:
        lattice: the points and the cells.
        measure: function of the name of a batch and its points, none measured before, that returns
            region and value at each. Names are unique, and the same when everything is repeated.
        apart: function of regions and values at the points of each cell that returns which cells to
            cut; by default those with several regions.
        report: called with an estimate of the cost before each level.

    Example:
        >>> def disc(name, points):
        ...     radius = np.hypot(*(points / 64 - 0.5).T)
        ...     return (radius < 0.4).astype(int), radius
        >>> lattice = sweeps.diagrams.Lattice((64, 64), (16, 16), 2)
        >>> [len(level.boundary) for level in sweeps.diagrams.Refinement(lattice, disc).levels()]
        [52, 100, 204]
    """

    def __init__(
        self,
        lattice: Lattice,
        measure: Measure,
        apart: Apart = mixed,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self.lattice = lattice
        self._measure, self._apart, self._report = measure, apart, report
        self._measured = np.zeros(lattice.shape, bool)
        self._region, self._value = np.zeros(lattice.shape, int), np.full(lattice.shape, np.nan)
        sides = [tuple(lattice.sides(level).tolist()) for level in range(lattice.levels + 1)]
        self._visited, self._cut = ([np.zeros(each, bool) for each in sides] for _ in range(2))
        self._added = [[NO_POINTS] for _ in sides]
        self.refine()

    @property
    def num_measured(self) -> int:
        """Number of points measured so far."""
        return int(self._measured.sum())

    def refine(self, suspects: Int[np.ndarray, "P 2"] = NO_POINTS, prefix: str = "") -> None:
        """Cut all cells that are apart or contain one of the `suspects`, down to the last level.
        Batch names begin with `prefix`."""
        todo = ~self._visited[0]
        for level, (visited, cut) in enumerate(zip(self._visited, self._cut, strict=True)):
            apart, call = np.zeros_like(cut), 0
            # Visit the cells of this level, and follow the boundary into their neighbours.
            while todo.any():
                cells = np.argwhere(todo)
                corners = self.lattice.points(level, cells[:, None] + CORNERS)
                name = f"{prefix}level-{level}" + (f"-{call}" if call else "")
                self._added[level].append(self._add(name, corners.reshape(-1, 2)))
                # Names count the batches that ran, so that a store finds them again.
                call += len(self._added[level][-1]) > 0
                region, value = self._look_up(corners)
                visited |= todo
                apart[tuple(cells[self._apart(region, value)].T)] = True
                # A boundary continues through an edge whose ends differ. A margin of one cell takes
                # those that leave the lattice.
                beyond = np.zeros(np.add(todo.shape, 2), bool)
                for direction, (a, b) in EDGES.items():
                    through = cells[region[:, a] != region[:, b]] + 1 + np.array(direction)
                    beyond[tuple(through.T)] = True
                todo = beyond[1:-1, 1:-1] & ~visited
            suspected = np.zeros_like(cut)
            suspected[tuple(self.lattice.containing(level, suspects).T)] = True
            # A suspect cell that was not visited lies in one that was, and is reached from it.
            fresh = (apart | (suspected & visited)) & ~cut
            cut |= fresh
            if level == self.lattice.levels:
                return
            todo = fresh.repeat(2, axis=0).repeat(2, axis=1) & ~self._visited[level + 1]
            if self._report and todo.any() and not prefix:
                dimension, share = self.forecast(level)
                across, up = self.lattice.sides(level)
                self._report(
                    f"{across} x {up} cells: about {100 * share:.2g} % of {self._measured.size} "
                    f"points will be computed about the boundary, if it has its dimension here, "
                    f"{dimension:.2f}, on finer cells too; random points elsewhere come on top"
                )

    def dimension(self, level: int | None = None) -> float:
        """Box dimension of the boundary, from the cells of a level (by default the last) and larger
        boxes; 1 if the lattice has too few of these, NaN without a boundary."""
        cut = self._cut[self.lattice.levels if level is None else level]
        cells = np.argwhere(cut)
        scales = [k for k in range(SCALES) if min(cut.shape) >> k >= FEWEST_BOXES]
        if not len(cells) or len(scales) < 2:
            return 1.0 if len(cells) else np.nan
        numbers = [len(np.unique(cells >> k, axis=0)) for k in scales]
        # The number of boxes of side 2^k that meet the boundary falls as 2^(-d k).
        return float(np.polyfit(-np.log(2) * np.array(scales), np.log(numbers), 1)[0])

    def forecast(self, level: int) -> tuple[float, float]:
        """Return the dimension of the boundary at a level with cut cells, and the share of the
        lattice that will be measured if finer levels have the same dimension."""
        dimension, number = self.dimension(level), self._cut[level].sum()
        left = np.arange(self.lattice.levels - level)
        # Each level cuts 2^d times as many cells as the one before.
        points = self.num_measured + PER_CELL * (number * 2.0 ** (dimension * left)).sum()
        return dimension, min(float(points / self._measured.size), 1.0)

    def probe(
        self, count: int, rng: np.random.Generator, name: str
    ) -> tuple[Int[np.ndarray, "P 2"], Bool[np.ndarray, " P"]]:
        """Measure up to `count` random points that were only inferred; return them, and which of
        them contradict the inference."""
        left = np.argwhere(~self._measured)
        points = self._add(name, rng.choice(left, min(count, len(left)), replace=False))
        # The corners and the point itself.
        around = np.concatenate([self._corners(points), points[:, None]], axis=1)
        return points, self._apart(*self._look_up(around))

    def levels(self) -> list[Level]:
        """Return the levels up to the first with nothing to cut."""
        levels = []
        for added, cut in zip(self._added, self._cut, strict=True):
            points, boundary = np.concatenate(added), np.argwhere(cut)
            places = points / np.maximum(self.lattice.last, 1)
            levels.append(Level(places, *self._look_up(points), boundary, 1 / len(cut)))
            if not len(boundary):
                break
        return levels

    def infer(self) -> Inferred:
        """Infer region and value at all points that were not measured."""
        region, value = self._region.copy(), self._value.copy()
        rest = np.argwhere(~self._measured)
        for start in range(0, len(rest), POINTS_PER_BATCH):
            points = rest[start : start + POINTS_PER_BATCH]
            corners = self._corners(points)
            regions, values = self._look_up(corners)
            first, last = corners[:, 0], corners[:, -1]
            # Bilinear in the cell; a cell without width has its points at its first corner.
            x, y = ((points - first) / np.maximum(last - first, 1)).T
            weights = np.stack([(1 - x) * (1 - y), (1 - x) * y, x * (1 - y), x * y], axis=-1)
            at = tuple(points.T)
            region[at], value[at] = regions[:, 0], (weights * values).sum(axis=1)
        return Inferred(region, value, self._measured.copy())

    def _corners(self, points: Int[np.ndarray, "P 2"]) -> Int[np.ndarray, "P 4 2"]:
        """Return the corners of the smallest visited cell around each point."""
        corners = np.empty((len(points), 4, 2), int)
        # From large to small cells, so that the smallest one is written last.
        for level, visited in enumerate(self._visited):
            cells = self.lattice.containing(level, points)
            seen = visited[tuple(cells.T)]
            corners[seen] = self.lattice.points(level, cells[seen, None] + CORNERS)
        return corners

    def _add(self, name: str, points: Int[np.ndarray, "P 2"]) -> Int[np.ndarray, "N 2"]:
        """Measure the points that were not measured yet, and return them in order."""
        requested = np.zeros_like(self._measured)
        requested[tuple(points.T)] = True
        new = np.argwhere(requested & ~self._measured)
        if len(new):
            at = tuple(new.T)
            self._region[at], self._value[at] = self._measure(name, new)
            # Last, so that a measurement that raises leaves no point without a value.
            self._measured[at] = True
        return new

    def _look_up(self, points: Int[np.ndarray, "*P 2"]) -> tuple[Codes, Value]:
        at = points[..., 0], points[..., 1]
        return self._region[at], self._value[at]


class Guarded(NamedTuple):
    """The result of random probes among inferred points.

    Attributes:
        rounds: number of draws.
        probes: number of points in the last draw, all of them inferred until then.
        failures: number of these that contradict the inference.
        bound: an upper bound on the share of the lattice that is inferred wrongly, with 95 %
            confidence; 1 without probes.
    """

    rounds: int
    probes: int
    failures: int
    bound: float


def guard(refinement: Refinement, probes: int, seed: int = 0) -> Guarded:
    """Probe inferred points, and refine where they are wrong, until a draw finds none wrong.

    The probability that the bound is too small is at most 5 % for any number of draws, which share
    it as 5 %/2, 5 %/6, 5 %/12 and so on. Each draw has a Clopper-Pearson bound.

    Args:
        refinement: the refinement, changed in place.
        probes: number of points per draw; 0 for no guard.
        seed: seed of the draws.
    """
    points, wrong, rest, number = NO_POINTS, np.empty(0, bool), 0, 0
    size = int(np.prod(refinement.lattice.shape))
    while probes and number < ROUNDS:
        number += 1
        prefix = f"probes-{probes}-{seed}/{number}"
        rest = size - refinement.num_measured
        points, wrong = refinement.probe(probes, np.random.default_rng([seed, number]), prefix)
        if not wrong.any():
            break
        if number < ROUNDS:
            refinement.refine(points[wrong], f"{prefix}-")
    failures, drawn = int(wrong.sum()), len(points)
    if drawn == rest:
        # Without probes everything may be wrong; if all points were probed, nothing is.
        return Guarded(number, drawn, failures, 0.0 if probes else 1.0)
    # The formula is undefined if all are wrong.
    passed = max(drawn - failures, 1)
    # Draw k has the share 1 / (k (k + 1)) of the error rate; over all k these sum to 1.
    share = betaincinv(failures + 1, passed, 1 - ERROR_RATE / (number * (number + 1)))
    return Guarded(number, drawn, failures, float(share * rest / size))
