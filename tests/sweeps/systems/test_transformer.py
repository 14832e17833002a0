"""Transformers on text in sweeps."""

from pathlib import Path

import jax
import numpy as np
import pytest

import dynsim
import sweeps
from sweeps.runner.config import config_of
from sweeps.runner.program import jobs
from sweeps.runner.spec import Sweep
from sweeps.systems.experiment import experiment

TINY = experiment(
    "transformer", length=6, width=4, mlp=0, batch=2, steps=3, num_held_out=4, clip=0.5
)


@pytest.mark.full(
    "sweeps/systems/test_cells.py::test_a_cell_has_the_task_and_the_rule_of_its_values"
)
def test_a_sweep_over_rates_is_the_single_runs_and_compiles_once() -> None:
    axes = {"eta": [0.5, 4.0], "clip": [0.1, 1.0], "seed": [2]}
    before = len(jobs.PROGRAMS)
    found = sweeps.run(
        Sweep(TINY, axes, "simulation", ("entropy", "layer_change", "batch_loss"), 3)
    )
    assert len(jobs.PROGRAMS) == before + 1
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
    """Another text in files of the same names is another sweep."""
    made = []
    for word in ("b", "c"):
        (tmp_path / "train.txt").write_text(f"a {word} a {word}\n" * 9)
        (tmp_path / "valid.txt").write_text(f"{word} a a\n" * 9)
        folder = {"kind": "folder", "path": str(tmp_path), "min_count": 1}
        run = experiment("transformer", corpus=folder, length=6, prompt=0)
        made.append(config_of(Sweep(run, {"seed": [0]})))
    one, other = (config.pop("contents") for config in made)
    assert one.keys() == other.keys()
    assert one != other
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("changes", "axes", "message"),
    [
        ({"layers": 7}, {}, "layers = 7: must be"),
        ({"heads": 3}, {}, "heads = 3: must divide"),
        ({"prompt": 10**6}, {}, "prompt = 1000000: must leave"),
        ({"corpus": "nowhere.txt"}, {}, "nowhere.txt: no such file"),
        ({}, {"b1": [0.5]}, "b1 = 0.5: sgd does not have it"),
        ({}, {"min_count": [2]}, "min_count = 2: synthetic does not have it"),
        ({}, {"eta": [-1.0]}, "eta = -1.0: must"),
        ({}, {"clip": [0.0]}, "clip = 0.0: must"),
    ],
)
def test_bad_settings_are_named(changes: dict, axes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sweep({"problem": "transformer", **changes}, {"seed": [0], **axes}).check()
