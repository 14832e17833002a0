"""In-context regression in sweeps and in `dynsim compare --task linear-icl`."""

from pathlib import Path

import jax
import numpy as np
import pytest

import dynsim
import odes
import sweeps
from sweeps import cli
from sweeps.runner.program import jobs
from sweeps.runner.spec import Sweep
from sweeps.systems.experiment import experiment

RUN = experiment("linear_icl", spectrum="geometric", steps=40, batch=float("inf"), scale=0.3)


@pytest.mark.full(
    "sweeps/systems/test_cells.py::test_a_cell_has_the_task_and_the_rule_of_its_values"
)
@pytest.mark.usefixtures("quick_theory")
def test_numbers_share_a_program_and_are_the_single_runs() -> None:
    axes = {"ratio": [0.5, 1.0], "scale": [0.2, 0.4], "eta": [0.5, 1.0], "seed": [3]}
    cell = {"ratio": 1.0, "scale": 0.4, "eta": 1.0, "seed": 3}
    task = dynsim.Regression(spectrum=dynsim.GeometricSpectrum(1.0), scale=0.4)
    key = jax.random.fold_in(jax.random.key(0), 3)
    before = len(jobs.PROGRAMS)
    found = sweeps.run(Sweep(RUN, axes, "simulation", ("loss", "learned"))).load()
    assert len(jobs.PROGRAMS) == before + 1
    alone = dynsim.train(task, dynsim.sgd(1.0), key, steps=40, batch=float("inf"), times=[40])
    # float32, the same operations in another order over 40 steps.
    assert found.loss.sel(cell).item() == pytest.approx(float(alone["loss"][0]), rel=1e-4)
    theory = sweeps.run(Sweep(RUN, axes, "scalar", ("loss", "learned"))).load()
    want = odes.theories(task)["scalar"].solve(task, dynsim.sgd(1.0), [40.0], key=key)
    np.testing.assert_allclose(theory.learned.sel(cell), want["learned"][0], rtol=1e-9)


COMPARE = ["compare", "linear_icl", "--steps", "60", "--seeds", "2", "--batch", "inf"]


@pytest.mark.full("extension/test_extension.py::test_its_system_is_compared_with_its_theory")
@pytest.mark.usefixtures("quick_theory")
def test_compare_holds_theory_against_training(tmp_path: Path) -> None:
    options = ["--scale", "0.5", "--times", "4", "--theories", "corrected", "scalar"]
    assert cli.main([*COMPARE, *options, "--out", str(tmp_path)]) == 0
    with np.load(tmp_path / "compare.npz") as arrays:
        trained, theory = arrays["simulation/loss"], arrays["corrected/loss"]
        assert (trained[:, -1] < 0.9 * trained[:, 0]).all()
        # The first order in eta = 1/2 is there, what is left is of second order.
        np.testing.assert_allclose(theory, trained, rtol=0.01)
        assert np.abs(arrays["scalar/loss"] - trained).max() > 0.01


@pytest.mark.parametrize(
    ("axes", "theory", "message"),
    [
        ({"ratio": [2.0]}, "simulation", "ratio = 2.0"),
        ({"scale": [0.0]}, "simulation", "scale = 0.0"),
        ({"b1": [0.5]}, "simulation", "b1 = 0.5: sgd does not have it"),
        ({"heads": [0]}, "simulation", "heads = 0"),
        ({"eta": [1.0]}, "sigmoid", "eq. 10 describes merged attention"),
        (
            {"rank": [2]},
            "scalar",
            "SeparateHeads(rank=2): eq. 21 describes separate heads of rank 1",
        ),
    ],
)
def test_bad_sweeps_are_refused(axes: dict, theory: str, message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011  (message checked below)
        Sweep(RUN, axes, theory, ("loss",)).check()
    assert message in str(error.value)
