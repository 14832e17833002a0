"""The best value of an axis of a sweep, such as its learning rate, and how well it is known."""

import enum
from typing import get_args

import numpy as np
import xarray as xr
from jaxtyping import Int

from dynsim import checks
from sweeps.runner.labels import worded
from sweeps.studies.optimum.runs import Averaged, Pick, at_end, chosen, direction
from sweeps.studies.optimum.valley import Valley, valley

FEWEST = 3
"""Values of an axis of which one can be inside."""


class Place(enum.IntEnum):
    """Where the best value lies on its axis."""

    INSIDE = 0
    """Runs on either side of it are worse, and none of these diverged."""
    LOWER_END = 1
    """It is the smallest value: even smaller ones may be better."""
    UPPER_END = 2
    """It is the largest value: even larger ones may be better."""
    BESIDE_DIVERGED = 3
    """Runs diverged at the next value on either side."""
    NONE = 4
    """At every value a run diverged, or nothing is computed yet."""


AT_END = (Place.LOWER_END, Place.UPPER_END)
"""Where only a bound of the best value is known."""


def best(
    dataset: xr.Dataset,
    over: str = "eta",
    *,
    observable: str | None = None,
    pick: Pick | None = None,
    within: float = 0.01,
    draws: int = 400,
) -> xr.Dataset:
    """The best value of an axis of a sweep, usually the learning rate, at all values of the others.

    At each value the observable is averaged over the seeds. A value at which a run did not end
    well has no average and cannot be best. The best value is refined by the polynomial through the
    lowest average and two neighbours on either side: in the logarithm of the axis if all its values
    are positive, and in that of the observable likewise. Where two are not known, or the polynomial
    falls below what a convex curve through these points can be, as next to a steep wall, the best
    value is that of the lowest average.

    Its error has two parts. That of the seeds is a bootstrap: seeds are drawn with replacement, the
    same ones at every value of every axis, since runs of one seed share their data, and the whole
    estimate is repeated. (A jackknife would fail where the lowest average moves to another value.)
    Deviations are scaled by sqrt(n / (n - 1)) for n seeds and by Student's factor, so that two
    errors cover 95 % for few seeds too. That of the shape is by how much polynomials through three
    and four of the points differ; or, where only the lowest average is known, the standard
    deviation of a uniform distribution between its neighbours.

    Args:
        dataset: of a sweep, as `sweeps.run` and `sweeps.open` return it.
        over: name of the axis, with three different numbers or more.
        observable: recorded quantity, one number per run, at the last recorded time. By default
            loss, else the first one that is called a loss or an accuracy.
        pick: whether the lowest or the highest is best; by default the highest of an accuracy, the
            lowest of everything else.
        within: how much worse than the best, as a share of it, the range from `lower` to `upper`
            may be.
        draws: number of bootstrap draws; always the same ones.

    Returns:
        A dataset over the other axes but the seeds, in the unit of the axis:

        * `best`, and `error`, the standard error of its logarithm (of itself for an axis with
          values that are not positive), NaN for one seed;
        * `shape`, the part of the error that more seeds do not lower, but more values of the axis;
          both are NaN where the best lies at an end;
        * `value`, the observable there, by the polynomial;
        * `lower` and `upper`, between which the observable stays within `within` of the best:
          by a parabola next to the best, then linear; the last value where it does so to the end;
        * `stable` and `edge`, the largest values up to which no run and at most half of the runs
          of a value diverged, and `diverged`, the smallest at which one did; NaN for none;
        * `place`, a `Place` as a number: whether the best lies at an end of the axis. Where it is
          NONE, all others are NaN;
        * `resampled`, the best values of the draws, with their errors' scale.

    Raises:
        ValueError: for what is no dataset of a sweep, an unknown axis, one of seeds or words, or
            with fewer than three values, or an observable that is not recorded as one number.

    Example:
        >>> sweep = sweeps.load("sweep.toml")
        >>> sweeps.best(sweeps.run(sweep), over="eta").best
    """
    checks.kind("dataset", dataset, xr.Dataset)
    if "status" not in dataset:
        raise ValueError("dataset: has no status; must be the results of a sweep")
    checks.real("within", within, 0, open_minimum=True)
    checks.integer("draws", draws, 2)
    _check_axis(dataset, over)
    name = chosen(dataset, observable)
    if pick is None:
        pick = direction(name) or "lowest"
    checks.choice("pick", pick, get_args(Pick))
    runs = dataset[["status"]].assign(value=at_end(dataset, name)).sortby(over)
    if "seed" not in runs.dims:
        runs = runs.expand_dims("seed")
    others = [dim for dim in runs["status"].dims if dim not in (over, "seed")]
    runs = runs.transpose(*others, over, "seed").load()
    shape = tuple(runs.sizes[dim] for dim in others)
    by_curve = (-1, runs.sizes[over], runs.sizes["seed"])
    averaged = Averaged.of(
        runs["value"].values.reshape(by_curve), runs["status"].values.reshape(by_curve)
    )
    axis = runs[over].values.astype(float)
    logarithmic = bool((axis > 0).all())
    x = np.log(axis) if logarithmic else axis
    back = np.exp if logarithmic else np.asarray
    sign = 1 if pick == "lowest" else -1
    found = valley(x, averaged.mean(), sign, within)
    resampled = averaged.resampled(x, sign, draws)
    scatter = resampled.std(0, ddof=1) if runs.sizes["seed"] > 1 else np.nan
    unit = dataset[over].attrs.get("units", "1")
    words = {
        "best": (back(found.at), f"best {over}", unit),
        "error": (
            np.hypot(scatter, found.shape),
            f"standard error of {'log ' * logarithmic}{over}",
            "1",
        ),
        "shape": (found.shape, "error by the distance of the values", "1"),
        "value": (found.value, f"{pick} {name}", dataset[name].attrs.get("units", "1")),
        "lower": (back(found.lower), f"smallest {over} within {100 * within:g} %", unit),
        "upper": (back(found.upper), f"largest {over} within {100 * within:g} %", unit),
        **averaged.edges(axis, over, unit),
    }
    made = xr.Dataset(
        {n: (others, v.reshape(shape), _about(text, u)) for n, (v, text, u) in words.items()},
        {str(n): c for n, c in runs.coords.items() if set(c.dims) <= set(others) and c.dims},
        {"over": over, "observable": name, "pick": pick, "within": within, "ends": axis[[0, -1]]},
    )
    flags = {"flag_values": [p.value for p in Place], "flag_meanings": " ".join(Place.__members__)}
    place = _places(averaged, found).reshape(shape)
    made["place"] = (others, place, {"long_name": f"where the best {over} lies", **flags})
    spread = back(resampled).reshape(-1, *shape)
    made["resampled"] = (["draw", *others], spread, _about(f"best {over} of resampled seeds", unit))
    return made


def _about(text: str, unit: str) -> dict[str, str]:
    return {"long_name": text, "units": unit}


def _check_axis(dataset: xr.Dataset, over: str) -> None:
    """Raise `ValueError` unless there is a best value along an axis."""
    dims = [str(dim) for dim in dataset["status"].dims]
    if over == "seed":
        raise ValueError("over = 'seed': seeds have no best one; must be another axis")
    checks.choice("over", over, [dim for dim in dims if dim != "seed"])
    if worded(dataset, over):
        raise ValueError(f"over = {over!r}: its values are words; must be an axis of numbers")
    values = dataset[over].values
    different = len(np.unique(values))
    if not np.isfinite(values).all() or different < max(FEWEST, len(values)):
        raise ValueError(
            f"over = {over!r}: has the values {', '.join(f'{v:g}' for v in values[:6])}; needs "
            f"{FEWEST} or more, finite and different"
        )


def _places(averaged: Averaged, found: Valley) -> Int[np.ndarray, " C"]:
    """Where the best of each curve lies, as a `Place`."""
    last = averaged.known.shape[-1] - 1
    return np.select(
        [np.isnan(found.at), found.index == 0, found.index == last, ~found.inside],
        [Place.NONE, Place.LOWER_END, Place.UPPER_END, Place.BESIDE_DIVERGED],
        Place.INSIDE,
    )
