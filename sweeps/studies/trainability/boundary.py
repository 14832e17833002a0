"""The boundary of trainability in the plane of two learning rates, and its dimension.

A run counts as trained where its relative loss is below 1 (Sohl-Dickstein 2024,
arXiv:2402.06184). A coarse grid over (log eta_Y, log eta_Z) is refined only where that changes:
a cell whose four corners do not agree holds a piece of the boundary and is cut into four. A
rough boundary leaves the cells that it was seen in, so at each level it is also followed into the
cells next to them: without that a curve of dimension 1.5 is measured as one of dimension 1.
What is missed are pieces that nothing connects to those seen before: counts are from below.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from dynsim import Status, checks
from sweeps.output import check_directory
from sweeps.runner.run import run as run_sweep
from sweeps.runner.spec import Sweep
from sweeps.studies.options import Line, line
from sweeps.systems import registry

Training: Any = registry.system("yz").run

Classifier = Callable[[int, int, Float[np.ndarray, "P 2"]], Bool[np.ndarray, " P"]]
"""Which of the points trained, from the level, the number of the call at that level, and places
in the window, [0, 1] x [0, 1]."""

CORNERS = np.array([(0, 0), (0, 1), (1, 0), (1, 1)])
"""Corners of a cell from its first one, and first corners of its children from its doubled one."""
EDGES = {(-1, 0): (0, 1), (1, 0): (2, 3), (0, -1): (0, 2), (0, 1): (1, 3)}
"""The two corners that a cell shares with the neighbour in that direction."""


class Level(NamedTuple):
    """One level of refinement. Its lattice has `cells` 2^level cells along each side.

    Attributes:
        points: (P, 2) places on the lattice of the points that this level added.
        trained: (P,) whether they trained.
        boundary: (N, 2) first corners of the cells whose corners do not agree.
        eps: side of a cell over that of the window.
    """

    points: Int[np.ndarray, "P 2"]
    trained: Bool[np.ndarray, " P"]
    boundary: Int[np.ndarray, "N 2"]
    eps: float


class Mapped(NamedTuple):
    """A level, and the relative loss (P,) of its points."""

    level: Level
    relative_loss: Float[np.ndarray, " P"]


class Window(NamedTuple):
    """First and last learning rates (1/step), between which the lattice is logarithmic."""

    eta_y: tuple[float, float]
    eta_z: tuple[float, float]

    def check(self) -> None:
        """Raise `ValueError`, naming the field, unless both ranges are positive and increase."""
        for name, ends in self._asdict().items():
            checks.real(name, ends, 0, open_minimum=True)
            if not ends[0] < ends[1]:
                raise ValueError(f"{name} = {tuple(ends)}: must increase")

    def rates(self, places: Float[np.ndarray, "P 2"]) -> Float[np.ndarray, "P 2"]:
        """(eta_Y, eta_Z) at places in [0, 1] x [0, 1]."""
        low, high = np.log(np.array(self)).T
        return np.exp(low + places * (high - low))


def trained(
    relative_loss: Float[np.ndarray, "*P"], status: Int[np.ndarray, "*P"]
) -> Bool[np.ndarray, "*P"]:
    """The rule: the run did not diverge and its relative loss, not NaN, is below 1."""
    return (status == Status.OK) & (relative_loss < 1)


def boundary(classify: Classifier, cells: int, levels: int) -> list[Level]:
    """Refine a grid of `cells` x `cells` where `classify` changes, `levels` times.

    Each point is classified once. Without a boundary the coarse grid is all there is.

    Raises:
        ValueError: for bad numbers of cells or levels, before anything is classified.
    """
    checks.integer("cells", cells, 1)
    checks.integer("levels", levels, 0)
    cell_list = np.moveaxis(np.mgrid[:cells, :cells], 0, -1).reshape(-1, 2)
    known, known_trained = np.empty((0, 2), np.int64), np.empty(0, bool)
    found: list[Level] = []
    for level in range(levels + 1):
        side, first_new = cells * 2**level, len(known)
        visited, crossed, call = np.empty(0, np.int64), [], 0
        while len(cell_list):
            corners = (cell_list[:, None] + CORNERS).reshape(-1, 2)
            key = np.setdiff1d(_key(corners, side), _key(known, side))
            if len(key):
                points = np.stack(np.divmod(key, side + 1), axis=-1)
                known = np.concatenate([known, points])
                known_trained = np.append(known_trained, classify(level, call, points / side))
                call += 1
            at_corners = _look_up(known, known_trained, corners, side)
            crossed.append(cell_list[mixed(at_corners)])
            visited = np.append(visited, _key(cell_list, side))
            key = np.setdiff1d(_key(_across(cell_list, at_corners, side), side), visited)
            cell_list = np.stack(np.divmod(key, side + 1), axis=-1)
        its_boundary = np.concatenate(crossed)
        found.append(Level(known[first_new:], known_trained[first_new:], its_boundary, 1 / side))
        if not len(its_boundary):
            break
        cell_list = (2 * its_boundary[:, None] + CORNERS).reshape(-1, 2)
        known = 2 * known
    return found


def mixed(corners: Bool[np.ndarray, "N 4"]) -> Bool[np.ndarray, " N"]:
    """Whether the four corners of a cell do not agree."""
    return np.asarray(corners.any(axis=1) & ~corners.all(axis=1))


def _across(
    cell_list: Int[np.ndarray, "N 2"], corners: Bool[np.ndarray, "N 4"], side: int
) -> Int[np.ndarray, "A 2"]:
    """Neighbours into which the boundary goes on, through an edge whose ends do not agree."""
    moved = [
        cell_list[corners[:, a] != corners[:, b]] + np.array(direction)
        for direction, (a, b) in EDGES.items()
    ]
    neighbours = np.concatenate(moved)
    return neighbours[((neighbours >= 0) & (neighbours < side)).all(axis=1)]


def box_dimension(levels: Sequence[Level], fit: tuple[int, int]) -> Line:
    """The line of ln N against ln 1/eps over the levels `fit`, the last one included, whose slope
    is the box-counting dimension of the boundary; NaN without one.

    Raises:
        ValueError: unless the range has two levels at least, and is there.
    """
    checks.integer("fit[0]", fit[0], 0)
    checks.integer("fit[1]", fit[1], fit[0] + 1)
    # Only the coarse grid can lack a boundary: a mixed cell has a mixed child.
    if not len(levels[0].boundary):
        return Line(np.nan, np.nan, np.nan)
    if fit[1] >= len(levels):
        raise ValueError(f"fit = {fit}: must lie within the levels 0 to {len(levels) - 1}")
    part = levels[fit[0] : fit[1] + 1]
    x = -np.log([level.eps for level in part])
    y = np.log([len(level.boundary) for level in part])
    return line(x, y)


def refine(
    run: Any,
    window: Window,
    *,
    engine: str = "simulation",
    cells: int = 16,
    levels: int = 4,
    seed: int = 0,
    out: Path | None = None,
    report: Callable[[str], None] | None = None,
) -> list[Mapped]:
    """Map where training succeeds, as stored sweeps.

    Args:
        run: the training; its learning rates are ignored.
        window: the learning rates at its edges.
        engine: one that records "relative_loss".
        cells: number of cells along each side of the coarse grid.
        levels: number of refinements.
        seed: of the data and of random starting weights, which all points share.
        out: folder of the sweeps: level-0, level-1, ..., and level-1-1, level-1-2, ... of the
            cells into which the boundary was followed. What is there is not run again.
        report: called with lines for people.

    Returns:
        The levels, each with what its points recorded.

    Raises:
        ValueError: for bad settings, before anything is compiled or written.
    """
    window.check()
    if out is not None:
        check_directory(out)
    recorded: dict[int, list[Float[np.ndarray, " P"]]] = {}

    def classify(level: int, call: int, places: Float[np.ndarray, "P 2"]) -> np.ndarray:
        eta_y, eta_z = window.rates(places).T
        sweep = Sweep(
            axes={"eta_y": eta_y, "eta_z": eta_z, "seed": [seed]},
            run=dataclasses.replace(run, ratio=None),
            engine=engine,
            record=("relative_loss",),
            zip=(("eta_y", "eta_z"),),
            title=f"trainability, level {level}",
        )
        name = f"level-{level}" + (f"-{call}" if call else "")
        found = run_sweep(sweep, None if out is None else out / name, report=report).load()
        recorded.setdefault(level, []).append(found.relative_loss.values[:, 0])
        return trained(found.relative_loss.values[:, 0], found.status.values[:, 0])

    found = boundary(classify, cells, levels)
    return [Mapped(level, np.concatenate(recorded.get(i, [[]]))) for i, level in enumerate(found)]


def _key(points: Int[np.ndarray, "P 2"], side: int) -> Int[np.ndarray, " P"]:
    return points[:, 0] * (side + 1) + points[:, 1]


def _look_up(
    known: Int[np.ndarray, "P 2"],
    values: Bool[np.ndarray, " P"],
    corners: Int[np.ndarray, "C 2"],
    side: int,
) -> Bool[np.ndarray, "N 4"]:
    key = _key(known, side)
    order = np.argsort(key)
    at = np.searchsorted(key[order], _key(corners, side))
    return values[order][at].reshape(-1, 4)
