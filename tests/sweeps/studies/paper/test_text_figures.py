"""Figures of transformers on text: what they report of curves that are known."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import dynsim
import sweeps
from dynsim import Status
from dynsim.transformer.model import uniform_entropy
from sweeps.studies.paper import describe, figure7, figure10
from sweeps.systems.experiment import experiment


def test_the_trend_is_the_least_squares_line() -> None:
    rates = np.array([1.0, 2.0, 4.0])
    entropy = 3 - 0.2 * rates[:, None] + np.array([[0.1, -0.1, 0.02]])
    x, y = np.repeat(rates, 3), entropy.ravel()
    (slope, intercept), covariance = np.polyfit(x, y, 1, cov=True)
    found = figure10.trend(rates, entropy)
    assert found.slope == pytest.approx(slope)
    assert found.intercept == pytest.approx(intercept)
    assert found.standard_error == pytest.approx(np.sqrt(covariance[0, 0]))
    assert found.falls
    assert not figure10.trend(rates, -entropy).falls
    entropy[2, 1] = np.nan
    assert figure10.trend(rates, entropy).runs == 8


@pytest.mark.parametrize("errors", [1.9, 2.1])
def test_a_slope_beyond_two_standard_errors_is_a_trend(errors: float) -> None:
    """Residuals that no line explains, of such a size that the slope is so many errors from 0."""
    rates, rest = np.array([1.0, 2.0, 4.0]), np.array([[2.0, 1.0], [-2.0, -2.5], [0.5, 1.0]])
    apart = np.repeat(rates, 2) - 7 / 3
    rest = rest - rest.mean()
    rest = rest - (apart @ rest.ravel()) / (apart @ apart) * apart.reshape(3, 2)
    # Six points leave four degrees of freedom.
    error = np.sqrt((rest**2).sum() / 4 / (apart @ apart))
    line = errors * error * rates[:, None]
    away = errors > 2
    falls, rises = (figure10.trend(rates, 3 + sign * line + rest) for sign in (-1, 1))
    assert falls.slope == pytest.approx(-errors * error)
    assert falls.standard_error == pytest.approx(error)
    assert (falls.falls, rises.falls) == (away, False)
    assert str(falls).endswith("falls" if away else "inconclusive")
    assert str(rises).endswith("rises" if away else "inconclusive")
    assert str(rises).startswith(f"slope {errors * error:.4f} ± {error:.4f}, ")


def test_a_trend_takes_three_runs_at_two_rates() -> None:
    rates, nan = np.array([1.0, 2.0]), np.nan
    assert figure10.trend(rates, np.array([[3.0, 2.0], [1.0, nan]])).slope == pytest.approx(-1.5)
    for entropy in ([[3.0, nan], [1.0, nan]], [[3.0, 2.0, 5.0], [nan, nan, nan]]):
        found = figure10.trend(rates, np.array(entropy))
        assert np.isnan(found[:3]).all()
        assert (found.runs, found.falls) == (np.isfinite(entropy).sum(), False)
        assert str(found) == "slope nan ± nan, inconclusive"


def test_equal_progress_is_equal_rate_times_steps() -> None:
    time = np.arange(0, 101.0, 10)
    rates = np.array([1.0, 2.0, 5.0])
    values = (rates[:, None] * time)[:, None] * np.ones((1, 2, 1))
    array = xr.DataArray(values, dims=("eta", "seed", "time"), coords={"eta": rates, "time": time})
    np.testing.assert_allclose(figure10.at_equal_progress(array), 100)


def test_slopes_are_told_at_every_product_that_three_rates_reach() -> None:
    """Entropy falls by a thousandth of eta times steps for each unit of the rate."""
    time, rates = np.arange(0, 101.0, 5), np.array([1.0, 2.0, 4.0, 5.0])
    values = 3 - 0.001 * rates[:, None] ** 2 * time
    array = xr.DataArray(
        values[:, None] + np.array([0.0, 0.0])[:, None],
        dims=("eta", "seed", "time"),
        coords={"eta": rates, "time": time},
    )
    products, lines = figure10.at_products(array)
    assert products[-1] == 200
    assert [each.runs for each in lines] == [8 if product <= 100 else 6 for product in products]
    np.testing.assert_allclose([each.slope for each in lines], -0.001 * products)
    # 40 of them, and of two rates up to what both reach.
    np.testing.assert_allclose(products, 200 * np.arange(1, 41) / 40)
    assert figure10.at_products(array[1:3])[0][-1] == 200
    assert figure10.reached(array) == 100


def test_measures_of_sparse_and_frozen() -> None:
    dims = ("seed", "time", "layer")
    entropy = np.array([2.0, 1.5, 1.0])[None, :, None] * np.ones((2, 1, 1))
    change = np.array([0.0, 0.4, 0.1])[None, :, None] * np.ones((2, 1, 1))
    data = xr.Dataset(
        {"layer_entropy": (dims, entropy), "layer_change": (dims, change),
         "layer_top": (dims, entropy / 4)}
    )  # fmt: skip
    (found,) = figure7.measures(data, 8)
    assert found["entropy_share"] == pytest.approx(1 / uniform_entropy(8))
    assert found["keys"] == pytest.approx(np.e)
    assert found["change_share"] == pytest.approx(0.25)
    assert found["top"] == pytest.approx(0.25)


def test_only_seeds_that_ended_well_are_drawn() -> None:
    status = np.array([Status.DIVERGED, Status.OK, Status.MAX_STEPS, Status.OK])
    data = xr.Dataset({"status": ("seed", status), "first_bad_step": ("seed", [9, -1, 7, -1])})
    config = figure7.Figure7(experiment("transformer", eta=4.5, clip=0.25))
    fine = figure7.ended_well(config, data.assign_coords(seed=range(4)), 3)
    assert fine.seed.values.tolist() == [1, 3]
    message = "eta = 4.5, clip = 0.25: every run with 3 layer(s) diverged, from step 7 on"
    with pytest.raises(ValueError, match=re.escape(message)):
        figure7.ended_well(config, data.isel(seed=[0, 2]), 3)


# A training for each panel.
@pytest.mark.full(
    "test_the_trend_is_the_least_squares_line",
    "test_equal_progress_is_equal_rate_times_steps",
    "test_measures_of_sparse_and_frozen",
)
def test_figures_are_drawn(tmp_path: Path) -> None:
    dims = ("eta", "seed", "time")
    tiny = {"steps": 20, "length": 6, "width": 4, "mlp": 0, "batch": 2, "clip": 0.5}
    run = experiment("transformer", **tiny)
    paths = figure10.run(figure10.Figure10(run, eta=(1.0, 2.0), seeds=2, out=tmp_path / "a"))
    run = run.at({"eta": 5.0, "prompt": 100})
    paths += figure7.run(figure7.Figure7(run, layers=(1,), seeds=1, out=tmp_path / "b"))
    names = [f"fig{n}.{suffix}" for n in (10, 7) for suffix in ("npz", "json", "png")]
    assert [path.name for path in paths] == names
    stored = sweeps.open(tmp_path / "a" / "simulation")
    with np.load(paths[0]) as arrays:
        np.testing.assert_array_equal(arrays["entropy"], stored.entropy.transpose(*dims))
        final = arrays["entropy"][..., -1].astype(float)
    line = np.polyfit(np.repeat([1.0, 2.0], 2), final.ravel(), 1)
    found = json.loads(paths[1].read_text())["equal steps"]
    np.testing.assert_allclose([found["slope"], found["intercept"]], line, rtol=1e-6, atol=1e-9)
    stored = sweeps.open(tmp_path / "b" / "layers-1")
    with np.load(paths[3]) as arrays:
        np.testing.assert_array_equal(arrays["1/attention"], stored.attention)
    (layer,) = json.loads(paths[4].read_text())["1"]
    assert layer["entropy"] == pytest.approx(float(stored.layer_entropy[0, -1, 0]), rel=1e-6)
    fast = run.at({"eta": 1e30, "clip": "none"})
    with pytest.raises(ValueError, match="eta = 1e\\+30, clip = None: every run with 1 layer"):
        figure7.run(figure7.Figure7(fast, layers=(1,), seeds=1, out=tmp_path / "c"))


def test_the_title_has_the_text_and_what_was_done_with_rare_words() -> None:
    folder = dynsim.TextFolder("texts/mine", min_count=7, held_out="test.txt")
    run = experiment("transformer", corpus=folder, rule="adam", width=8, heads=1)
    assert describe(run) == (
        "mine: trained on train.txt, held out test.txt, words seen less than 7 times <unk>\n"
        "adam, gradient not clipped, 1000 steps of 20 windows of 35 tokens, heads: 1, width 8, "
        "MLP 64"
    )


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (experiment(steps=100), "problem = Layer: must be of type dynsim.LanguageModel"),
        (experiment("transformer", steps=10), "steps = 10: must be an integer >= 20"),
    ],
)
def test_bad_runs_are_named(run: sweeps.Experiment, message: str) -> None:
    for config in (figure7.Figure7(run), figure10.Figure10(run)):
        with pytest.raises(ValueError, match=message):
            config.sweeps()


def test_rates_of_the_text_figures_differ_and_are_positive() -> None:
    run = experiment("transformer")
    for eta, message in (((2.0, 2.0), "two different learning rates"), ((0.0, 1.0), "eta = 0.0")):
        with pytest.raises(ValueError, match=message):
            figure10.Figure10(run, eta=eta).sweeps()
    (sweep,) = figure10.Figure10(run, eta=(2.0, 3.0), seeds=2).sweeps().values()
    assert sweep.fields["eta"] == (2.0, 3.0)
    with pytest.raises(ValueError, match="layers = "):
        figure7.Figure7(run, layers=()).sweeps()


def test_every_fifth_word_of_a_prompt_has_its_place() -> None:
    assert figure7.prompt(["a", "b", "$", "c", "d", "e", "f"]) == r"prompt: [0] a b \$ c d [5] e f"
