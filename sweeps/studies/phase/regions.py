"""Regions of phase diagrams: rules that classify a run by its records [ours]."""

import enum
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from scipy.stats import mode

from dynsim import Status
from dynsim.problem.sharpness import EDGE
from dynsim.training.recording import PRECONDITIONED
from sweeps.language.describe import locate

LEARNED = 0.5
"""A run has learned once its loss is below this share of its loss at step 0."""
BAND = (0.1, 0.9)
"""Shares of the seeds in a region between which the outcome depends on the seed."""
WINNERS = 2.0
"""If fewer tokens than this effectively share the attention, one of them has won."""
ROSE = 1.01
"""A loss has risen if it exceeds its value at step 0 by this factor."""
DIVERGED = "diverged"
"""Name of the region of runs that diverge, in the legends that have one."""


def winners(tokens: Any) -> Any:
    """Return `WINNERS` for `tokens` that may share the attention: with fewer than three, it is
    halfway between their number and 1. A single token cannot win."""
    return np.minimum(WINNERS, (1 + tokens) / 2)


class Rule(NamedTuple):
    """A classification of runs into the regions of a diagram.

    Attributes:
        record: names of the observables that it reads, over time.
        classify: function that returns the codes of the runs of a dataset with these records, over
            its axes. The settings of the runs are JSON in the dataset's attribute "config".
        legend: name and colour of each code.
        lines: function of the same dataset that returns your own lines: by name in the legend,
            values over the two axes of the plane that are zero on the line. None for no lines.
    """

    record: tuple[str, ...]
    classify: Callable[[xr.Dataset], xr.DataArray]
    legend: Mapping[int, tuple[str, str]]
    lines: Callable[[xr.Dataset], Mapping[str, xr.DataArray]] | None = None


class Region(enum.IntEnum):
    """The state of the attention at the end of a run."""

    NOT_LEARNED = 0
    """The loss has not fallen to half its start: the decoder has hardly moved, or was lost."""
    SCANNING = 1
    """Learned, and the speed coefficient f . g has never been larger than at the end: the
    attention moves faster and faster (Theorem 1b, before the peak of gamma)."""
    SNAPPED = 2
    """Learned, and f . g is past its peak: the attention slows down and freezes."""
    WINNER_TAKE_ALL = 3
    """Learned, with less than two distinct tokens' worth of attention, exp(entropy) < 2; for fewer
    than three tokens see `winners`."""
    DIVERGED = 4
    """The run did not end well (see `dynsim.Status`)."""


def classify(dataset: xr.Dataset) -> xr.DataArray:
    """`Region` of each run of a sweep that recorded loss, speed and entropy over time, beginning
    with the loss at step 0. The exponential of the entropy is the number of tokens that share the
    attention."""
    (loss, tokens), (loss_end, tokens_end) = (
        (at["loss"], np.exp(at["entropy"]))
        for at in (dataset.isel(time=step, drop=True) for step in (0, -1))
    )
    speed = dataset["speed"].mean("class")
    # A run that did not end well may have recorded nothing but NaN.
    rising = speed.argmax("time", skipna=False) == speed.sizes["time"] - 1
    found = xr.where(rising, Region.SCANNING, Region.SNAPPED)
    found = found.where(~(tokens_end < winners(tokens)), Region.WINNER_TAKE_ALL)
    found = found.where(loss_end < LEARNED * loss, Region.NOT_LEARNED)
    found = found.where(dataset["status"] == Status.OK, Region.DIVERGED)
    return found.transpose(*dataset["status"].dims).astype(np.int8).rename("region")


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


def stability(status: np.ndarray, loss: np.ndarray, sharpness: np.ndarray) -> np.ndarray:
    """Return the `Stability` of each run from its (...) status and its (..., S) loss and
    preconditioned sharpness, recorded from step 0 on. NaN sharpness counts as below the edge."""
    first, last = sharpness[..., 0], sharpness[..., -1]
    rose = np.nanmax(loss, axis=-1, initial=-np.inf) > ROSE * loss[..., 0]
    fell = loss[..., -1] < loss[..., 0]
    thrown = rose & fell & (last < EDGE) & (last < first)
    found = np.where(thrown, Stability.CATAPULT, Stability.EDGE)
    found = np.where((sharpness >= EDGE).any(axis=-1), found, Stability.STABLE)
    return np.where(status == Status.OK, found, Stability.DIVERGED).astype(np.int8)


def stability_of(dataset: xr.Dataset) -> xr.DataArray:
    """`Stability` of each run of a sweep that recorded loss and sharpness over time."""
    status = dataset["status"]
    read = dataset[["loss", PRECONDITIONED]].transpose(*status.dims, ...)
    codes = stability(status.values, read["loss"].values, read[PRECONDITIONED].values)
    return xr.DataArray(codes, status.coords, status.dims, "region")


class Agreement(NamedTuple):
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


def agreement(predicted: xr.DataArray, found: xr.Dataset) -> Agreement:
    """Compare predicted codes of regions with a map of training, over the same axes."""
    right = float((predicted == found["region"]).mean())
    if "share" not in found:
        return Agreement(right, None)
    share = found["share"].where(found["code"] == predicted, 0).sum("code")
    low, high = BAND
    return Agreement(right, float(((share >= low) & (share <= high)).mean()))


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
        places = {dim: region[dim] for dim in region.dims}
        line = line.interp(places, kwargs={"fill_value": "extrapolate"})
    positive = line.transpose(*region.dims) > 0
    here, there = (int(mode(region.values[side]).mode) for side in (positive, ~positive))
    return here, there, xr.where(positive, here, there)


DIVERGED_COLOUR = "#b0b0b0"
RULE = Rule(
    record=("loss", "entropy", "speed"),
    classify=classify,
    legend={
        Region.NOT_LEARNED: ("not learned", "#f0f0f0"),
        Region.SCANNING: ("scanning", "#b7d3ea"),
        Region.SNAPPED: ("snapped", "#4c8bbe"),
        Region.WINNER_TAKE_ALL: ("winner take all", "#0b2545"),
        Region.DIVERGED: (DIVERGED, DIVERGED_COLOUR),
    },
)
"""The rule of the attention layer in Y and Z."""
BY_STATUS = Rule(
    record=(),
    classify=lambda dataset: dataset["status"],
    legend={
        Status.OK: ("ended well", "#b7d3ea"),
        Status.DIVERGED: (DIVERGED, DIVERGED_COLOUR),
        Status.MAX_STEPS: ("solver out of steps", "#e0c080"),
        Status.SOLVER_FAILED: ("solver failed", "#d95f02"),
    },
)
"""The default rule for systems without their own: the status of the runs."""
BY_EDGE = Rule(
    record=("loss", PRECONDITIONED),
    classify=stability_of,
    legend={
        Stability.STABLE: ("stable", "#f0f0f0"),
        Stability.EDGE: ("edge", "#4c8bbe"),
        Stability.CATAPULT: ("catapult", "#e0c080"),
        Stability.DIVERGED: (DIVERGED, DIVERGED_COLOUR),
    },
)
"""The rule of any system whose sharpness can be recorded."""
NAMED = {"edge": BY_EDGE}
"""Rules that have a short name."""


def named(word: str) -> Rule:
    """Return the rule of a name or MODULE:NAME; `ValueError` if it is not a rule."""
    if word in NAMED:
        return NAMED[word]
    found = locate(word, "regions")
    if not isinstance(found, Rule):
        raise ValueError(f"regions = {word!r}: must name a Rule, got {found!r}")
    return found
