"""The best value of an axis: of curves whose optimum is known, and of trained quadratics."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from scipy.optimize import minimize_scalar
from scipy.stats import t

import dynsim
import sweeps
from sweeps.studies.optimum.best import Place

RATES = np.geomspace(0.01, 10, 16)
OK, DIVERGED, MISSING = 0, 1, -1


def dataset(loss: Any, status: Any = 0, eta: Any = RATES, **others: Any) -> xr.Dataset:
    """Of a sweep over `eta`, after other axes and before seeds."""
    loss = np.asarray(loss, float)
    dims = [*others, "eta", "seed"][: loss.ndim]
    status = np.broadcast_to(status, loss.shape)
    axes = {"eta": ("eta", eta, {"units": "1/step"}), **others}
    return xr.Dataset({"status": (dims, status), "loss": (dims, loss)}, axes)


def parabola(middle: float, width: float = 1.0, rates: np.ndarray = RATES) -> np.ndarray:
    """A loss whose logarithm is a parabola in that of the rate."""
    return 3 * np.exp(np.log(rates / middle) ** 2 / width)


class Quadratic(dynsim.Problem):
    """A loss with the curvatures 1 and `flat`, from (1, 1)."""

    flat: float = 0.25

    def init(self, key: Any) -> Any:
        return {"w": jnp.ones(2)}

    def draw(self, key: Any, batch: int) -> Any:
        return jnp.zeros(batch)

    def loss(self, params: Any, data: Any) -> Any:
        return self.population_loss(params) + 0 * data.sum()

    def population_loss(self, params: Any) -> Any:
        return jnp.sum(jnp.array([1.0, self.flat]) * params["w"] ** 2) / 2


@pytest.mark.more
def test_descent_on_a_quadratic_has_the_best_rate_of_the_closed_form() -> None:
    """w_n = (1 - eta lambda)^n, which grows from eta = 2 / lambda on."""
    axes = {"eta": {"logspace": [0.55, 4.4, 49]}, "steps": [10, 400]}
    rule, inf = dynsim.sgd(0.1), float("inf")
    sweep = sweeps.Sweep(sweeps.Experiment(Quadratic(), rule, 1, inf), axes, record=("loss",))
    found = sweeps.best(sweeps.run(sweep, progress=False))
    exact = minimize_scalar(lambda r: (1 - r) ** 20 + (1 - r / 4) ** 20 / 4, (1, 1.6, 2))
    short, long = found.sel(steps=10), found.sel(steps=400)
    assert float(short["best"]) == pytest.approx(exact.x, rel=0.02)
    assert float(short["value"]) == pytest.approx(exact.fun / 2, rel=0.1)
    rates = np.asarray(sweep.fields["eta"])
    assert float(long["edge"]) == float(long["stable"]) == pytest.approx(rates[rates < 2].max())
    assert float(long["diverged"]) == pytest.approx(rates[rates > 2].min())


def test_rates_that_runs_in_float32_made_equal_have_no_best_one() -> None:
    """A value is compared with others, and none of these is another one."""
    rates = np.linspace(0.1, 0.1 + 1e-9, 5)
    found = dataset(parabola(0.1, rates=rates)[:, None], eta=rates)
    assert float(sweeps.best(found).best) > 0
    with pytest.raises(
        ValueError, match=r"^over = 'eta': 0.1 and .* are equal in float32 \(1 of 5"
    ):
        sweeps.best(found.assign(loss=found.loss.astype("float32")))


@pytest.mark.parametrize("pick", ["lowest", "highest"])
def test_a_parabola_is_found_exactly_in_any_order(pick: str) -> None:
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
    assert (found["place"] == Place.INSIDE).all()
    np.testing.assert_array_equal(found["batch"], batch)
    assert found["best"].attrs == {"long_name": "best eta", "units": "1/step"}
    assert np.isnan(found["error"]).all()
    assert found["resampled"].size == 0


def test_a_range_beyond_the_neighbours_is_interpolated_in_the_logarithm() -> None:
    """|log eta| / 250, which is worse by 1 % where |log eta| = 250 log 1.01 = 2.49."""
    rates = np.exp(np.arange(-6.0, 7.0))
    curve = np.exp(np.abs(np.log(rates)) / 250)
    found = sweeps.best(dataset(curve, eta=rates))
    assert float(found["upper"]) == pytest.approx(1.01**250)
    assert float(found["lower"]) == pytest.approx(1.01**-250)
    # To the end, and up to where runs diverge.
    found = sweeps.best(dataset(curve, eta=rates, status=np.arange(13) > 7), within=0.5)
    assert float(found["lower"]) == pytest.approx(rates[0])
    assert float(found["upper"]) == pytest.approx(rates[7])


def test_values_that_are_not_positive_are_taken_as_they_are() -> None:
    rates = np.linspace(-1.0, 2.0, 7)
    found = sweeps.best(dataset((rates - 0.3) ** 2 - 2, eta=rates), within=0.02)
    assert float(found["best"]) == pytest.approx(0.3)
    assert float(found["value"]) == pytest.approx(-2)
    assert float(found["upper"]) == pytest.approx(0.3 + np.sqrt(0.04))
    # Of an axis that begins at 0, too.
    from_zero = sweeps.best(dataset((rates - 0.6) ** 2 - 2, eta=rates + 1))
    assert float(from_zero["best"]) == pytest.approx(1.6)


def test_the_place_of_the_best_is_told() -> None:
    fine, late = parabola(0.3), np.where(RATES < 0.3, OK, DIVERGED)
    curves = np.stack([RATES, 1 / RATES, fine, 1 / RATES, fine, fine])
    missing = np.full(RATES.size, MISSING)
    status = np.stack([late * 0, late * 0, late * 0, late, late * 0 + DIVERGED, missing])
    found = sweeps.best(dataset(curves, status, batch=np.arange(6)))
    kinds = ["LOWER_END", "UPPER_END", "INSIDE", "BESIDE_DIVERGED", "NONE", "NONE"]
    assert [Place(code).name for code in found["place"].values] == kinds
    want = [RATES[0], RATES[-1], 0.3, RATES[RATES < 0.3].max(), np.nan, np.nan]
    np.testing.assert_allclose(found["best"], want)
    for name in ("value", "error", "lower", "upper"):
        assert np.isnan(found[name][4:]).all(), name
    np.testing.assert_allclose(found["edge"][:3], RATES[-1])
    assert np.isnan(found["edge"][4])
    flags = found["place"].attrs
    assert flags["flag_meanings"] == "INSIDE LOWER_END UPPER_END BESIDE_DIVERGED NONE"
    assert flags["flag_values"] == [0, 1, 2, 3, 4]


def test_runs_that_diverged_never_win_and_say_where_divergence_begins() -> None:
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
def test_the_error_is_that_of_the_mean_over_seeds(seeds: int) -> None:
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


def test_it_takes_the_last_recorded_time_of_each_run() -> None:
    curves = np.stack([parabola(0.1), parabola(0.5), parabola(0.9)], -1)
    timed = dataset(parabola(0.1)).assign(loss=(("eta", "time"), curves))
    assert float(sweeps.best(timed)["best"]) == pytest.approx(0.9)
    recorded = dataset(np.stack([parabola(0.1)] * 2), steps=[1, 2])
    padded = ("steps", "record"), [[1.0, np.nan, np.nan], [1.0, 2.0, np.nan]]
    recorded = recorded.assign(loss=(("steps", "eta", "record"), np.stack([curves] * 2)))
    found = sweeps.best(recorded.assign_coords(time=padded))
    np.testing.assert_allclose(found["best"], [0.1, 0.5])


WORDS = dataset(np.ones((2, 3)), optimizer=["sgd", "adam"], eta=[1, 2, 3])
GOOD = dataset(parabola(1.0)).assign(xi=("eta", RATES), learned=(("eta", "row"), np.ones((16, 2))))


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (GOOD.drop_vars("status"), {}, "dataset: has no status"),
        (GOOD, {"over": "etaa"}, "over = 'etaa': did you mean 'eta'"),
        (GOOD, {"over": "seed"}, "over = 'seed': no seed is best"),
        (WORDS, {"over": "optimizer"}, "over = 'optimizer': its values are words"),
        (GOOD.isel(eta=[0, 4]), {}, r"over = 'eta': has the values 0.01, 0.0630957; needs 3"),
        (GOOD.assign_coords(eta=np.r_[RATES[:-1], np.inf]), {}, "finite and different"),
        (GOOD, {"observable": "learned"}, "must be one number of each run, has an axis row"),
        (GOOD[["status", "xi"]], {}, "observable: of xi, none is named a loss"),
        (GOOD, {"within": 0.0}, "within = 0.0: must be finite and in"),
    ],
)
def test_bad_input_names_the_field(given: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sweeps.best(given, **options)
