"""How often the truth is within two errors of what is found, in sweeps of known curves."""

from collections.abc import Callable

import numpy as np
import pytest
import xarray as xr

import sweeps
from sweeps.studies.optimum.valley import valley as of_curves

Curve = Callable[[np.ndarray], np.ndarray]
DRAWS = 60
"""Bootstrap draws: the error is that of a standard deviation from so many, 9 %."""
LOWEST = (1 / 2) ** (1 / 3)
"""Where eta^-1 + eta^2 is: its derivative -eta^-2 + 2 eta is 0 there."""


def valley(eta: np.ndarray) -> np.ndarray:
    """Two powers, which are asymmetric in logarithms."""
    return 1 / eta + eta**2


def wall(eta: np.ndarray) -> np.ndarray:
    """The loss 0.01 and that of 20 steps of gradient descent on curvatures 1 and 1/4: it is lowest
    where (eta - 1)^19 = (1 - eta/4)^19 / 16, next to a steep wall."""
    return 0.01 + (1 - eta) ** 20 + (1 - eta / 4) ** 20 / 4


def swept(
    rng: np.random.Generator, curve: Curve, spacing: float, noise: float, seeds: int, places: int
) -> xr.Dataset:
    """`places` sweeps along an axis of rates, which begins at random; every run has the relative
    noise."""
    first = spacing ** rng.uniform(-5, -4, (places, 1))
    eta = np.array([1.0]) * spacing ** np.arange(10)
    clean = curve(first * eta)[..., None]
    loss = clean * np.exp(noise * rng.normal(size=(places, 10, seeds)))
    dims = ("batch", "eta", "seed")
    made = {"status": (dims, np.zeros(loss.shape, int)), "loss": (dims, loss)}
    return xr.Dataset(made, {"batch": first[:, 0], "eta": eta})


def coverage(
    curve: Curve, best: float, spacing: float, noise: float, seeds: int, places: int = 300
) -> tuple[float, float]:
    """Share of sweeps with the truth within two errors, and root of the mean square of the
    distance from the truth."""
    rng = np.random.default_rng(0)
    made = swept(rng, curve, spacing, noise, seeds, places)
    found = sweeps.best(made, draws=DRAWS)
    away = np.log(found["best"].values * made["batch"].values / best)
    return float((np.abs(away) <= 2 * found["error"]).mean()), float(np.sqrt((away**2).mean()))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_parabola_is_known_by_five_of_its_points(sign: int) -> None:
    """Its lowest point is next to each of seven points in turn; without two on either side it is
    only known to be between neighbours, and at an end not even that."""
    x = np.array([0, 1, 2.5, 3, 4, 6, 7])
    bottom = x + np.array([0.1, 0.1, -0.2, 0.1, 0.3, 0.2, -0.1])
    curves = sign * ((x - bottom[:, None]) ** 2 - 4)
    curves[2, 6] = np.nan
    found = of_curves(x, curves, sign, within=0.09)
    np.testing.assert_array_equal(found.index, np.arange(7))
    np.testing.assert_array_equal(found.inside, [False, *5 * [True], False])
    whole = slice(2, 5)
    np.testing.assert_allclose(found.at, [*x[:2], *bottom[whole], *x[5:]], rtol=1e-9)
    np.testing.assert_allclose(found.value[whole], -4 * sign, rtol=1e-9)
    between = np.array([2.5, 3]) / np.sqrt(12)
    want = [np.nan, between[0], 0, 0, 0, between[1], np.nan]
    np.testing.assert_allclose(found.shape, want, atol=1e-9)
    # 9 % of 4 is 0.6^2.
    np.testing.assert_allclose(found.upper[whole], bottom[whole] + 0.6, rtol=1e-9)
    np.testing.assert_allclose(found.lower[[2, 4]], bottom[[2, 4]] - 0.6, rtol=1e-9)
    lost = of_curves(x, np.where(x == x[[1, 2, 4, 5]][:, None], np.nan, curves[3]), sign)
    np.testing.assert_array_equal(lost.inside, [True, False, False, True])
    np.testing.assert_array_equal(lost.at, x[3])


@pytest.mark.parametrize("spacing", [2.0, 4.0])
@pytest.mark.parametrize("seeds", [2, 3, 8])
@pytest.mark.more
def test_the_best_rate_of_two_powers_is_within_two_errors(spacing: float, seeds: int) -> None:
    share, _ = coverage(valley, LOWEST, spacing, 0.02, seeds)
    # Of 300 draws at 95 % a share below 0.91 is one in a thousand.
    assert share > 0.91


@pytest.mark.parametrize("seeds", [2, 3, 4])
def test_few_seeds_have_errors_that_cover(seeds: int) -> None:
    """Where the curve is known well and only the seeds count."""
    share, _ = coverage(lambda eta: np.exp(np.log(eta) ** 2 / 2), 1.0, 2.0, 0.1, seeds)
    assert share > 0.91


@pytest.mark.parametrize("spacing", [1.3, 1.6, 2.0])
def test_a_valley_with_one_steep_wall_is_not_deeper_than_it_is(spacing: float) -> None:
    ratio = (1 / 16) ** (1 / 19)
    best = (1 + ratio) / (1 + ratio / 4)
    made = swept(np.random.default_rng(0), wall, spacing, 0.0, 1, 100)
    found = sweeps.best(made)
    assert (found["value"] > 0.999 * wall(np.array(best))).all()
    away = np.abs(np.log(found["best"] * made["batch"] / best))
    assert float((away <= 2 * found["shape"]).mean()) > 0.91
