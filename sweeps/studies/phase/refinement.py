"""A lattice that is measured closely only where what is measured on it changes.

A coarse grid is measured first. A cell whose corners are apart is cut into four, level by level. A
rough boundary leaves the cells in which it was seen, so at each level it is also followed into the
cells next to them: without that a curve of dimension 1.5 is measured as one of dimension 1.

The coarse grid misses whatever fits between its points. `guard` therefore draws points at random
among those that were only inferred, measures them, and refines where they contradict their cells.
The last of these draws bounds the share of points that are still wrong.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int
from scipy.special import betaincinv

from sweeps.studies.options import line
from sweeps.studies.phase.lattice import (
    CORNERS,
    EDGES,
    Apart,
    Inferred,
    Lattice,
    Level,
    Measure,
    Region,
    Value,
    mixed,
)

ERROR_RATE = 0.05
"""How often the bound of `guard` may be too small."""
ROUNDS = 8
"""Most draws of probes: on a boundary that fills the plane they would never end."""
NOWHERE = np.empty((0, 2), np.int64)
SCALES, FEWEST_BOXES = 3, 4
"""Sizes of boxes from which a dimension is found, each twice the one before; and the least number
of boxes along a side."""
PER_CELL = 4
"""Points that a cut cell adds: its middle, and those of four edges, of which it shares about two
with its neighbours on the boundary."""


class Forecast(NamedTuple):
    """What a boundary costs that is known in cells.

    Attributes:
        dimension: its box dimension over the sizes of these cells and of some larger ones.
        share: of the points of the lattice that will be measured, if that goes on to the last
            level.
    """

    dimension: float
    share: float


class Guarded(NamedTuple):
    """What random probes said about the points that were inferred.

    Attributes:
        rounds: number of draws.
        probes: points of the last draw, all of them taken from what was inferred until then.
        failures: those of them that were not what had been inferred.
        bound: an upper bound on the share of the lattice that is inferred wrongly, with 95 %
            confidence; 1 without probes.
    """

    rounds: int
    probes: int
    failures: int
    bound: float


class Refinement:
    """A lattice, what was measured on it so far, and the cells of each level that were looked at.

    Args:
        lattice: the points and the cells.
        measure: called with points once.
        apart: which cells are cut.
        report: called with a line for people before each level is measured.
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
        levels = range(lattice.levels + 1)
        self._visited, self._cut = ([np.empty(0, np.int64) for _ in levels] for _ in range(2))
        self._added = [[NOWHERE] for _ in levels]
        self._key = np.empty(0, np.int64)
        self._region, self._value = np.empty(0, np.int64), np.empty(0)
        self.refine(np.moveaxis(np.mgrid[: lattice.cells[0], : lattice.cells[1]], 0, -1))

    @property
    def num_measured(self) -> int:
        """Number of points measured so far."""
        return len(self._key)

    def refine(
        self,
        cells: Int[np.ndarray, "*N 2"] = NOWHERE,
        suspects: Int[np.ndarray, "P 2"] = NOWHERE,
        prefix: str = "",
    ) -> None:
        """Look at cells of the coarse grid, and cut all cells that are apart, or contain one of the
        `suspects`, down to the last level. Names of batches begin with the `prefix`."""
        todo = cells.reshape(-1, 2)
        for level in range(self.lattice.levels + 1):
            suspected = np.unique(self._keys(level, self.lattice.containing(level, suspects)))
            cut = [np.intersect1d(suspected, self._visited[level])]
            call = 0
            while len(todo):
                corners = self.lattice.points(level, todo[:, None] + CORNERS)
                name = f"{prefix}level-{level}" + (f"-{call}" if call else "")
                self._added[level].append(self._add(name, corners.reshape(-1, 2)))
                call += len(self._added[level][-1]) > 0
                region, value = self._look_up(corners)
                keys = self._keys(level, todo)
                self._visited[level] = np.union1d(self._visited[level], keys)
                cut.append(keys[self._apart(region, value) | np.isin(keys, suspected)])
                across = self._keys(level, self._across(level, todo, region))
                todo = self._cells(level, np.setdiff1d(across, self._visited[level]))
            fresh = np.setdiff1d(np.concatenate(cut), self._cut[level])
            self._cut[level] = np.union1d(self._cut[level], fresh)
            if level < self.lattice.levels:
                children = (2 * self._cells(level, fresh)[:, None] + CORNERS).reshape(-1, 2)
                seen = np.isin(self._keys(level + 1, children), self._visited[level + 1])
                todo = children[~seen]
                if self._report and len(todo) and not prefix:
                    found, (across, up) = self.forecast(level), self.lattice.sides(level)
                    self._report(
                        f"on {across} x {up} cells the boundary has the dimension "
                        f"{found.dimension:.2f}, by which about {100 * found.share:.2g} % of "
                        f"{np.prod(self.lattice.shape)} points will be computed"
                    )

    def dimension(self, level: int | None = None) -> float:
        """Box dimension of the boundary on the cells of a level, by default the last one, and some
        larger ones; 1 where the lattice has too few of these, NaN without a boundary."""
        level = self.lattice.levels if level is None else level
        cells, sides = self._cells(level, self._cut[level]), int(self.lattice.sides(level).min())
        scales = [k for k in range(SCALES) if sides >> k >= FEWEST_BOXES]
        if not len(cells) or len(scales) < 2:
            return 1.0 if len(cells) else np.nan
        numbers = [len(np.unique(cells >> k, axis=0)) for k in scales]
        return line(-np.log(2) * np.array(scales), np.log(numbers)).slope

    def forecast(self, level: int) -> Forecast:
        """What the cells that were cut at a level, which are some, say of the next levels."""
        dimension, number = self.dimension(level), len(self._cut[level])
        left = np.arange(self.lattice.levels - level)
        points = self.num_measured + PER_CELL * (number * 2.0 ** (dimension * left)).sum()
        return Forecast(dimension, min(float(points / np.prod(self.lattice.shape)), 1.0))

    def probe(
        self, count: int, rng: np.random.Generator, name: str
    ) -> tuple[Int[np.ndarray, "P 2"], Bool[np.ndarray, " P"]]:
        """Measure up to so many points drawn from those that were not; returns them, and which of
        them are not what was inferred."""
        left = np.setdiff1d(np.arange(np.prod(self.lattice.shape)), self._key, assume_unique=True)
        drawn = rng.choice(left, min(count, len(left)), replace=False)
        points = self._add(name, self._points(drawn))
        region, value = self._look_up(points[:, None])
        wrong, todo = np.zeros(len(points), bool), np.arange(len(points))
        for level in reversed(range(self.lattice.levels + 1)):
            cells = self.lattice.containing(level, points[todo])
            seen = np.isin(self._keys(level, cells), self._visited[level])
            inside, cells = todo[seen], cells[seen]
            corners = self._look_up(self.lattice.points(level, cells[:, None] + CORNERS))
            wrong[inside] = self._apart(
                np.hstack([corners[0], region[inside]]), np.hstack([corners[1], value[inside]])
            )
            todo = todo[~seen]
        return points, wrong

    def levels(self) -> list[Level]:
        """The levels, up to the first one that had nothing to cut."""
        found = []
        for level, (added, cut) in enumerate(zip(self._added, self._cut, strict=True)):
            points = np.concatenate(added)
            eps = 1 / float(self.lattice.sides(level)[0])
            places, known = points / np.maximum(self.lattice.last, 1), self._look_up(points)
            found.append(Level(places, *known, self._cells(level, cut), eps))
            if not len(cut):
                break
        return found

    def infer(self) -> Inferred:
        """Every point of the lattice."""
        shape = self.lattice.shape
        region, value = np.zeros(shape, np.int64), np.full(shape, np.nan)
        for level, (visited, cut) in enumerate(zip(self._visited, self._cut, strict=True)):
            cells = self._cells(level, np.setdiff1d(visited, cut))
            corners = self.lattice.points(level, cells[:, None] + CORNERS)
            regions, values = self._look_up(corners)
            for each, codes, ends in zip(corners.tolist(), regions[:, 0], values, strict=True):
                parts, weights = [], []
                for first, last, end in zip(each[0], each[-1], self.lattice.last, strict=True):
                    # A point on an edge is in the cell after it, if there is one.
                    parts.append(slice(first, last + (last == end)))
                    share = (np.arange(first, parts[-1].stop) - first) / max(last - first, 1)
                    weights.append(np.stack([1 - share, share]))
                region[tuple(parts)] = codes
                with np.errstate(invalid="ignore"):
                    value[tuple(parts)] = weights[0].T @ ends.reshape(2, 2) @ weights[1]
        measured = np.zeros(shape, bool)
        at = tuple(self._points(self._key).T)
        region[at], value[at], measured[at] = self._region, self._value, True
        return Inferred(region, value, measured)

    def _add(self, name: str, points: Int[np.ndarray, "P 2"]) -> Int[np.ndarray, "N 2"]:
        """Measure those of the points that are new, if any, and return them in order."""
        key = np.setdiff1d(points @ [self.lattice.shape[1], 1], self._key)
        new = self._points(key)
        if len(key):
            region, value = self._measure(name, new)
            order = np.argsort(np.concatenate([self._key, key]))
            self._key = np.concatenate([self._key, key])[order]
            self._region = np.concatenate([self._region, region])[order]
            self._value = np.concatenate([self._value, value])[order]
        return new

    def _points(self, key: Int[np.ndarray, " P"]) -> Int[np.ndarray, "P 2"]:
        return np.stack(np.divmod(key, self.lattice.shape[1]), axis=-1)

    def _look_up(self, points: Int[np.ndarray, "*P 2"]) -> tuple[Region, Value]:
        at = np.searchsorted(self._key, points @ [self.lattice.shape[1], 1])
        return self._region[at], self._value[at]

    def _across(
        self, level: int, cells: Int[np.ndarray, "N 2"], region: Int[np.ndarray, "N 4"]
    ) -> Int[np.ndarray, "A 2"]:
        """Neighbours into which a boundary goes on, through an edge whose ends do not agree."""
        moved = [
            cells[region[:, a] != region[:, b]] + np.array(direction)
            for direction, (a, b) in EDGES.items()
        ]
        neighbours = np.concatenate(moved)
        inside = (neighbours >= 0) & (neighbours < self.lattice.sides(level))
        return neighbours[inside.all(axis=1)]

    def _keys(self, level: int, cells: Int[np.ndarray, "*N 2"]) -> Int[np.ndarray, "*N"]:
        return cells @ np.array([self.lattice.sides(level)[1], 1])

    def _cells(self, level: int, keys: Int[np.ndarray, " N"]) -> Int[np.ndarray, "N 2"]:
        return np.stack(np.divmod(keys, self.lattice.sides(level)[1]), axis=-1)


def guard(found: Refinement, probes: int, seed: int = 0) -> Guarded:
    """Probe what was inferred, and refine where it was wrong, until a draw finds nothing wrong.

    The chance that the bound is too small is 5 % at most, whatever the number of draws: the draws
    share it, 5 %/2, 5 %/6, 5 %/12 and so on. Each has a bound after Clopper and Pearson.

    Args:
        found: the refinement, which is changed.
        probes: number of points of a draw; 0 for no guard.
        seed: of the draws.
    """
    points, wrong, rest, number = NOWHERE, np.empty(0, bool), 0, 0
    while probes and number < ROUNDS:
        number += 1
        prefix = f"probes-{probes}-{seed}/{number}"
        rest = int(np.prod(found.lattice.shape)) - found.num_measured
        rng = np.random.default_rng([seed, number])
        points, wrong = found.probe(probes, rng, prefix)
        if not wrong.any():
            break
        if number < ROUNDS:
            found.refine(suspects=points[wrong], prefix=f"{prefix}-")
    failures, drawn = int(wrong.sum()), len(points)
    if drawn == rest:
        # What is left to be wrong: of no probes everything, of all that could be probed nothing.
        return Guarded(number, drawn, failures, 0.0 if probes else 1.0)
    # The formula has no value where all are wrong.
    passed = max(drawn - failures, 1)
    share = betaincinv(failures + 1, passed, 1 - ERROR_RATE / (number * (number + 1)))
    bound = float(share * rest / np.prod(found.lattice.shape))
    return Guarded(number, drawn, failures, bound)
