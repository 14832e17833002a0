"""The settings of a phase diagram, and the sweeps behind it."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import annotated_types as at
import numpy as np
from jaxtyping import Int

from dynsim import checks
from dynsim.decoding import Count, Index
from odes.theory import AnyTheory
from sweeps.language.values import distinct_in
from sweeps.runner.spec import Sweep
from sweeps.studies.options import AxisWord, Several, axis
from sweeps.studies.phase.regions import resolve_regions
from sweeps.systems import registry
from sweeps.systems.diagrams import Diagram, Regions
from sweeps.systems.experiment import Experiment, experiment

MOST_POINTS = 2**24
MOST_COARSE = 32
"""Largest number of cells along a side of the grid from which refinement starts."""
FEWEST_SEEDS = 8
"""Smallest number of seeds for a band: at the level `counts.TAIL_PROBABILITY`, 7 or more seeds in
the same region show that it is the most probable one."""
NUM_TIMES = 10
"""Number of recorded steps of a run; a peak is located between two of them."""


@dataclasses.dataclass(frozen=True)
class Phase:
    """Draw a phase diagram: the outcome of training over a plane of two settings, with the
    transition lines that theory predicts.

    Attributes:
        run: the run whose settings each point changes; it is measured after its `steps`.
        x: horizontal axis, NAME:FIRST:LAST or NAME:FIRST:LAST:NUMBER; logarithmic, or linear with
            :lin at the end. If omitted, that of the problem, if it has one.
        y: vertical axis, in the same form.
        resolution: number of values of an axis without a NUMBER.
        theory: simulation, or a theory.
        against: a second one to draw next to the first, with the difference: best (the first theory
            that describes the runs), none, or a name. auto means best next to a simulation
            of some problems, else none.
        observable: quantity shown as colour, at the last step; if omitted, that of the problem.
        seeds: number of runs at each point of a simulation, or of a theory with noise.
        regions: how to classify the runs: edge, by the sharpness (stable, edge, catapult and
            diverged); trained, by the relative loss; or MODULE:NAME of a `sweeps.diagrams.Regions`.
            If omitted, those of the problem, or the status of the runs.
        edge: also draw the edge of stability, at the start and along the flow of all weights, on a
            grid of 12 x 12; takes a minute or more.
        noise: next to a theory, also predict where batch noise decides the outcome of training, for
            problems with such a theory.
        refine: run a coarse grid, and further points only where the region changes.
        probes: number of random points to run once refine has nothing left to run; 0 for none.
        tolerance: refine also where the observable differs by more than this share of its range of
            colours.
        band: add seeds where the boundary of a region is uncertain by more than this number of
            points, with 95 % confidence.
        max_seeds: largest number of runs per point that band may use.
        panels: what is drawn: one, the regions of training with the boundary that theory predicts;
            or all, also the regions of the theory, the observable of both, and where they differ.
        out: folder for the figure, phase.npz, phase.json and the stored sweeps, from which the
            command resumes.

    Example:
        >>> run = sweeps.experiment("saxe", steps=5)
        >>> sweeps.diagrams.Phase(run, x="eta:0.05:2", y="u0:0.01:1", resolution=3).axes()["u0"]
        (0.01, 0.1, 1.0)
    """

    RUN: ClassVar[Mapping[str, Any]] = {"problem": "yz", "steps": 100}

    run: Experiment = dataclasses.field(default_factory=lambda: experiment(**Phase.RUN))
    x: AxisWord | None = None
    y: AxisWord | None = None
    resolution: Several = 64
    theory: str = "simulation"
    against: str = "auto"
    observable: str | None = None
    seeds: int = 1
    regions: str | None = None
    edge: bool = False
    noise: bool = True
    refine: bool = False
    probes: Index = 750
    tolerance: Annotated[float, at.Gt(0), at.Le(1)] | None = None
    band: Annotated[float, at.Ge(1)] | None = None
    max_seeds: Count = 64
    panels: Literal["one", "all"] = "one"
    out: Path = Path("out/phase")

    @functools.cached_property
    def diagram(self) -> Diagram:
        """What the system of the run adds."""
        return registry.system_of(self.run).diagram()

    @functools.cached_property
    def known(self) -> dict[str, AnyTheory]:
        """The theories of the run, and training."""
        return registry.theories(registry.system_of(self.run))

    @functools.cached_property
    def shown(self) -> str:
        """The observable."""
        known = self.known["simulation"].observables(self.run.bare).names()
        # A problem without a population loss has that of its batches.
        usual = self.diagram.observable if self.diagram.observable in known else known[0]
        return self.observable or usual

    def outcomes(self) -> Regions:
        """The regions; `ValueError` if the name is not that of regions."""
        return resolve_regions(self.regions, self.diagram.regions)

    def title(self, theory: str) -> str:
        """The title of a panel."""
        if theory == "simulation":
            return "training"
        return self.diagram.titles.get(theory) or self.known[theory].title or theory

    def axes(self) -> dict[str, tuple[float, ...]]:
        """Values of each axis by name, the horizontal one first; `ValueError` for bad settings."""
        x, y = self.x or self.diagram.x, self.y or self.diagram.y
        words = f"x, y = {x!r}, {y!r}"
        if not (x and y):
            name = registry.system_of(self.run).name
            raise ValueError(f"{words}: {name} has no default axes; both must be NAME:FIRST:LAST")
        axes = dict(axis(word, self.resolution, self.run) for word in (x, y))
        names = {self.diagram.aliases.get(self.theory, self.theory), self.against}
        if self.refine and any(self.known[name].trains for name in names & {*self.known}):
            # Runs round the numbers, and between equal ones nothing is left to refine.
            axes = {name: distinct_in(values, self.run.dtype) for name, values in axes.items()}
        if len(axes) < 2:
            raise ValueError(f"{words}: must be different axes")
        across, up = map(len, axes.values())
        if across * up > MOST_POINTS:
            raise ValueError(
                f"{words} at resolution = {self.resolution}: are {across * up} points, at most "
                f"{MOST_POINTS} can be drawn"
            )
        if self.refine and max(across, up) <= MOST_COARSE + 1:
            raise ValueError(
                f"{words} at resolution = {self.resolution}: have {across} and {up} values, of "
                f"numbers those that differ in {self.run.dtype}; refine needs more than "
                f"{MOST_COARSE + 1} on one axis: widen it, or leave refine out"
            )
        if self.tolerance is not None and not self.refine:
            raise ValueError(f"tolerance = {self.tolerance}: only refine reads it")
        if self.band is None:
            return axes
        if self.theory != "simulation":
            raise ValueError(
                f"band = {self.band}: theory = {self.theory!r} has no seeds; must be simulation"
            )
        if self.seeds < FEWEST_SEEDS:
            raise ValueError(f"seeds = {self.seeds}: band needs at least {FEWEST_SEEDS}")
        if self.max_seeds < self.seeds:
            raise ValueError(f"max_seeds = {self.max_seeds}: must be at least seeds = {self.seeds}")
        return axes

    def plane(self) -> Sweep:
        """Training over the two axes alone."""
        return Sweep(self.run, self.axes())

    def sweeps(self) -> dict[str, Sweep]:
        """The sweeps behind the panels by theory: one, or two to be compared."""
        if self.run.steps is not None:
            checks.integer("steps", self.run.steps, 2)
        checks.choice("theory", self.theory, tuple(self.known))
        checks.choice("against", self.against, ("auto", "best", "none", *self.known))
        first, against = self.diagram.aliases.get(self.theory, self.theory), self.against
        if against == "auto":
            against = "best" if first == "simulation" and self.diagram.best else "none"
        if against == "best":
            # A system knows which theory describes its regions; else the first that applies.
            plane, best = self.plane(), self.diagram.best
            applicable = dataclasses.replace(plane, theory="best")
            against = best(plane) if best else applicable.theory_name
        names = dict.fromkeys((first, against))
        return {name: self.sweep(name) for name in names if name != "none"}

    def sweep(self, theory: str) -> Sweep:
        """The sweep behind the panel of simulation or of a theory."""
        # The regions of a theory with noise are probabilities; others need a seed for their start.
        drawn = theory == "simulation" or (theory in self.known and self.known[theory].drawn)
        seeds = checks.integer("seeds", self.seeds, 1) if drawn else 1
        axes = {**self.axes(), "seed": {"range": seeds}}
        record = tuple(dict.fromkeys((*self.outcomes().record, self.shown)))
        sweep = Sweep(self.run, axes, theory, record, NUM_TIMES)
        checks.choice("observable", self.shown, sweep.observables.names())
        return sweep


def at_points(sweep: Sweep, points: Int[np.ndarray, "P 2"], name: str) -> Sweep:
    """Restrict a sweep to some points of the plane of its first two axes, which are zipped.

    Args:
        sweep: a sweep over the whole plane.
        points: indices of values of the two axes.
        name: name of the points, for the title.

    Example:
        >>> run = sweeps.experiment("saxe", steps=5)
        >>> plane = sweeps.Sweep(run, {"eta": [0.1, 0.2], "u0": [0.01, 0.1]})
        >>> sweeps.diagrams.at_points(plane, np.array([[0, 1], [1, 1]]), "upper").fields["u0"]
        (0.1, 0.1)
    """
    (x, xs), (y, ys) = list(sweep.fields.items())[:2]
    values = {x: np.asarray(xs)[points[:, 0]], y: np.asarray(ys)[points[:, 1]]}
    title = f"{sweep.title}, {name}" if sweep.title else name
    return dataclasses.replace(sweep, axes={**sweep.axes, **values}, zip=((x, y),), title=title)
