"""The last lines of `dynsim sweep`: the best cell."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from sweeps import cli
from sweeps.commands.sweep import best_cell


@pytest.mark.more
def test_a_sweep_ends_with_its_best_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "deep.toml"
    text = 'record = ["loss"]\n[run]\nproblem = "saxe"\nsteps = 5\nbatch = inf\nu0 = 0.1\n'
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
