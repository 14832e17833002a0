"""Ordinary parameters in sweeps."""

import jax
import numpy as np
import pytest

import dynsim
import sweeps
from sweeps.runner.program import jobs
from sweeps.runner.spec import Sweep
from sweeps.systems.experiment import experiment

RUN = experiment("qkv", steps=6, length=12, batch=8, width=34, momentum=0.5)


@pytest.mark.full(
    "sweeps/systems/test_cells.py::test_a_cell_has_the_task_and_the_rule_of_its_values"
)
def test_rates_and_scales_share_a_program_and_are_the_single_runs() -> None:
    axes = {"eta_z": [0.1, 1.0], "scale": [0.5, 2.0], "seed": [1]}
    before = len(jobs.PROGRAMS)
    found = sweeps.run(Sweep(RUN, axes, "simulation", ("loss", "z_top_distinct"))).load()
    assert len(jobs.PROGRAMS) == before + 1
    alone = dynsim.train(
        dynsim.QKV(dynsim.SynSmall(), 12, width=34, scale=2.0), dynsim.sgd(1.0, 1.0, momentum=0.5),
        jax.random.fold_in(jax.random.key(0), 1), steps=6, batch=8, times=[6],
        record=("loss", "z_top_distinct"),
    )  # fmt: skip
    cell = found.sel(eta_z=1.0, scale=2.0, seed=1)
    # float32, the same operations in another order over six steps.
    assert cell.loss.item() == pytest.approx(float(alone["loss"][0]), rel=1e-4)
    np.testing.assert_allclose(cell.z_top_distinct, alone["z_top_distinct"][0], rtol=1e-3)
    assert abs(found.loss.sel(scale=0.5, eta_z=0.1) - cell.loss).item() > 1e-4


@pytest.mark.parametrize(
    ("axes", "theory", "message"),
    [
        ({"width": [20]}, "simulation", "width = 20: embedding = 'orthogonal' needs"),
        ({"scale": [-1.0]}, "simulation", "scale = -1.0"),
        ({"eta_y": [1.0]}, "eq10", "theory = 'eq10'"),
        ({"heads": [0]}, "simulation", "heads = 0"),
    ],
)
def test_bad_sweeps_are_refused(axes: dict, theory: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sweep(RUN, axes, theory).check()
