"""The boundary of trainability in the plane of two learning rates, and its dimension.

A run counts as trained where its relative loss is below 1 (Sohl-Dickstein 2024,
arXiv:2402.06184). A coarse grid over (log eta_Y, log eta_Z) is refined only where that changes, by
`sweeps.studies.phase.refinement` without probes. Pieces that nothing connects to those seen on the
coarse grid are missed: counts are from below.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from dynsim import Status, checks
from sweeps.output import check_directory
from sweeps.runner.run import run as run_sweep
from sweeps.runner.spec import Sweep
from sweeps.studies.options import Line, line
from sweeps.studies.phase.lattice import Lattice, Level, Measure
from sweeps.studies.phase.plane import sampled
from sweeps.studies.phase.refinement import Refinement
from sweeps.systems.experiment import Experiment


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


def boundary(measure: Measure, cells: int, levels: int) -> Refinement:
    """Refine a grid of `cells` x `cells` where what `measure` calls a region changes, `levels`
    times.

    Raises:
        ValueError: for bad numbers of cells or levels, before anything is measured.
    """
    checks.integer("cells", cells, 1)
    checks.integer("levels", levels, 0)
    last = cells * 2**levels
    return Refinement(Lattice((last, last), (cells, cells), levels), measure)


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
    run: Experiment,
    window: Window,
    *,
    engine: str = "simulation",
    cells: int = 16,
    levels: int = 4,
    out: Path | None = None,
    report: Callable[[str], None] | None = None,
) -> Refinement:
    """Map where training succeeds, as stored sweeps.

    Args:
        run: of the attention layer; its learning rates are ignored. All points share its seed, of
            the data and of random starting weights.
        window: the learning rates at its edges.
        engine: one that records "relative_loss".
        cells: number of cells along each side of the coarse grid.
        levels: number of refinements.
        out: folder of the sweeps: level-0, level-1, ..., and level-1-1, level-1-2, ... of the
            cells into which the boundary was followed. What is there is not run again.
        report: called with lines for people.

    Returns:
        The lattice, with 1 as the region of what trained, else 0, and the relative losses.

    Raises:
        ValueError: for bad settings, before anything is compiled or written.
    """
    window.check()
    if out is not None:
        check_directory(out)
    side = cells * 2**levels
    eta_y, eta_z = window.rates(np.arange(side + 1)[:, None] / side).T
    rule = dataclasses.replace(run.rule, eta={"Y": 1.0, "Z": 1.0})
    plane = Sweep(
        dataclasses.replace(run, rule=rule),
        axes={"eta_y": eta_y, "eta_z": eta_z, "seed": [run.seed]},
        engine=engine,
        record=("relative_loss",),
        title="trainability",
    )

    def measure(name: str, points: Int[np.ndarray, "P 2"]) -> tuple[np.ndarray, np.ndarray]:
        sweep = sampled(plane, points, name)
        found = run_sweep(sweep, None if out is None else out / name, report=report).load()
        relative_loss = found.relative_loss.values[:, 0]
        return trained(relative_loss, found.status.values[:, 0]).astype(int), relative_loss

    return boundary(measure, cells, levels)
