"""Figs. 7 and 10 of Scan and Snap: measures and trends of curves that are known."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr

import dynsim
import sweeps
from dynsim import Status
from dynsim.classes.corpus import Corpus
from papers.scan_and_snap import text
from papers.scan_and_snap.figure7 import Figure7
from papers.scan_and_snap.figure10 import RECORD, Figure10, at_products


@pytest.mark.parametrize("errors", [1.9, 2.1])
def test_a_slope_beyond_two_standard_errors_of_least_squares_is_a_trend(errors: float) -> None:
    rates, rest = np.array([1.0, 2.0, 4.0]), np.array([[2.0, 1.0], [-2.0, -2.5], [0.5, 1.0]])
    x = np.repeat(rates, 2)
    # Residuals that no line explains, and a slope of so many of its errors.
    rest -= np.polyval(np.polyfit(x, rest.ravel(), 1), x).reshape(3, 2)
    error = np.polyfit(x, rest.ravel(), 1, cov=True)[1][0, 0] ** 0.5
    one_more = np.full((3, 1), np.nan)
    for sign, word in ((-1, "falls"), (1, "rises")):
        entropy = np.hstack([3 + sign * errors * error * rates[:, None] + rest, one_more])
        fit = text.line(rates, entropy)
        want = {"slope": sign * errors * error, "standard_error": error, "intercept": 3, "runs": 6}
        assert fit == pytest.approx(want | {"falls": sign < 0 and errors > 2})
        assert text.trend(fit).split(", ")[1] == (word if errors > 2 else "inconclusive")


def test_a_trend_takes_three_runs_at_two_rates() -> None:
    rates, nan = np.array([1.0, 2.0]), np.nan
    assert text.line(rates, np.array([[3.0, 2.0], [1.0, nan]]))["slope"] == pytest.approx(-1.5)
    for entropy in ([[3.0, nan], [1.0, nan]], [[3.0, 2.0, 5.0], [nan, nan, nan]]):
        slope, error, intercept, runs, falls = text.line(rates, np.array(entropy)).values()
        assert np.isnan([slope, error, intercept]).all()
        assert (runs, falls) == (np.isfinite(entropy).sum(), False)


def falling(rates: list[float], end: float) -> xr.DataArray:
    """Entropy of two seeds that falls by a thousandth of eta times steps for each unit of eta."""
    coords = {"eta": rates, "seed": [0, 1], "time": np.arange(0, end + 1, 5)}
    template = xr.DataArray(np.ones([len(each) for each in coords.values()]), coords)
    return template * (3 - 0.001 * template.eta**2 * template.time)


def test_trends_are_compared_at_equal_rate_times_steps() -> None:
    entropy = falling([1.0, 2.0, 4.0, 5.0], 100)
    want = 3 - 0.001 * entropy.eta.values * np.array([[50.0], [100], [150]])
    want[2, 0] = np.nan
    found = at_products(entropy, [50.0, 100.0, 150.0])
    np.testing.assert_allclose(found, np.stack([want] * 2, -1))
    runs = xr.Dataset(dict.fromkeys(RECORD, entropy))
    runs["status"] = xr.full_like(entropy.isel(time=0, drop=True), Status.OK, int)
    figure = Figure10(sweeps.experiment("transformer", steps=100), tuple(entropy.eta.values))
    picture = figure.draw({"simulation": runs})
    # Up to the product that three rates reach.
    products = 200 * np.arange(1, 41) / 40
    np.testing.assert_allclose(picture.arrays["product"], products)
    np.testing.assert_allclose(picture.arrays["slope"][:, 0], -0.001 * products)
    assert picture.report["eta_time"] == 100
    assert picture.report["equal eta-time"]["slope"] == pytest.approx(-0.1)
    np.testing.assert_allclose(picture.report["final_entropy"], entropy[..., -1])


def test_measures_of_sparse_and_frozen() -> None:
    dims = ("seed", "time", "layer")
    entropy = np.array([2.0, 1.5, 1.0])[None, :, None] * np.ones((2, 1, 1))
    change = np.array([0.0, 0.4, 0.1])[None, :, None] * np.ones((2, 1, 1))
    each = {"layer_entropy": entropy, "layer_change": change, "layer_top": entropy / 4}
    (found,) = text.measures(xr.Dataset({n: (dims, values) for n, values in each.items()}), 2.5)
    names = ("entropy_start", "entropy", "entropy_share", "keys", "top", "change", "change_share")
    want = [2, 1, 0.4, np.e, 0.25, 0.1, 0.25]
    assert found == pytest.approx(dict(zip(names, want, strict=True)))


def test_only_seeds_that_ended_well_are_drawn() -> None:
    status = np.array([Status.DIVERGED, Status.OK, Status.MAX_STEPS, Status.OK])
    steps = {"first_bad_step": ("seed", [9, -1, 7, -1])}
    data = xr.Dataset({"status": ("seed", status), **steps}, {"seed": range(4)})
    run = sweeps.experiment("transformer", eta=4.5, clip=0.25)
    assert text.ended_well(data, run, 3).seed.values.tolist() == [1, 3]
    message = "eta = 4.5, clip = 0.25: every run with 3 layer(s) diverged, from step 7 on"
    with pytest.raises(ValueError, match=re.escape(message)):
        text.ended_well(data.isel(seed=[0, 2]), run, 3)


# A training for each panel.
@pytest.mark.full(
    "test_trends_are_compared_at_equal_rate_times_steps",
    "test_measures_of_sparse_and_frozen",
)
def test_figures_are_drawn(tmp_path: Path) -> None:
    tiny = {"steps": 20, "length": 6, "width": 4, "mlp": 0, "batch": 2, "clip": 0.5}
    run = sweeps.experiment("transformer", **tiny)
    paths = Figure10(run, eta=(1.0, 2.0), seeds=2, out=tmp_path).save()
    run = run.at({"eta": 5.0, "prompt": 100})
    paths += Figure7(run, layers=(1,), seeds=1, out=tmp_path).save()
    names = [f"fig{n}.{suffix}" for n in (10, 7) for suffix in ("npz", "json", "png")]
    assert [path.name for path in paths] == names
    stored = sweeps.open(tmp_path / "layers-1")
    (layer,) = json.loads(paths[4].read_text())["1"]
    assert layer["entropy"] == pytest.approx(float(stored.layer_entropy[0, -1, 0]), rel=1e-6)


def test_the_title_has_the_text_and_the_prompt_has_places() -> None:
    folder = dynsim.TextFolder("texts/mine", min_count=7, held_out="test.txt")
    title = text.describe(sweeps.experiment("transformer", corpus=folder, rule="adam"))
    assert title.startswith("mine: trained on train.txt, held out test.txt, words seen less than 7")
    corpus = Corpus(("a", "b", "$", "c", "d", "e"), np.arange(6), np.arange(6))
    source = SimpleNamespace(read=lambda: corpus)
    tokens, words = text.prompt(SimpleNamespace(corpus=source, prompt=0, length=6))
    assert words == r"prompt: [0] a b \$ c d [5] e"
    np.testing.assert_array_equal(tokens, np.arange(6))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"problem": "yz"}, "problem = yz: syn-small: must be a dynsim.LanguageModel"),
        ({"problem": "transformer", "steps": 10}, "steps = 10: must be an integer >= 20"),
    ],
)
def test_runs_of_other_problems_and_short_ones_are_errors(
    settings: dict[str, Any], message: str
) -> None:
    run = sweeps.experiment(**settings)
    with pytest.raises(ValueError, match=message):
        Figure10(run).sweeps()
    with pytest.raises(ValueError, match=r"eta = \(2.0, 2.0\): needs at least two"):
        Figure10(run, eta=(2.0, 2.0)).sweeps()
