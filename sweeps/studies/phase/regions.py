"""What a run did, in five words: rules on what it recorded, for phase diagrams [ours]."""

import enum

import numpy as np
import xarray as xr

from dynsim import Status

LEARNED = 0.5
"""A run has learned once its loss is below this share of its loss at step 0."""
WINNERS = 2.0
"""Below so many tokens, effectively, that share the attention, one of them has won."""


class Region(enum.IntEnum):
    """What the attention of a run did up to the horizon."""

    NOT_LEARNED = 0
    """The loss has not fallen to half of what it was: the decoder has hardly moved, or is lost."""
    SCANNING = 1
    """Learned, and the speed coefficient f . g has never been larger than at the horizon: the
    attention moves faster and faster (Theorem 1b, before the peak of gamma)."""
    SNAPPED = 2
    """Learned, and f . g is past its peak: the attention slows down and freezes."""
    WINNER_TAKE_ALL = 3
    """Learned, with less than two distinct tokens' worth of attention: exp(entropy) < 2."""
    DIVERGED = 4
    """The run did not end well (see `dynsim.Status`)."""


def classify(
    status: np.ndarray, loss: np.ndarray, speed: np.ndarray, entropy: np.ndarray
) -> np.ndarray:
    """`Region` of each run.

    Args:
        status: (...) codes of `dynsim.Status`.
        loss: (..., S) population loss at the recorded times, of which the first is step 0.
        speed: (..., S) f . g, averaged over classes.
        entropy: (...) entropy of the attention on distinct tokens at the horizon, in nats.
    """
    learned = loss[..., -1] < LEARNED * loss[..., 0]
    past_peak = np.argmax(speed, axis=-1) < speed.shape[-1] - 1
    found = np.where(past_peak, Region.SNAPPED, Region.SCANNING)
    found = np.where(np.exp(entropy) < WINNERS, Region.WINNER_TAKE_ALL, found)
    found = np.where(learned, found, Region.NOT_LEARNED)
    return np.where(status == Status.OK, found, Region.DIVERGED).astype(np.int8)


def of_dataset(dataset: xr.Dataset) -> xr.DataArray:
    """`Region` of each run of a sweep that recorded loss, speed and entropy over time."""
    runs = list(dataset.status.dims)
    ordered = dataset[["status", "loss", "speed", "entropy"]].transpose(*runs, "time", ...)
    codes = classify(
        ordered.status.values,
        ordered.loss.values,
        ordered.speed.mean("class").values,
        ordered.entropy.isel(time=-1).values,
    )
    return xr.DataArray(codes, dims=runs, coords={d: dataset[d] for d in runs}, name="region")


def most_common(regions: xr.DataArray) -> xr.DataArray:
    """The most frequent region over seeds; of equally frequent ones the first."""
    if "seed" not in regions.dims:
        return regions
    counts = xr.concat([(regions == region).sum("seed") for region in Region], "region")
    return counts.argmax("region")
