"""The plane of a phase diagram: its settings, its sweeps, and counts of outcomes at each point.

The share of the seeds that end in a region estimates the region's probability. The boundary is
where this is 50 %, and its band is where it lies between 10 and 90 %. The band is a property of
training and does not narrow with more seeds. The uncertainty of the boundary does: it is the set of
points whose Clopper-Pearson interval contains 50 %. Shares are not smoothed over neighbours, which
draw the same batches and so add little; smoothing would turn a sharp boundary into a band.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import annotated_types as at
import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Int, Real
from scipy.interpolate import griddata
from scipy.ndimage import distance_transform_edt
from scipy.special import betaincinv

from dynsim import checks
from dynsim.decoding import Count, Index
from sweeps.language.values import told_apart
from sweeps.runner.labels import valid
from sweeps.runner.spec import Sweep
from sweeps.studies.options import AxisWord, Several, axis
from sweeps.studies.phase.regions import Rule, named
from sweeps.systems import registry
from sweeps.systems.experiment import Experiment, Times

Mask = Bool[np.ndarray, "X Y"]
TAIL = 0.0158 / 2
"""Probability beyond each end of an interval. Points where seeds are added are tested repeatedly,
with a chance of error each time: at Pocock's level, five tests, such as at 8, 16, 32, 64 and 128
seeds, are all right with a probability of 95 %."""


class Tally:
    """Counts of runs over a plane of X x Y points.

    Args:
        shape: X and Y.
        rule: rule that classifies the runs.
        observable: quantity that is averaged at the last recorded time, over classes and runs.

    Attributes:
        counts: (X, Y, R) number of runs in each region of the rule's legend.
    """

    def __init__(self, shape: tuple[int, int], rule: Rule, observable: str) -> None:
        self.counts = np.zeros((*shape, len(rule.legend)), np.int64)
        self.rule, self.observable = rule, observable
        self._codes = np.array(list(rule.legend))
        self._sum, self._valid = np.zeros(shape), np.zeros(shape, np.int64)

    def add(self, points: Int[np.ndarray, "P 2"], runs: xr.Dataset) -> None:
        """Count the runs at P points; their dimensions other than `seed` flatten to P."""
        each = runs["status"].dims
        values = valid(runs[["status", self.observable]])[self.observable]
        values = values.isel({dim: -1 for dim in ("time", "record") if dim in values.dims})
        values = values.mean([dim for dim in values.dims if dim not in each])
        order = [dim for dim in each if dim != "seed"]
        codes, values = (
            (found if "seed" in found.dims else found.expand_dims("seed"))
            .transpose(*order, "seed")
            .values.reshape(len(points), -1)
            for found in (self.rule.classify(runs), values)
        )
        if unknown := set(np.unique(codes).tolist()) - set(self._codes.tolist()):
            raise ValueError(
                f"regions: a run has the code {min(unknown)}; must be a code of the legend, "
                f"{', '.join(map(str, self._codes.tolist()))}"
            )
        at = tuple(points.T)
        self.counts[at] += (codes[..., None] == self._codes).sum(1)
        self._sum[at] += np.nansum(values, axis=1)
        self._valid[at] += np.isfinite(values).sum(1)

    @property
    def seeds(self) -> Int[np.ndarray, "X Y"]:
        """Number of runs at each point."""
        return self.counts.sum(-1)

    @property
    def region(self) -> Int[np.ndarray, "X Y"]:
        """Code of the most common region; of equally common ones the first in the legend."""
        return self._codes[self.counts.argmax(-1)]

    @property
    def value(self) -> Float[np.ndarray, "X Y"]:
        """Mean of the observable over runs that ended well; NaN where none did."""
        with np.errstate(invalid="ignore"):
            return self._sum / self._valid

    @property
    def shares(self) -> Float[np.ndarray, "X Y R"]:
        """Share of the runs in each region; linear between the nearest points with runs where a
        point has none."""
        known = self.seeds > 0
        found = self.counts / np.maximum(self.seeds, 1)[..., None]
        if not known.all():
            method = "nearest" if 1 in known.shape else "linear"
            nodes, rest = np.argwhere(known), np.argwhere(~known)
            found[~known] = griddata(nodes, found[known], rest, method)
        return found


def interval(
    share: Float[np.ndarray, "*B"], seeds: Real[np.ndarray, "*B"]
) -> tuple[Float[np.ndarray, "*B"], Float[np.ndarray, "*B"]]:
    """Return both ends of the Clopper-Pearson interval of a probability, from its share of `seeds`.
    Points without seeds, whose shares are interpolated, count as having the fewest."""
    share, seeds = np.broadcast_arrays(share, np.where(seeds > 0, seeds, seeds[seeds > 0].min()))
    # Where all seeds agree, as at most points, there is a closed form.
    low = np.where(share < 1, 0.0, TAIL ** (1 / seeds))
    high = np.where(share > 0, 1.0, 1 - TAIL ** (1 / seeds))
    some = (share > 0) & (share < 1)
    k, n = (share * seeds)[some], seeds[some]
    low[some], high[some] = betaincinv(k, n - k + 1, TAIL), betaincinv(k + 1, n - k, 1 - TAIL)
    return low, high


def undecided(share: Float[np.ndarray, "X Y R"], seeds: Int[np.ndarray, "X Y"]) -> Mask:
    """Return the points where it is uncertain whether a region's probability exceeds one half."""
    low, high = interval(share, seeds[..., None])
    return np.any((low < 0.5) & (high > 0.5), axis=-1)


def widths(mask: Mask) -> Float[np.ndarray, "2*X 2*Y"]:
    """Return twice the distance in points to the outside of the mask, for each quarter of a point:
    along the middle of a stripe, its width. The mask extends beyond the plane."""
    fine = mask.repeat(2, axis=0).repeat(2, axis=1)
    if mask.all():
        return np.full(fine.shape, np.inf)
    return np.asarray(distance_transform_edt(fine))


def wide(mask: Mask, width: float) -> Mask:
    """Return the points of a mask where it is wider than `width` points: its larger discs."""
    middle = widths(mask) > width
    if not middle.any():
        return np.zeros_like(mask)
    near = np.asarray(distance_transform_edt(~middle)) <= width
    return near.reshape(len(mask), 2, -1, 2).any(axis=(1, 3)) & mask


MOST_POINTS = 2**24
MOST_COARSE = 32
"""Largest number of cells along a side of the grid from which refinement starts."""
FEWEST = 8
"""Smallest number of seeds for a band: at the level `TAIL`, 7 or more seeds in the same region show
that it is the most probable one."""
NUM_TIMES = 10
"""Number of recorded steps of a run; a peak is located between two of them."""


@dataclasses.dataclass(frozen=True)
class Plane:
    """Draw a phase diagram: the outcome of a run over a plane of two of its settings.

    Attributes:
        run: the run whose settings each point changes.
        x: horizontal axis, NAME:FIRST:LAST or NAME:FIRST:LAST:NUMBER; logarithmic, or linear with
            :lin at the end.
        y: vertical axis, in the same form.
        resolution: number of values of an axis without a NUMBER.
        theory: simulation, or a theory.
        against: a second one to draw next to the first, with the difference; or none.
        observable: quantity shown as colour, at the last step.
        seeds: number of runs at each point of a simulation, or of a theory with noise.
        regions: MODULE:NAME of a `sweeps.studies.phase.regions.Rule`, which classifies the runs; or
            edge, by the sharpness: stable, edge, catapult and diverged.
        edge: also draw the edge of stability, at the start and along the flow of all weights, on a
            grid of 12 x 12; takes a minute or more.
        refine: run a coarse grid, and further points only where the region changes.
        probes: number of random points to run once refine has nothing left to run; 0 for none.
        tolerance: refine also where the observable differs by more than this share of its range of
            colours.
        band: add seeds where the boundary of a region is uncertain by more than this number of
            points, with 95 % confidence.
        max_seeds: largest number of runs per point that band may use.
        out: folder for the figure, phase.npz and the stored sweeps, from which the command
            resumes.
    """

    RUN: ClassVar[Mapping[str, Any]] = {"problem": "yz", "steps": 100}
    AGAINST: ClassVar[tuple[str, ...]] = ("none",)
    """Values of `against` besides simulation and the theories."""
    ALIASES: ClassVar[Mapping[str, str]] = {}
    """Other values of `theory`, and the theories that they stand for."""

    run: Experiment
    x: AxisWord
    y: AxisWord
    resolution: Several = 64
    theory: str = "simulation"
    against: str = "none"
    observable: str = "loss"
    seeds: int = 1
    regions: str = "sweeps.studies.phase.regions:BY_STATUS"
    edge: bool = False
    refine: bool = False
    probes: Index = 750
    tolerance: Annotated[float, at.Gt(0), at.Le(1)] | None = None
    band: Annotated[float, at.Ge(1)] | None = None
    max_seeds: Count = 64
    out: Path = Path("out/phase")

    def times(self) -> Times:
        """Recorded steps of the runs, or their number."""
        return NUM_TIMES

    def axes(self) -> dict[str, tuple[float, ...]]:
        """Values of each axis by name, the horizontal one first."""
        found = dict(axis(word, self.resolution, self.run) for word in (self.x, self.y))
        known = registry.theories(registry.system_of(self.run)) if self.refine else {}
        drawn = {self.ALIASES.get(self.theory, self.theory), self.against}
        trained = any(known[name].trains for name in drawn & {*known})
        if trained:
            # Runs round the numbers, and between equal ones nothing is left to refine.
            found = {name: told_apart(values, self.run.dtype) for name, values in found.items()}
        points = math.prod(map(len, found.values()))
        if points > MOST_POINTS:
            raise ValueError(
                f"x, y = {self.x!r}, {self.y!r} at resolution = {self.resolution}: are {points} "
                f"points, at most {MOST_POINTS} can be drawn"
            )
        if len(found) < 2:
            raise ValueError(f"x, y = {self.x!r}, {self.y!r}: must be different axes")
        across, up = map(len, found.values())
        if self.refine and max(across, up) <= MOST_COARSE + 1:
            if self.resolution <= MOST_COARSE + 1:
                raise ValueError(
                    f"resolution = {self.resolution}: refine starts from {MOST_COARSE + 1} values "
                    "of an axis; must be larger, or leave refine out"
                )
            rounded = f", and of other numbers those that differ in {self.run.dtype}" * trained
            raise ValueError(
                f"x, y = {self.x!r}, {self.y!r}: have {across} and {up} values, of integers only "
                f"those between the ends{rounded}; refine needs more than {MOST_COARSE + 1} on one "
                "axis: widen it, or leave refine out"
            )
        if self.tolerance is not None and not self.refine:
            raise ValueError(f"tolerance = {self.tolerance}: only refine reads it")
        if self.band is None:
            return found
        if self.theory != "simulation":
            raise ValueError(
                f"band = {self.band}: theory = {self.theory!r} has no seeds; must be simulation"
            )
        if self.seeds < FEWEST:
            raise ValueError(
                f"seeds = {self.seeds}: band needs at least {FEWEST}, because fewer "
                "decide nothing with 95 % confidence"
            )
        if self.max_seeds < self.seeds:
            raise ValueError(f"max_seeds = {self.max_seeds}: must be at least seeds = {self.seeds}")
        return found

    def theories(self) -> tuple[str, ...]:
        """The names of what is drawn, simulation or theories: one, or two to be compared."""
        return (self.theory,) if self.against == "none" else (self.theory, self.against)

    def sweeps(self) -> dict[str, Sweep]:
        """The sweeps behind the panels, by the name of the theory."""
        known = registry.theories(registry.system_of(self.run))
        checks.choice("theory", self.theory, tuple(known))
        if self.against not in self.AGAINST:
            checks.choice("against", self.against, (*self.AGAINST, *known))
        return {name: sweep(self, name) for name in self.theories()}

    def random_start(self) -> bool:
        """Whether a theory needs a seed, to start from the weights of a run."""
        return True

    def rule(self) -> Rule:
        """The rule of the regions; `ValueError` if it is not a rule."""
        return named(self.regions)

    def lines(self) -> dict[str, np.ndarray]:
        """Closed-form quantities on the plane, (y, x), for the lines of theory."""
        return {}

    def scatter(self) -> Sweep | None:
        """The sweep that predicts the standard deviation of runs; None if it is not drawn."""
        return None


def sweep(config: Plane, theory: str) -> Sweep:
    """Return the sweep behind the panel of simulation or of a theory."""
    found: dict[str, Any] = dict(config.axes())
    known = registry.theories(registry.system_of(config.run))
    # The regions of a theory with noise are probabilities.
    if theory == "simulation" or (theory in known and known[theory].drawn):
        found["seed"] = {"range": checks.integer("seeds", config.seeds, 1)}
    elif config.random_start():
        found["seed"] = {"range": 1}
    record = tuple(dict.fromkeys((*config.rule().record, config.observable)))
    made = Sweep(config.run, found, theory, record, config.times())
    checks.choice("observable", config.observable, made.observables.names())
    return made


def sampled(sweep: Sweep, points: Int[np.ndarray, "P 2"], name: str) -> Sweep:
    """Restrict a sweep to some points of the plane of its first two axes, which are zipped."""
    (x, xs), (y, ys) = list(sweep.fields.items())[:2]
    chosen = {x: np.asarray(xs)[points[:, 0]], y: np.asarray(ys)[points[:, 1]]}
    title = f"{sweep.title}, {name}" if sweep.title else name
    return dataclasses.replace(sweep, axes={**sweep.axes, **chosen}, zip=((x, y),), title=title)
