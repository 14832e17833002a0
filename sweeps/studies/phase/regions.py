"""Regions of phase diagrams, for any system, and the agreement of predicted regions."""

import enum
from typing import NamedTuple

import numpy as np
import xarray as xr
from scipy.stats import mode

from dynsim import Status
from dynsim.problem.sharpness import EDGE
from dynsim.training.recording import PRECONDITIONED, RELATIVE_LOSS
from sweeps.language.describe import locate
from sweeps.systems.diagrams import Line, Regions

BAND = (0.1, 0.9)
"""Shares of the seeds in a region between which the outcome depends on the seed."""
ROSE = 1.01
"""A loss has risen if it exceeds its value at step 0 by this factor."""
DIVERGED_NAME = "diverged"
"""Name of the region of runs that diverge, in the legends that have one."""
DIVERGED_COLOUR = "#b0b0b0"


class Stability(enum.IntEnum):
    """The behaviour of a run at the edge of stability, a preconditioned sharpness of 2."""

    STABLE = 0
    """The sharpness stayed below the edge."""
    EDGE = 1
    """It reached the edge, and the run neither catapulted nor diverged."""
    CATAPULT = 2
    """It reached the edge, the loss rose above `ROSE` times its start and ended below it, and the
    sharpness ended below both the edge and its start (Lewkowycz et al. 2020, arXiv:2003.02218)."""
    DIVERGED = 3
    """The run did not end well."""


def stability_of(dataset: xr.Dataset) -> xr.DataArray:
    """Return the `Stability` of each run of a sweep that recorded loss and preconditioned sharpness
    over time, from step 0 on. NaN sharpness counts as below the edge."""
    loss, sharp = dataset["loss"], dataset[PRECONDITIONED]
    over = next(str(dim) for dim in loss.dims if dim not in dataset["status"].dims)
    first, last = sharp.isel({over: 0}), sharp.isel({over: -1})
    # A catapult leaves the valley for a flatter one: the loss rises, then falls below its start,
    # and the sharpness ends lower than it began.
    rose = loss.max(over) > ROSE * loss.isel({over: 0})
    fell = loss.isel({over: -1}) < loss.isel({over: 0})
    catapults = rose & fell & (last < EDGE) & (last < first)
    codes = xr.where(catapults, Stability.CATAPULT, Stability.EDGE)
    # Later rules have priority: runs that never reach the edge, then those that diverge.
    codes = codes.where((sharp >= EDGE).any(over), Stability.STABLE)
    codes = codes.where(dataset["status"] == Status.OK, Stability.DIVERGED)
    return codes.transpose(*dataset["status"].dims).astype(np.int8)


def trained(dataset: xr.Dataset) -> xr.DataArray:
    """Return 1 for each run that trained, with a relative loss below 1, and 0 for runs that
    diverged or did not (Sohl-Dickstein 2024, arXiv:2402.06184)."""
    loss = dataset[RELATIVE_LOSS]
    loss = loss.isel({dim: -1 for dim in ("time", "record") if dim in loss.dims})
    return ((dataset["status"] == Status.OK) & (loss < 1)).astype(np.int8)


BY_STATUS = Regions(
    record=(),
    classify=lambda dataset: dataset["status"],
    legend={
        Status.OK: ("ended well", "#b7d3ea"),
        Status.DIVERGED: (DIVERGED_NAME, DIVERGED_COLOUR),
        Status.MAX_STEPS: ("solver out of steps", "#e0c080"),
        Status.SOLVER_FAILED: ("solver failed", "#d95f02"),
    },
    failures=True,
)
"""The regions of systems without their own: the status of the runs."""
BY_EDGE = Regions(
    record=("loss", PRECONDITIONED),
    classify=stability_of,
    legend={
        Stability.STABLE: ("stable", "#f0f0f0"),
        Stability.EDGE: ("edge", "#4c8bbe"),
        Stability.CATAPULT: ("catapult", "#e0c080"),
        Stability.DIVERGED: (DIVERGED_NAME, DIVERGED_COLOUR),
    },
    failures=True,
)
"""Regions of any system whose sharpness can be recorded."""
TRAINED = Regions(
    record=(RELATIVE_LOSS,),
    classify=trained,
    legend={0: ("not trained", "#c44e52"), 1: ("trained", "#b7d3ea")},
    failures=True,
)
"""The regions of trainability, for the runs of any system."""
BY_NAME = {"edge": BY_EDGE, "trained": TRAINED}
"""Regions that have a short name."""


def resolve_regions(word: str | Regions | None, default: Regions | None = None) -> Regions:
    """Return regions by name, or as they are, with a region for runs that did not end well.
    `ValueError` if a name is not that of regions."""
    regions: object = word or default or BY_STATUS
    if isinstance(word, str):
        regions = BY_NAME.get(word) or locate(word, "regions")
    if not isinstance(regions, Regions):
        raise ValueError(f"regions = {word!r}: must be sweeps.diagrams.Regions, got {regions!r}")
    if regions.failures:
        return regions
    # A code after the last one, whatever `classify` makes of a run that failed.
    code, classify = max(regions.legend) + 1, regions.classify
    return regions._replace(
        classify=lambda runs: classify(runs).where(runs["status"] == Status.OK, code),
        legend={**regions.legend, code: (DIVERGED_NAME, DIVERGED_COLOUR)},
        failures=True,
    )


class RegionAgreement(NamedTuple):
    """The agreement of predicted regions with those of training.

    Attributes:
        right: share of the plane where theory predicts the most common region of training.
        within: share of the plane where between 10 and 90 % of the seeds end in the predicted
            region; None for single runs.
    """

    right: float
    within: float | None

    def __str__(self) -> str:
        within = "" if self.within is None else f" ({100 * self.within:.1f} % in the band)"
        return f"{100 * self.right:.1f} %{within}"


class RegionPrediction(NamedTuple):
    """A prediction of the regions: its name, its text, its agreement with training, and the line of
    theory behind it, if any."""

    name: str
    text: str
    agreement: RegionAgreement
    line: Line | None = None


def region_agreement(predicted: xr.DataArray, phase_map: xr.Dataset) -> RegionAgreement:
    """Compare predicted codes of regions with a map of training, over the same axes."""
    right = float((predicted == phase_map["region"]).mean())
    if "share" not in phase_map:
        return RegionAgreement(right, None)
    # The share of the seeds that end in the predicted region of their point.
    share = phase_map["share"].where(phase_map["code"] == predicted, 0).sum("code")
    low, high = BAND
    return RegionAgreement(right, float(((share >= low) & (share <= high)).mean()))


def sides(line: xr.DataArray, region: xr.DataArray) -> tuple[int, int, xr.DataArray]:
    """Return the regions that a line predicts: on each side, the most common region there.

    Args:
        line: values that are zero on the line and have both signs, over the axes of the plane or
            fewer points on them.
        region: codes of the regions over the plane.

    Returns:
        The code where the values are positive, the code on the other side, and both on the plane.
    """
    if dict(line.sizes) != dict(region.sizes):
        plane = {dim: region[dim] for dim in region.dims}
        line = line.interp(plane, kwargs={"fill_value": "extrapolate"})
    positive = line.transpose(*region.dims) > 0
    here, there = (int(mode(region.values[side]).mode) for side in (positive, ~positive))
    return here, there, xr.where(positive, here, there)
