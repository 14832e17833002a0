"""Power laws of best values, drawn with known exponents."""

from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy.stats import linregress, norm, t

import sweeps
from sweeps.studies.optimum.best import Place, transfer

BATCH = 2.0 ** np.arange(3, 9)


def bests(
    rates: Any,
    spread: float = 0.0,
    width: float = 1.01,
    batch: np.ndarray = BATCH,
    shape: float = 0.0,
) -> xr.Dataset:
    """What `sweeps.best` returns of best `rates`, with draws so far apart; each rate is near the
    best up to a factor `width`, and has an error of the shape."""
    rates = np.asarray(rates, float)
    rng = np.random.default_rng(1)
    draws = rates * np.exp(spread * rng.normal(size=(300, rates.size)))
    return xr.Dataset(
        {
            "best": ("batch", rates),
            "lower": ("batch", rates / width),
            "upper": ("batch", rates * width),
            "shape": ("batch", np.full(rates.size, shape)),
            "place": ("batch", np.full(rates.size, Place.INSIDE)),
            "resampled": (("draw", "batch"), draws if spread else draws[:0]),
        },
        {"batch": batch},
        {"over": "eta", "within": 0.01},
    )


def noisy(rng: np.random.Generator, exponent: float, seeds: int) -> xr.Dataset:
    """A sweep whose best rate is 0.02 batch^exponent, where seeds shift the valley and noise its
    values."""
    eta = np.geomspace(1e-3, 10, 20)
    best = 0.02 * BATCH[:, None, None] ** exponent
    shift = 0.2 * rng.normal(size=(BATCH.size, 1, seeds))
    away = np.log(eta[:, None] / best) - shift
    loss = np.exp(away**2 / 2) + 0.02 * rng.normal(size=away.shape)
    dims = ("batch", "eta", "seed")
    status = np.zeros(loss.shape, int)
    found = {"status": (dims, status), "loss": (dims, loss)}
    return xr.Dataset(found, {"batch": BATCH, "eta": eta})


FOUR = np.array([1.0, 2, 4, 8])


def four(draws: np.ndarray, shape: np.ndarray, best: np.ndarray) -> xr.Dataset:
    """What `sweeps.best` returns, of values that differ by more than what is near the best."""
    return xr.Dataset(
        {
            "best": ("batch", best),
            "lower": ("batch", best / 1.01),
            "upper": ("batch", best * 1.01),
            "shape": ("batch", shape),
            "place": ("batch", np.full(4, Place.INSIDE)),
            "resampled": (("draw", "batch"), draws),
        },
        {"batch": FOUR},
        {"over": "eta", "within": 0.01},
    )


def test_the_error_of_an_exponent_is_of_draws_and_shape_or_of_residuals() -> None:
    best = 0.1 * FOUR**0.5
    draws = 0.1 * FOUR ** np.array([[0.4], [0.5], [0.7]])
    shape = np.array([0.1, 0.2, 0.2, 0.3])
    law = transfer(four(draws, shape, best), "batch")
    x = np.log(FOUR) - np.log(FOUR).mean()
    # The slope is the sum of x y over that of x^2, and errors of the shape are independent.
    own = np.sqrt((x**2 * shape**2).sum()) / (x**2).sum()
    spread = np.std([0.4, 0.5, 0.7], ddof=1)
    assert float(law["error"]) == pytest.approx(np.hypot(own, spread))
    assert (int(law["points"]), float(law["exponent"])) == pytest.approx((4, 0.5))
    rough = best * np.exp([0.3, -0.3, -0.3, 0.3])
    law = transfer(four(np.tile(rough, (2, 1)), 0 * shape, rough), "batch")
    line = linregress(np.log(FOUR), np.log(rough))
    factor = t.isf(norm.sf(2), 2) / 2
    assert float(law["error"]) == pytest.approx(line.stderr * factor)
    assert float(law["off"]) == pytest.approx(np.exp(0.3) - 1)


@pytest.mark.parametrize(
    ("exponent", "error", "verdict"),
    # Over a factor of 8, an exponent of 1/3 is one of 2.
    [
        (0.05, 0.14, "transfers"),
        (0.05, 0.145, "undecided"),
        (-0.4, 0.19, "falls"),
        (0.3, 0.16, "undecided"),
    ],
)
def test_a_verdict_excludes_a_factor_of_two(exponent: float, error: float, verdict: str) -> None:
    draws = 0.1 * FOUR ** (exponent + error * np.array([[1], [-1]]) / 2**0.5)
    law = transfer(four(draws, np.zeros(4), 0.1 * FOUR**exponent), "batch")
    assert float(law["error"]) == pytest.approx(error)
    assert law["verdict"].item().split()[0].rstrip(":") == verdict


@pytest.mark.more
def test_a_known_exponent_is_recovered_within_its_error_in_most_draws() -> None:
    rng, away = np.random.default_rng(0), []
    for _ in range(30):
        found = sweeps.best(noisy(rng, 0.5, 6), draws=60)
        law = sweeps.transfer(found, along="batch")
        away.append(abs(float(law["exponent"]) - 0.5) / float(law["error"]))
        assert str(law["verdict"].item()).startswith("grows as batch^0.")
    # Of a normal error, 68 % and 95 %.
    assert 0.5 < np.mean(np.less(away, 1)) < 0.9
    assert np.mean(np.less(away, 2)) > 0.85


def test_with_one_seed_the_error_is_that_of_the_residuals_and_there_is_no_verdict() -> None:
    rates = BATCH**-0.5 * np.exp(0.1 * np.random.default_rng(2).normal(size=BATCH.size))
    law, line = transfer(bests(rates), "batch"), linregress(np.log(BATCH), np.log(rates))
    assert float(law["exponent"]) == pytest.approx(line.slope)
    # 2.869 is the two-sided 95.45 % point of t with 4 degrees of freedom.
    assert float(law["error"]) == pytest.approx(line.stderr * 2.869 / 2, rel=1e-3)
    assert float(law["prefactor"]) == pytest.approx(np.exp(line.intercept))
    residuals = np.log(rates) - line.intercept - line.slope * np.log(BATCH)
    assert float(law["off"]) == pytest.approx(np.exp(np.abs(residuals).max()) - 1)
    said = f"undecided: batch^{line.slope:.2f} of one seed, whose error is not known"
    assert law["verdict"].item() == said


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (bests(BATCH**0.2, 0.02, 2.0), "transfers: one eta is within 1 % of the best at every bat"),
        # As far apart as the ranges reach.
        (bests(np.tile([1.0, 4.0], 3), 0.02, 2.0), "transfers: one eta is within 1 % of the best"),
        (bests(np.tile([1.0, 4.0], 3), 0.02, 1.9), "undecided: batch^0."),
        (bests(BATCH**-0.5, 0.02), "falls as batch^-0.50 ± 0.01"),
        (bests(BATCH[:2], 0.02, batch=BATCH[:2]), "no fit: the best lies inside its axis at 2 val"),
    ],
)
def test_verdicts_in_words(found: xr.Dataset, verdict: str) -> None:
    assert str(sweeps.transfer(found, "batch")["verdict"].item()).startswith(verdict)


def test_bounds_and_infinite_values_are_left_out_of_the_fit() -> None:
    batch = np.r_[BATCH, np.inf]
    found = bests(np.r_[BATCH[:-1] ** 0.5, 7.0, 3.0], batch=batch)
    found["place"][5] = Place.UPPER_END
    law = sweeps.transfer(found, "batch")
    assert float(law["exponent"]) == pytest.approx(0.5)
    assert int(law["points"]) == 5
    found["place"][2:] = Place.NONE
    found["best"][2:] = np.nan
    assert np.isnan(float(sweeps.transfer(found, "batch")["exponent"]))


def test_other_axes_stay() -> None:
    both = [bests(BATCH**power, 0.01) for power in (0.5, -0.25)]
    found = xr.concat(both, xr.DataArray(["sgd", "adam"], dims="optimizer", name="optimizer"))
    law = sweeps.transfer(found, "batch")
    assert float(law["exponent"].sel(optimizer="adam")) == pytest.approx(-0.25)
    assert law["verdict"].sel(optimizer="sgd").item().startswith("grows as batch^0.50")


@pytest.mark.parametrize(
    ("found", "along", "message"),
    [
        (xr.Dataset(), "batch", "found: has no 'best'; must be what sweeps.best returned"),
        (bests(BATCH), "bach", "along = 'bach': did you mean 'batch'"),
        (bests(BATCH).assign_coords(batch=list("abcdef")), "batch", "its values are words"),
        (bests(BATCH, batch=BATCH - 8), "batch", "batch = 0: a power law needs positive values"),
        (bests(-BATCH), "batch", "eta = -256: a power law needs positive values"),
    ],
)
def test_bad_input_names_the_field(found: Any, along: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sweeps.transfer(found, along)
