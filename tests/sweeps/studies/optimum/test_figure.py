"""`dynsim figure optimum`, and the last lines of `dynsim sweep`."""

import math
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import dynsim
import sweeps
from sweeps import cli
from sweeps.studies.optimum import figure
from sweeps.studies.optimum.best import best_cell
from sweeps.studies.optimum.figure import Optimum
from sweeps.systems.experiment import experiment

NAME = "deep_linear:DeepLinear"


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[4] / "docs" / "howto"))


@pytest.mark.more
def test_a_sweep_ends_with_its_best_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "deep.toml"
    text = f'record = ["loss"]\n[run]\nproblem = "{NAME}"\nsteps = 5\nbatch = inf\nu0 = 0.1\n'
    file.write_text(text + "rule = 'sgd'\n[axes]\neta = [0.3, 0.01, 0.1]\nseed = {range = 2}\n")
    assert cli.main(["sweep", str(file), "--out", str(tmp_path / "store")]) == 0
    *_, best, warning, _, _, _ = capsys.readouterr().out.split("\n")
    assert best.startswith("best loss 0.")
    assert best.endswith("at eta = 0.3, mean of 2 seeds")
    assert warning == "the best eta lies at the upper end of its axis (0.3); try larger ones"


def swept(loss: np.ndarray, **axes: object) -> xr.Dataset:
    status = np.where(np.isfinite(loss), 0, 1)
    dims = [*axes][: loss.ndim]
    made = xr.Dataset({"status": (dims, status), "loss": (dims, loss)}, axes)
    for name in made.coords.keys() & {"eta"}:
        made[name].attrs["units"] = "1/step"
    return made


def test_the_best_cell_is_that_of_the_mean_and_a_diverged_run_has_none() -> None:
    loss = np.array([[[1.0, 1.0], [2.0, 0.4]], [[3.0, 3.0], [0.1, np.inf]], [[9.0, 9], [4, 4]]])
    made = swept(loss, eta=[0.1, 1, 10], optimizer=["sgd", "adam"], seed=[0, 1])
    assert best_cell(made) == [
        "best loss 1 at eta = 0.1, optimizer = sgd, mean of 2 seeds",
        "the best eta lies at the lower end of its axis (0.1); try smaller ones",
    ]
    assert best_cell(made.isel(optimizer=1, eta=[1, 2, 0]))[0].startswith("best loss 1.2 at eta =")
    named = made.rename(loss="accuracy")
    assert best_cell(named)[0] == "best accuracy 9 at eta = 10, optimizer = sgd, mean of 2 seeds"


def test_sweeps_without_a_best_cell_say_nothing() -> None:
    only_seeds = swept(np.ones(3), seed=range(3))
    words = swept(np.ones((2, 3)), optimizer=["sgd", "adam"], seed=range(3))
    rates = swept(np.ones((3, 3)), eta=[1, 2, 3], seed=range(3))
    lost = swept(np.full((3, 3), np.inf), eta=[1, 2, 3], seed=range(3))
    for made in (only_seeds, words, rates.rename(loss="entropy"), lost):
        assert best_cell(made) == []
    # No end to go beyond, of two values or of what is no rate.
    assert len(best_cell(rates.isel(eta=[0, 2]))) == 1
    assert len(best_cell(rates.rename(eta="width").assign_coords(width=[1, 2, 3]))) == 1


def test_the_best_cell_of_very_many_numbers_is_not_searched() -> None:
    few = swept(np.ones((10, 30)), eta=np.arange(1.0, 11), seed=np.arange(30))
    assert best_cell(few)[0].startswith("best loss 1 at eta = 1")
    # Of one seed, as an axis or not.
    for seed in (0, [0]):
        assert best_cell(few.isel(seed=seed))[0] == "best loss 1 at eta = 1"
    # An axis of one value is no choice.
    assert best_cell(few.expand_dims(batch=[5]))[0] == "best loss 1 at eta = 1, mean of 30 seeds"
    # Two numbers more than 2^24, in the memory of one.
    dims, many = ("eta", "seed"), np.broadcast_to(1.0, (3, 2**24 // 3 + 1))
    made = xr.Dataset({"status": (dims, many), "loss": (dims, many)}, {"eta": [1.0, 2, 3]})
    assert made["loss"].size == 2**24 + 2
    assert best_cell(made) == []


def test_a_percent_is_near_unless_said_otherwise() -> None:
    assert figure.Optimum().within == 0.01


def test_rules_with_momentum_are_those_of_sgd() -> None:
    rules = ("momentum", "nesterov")
    for rule, momentum in ((dynsim.sgd(0.1), 0.9), (dynsim.sgd(0.1, momentum=0.5), 0.5)):
        config = Optimum(experiment(NAME, steps=3, batch=4, rule=rule), rules=rules)
        kinds = config.sweep("simulation", rules).axes["rule"]
        made = [experiment(NAME, rule=kinds[name]).rule for name in rules]
        assert [one.momentum for one in made] == [momentum, momentum]
        assert [one.nesterov for one in made] == [False, True]


def test_an_axis_is_too_coarse_where_its_shape_is_most_of_the_error() -> None:
    """By variance: 2 * 3^2 is more than 4^2 and 2^2, but less than 4.5^2."""
    eta, batch = np.geomspace(0.1, 10, 7), np.array([1.0, 2, 4])
    loss = np.broadcast_to(1 / eta + eta**2, (1, 3, 7))[..., None] * np.array([1, 1.01])
    made = swept(loss, rule=["sgd"], batch=batch, eta=eta, seed=[0, 1])
    found = sweeps.best(made, over="eta")
    assert found.sizes["draw"] == 400
    laws = sweeps.transfer(found, along="batch")
    found["shape"] = found["shape"] * 0 + 3
    found["error"] = found["error"] * 0 + xr.DataArray([4, 4.5, 2], dims="batch")
    *_, line = figure.verdicts(found, {}, laws, "batch")
    assert line == (
        "sgd: at 2 of 3 values of batch, most of the error is that of the shape: try more values "
        "of eta"
    )


@pytest.mark.more
def test_the_figure_writes_the_best_rates_of_training_and_theory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    axes = {"along": "u0:0.05:0.2:3", "rate": "eta:0.1:3:6", "rules": ("sgd",)}
    run = experiment(NAME, rule=dynsim.sgd(1.0), steps=30, batch=math.inf)
    figure.run(Optimum(run, **axes, seeds=2, out=tmp_path))
    printed = capsys.readouterr().out
    with np.load(tmp_path / "optimum.npz") as arrays:
        trained, theory = arrays["training/best"], arrays["theory/sgd/best"]
        assert trained.shape == theory.shape == (1, 3)
        # At infinite batch theory is what is trained, in float64.
        np.testing.assert_allclose(theory, trained, rtol=0.03)
        assert (trained <= arrays["training/stable"]).all()
        assert (arrays["training/diverged"] <= 3).all()
        exponent = float(arrays["law/exponent"][0])
    assert f"u0^{exponent:.2f}" in printed or "sgd: transfers: one eta" in printed
    assert (tmp_path / "optimum.png").stat().st_size > 10_000
