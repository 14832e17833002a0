"""Transformers on text in sweeps, and the numbers that their figures report."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray as xr

import dynsim
import sweeps
from dynsim.transformer.observables import uniform_entropy
from sweeps.runner import tiles
from sweeps.runner.spec import Sweep
from sweeps.studies.paper import figure7, figure10
from sweeps.systems.transformer import TextTraining

TINY = TextTraining(length=6, width=4, mlp=0, batch=2, steps=3, num_held_out=4, clip=0.5)


@pytest.mark.full(
    "sweeps/systems/test_cells.py::test_a_cell_has_the_task_and_the_rule_of_its_values"
)
def test_a_sweep_over_rates_is_the_single_runs_and_compiles_once() -> None:
    axes = {"eta": [0.5, 4.0], "clip": [0.1, 1.0], "seed": [2]}
    before = len(tiles.PROGRAMS)
    found = sweeps.run(
        Sweep(axes, TINY, "simulation", ("entropy", "layer_change", "batch_loss"), 3)
    )
    assert len(tiles.PROGRAMS) == before + 1
    assert found["layer_change"].dims == ("eta", "clip", "seed", "time", "layer")
    alone = dynsim.train(
        TINY.problem, dynsim.sgd(4.0, clip=0.1), jax.random.fold_in(jax.random.key(0), 2),
        steps=3, batch=2, times=found["time"].values.astype(int),
        record=("entropy", "layer_change"),
    )  # fmt: skip
    cell = found.sel(eta=4.0, clip=0.1, seed=2)
    for name in ("entropy", "layer_change", "batch_loss"):
        # float32, the same operations in another order.
        np.testing.assert_allclose(cell[name], alone[name], rtol=1e-4, atol=1e-6)


def test_a_store_knows_its_text(tmp_path: Path) -> None:
    """Another text in files of the same names is another sweep; what is not read is not."""
    texts = {}
    for word in ("b", "c"):
        (tmp_path / "train.txt").write_text(f"a {word} a {word}\n" * 9)
        (tmp_path / "valid.txt").write_text(f"{word} a a\n" * 9)
        run = TextTraining(corpus=str(tmp_path), min_count=1)
        texts[word] = Sweep({"seed": [0]}, run, "simulation").as_json()["run"]
    assert texts["b"].pop("text") != texts["c"].pop("text")
    assert texts["b"] == texts["c"]
    assert "min_count" in texts["b"]
    assert not {"b1", "eps", "text"} & set(
        Sweep({"seed": [0]}, TINY, "simulation").as_json()["run"]
    )


@pytest.mark.parametrize(
    ("changes", "axes", "message"),
    [
        ({"layers": 7}, {}, "layers = 7: must be"),
        ({"heads": 3}, {}, "heads = 3: must divide"),
        ({"prompt": 10**6}, {}, "prompt = 1000000: must leave"),
        ({"corpus": "nowhere.txt"}, {}, "nowhere.txt: no such file"),
        ({}, {"b1": [0.5]}, "axes.b1: optimizer 'sgd' does not read it"),
        ({}, {"min_count": [2]}, "axes.min_count: corpus 'synthetic' does not read it"),
        ({}, {"eta": [-1.0]}, "eta = -1.0: must"),
        ({}, {"clip": [0.0]}, "clip = 0.0: must"),
    ],
)
def test_bad_settings_are_named(changes: dict, axes: dict, message: str) -> None:
    run = TextTraining(**changes)
    with pytest.raises(ValueError, match=message):
        Sweep({"seed": [0], **axes}, run, "simulation", ("entropy",)).check()


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


def test_equal_progress_is_equal_rate_times_steps() -> None:
    time = np.arange(0, 101.0, 10)
    rates = np.array([1.0, 2.0, 5.0])
    values = (rates[:, None] * time)[:, None] * np.ones((1, 2, 1))
    array = xr.DataArray(values, dims=("eta", "seed", "time"), coords={"eta": rates, "time": time})
    np.testing.assert_allclose(figure10.at_equal_progress(array), 100)


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


# A training for each panel.
@pytest.mark.full(
    "test_the_trend_is_the_least_squares_line",
    "test_equal_progress_is_equal_rate_times_steps",
    "test_measures_of_sparse_and_frozen",
)
def test_figures_are_drawn(tmp_path: Path) -> None:
    dims = ("eta", "seed", "time")
    sizes = {"steps": 20, "length": 6, "width": 4, "mlp": 0, "batch": 2}
    paths = figure10.run(figure10.Figure10(eta=(1.0, 2.0), seeds=2, out=tmp_path / "a", **sizes))
    paths += figure7.run(figure7.Figure7(layers=(1,), seeds=1, out=tmp_path / "b", **sizes))
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
    with pytest.raises(ValueError, match="eta = 1e\\+30, clip = 0: every run with 1 layer"):
        figure7.run(
            figure7.Figure7(layers=(1,), seeds=1, eta=1e30, clip=0, out=tmp_path / "c", **sizes)
        )
