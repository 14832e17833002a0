"""Power laws of best values, drawn with known exponents."""

from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy.stats import linregress

import sweeps
from sweeps.studies.optimum.best import Place

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
    law, line = sweeps.transfer(bests(rates), "batch"), linregress(np.log(BATCH), np.log(rates))
    assert float(law["exponent"]) == pytest.approx(line.slope)
    # 2.869 is the two-sided 95.45 % point of t with 4 degrees of freedom.
    assert float(law["error"]) == pytest.approx(line.stderr * 2.869 / 2, rel=1e-3)
    assert float(law["prefactor"]) == pytest.approx(np.exp(line.intercept))
    residuals = np.log(rates) - line.intercept - line.slope * np.log(BATCH)
    assert float(law["off"]) == pytest.approx(np.exp(np.abs(residuals).max()) - 1)
    said = f"undecided: batch^{line.slope:.2f} of one seed, whose error is not known"
    assert law["verdict"].item() == said


def test_errors_of_the_shape_are_those_of_a_line_through_uncertain_points() -> None:
    law = sweeps.transfer(bests(BATCH**0.3, spread=1e-3, shape=0.1), "batch")
    want = 0.1 / (np.log(BATCH).std() * BATCH.size**0.5)
    assert float(law["error"]) == pytest.approx(want, rel=1e-3)


def test_the_error_over_seeds_is_that_of_a_line_through_points_of_equal_error() -> None:
    law = sweeps.transfer(bests(BATCH**0.3, spread=0.1), "batch")
    want = 0.1 / (np.log(BATCH).std() * BATCH.size**0.5)
    assert float(law["error"]) == pytest.approx(want, rel=0.15)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (bests(BATCH**0.01, 0.02), "transfers: batch^0.01 ± 0.01"),
        (bests(BATCH**0.2, 0.02, 2.0), "transfers: one eta is within 1 % of the best at every bat"),
        # As far apart as the ranges reach.
        (bests(np.tile([1.0, 4.0], 3), 0.02, 2.0), "transfers: one eta is within 1 % of the best"),
        (bests(np.tile([1.0, 4.0], 3), 0.02, 1.9), "undecided: batch^0."),
        (bests(BATCH**0.1, 0.4), "undecided: batch^0.10 ± 0."),
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
        (3, "batch", "found = 3: must be of type xarray"),
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
