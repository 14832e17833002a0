"""Moments of an order parameter over seeds: mean, susceptibility and Binder cumulant."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class Moments(NamedTuple):
    """Of N sizes at P values of the control parameter, for R sets of weights of the seeds.

    All are NaN at a point where a run has no value.

    Attributes:
        mean: <m>.
        susceptibility: size times the variance of m over the seeds.
        binder: 1 - <q^4> / (3 <q^2>^2) with q = m - origin. It is 2/3 where q has one absolute
            value, 0 for a normal distribution about the origin, and NaN where q is always 0.
    """

    mean: Float[np.ndarray, "R N P"]
    susceptibility: Float[np.ndarray, "R N P"]
    binder: Float[np.ndarray, "R N P"]


def weights(seeds: int, draws: int) -> Float[np.ndarray, "R S"]:
    """Weights of the seeds, of sum 1: equal ones first, then of `draws` random halves of them,
    which are always the same. No seed is there twice, as it would be in a bootstrap sample: a
    smoother that is chosen by leaving seeds out would take a copy for confirmation."""
    chosen = np.random.default_rng(0).permuted(np.tile(np.arange(seeds), (draws, 1)), axis=1)
    drawn = (chosen < _half(seeds)) / _half(seeds)
    return np.concatenate([np.full((1, seeds), 1 / seeds), drawn])


def _half(seeds: int) -> int:
    return (seeds + 1) // 2


def error(values: Float[np.ndarray, "R *A"], seeds: int) -> Float[np.ndarray, "*A"]:
    """Standard error of what was computed for each of the `weights`, from the halves of the seeds
    that have a value; NaN where fewer than half of them have one.

    It is the jackknife that deletes half (Shao and Wu, 1989): a half differs from all seeds by as
    much as they from the truth. A bias that grows for fewer seeds is part of it.
    """
    apart = values[1:] - values[0]
    known = np.isfinite(apart)
    square = np.where(known, apart, 0) ** 2
    kept = _half(seeds)
    found = np.sqrt(square.sum(0) / np.maximum(known.sum(0), 1) * kept / (seeds - kept))
    return np.where(2 * known.sum(0) >= len(apart), found, np.nan)


def moments(
    values: Float[np.ndarray, "N P S"],
    sizes: Float[np.ndarray, " N"],
    weights: Float[np.ndarray, "R S"],
    origin: float = 0.0,
) -> Moments:
    """Moments of an order parameter of each size, point and seed, NaN where a run has none.

    The variance has the factor S / (S - 1), of the seeds that have a weight, so that it does not
    depend on their number; that of one seed is NaN. The cumulant has no correction and is biased
    for few seeds. `origin` is the value of the order parameter in the phase without order: the
    cumulant tells the phases apart only about that value.
    """
    number = 1 / (weights**2).sum(-1)[:, None, None]
    mean = over_seeds(values, weights)
    # Deviations from the plain mean: no digits are lost to a large mean.
    apart = values - values.mean(-1, keepdims=True)
    variance = over_seeds(apart**2, weights) - over_seeds(apart, weights) ** 2
    square = over_seeds((values - origin) ** 2, weights)
    with np.errstate(invalid="ignore", divide="ignore"):
        binder = 1 - over_seeds((values - origin) ** 4, weights) / (3 * square**2)
    # Of equal weights up to rounding.
    free = np.where(number > 1.5, number - 1, np.nan)
    chi = sizes[:, None] * np.maximum(variance, 0) * number / free
    return Moments(mean, chi, np.where(square > 0, binder, np.nan))


def over_seeds(
    values: Float[np.ndarray, "N P S"], weights: Float[np.ndarray, "R S"]
) -> Float[np.ndarray, "R N P"]:
    """Averages over the seeds by their weights."""
    return np.einsum("nps,rs->rnp", values, weights)


def crossings(
    x: Float[np.ndarray, " P"],
    curves: Float[np.ndarray, "R N P"],
    places: Float[np.ndarray, "R N"],
) -> Float[np.ndarray, "R N-1"]:
    """Where the curves of neighbouring sizes cross, linear between points: of several crossings
    the one nearest to the place of the larger size's step. NaN where they do not cross."""
    apart = np.diff(curves, axis=1)
    left, right = apart[..., :-1], apart[..., 1:]
    # Where both are equal, as on a common plateau, nothing crosses.
    crosses = (left * right <= 0) & (left != right)
    share = np.where(crosses, left, 0) / np.where(crosses, left - right, 1)
    at = np.where(crosses, x[:-1] + share * np.diff(x), np.inf)
    away = np.abs(at - places[:, 1:, None])
    nearest = np.argmin(np.where(np.isfinite(away), away, np.inf), -1)[..., None]
    found = np.take_along_axis(at, nearest, -1)[..., 0]
    return np.where(np.isfinite(found), found, np.nan)
