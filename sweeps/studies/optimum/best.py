"""The best value of an axis of a sweep, such as the learning rate: its error, and how it changes
with another axis."""

import enum
from typing import Any, Literal, get_args

import numpy as np
import xarray as xr
from jaxtyping import Float, Real
from scipy.stats import linregress

from dynsim import Status, checks
from sweeps.language.values import equal_in, find_axis
from sweeps.runner.labels import worded
from sweeps.runner.store.arrays import MISSING
from sweeps.studies.optimum.valley import valley
from sweeps.studies.options import student

Pick = Literal["lowest", "highest"]
FEWEST_VALUES = 3
"""Smallest number of values of an axis, and of points for a power law with an error."""
FACTOR = 2.0
"""Change of the best value along an axis that the errors must exclude for it to transfer."""


class BestLocation(enum.IntEnum):
    """Where the best value lies on its axis: between worse ones, at an end, beyond which others may
    be better, or next to a value at which runs diverged. NONE if a run diverged at every value, or
    nothing is computed yet."""

    INSIDE = 0
    LOWER_END = 1
    UPPER_END = 2
    BESIDE_DIVERGED = 3
    NONE = 4


AT_END = (BestLocation.LOWER_END, BestLocation.UPPER_END)


def best(
    dataset: xr.Dataset,
    over: str = "eta",
    *,
    observable: str | None = None,
    pick: Pick | None = None,
    within: float = 0.01,
    draws: int = 400,
) -> xr.Dataset:
    """The best value of an axis of a sweep, usually the learning rate, at all values of the other
    axes.

    At each value the observable is averaged over the seeds. A value at which a run did not end
    well has no average and cannot be best. The best value is refined by the polynomial through the
    lowest average and two neighbours on either side: in the logarithm of the axis, and of the
    observable, where all values are positive. Where two neighbours are not known, or the polynomial
    falls below every convex curve through these points, as next to a steep wall, the best value is
    that of the lowest average.

    Its error has two parts. The part from the seeds is a bootstrap: seeds are drawn with
    replacement, the same ones at every value of every axis, because runs with the same seed share
    their data, and the whole estimate is repeated. (A jackknife would fail where the lowest average
    moves to another value.) Deviations are scaled by sqrt(n / (n - 1)) for n seeds and by Student's
    factor, so that two errors cover 95 % even for few seeds. The part from the shape is the
    difference between polynomials through three and four of the points; or, where only the lowest
    average is known, the standard deviation of a uniform distribution between its neighbours.

    Args:
        dataset: results of a sweep, from `sweeps.run` or `sweeps.open`.
        over: name of the axis, with three different numbers or more.
        observable: recorded quantity, one number per run, at the last recorded time. By default
            loss, else the first one whose name contains loss or accuracy.
        pick: whether the lowest or the highest is best; by default the highest accuracy, or the
            lowest of anything else.
        within: largest excess over the best, as a share of it, in the range from `lower` to
            `upper`.
        draws: number of bootstrap draws, which are the same in every call.

    Returns:
        A dataset over the other axes except seeds, in the unit of the axis:

        * `best`, and `error`, the standard error of its logarithm (of itself for an axis with
          values that are not positive), NaN for one seed;
        * `shape`, the part of the error that more values of the axis lower, but more seeds do not;
          both are NaN where the best lies at an end;
        * `value`, the observable there, by the polynomial;
        * `lower` and `upper`, between which the observable stays within `within` of the best:
          by a parabola next to the best, then linear; the last value where it does so to the end;
        * `stable` and `edge`, the largest values up to which no run and at most half of the runs
          of a value diverged, and `diverged`, the smallest at which one did; NaN for none;
        * `place`, a `BestLocation` as a number: whether the best lies at an end of the axis. Where
          it is NONE, all others are NaN;
        * `resampled`, the best values of the draws, scaled as for `error`.

    Raises:
        ValueError: for anything but the dataset of a sweep; for an axis that is unknown, has seeds
            or words, or has fewer than three values; or for an observable that is not recorded as
            one number.

    Example:
        >>> run = sweeps.Experiment(DeepLinear(u0=0.1), dynsim.sgd(0.1), steps=20)
        >>> axes = {"eta": [0.1, 0.2, 0.4, 0.8, 1.6], "seed": range(3)}
        >>> runs = sweeps.run(sweeps.Sweep(run, axes, record=["loss"]), progress=False)
        >>> rate = sweeps.best(runs, over="eta").best
    """
    checks.kind("dataset", dataset, xr.Dataset)
    if "status" not in dataset:
        raise ValueError("dataset: has no status; must be the results of a sweep")
    checks.real("within", within, 0, open_minimum=True)
    checks.integer("draws", draws, 2)
    name = _observable(dataset, observable)
    over = _axis_of_numbers(dataset, over, dataset[name].dtype)
    pick = pick_of(name) or "lowest" if pick is None else pick
    checks.choice("pick", pick, get_args(Pick))
    runs = dataset[["status"]].assign(value=at_end(dataset, name)).sortby(over)
    runs = runs if "seed" in runs.dims else runs.expand_dims("seed")
    others = [dim for dim in runs["status"].dims if dim not in (over, "seed")]
    runs = runs.transpose(*others, over, "seed").load()
    seeds, shape = runs.sizes["seed"], tuple(runs.sizes[dim] for dim in others)
    axis = runs[over].values.astype(float)
    logarithmic = bool((axis > 0).all())
    x, back = (np.log(axis), np.exp) if logarithmic else (axis, np.asarray)
    sign = 1 if pick == "lowest" else -1

    # A chunk that is not computed yet is missing; a run with a status other than OK failed.
    status = runs["status"]
    ok = (status == Status.OK) & np.isfinite(runs["value"])
    failed = (status != Status.OK) & (status != MISSING)
    lost = (status != MISSING) & ~ok
    known = (ok.any("seed") & ~lost.any("seed")).values
    values = runs["value"].where(ok, 0).values.astype(float)

    def means(weights: Real[np.ndarray, " S"]) -> Float[np.ndarray, "C P"]:
        """One row for each curve, NaN where none of its runs has a weight."""
        number = ok.values @ weights
        mean = (values @ weights) / np.where(number > 0, number, 1)
        return np.where(known & (number > 0), mean, np.nan).reshape(-1, len(axis))

    minimum = valley(x, means(np.ones(seeds)), sign, within)
    resampled, scatter = np.empty((0, len(minimum.at))), np.full(len(minimum.at), np.nan)
    if seeds > 1:
        # A bootstrap over seeds, with the same draws in every call.
        weights = np.random.default_rng(0).multinomial(seeds, np.full(seeds, 1 / seeds), draws)
        drawn = np.stack([valley(x, means(draw), sign).at for draw in weights])
        # Twice their standard deviation then covers 95 %.
        scale = student(seeds - 1) * np.sqrt(seeds / (seeds - 1))
        resampled = drawn.mean(0) + scale * (drawn - drawn.mean(0))
        scatter = resampled.std(0, ddof=1)
    last = len(axis) - 1
    place = np.select(
        [np.isnan(minimum.at), minimum.index == 0, minimum.index == last, ~minimum.inside],
        [
            BestLocation.NONE,
            BestLocation.LOWER_END,
            BestLocation.UPPER_END,
            BestLocation.BESIDE_DIVERGED,
        ],
        BestLocation.INSIDE,
    )
    # Up to the first value that breaks the rule: a cumulative product of its truth values.
    none, few = ~failed.any("seed"), 2 * failed.sum("seed") <= seeds
    stable, edge = (runs[over].where(rule.cumprod(over) > 0).max(over) for rule in (none, few))

    unit, near = dataset[over].attrs.get("units", "1"), f"within {100 * within:g} %"
    error = f"standard error of {'log ' * logarithmic}{over}"
    diverged = runs[over].where(~none).min(over)
    columns = {
        "best": (back(minimum.at), f"best {over}", unit),
        "error": (np.hypot(scatter, minimum.shape), error, "1"),
        "shape": (minimum.shape, "error by the distance of the values", "1"),
        "value": (minimum.value, f"{pick} {name}", dataset[name].attrs.get("units", "1")),
        "lower": (back(minimum.lower), f"smallest {over} {near}", unit),
        "upper": (back(minimum.upper), f"largest {over} {near}", unit),
        "stable": (stable.values, f"largest {over} up to which no run diverged", unit),
        "edge": (edge.values, f"largest {over} up to which at most half diverged", unit),
        "diverged": (diverged.values, f"smallest {over} at which a run diverged", unit),
    }
    variables: dict[str, object] = {
        column: (others, array.reshape(shape), {"long_name": text, "units": of})
        for column, (array, text, of) in columns.items()
    }
    flags = {
        "flag_values": [p.value for p in BestLocation],
        "flag_meanings": " ".join(BestLocation.__members__),
    }
    about = {"long_name": f"where the best {over} lies", **flags}
    variables["place"] = (others, place.reshape(shape), about)
    about = {"long_name": f"best {over} of resampled seeds", "units": unit}
    variables["resampled"] = (["draw", *others], back(resampled).reshape(-1, *shape), about)
    coords = {str(n): c for n, c in runs.coords.items() if set(c.dims) <= set(others) and c.dims}
    attrs = {"over": over, "observable": name, "pick": pick, "within": within}
    return xr.Dataset(variables, coords, attrs | {"ends": axis[[0, -1]]})


def _axis_of_numbers(dataset: xr.Dataset, over: str, dtype: np.dtype) -> str:
    if over == "seed":
        raise ValueError("over = 'seed': no seed is best; must be another axis")
    known = [str(dim) for dim in dataset["status"].dims if dim != "seed"]
    if not known:
        raise ValueError(f"over = {over!r}: the results have no axis besides seeds")
    over = find_axis("over", over, known)
    if worded(dataset, over):
        raise ValueError(f"over = {over!r}: its values are words; must be an axis of numbers")
    values = dataset[over].values
    if not np.isfinite(values).all() or len(np.unique(values)) < max(FEWEST_VALUES, len(values)):
        raise ValueError(
            f"over = {over!r}: has the values {', '.join(f'{v:g}' for v in values[:6])}; needs "
            f"{FEWEST_VALUES} or more, finite and different"
        )
    # Rates that round to the same number are the same run, whatever their names.
    if same := equal_in(dtype, [values]):
        raise ValueError(f"over = {over!r}: {same}; must be runs in float64")
    return over


def pick_of(name: str) -> Pick | None:
    """Return which values of an observable are good, by its name; None for other names."""
    if name == "loss" or name.endswith("_loss"):
        return "lowest"
    return "highest" if name == "accuracy" or name.endswith("_accuracy") else None


def at_end(dataset: xr.Dataset, name: str) -> xr.DataArray:
    """An observable at the last time that each run recorded."""
    values = dataset[name]
    if "time" in values.dims:
        return values.isel(time=-1)
    if "record" not in values.dims:
        return values
    # Runs of fewer steps recorded fewer times.
    last = dataset["time"].notnull().sum("record") - 1
    return values.isel(record=last.clip(min=0))


def observables(dataset: xr.Dataset) -> tuple[list[str], str | None]:
    """Return the names of recorded observables and the one to optimise: the loss, else the first
    one with a `pick_of` and one number for each run and time."""
    names = [str(name) for name in dataset.data_vars if name not in ("status", "first_bad_step")]
    known = [name for name in names if pick_of(name) and not _obstacle(dataset, name)]
    return names, "loss" if "loss" in known else next(iter(known), None)


def _obstacle(dataset: xr.Dataset, name: str) -> str:
    """Return why an observable is not one number of each run and time; empty if it is."""
    outer, kind = {*dataset["status"].dims, "time", "record"}, dataset[name].dtype
    if inner := [str(dim) for dim in dataset[name].dims if dim not in outer]:
        return f"an axis {', '.join(inner)}"
    return "" if kind.kind == "f" else f"the type {kind}"


def _observable(dataset: xr.Dataset, observable: str | None) -> str:
    names, usual = observables(dataset)
    if observable is not None:
        checks.choice("observable", observable, names)
        if has := _obstacle(dataset, observable):
            raise ValueError(
                f"observable = {observable!r}: must be one number of each run, has {has}"
            )
        return observable
    if usual is None:
        raise ValueError(
            f"observable: of {', '.join(names) or 'nothing recorded'}, none is named a loss or an "
            "accuracy; choose one"
        )
    return usual


def transfer(optimum: xr.Dataset, along: str) -> xr.Dataset:
    """The power law of the best values of an axis along another axis, such as the batch.

    It is a least-squares line through the logarithms, without values of `along` that are infinite
    or whose best lies at an end of its axis. The error is the larger of two: that from the line's
    residuals, with Student's factor; and the standard deviation over the bootstrap draws, each
    fitted separately, including the errors of the shape. With one seed only the first is known, and
    there is no verdict: its runs share their data, so residuals are not independent.

    Args:
        optimum: result of `sweeps.best`.
        along: one of its axes, of positive numbers.

    Returns:
        A dataset over the remaining axes: `exponent`, `error`, `prefactor` (the law at 1), `off`,
        the largest relative deviation of a point from the law, the number of `points`, and a
        `verdict` in words:

        * "transfers", where one value is near the best (from `lower` to `upper`) at all values of
          `along`, or the exponent is 0 within two errors and these exclude that the best changes
          by a factor of 2 between its ends;
        * "undecided", where it is 0 within two errors but such a change is not excluded, or there
          is only one seed;
        * "grows as batch^0.52 ± 0.03" or "falls as" otherwise;
        * "no fit" for fewer than three points, with NaN for the numbers.

    Raises:
        ValueError: for anything but the result of `sweeps.best`, an unknown axis, an axis of words,
            or values that are not positive.

    Example:
        >>> run = sweeps.Experiment(DeepLinear(u0=0.1), dynsim.sgd(0.1), steps=20)
        >>> axes = {"batch": [8, 16], "eta": [0.1, 0.2, 0.4, 0.8, 1.6], "seed": range(3)}
        >>> runs = sweeps.run(sweeps.Sweep(run, axes, record=["loss"]), progress=False)
        >>> str(sweeps.transfer(sweeps.best(runs, over="eta"), along="batch").verdict.values)
        'no fit: the best lies inside its axis at 2 values of batch, needs 3'
    """
    checks.kind("optimum", optimum, xr.Dataset)
    missing = [name for name in ("best", "shape", "place", "resampled") if name not in optimum]
    if missing:
        raise ValueError(f"optimum: has no {missing[0]!r}; must be what sweeps.best returned")
    along = find_axis("along", along, optimum["best"].dims)
    if worded(optimum, along):
        raise ValueError(f"along = {along!r}: its values are words; must be an axis of numbers")
    over = optimum.attrs["over"]
    for name in (along, over):
        values = optimum["best" if name == over else along].values
        if (values <= 0).any():
            raise ValueError(f"{name} = {values.min():g}: a power law needs positive values")
    others = [dim for dim in optimum["best"].dims if dim != along]
    ordered = optimum.transpose("draw", *others, along)
    shape = tuple(optimum.sizes[dim] for dim in others)
    laws = [
        _power_law(ordered.isel(dict(zip(others, at, strict=True))), along)
        for at in np.ndindex(shape)
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
    variables = {
        name: (others, np.reshape(values, shape), {"long_name": text})
        for (name, text), values in columns
    }
    coords = {n: c for n, c in optimum.coords.items() if c.dims and set(c.dims) <= set(others)}
    return xr.Dataset(variables, coords, {**optimum.attrs, "along": along})


def _power_law(optimum: xr.Dataset, along: str) -> tuple[float, float, float, float, int, str]:
    """Return the variables of `transfer` for one curve over `along`."""
    x, best = optimum[along].values.astype(float), optimum["best"].values
    # At an end of the axis only a bound is known.
    inside = optimum["place"].isin((BestLocation.INSIDE, BestLocation.BESIDE_DIVERGED)).values
    used = inside & np.isfinite(x)
    points = int(used.sum())
    if points < FEWEST_VALUES:
        where = (
            f"the best lies inside its axis at {points} values of {along}, needs {FEWEST_VALUES}"
        )
        return np.nan, np.nan, np.nan, np.nan, points, f"no fit: {where}"
    at, logs = np.log(x[used]), np.log(best[used])
    fit: Any = linregress(at, logs)
    # The slope is a weighted sum of the logarithms, with the weights apart / (apart @ apart). So is
    # its error: by resampled seeds, which are correlated between points, and by independent shapes.
    apart = at - at.mean()
    draws = np.log(optimum["resampled"].values[:, used]) @ apart / (apart @ apart)
    shape = np.linalg.norm(apart * optimum["shape"].values[used]) / (apart @ apart)
    spread = np.hypot(np.std(draws, ddof=1) if draws.size else 0.0, shape)
    exponent, error = float(fit.slope), float(max(student(points - 2) * fit.stderr, spread))
    off = float(np.expm1(np.abs(logs - fit.intercept - fit.slope * at).max()))

    known, about = np.isfinite(best), optimum.attrs
    power = f"{along}^{exponent:.2f} ± {error:.2f}"
    if not draws.size:
        verdict = f"undecided: {along}^{exponent:.2f} of one seed, whose error is not known"
    elif optimum["lower"].values[known].max() <= optimum["upper"].values[known].min():
        # The ranges near the best have a value in common.
        near = f"{100 * about['within']:g} %"
        verdict = f"transfers: one {about['over']} is within {near} of the best at every {along}"
    elif abs(exponent) > 2 * error:
        verdict = f"{'grows' if exponent > 0 else 'falls'} as {power}"
    else:
        # Do two errors exclude a change by `FACTOR` between the ends of the axis?
        certain = (abs(exponent) + 2 * error) * np.ptp(at) < np.log(FACTOR)
        verdict = f"{'transfers' if certain else 'undecided'}: {power}"
    return exponent, error, float(np.exp(fit.intercept)), off, points, verdict
