"""How the best value of one axis changes with another: a power law, and whether one is enough."""

import numpy as np
import xarray as xr

from dynsim import checks
from sweeps.runner.labels import worded
from sweeps.studies.optimum.best import FEWEST, Place
from sweeps.studies.options import line, student

FACTOR = 2.0
"""Change of the best value over all of the other axis that an exponent of 0 must rule out."""


def transfer(found: xr.Dataset, along: str) -> xr.Dataset:
    """The power law that the best values of an axis follow along another one, such as the batch.

    A straight line by least squares through the logarithms. Left out are values of `along` whose
    best lies at an end of its axis, or that are infinite. The error is the larger one of two: that
    of the line's residuals, with Student's factor; and the standard deviation over the bootstrap
    draws, each fitted by itself, with the errors of the shape. Of one seed there is the first one
    alone, and no verdict: its runs share their data, so that residuals are not independent.

    Args:
        found: what `sweeps.best` returned.
        along: one of its axes, of positive numbers.

    Returns:
        A dataset over the remaining axes: `exponent`, `error`, `prefactor` (the law at 1), `off`,
        by how much the worst point is off the law, as a share, the number of `points`, and a
        `verdict` in words:

        * "transfers", where one value is near the best (from `lower` to `upper`) at all values of
          `along`, or the exponent is 0 within two errors and these exclude that the best changes
          by a factor of 2 between its ends;
        * "undecided", where it is 0 within two errors and they do not exclude that, or there is
          one seed;
        * "grows as batch^0.52 ± 0.03" or "falls as" otherwise;
        * "no fit" for fewer than three points, with NaN for the numbers.

    Raises:
        ValueError: for anything but what `sweeps.best` returned, an unknown axis, one of words, or
            values that are not positive.

    Example:
        >>> found = sweeps.best(dataset, over="eta")
        >>> sweeps.transfer(found, along="batch").verdict
    """
    checks.kind("found", found, xr.Dataset)
    missing = [name for name in ("best", "shape", "place", "resampled") if name not in found]
    if missing:
        raise ValueError(f"found: has no {missing[0]!r}; must be what sweeps.best returned")
    checks.choice("along", along, [str(dim) for dim in found["best"].dims])
    if worded(found, along):
        raise ValueError(f"along = {along!r}: its values are words; must be an axis of numbers")
    over = found.attrs["over"]
    for name in (along, over):
        values = found["best" if name == over else along].values
        if (values <= 0).any():
            raise ValueError(f"{name} = {values.min():g}: a power law needs positive values")
    others = [dim for dim in found["best"].dims if dim != along]
    ordered = found.transpose("draw", *others, along)
    shape = tuple(found.sizes[dim] for dim in others)
    laws = [
        _law(ordered.isel(dict(zip(others, at, strict=True))), along) for at in np.ndindex(shape)
    ]
    words = {
        "exponent": f"exponent of the best {over} in {along}",
        "error": "standard error of the exponent",
        "prefactor": f"best {over} at {along} = 1 by the power law",
        "off": "largest distance of a point from the power law, as a share",
        "points": "number of points",
        "verdict": f"whether the best {over} depends on {along}",
    }
    columns = zip(words.items(), zip(*laws, strict=True), strict=True)
    return xr.Dataset(
        {
            name: (others, np.reshape(np.asarray(values), shape), {"long_name": text})
            for (name, text), values in columns
        },
        {n: c for n, c in found.coords.items() if c.dims and set(c.dims) <= set(others)},
        {**found.attrs, "along": along},
    )


def _law(found: xr.Dataset, along: str) -> tuple[float, float, float, float, int, str]:
    """What `transfer` returns, of one curve over `along`."""
    x, best = found[along].values.astype(float), found["best"].values
    # At an end of the axis only a bound is known.
    used = found["place"].isin((Place.INSIDE, Place.BESIDE_DIVERGED)).values & np.isfinite(x)
    points = int(used.sum())
    if points < FEWEST:
        words = (
            f"no fit: the best lies inside its axis at {points} values of {along}, needs {FEWEST}"
        )
        return np.nan, np.nan, np.nan, np.nan, points, words
    at, logs = np.log(x[used]), np.log(best[used])
    exponent, residual, intercept = line(at, logs)
    draws = [line(at, np.log(each)).slope for each in found["resampled"].values[:, used]]
    apart = at - at.mean()
    shape = np.linalg.norm(apart * found["shape"].values[used]) / (apart @ apart)
    spread = np.hypot(np.std(draws, ddof=1) if draws else 0.0, shape)
    error = float(max(student(points - 2) * residual, spread))
    law = np.exp(intercept) * x[used] ** exponent
    off = float(np.exp(np.abs(np.log(best[used] / law)).max()) - 1)
    known, about = np.isfinite(best), found.attrs
    power = f"{along}^{exponent:.2f} ± {error:.2f}"
    if not draws:
        verdict = f"undecided: {along}^{exponent:.2f} of one seed, whose error is not known"
    elif found["lower"].values[known].max() <= found["upper"].values[known].min():
        near = f"{100 * about['within']:g} %"
        verdict = f"transfers: one {about['over']} is within {near} of the best at every {along}"
    elif abs(exponent) > 2 * error:
        verdict = f"{'grows' if exponent > 0 else 'falls'} as {power}"
    else:
        certain = (abs(exponent) + 2 * error) * np.ptp(at) < np.log(FACTOR)
        verdict = f"{'transfers' if certain else 'undecided'}: {power}"
    return exponent, error, float(np.exp(intercept)), off, points, verdict
