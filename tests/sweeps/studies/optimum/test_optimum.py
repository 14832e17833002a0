"""The best value of an axis and its power law: known curves, and trained quadratics."""

import math

import numpy as np
import pytest
import xarray as xr
from scipy.optimize import minimize_scalar
from scipy.stats import linregress, t

import dynsim
import sweeps
from sweeps.studies.optimum.best import BestLocation, transfer
from sweeps.studies.optimum.figure import Optimum
from sweeps.systems.experiment import experiment
from tests.sweeps.studies.scaling.quadratic import Bowl

RATES = np.geomspace(0.01, 10, 16)
OK, DIVERGED, MISSING = 0, 1, -1


def dataset(loss, status=0, eta=RATES, **others):
    """Of a sweep over `eta`, after other axes and before seeds."""
    loss = np.asarray(loss, float)
    dims = [*others, "eta", "seed"][: loss.ndim]
    status = np.broadcast_to(status, loss.shape)
    axes = {"eta": ("eta", eta, {"units": "1/step"}), **others}
    return xr.Dataset({"status": (dims, status), "loss": (dims, loss)}, axes)


def parabola(middle, width=1.0, rates=RATES):
    """A loss whose logarithm is a parabola in that of the rate."""
    return 3 * np.exp(np.log(rates / middle) ** 2 / width)


def test_descent_on_a_quadratic_has_the_best_rate_of_the_closed_form():
    """w_n = (1 - eta lambda)^n, which grows from eta = 2 / lambda on."""
    axes = {"eta": {"logspace": [0.55, 4.4, 49]}, "steps": [10, 400]}
    rule, inf = dynsim.sgd(0.1), float("inf")
    sweep = sweeps.Sweep(sweeps.Experiment(Bowl(1.0, 0.25), rule, 1, inf), axes, record=("loss",))
    found = sweeps.best(sweeps.run(sweep, progress=False))
    exact = minimize_scalar(lambda r: 2 * (1 - r) ** 20 + (1 - r / 4) ** 20 / 4, (1, 1.6, 2))
    short, long = found.sel(steps=10), found.sel(steps=400)
    assert float(short["best"]) == pytest.approx(exact.x, rel=0.02)
    assert float(short["value"]) == pytest.approx(exact.fun / 2, rel=0.1)
    rates = np.asarray(sweep.fields["eta"])
    assert float(long["edge"]) == float(long["stable"]) == pytest.approx(rates[rates < 2].max())
    assert float(long["diverged"]) == pytest.approx(rates[rates > 2].min())


@pytest.mark.parametrize("pick", ["lowest", "highest"])
def test_a_parabola_is_found_exactly_in_any_order(pick):
    order = np.random.default_rng(0).permutation(RATES.size)
    batch, middle = np.array([8, 2]), np.array([0.11, 0.7])
    curves = np.stack([parabola(each) for each in middle])
    values = curves if pick == "lowest" else 1 / curves
    found = sweeps.best(dataset(values[:, order], eta=RATES[order], batch=batch), pick=pick)
    np.testing.assert_allclose(found["best"], middle)
    np.testing.assert_allclose(found["value"], 3 if pick == "lowest" else 1 / 3)
    reach = np.exp(np.sqrt(np.log(1.01)))
    np.testing.assert_allclose(found["lower"], middle / reach)
    np.testing.assert_allclose(found["upper"], middle * reach)
    assert (found["place"] == BestLocation.INSIDE).all()
    np.testing.assert_array_equal(found["batch"], batch)
    assert np.isnan(found["error"]).all()
    assert found["resampled"].size == 0


def test_the_place_of_the_best_is_told():
    fine, late = parabola(0.3), np.where(RATES < 0.3, OK, DIVERGED)
    curves = np.stack([RATES, 1 / RATES, fine, 1 / RATES, fine, fine])
    missing = np.full(RATES.size, MISSING)
    status = np.stack([late * 0, late * 0, late * 0, late, late * 0 + DIVERGED, missing])
    found = sweeps.best(dataset(curves, status, batch=np.arange(6)))
    kinds = ["LOWER_END", "UPPER_END", "INSIDE", "BESIDE_DIVERGED", "NONE", "NONE"]
    assert [BestLocation(code).name for code in found["place"].values] == kinds
    want = [RATES[0], RATES[-1], 0.3, RATES[RATES < 0.3].max(), np.nan, np.nan]
    np.testing.assert_allclose(found["best"], want)
    for name in ("value", "error", "lower", "upper"):
        assert np.isnan(found[name][4:]).all(), name
    np.testing.assert_allclose(found["edge"][:3], RATES[-1])
    assert np.isnan(found["edge"][4])


def test_runs_that_diverged_never_win_and_say_where_divergence_begins():
    loss = np.repeat(parabola(0.3)[:, None], 4, 1)
    status = np.zeros(loss.shape, int)
    # One of four, then two, then three, where all losses, of the others too, would be the best.
    for place, number in ((10, 1), (12, 2), (13, 3)):
        status[place, :number], loss[place] = DIVERGED, 1e-9
    status[15], loss[3, 0] = MISSING, np.nan
    found = sweeps.best(dataset(loss, status))
    assert float(found["best"]) == pytest.approx(0.3)
    assert float(found["stable"]) == RATES[9]
    assert float(found["diverged"]) == RATES[10]
    assert float(found["edge"]) == RATES[12]


@pytest.mark.parametrize("seeds", [2, 12])
@pytest.mark.more
def test_the_error_is_that_of_the_mean_over_seeds(seeds):
    """Parabolas around x_s have a mean around the mean of x_s, of error sd / sqrt(n), of which t
    with n - 1 degrees of freedom makes an interval at 95.4 %."""
    places = 0.2 * np.random.default_rng(3).normal(size=(2, 1, seeds))
    loss = (np.log(RATES)[:, None] + 1 - places) ** 2 - 100
    found = sweeps.best(dataset(loss, batch=np.arange(2)), draws=1000)
    np.testing.assert_allclose(np.log(found["best"]), places.mean((1, 2)) - 1, atol=1e-9)
    error = places.std((1, 2), ddof=1) / seeds**0.5 * t.isf((1 - 0.9545) / 2, seeds - 1) / 2
    # Of 1000 draws.
    np.testing.assert_allclose(found["error"], error, rtol=0.1)
    assert found.identical(sweeps.best(dataset(loss, batch=np.arange(2)), draws=1000))


def wall(eta):
    """The loss 0.01 and that of 20 steps of gradient descent on curvatures 1 and 1/4: it is lowest
    where (eta - 1)^19 = (1 - eta/4)^19 / 16, next to a steep wall."""
    return 0.01 + (1 - eta) ** 20 + (1 - eta / 4) ** 20 / 4


@pytest.mark.parametrize("spacing", [1.3, 1.6, 2.0])
def test_a_valley_with_one_steep_wall_is_not_deeper_than_it_is(spacing):
    ratio = (1 / 16) ** (1 / 19)
    best = (1 + ratio) / (1 + ratio / 4)
    first = spacing ** np.random.default_rng(0).uniform(-5, -4, (100, 1))
    eta = spacing ** np.arange(10.0)
    made = dataset(wall(first * eta), eta=eta, batch=first[:, 0])
    found = sweeps.best(made)
    assert (found["value"] > 0.999 * wall(np.array(best))).all()
    away = np.abs(np.log(found["best"] * made["batch"] / best))
    assert float((away <= 2 * found["shape"]).mean()) > 0.91


BATCH = 2.0 ** np.arange(3, 9)


def bests(rates, spread=0.0, width=1.01, batch=BATCH):
    """What `sweeps.best` returns of best `rates`, with draws so far apart; each rate is near the
    best up to a factor `width`."""
    rates = np.asarray(rates, float)
    rng = np.random.default_rng(1)
    draws = rates * np.exp(spread * rng.normal(size=(300, rates.size)))
    return xr.Dataset(
        {
            "best": ("batch", rates),
            "lower": ("batch", rates / width),
            "upper": ("batch", rates * width),
            "shape": ("batch", np.zeros(rates.size)),
            "place": ("batch", np.full(rates.size, BestLocation.INSIDE)),
            "resampled": (("draw", "batch"), draws if spread else draws[:0]),
        },
        {"batch": batch},
        {"over": "eta", "within": 0.01},
    )


FOUR = np.array([1.0, 2, 4, 8])


def four(draws, shape, best):
    """The same, with these draws."""
    found = bests(best, batch=FOUR).assign(shape=("batch", shape)).drop_vars("resampled")
    return found.assign(resampled=(("draw", "batch"), draws))


def test_the_error_of_an_exponent_is_of_draws_and_shape():
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
def test_a_verdict_excludes_a_factor_of_two(exponent, error, verdict):
    draws = 0.1 * FOUR ** (exponent + error * np.array([[1], [-1]]) / 2**0.5)
    law = transfer(four(draws, np.zeros(4), 0.1 * FOUR**exponent), "batch")
    assert float(law["error"]) == pytest.approx(error)
    assert law["verdict"].item().split()[0].rstrip(":") == verdict


def test_with_one_seed_the_error_is_that_of_the_residuals_and_there_is_no_verdict():
    rates = BATCH**-0.5 * np.exp(0.1 * np.random.default_rng(2).normal(size=BATCH.size))
    law, line = transfer(bests(rates), "batch"), linregress(np.log(BATCH), np.log(rates))
    assert float(law["exponent"]) == pytest.approx(line.slope)
    # 2.869 is the two-sided 95.45 % point of t with 4 degrees of freedom.
    assert float(law["error"]) == pytest.approx(line.stderr * 2.869 / 2, rel=1e-3)
    assert float(law["prefactor"]) == pytest.approx(np.exp(line.intercept))
    residuals = np.log(rates) - line.intercept - line.slope * np.log(BATCH)
    assert float(law["off"]) == pytest.approx(np.exp(np.abs(residuals).max()) - 1)
    assert law["verdict"].item().startswith(f"undecided: batch^{line.slope:.2f}")


def test_bounds_and_infinite_values_are_left_out_of_the_fit():
    batch = np.r_[BATCH, np.inf]
    found = bests(np.r_[BATCH[:-1] ** 0.5, 7.0, 3.0], batch=batch)
    found["place"][5] = BestLocation.UPPER_END
    law = sweeps.transfer(found, "batch")
    assert float(law["exponent"]) == pytest.approx(0.5)
    assert int(law["points"]) == 5
    found["place"][2:] = BestLocation.NONE
    found["best"][2:] = np.nan
    assert np.isnan(float(sweeps.transfer(found, "batch")["exponent"]))


@pytest.mark.more
def test_the_figure_writes_the_best_rates_of_training_and_theory(tmp_path):
    axes = {"along": "u0:0.05:0.2:3", "rate": "eta:0.1:3:6", "rules": ("sgd",)}
    run = experiment("saxe", rule=dynsim.sgd(1.0), steps=30, batch=math.inf)
    Optimum(run, **axes, seeds=2, out=tmp_path).save()
    with np.load(tmp_path / "optimum.npz") as arrays:
        trained, theory = arrays["training/best"], arrays["theory/sgd/best"]
        assert trained.shape == theory.shape == (1, 3)
        # At infinite batch theory is what is trained, in float64.
        np.testing.assert_allclose(theory, trained, rtol=0.03)
        assert (trained <= arrays["training/stable"]).all()
        assert (arrays["training/diverged"] <= 3).all()
    assert (tmp_path / "optimum.png").stat().st_size > 10_000
